// Package mqtt proves the parts of MQTT that are beyond what every client
// relies on: shared subscriptions, topic aliases, limits, the hub's own topics,
// and the corners of version 5.
package mqtt

import (
	"testing"

	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/mqttc"
)

func TestMain(m *testing.M) { hubtest.Main(m) }

// clean is a session that ends with its connection.
func clean(id string, version byte) mqttc.Connect {
	return mqttc.Connect{ClientID: id, Version: version, Clean: true}
}

// kept is a session that outlives its connection.
func kept(id string, version byte) mqttc.Connect {
	return mqttc.Connect{ClientID: id, Version: version, SessionExpiry: 3600}
}
