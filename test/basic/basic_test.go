// Package basic proves what every MQTT client relies on: delivery in all
// qualities of service, retained messages, wills, sessions, takeover,
// keep-alive and a clean stop, with MQTT 3.1.1 and 5, and all of it through
// kill -9.
//
// With HUB_TEST_BROKER=mosquitto the tests that need no kill run against
// mosquitto, which checks the tests.
package basic

import (
	"errors"
	"os"
	"testing"

	"edgehub/test/harness"
	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/mqttc"
)

func TestMain(m *testing.M) { hubtest.Main(m) }

// onMosquitto reports whether the tests check themselves.
func onMosquitto() bool { return os.Getenv("HUB_TEST_BROKER") == "mosquitto" }

// serve starts a server for a test that needs nothing but its address.
func serve(t *testing.T) string {
	t.Helper()
	if !onMosquitto() {
		return hubtest.Start(t, dollar).Addr()
	}
	m, err := harness.StartMosquitto("")
	if errors.Is(err, harness.ErrNoMosquitto) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Remove() })
	return m.Addr
}

// dollar adds a stream for topics that begin with "$", which no other filter
// captures.
func dollar(c *harness.Config) {
	c.Streams = append(c.Streams, harness.Stream{Name: "app", Filters: []string{"$app/#", "$end"}})
}

// serveHub starts a hub for a test that kills it or asks hubctl.
func serveHub(t *testing.T) *harness.Hub {
	t.Helper()
	if onMosquitto() {
		t.Skip("needs a hub")
	}
	return hubtest.Start(t, nil)
}

// clean is a session that ends with its connection.
func clean(id string, version byte) mqttc.Connect {
	return mqttc.Connect{ClientID: id, Version: version, Clean: true}
}

// kept is a session that outlives its connection.
func kept(id string, version byte) mqttc.Connect {
	return mqttc.Connect{ClientID: id, Version: version, SessionExpiry: 3600}
}

// versions runs a test for each protocol version.
func versions(t *testing.T, test func(t *testing.T, version byte)) {
	for _, v := range []struct {
		name    string
		version byte
	}{{"3.1.1", 4}, {"5", 5}} {
		t.Run(v.name, func(t *testing.T) { test(t, v.version) })
	}
}
