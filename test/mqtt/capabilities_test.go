package mqtt

import (
	"testing"

	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/mqttc"
)

// TestQoSMax: a hub with a maximum QoS says so, still takes subscriptions of every QoS, and ends who publishes above it
// [MQTT-3.2.2-9 .. -12].
func TestQoSMax(t *testing.T) {
	h := hubtest.Start(t, limits("qos_max = 1"))
	for _, version := range []byte{4, 5} {
		c := hubtest.Dial(t, h.Addr(), clean("c", version))
		if p, ok := c.Connack.Props.Get(mqttc.PropMaximumQoS); version == 5 && (!ok || p.Num != 1) {
			t.Errorf("CONNACK says %v", c.Connack.Props)
		}
		if ack, err := c.Subscribe(mqttc.Filter{Name: "q", Options: 2}); err != nil || len(ack.Codes) != 1 || ack.Codes[0] != 1 {
			t.Errorf("version %d: SUBACK %v %v", version, ack.Codes, err)
		}
		if code := publish(t, c, mqttc.Packet{Topic: "other", QoS: 1}); code != 0 {
			t.Errorf("QoS 1 was refused with %#x", code)
		}
		c.Send(mqttc.Packet{Kind: mqttc.PUBLISH, Topic: "other", QoS: 2, ID: 9})
		wantEnd(t, c, version, 0x9b)

		o := clean("w", version)
		o.Will = &mqttc.Will{Topic: "w", QoS: 2}
		wantRefused(t, h.Addr(), o, 0x9b)
	}
}

// TestNoRetain: a hub without retained messages says so, and ends who publishes one [MQTT-3.2.2-13] [MQTT-3.2.2-14].
func TestNoRetain(t *testing.T) {
	h := hubtest.Start(t, limits("retain = false"))
	for _, version := range []byte{4, 5} {
		c := hubtest.Dial(t, h.Addr(), clean("c", version))
		if p, ok := c.Connack.Props.Get(mqttc.PropRetainAvailable); version == 5 && (!ok || p.Num != 0) {
			t.Errorf("CONNACK says %v", c.Connack.Props)
		}
		c.Send(mqttc.Packet{Kind: mqttc.PUBLISH, Topic: "r", QoS: 1, ID: 9, Retain: true})
		wantEnd(t, c, version, 0x9a)

		o := clean("w", version)
		o.Will = &mqttc.Will{Topic: "w", Retain: true}
		wantRefused(t, h.Addr(), o, 0x9a)
	}
}

// wantEnd waits for the close, in MQTT 5 with a reason.
func wantEnd(t *testing.T, c *hubtest.Client, version, code byte) {
	t.Helper()
	got, err := c.AwaitClose(mqttc.Patience)
	if err != nil {
		t.Fatal(err)
	}
	told := len(got) == 1 && got[0].Kind == mqttc.DISCONNECT && got[0].Code == code
	if version == 5 && !told || version < 5 && len(got) > 0 {
		t.Errorf("version %d: the connection ended with %v", version, got)
	}
}

// wantRefused connects and wants a refusal, which MQTT 5 has a code for.
func wantRefused(t *testing.T, addr string, o mqttc.Connect, code byte) {
	t.Helper()
	c, ack, err := mqttc.Dial(addr, o)
	if err == nil {
		defer c.Abort()
	}
	if o.Version == 5 && (err != nil || ack.Code != code) || o.Version < 5 && err == nil {
		t.Errorf("version %d: %v, %v", o.Version, ack, err)
	}
}
