package mqtt

import (
	"strconv"
	"strings"
	"testing"

	"edgehub/test/harness"
	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/mqttc"
)

// fastSys has the hub's own topics published every second.
func fastSys(c *harness.Config) { c.Hub = append(c.Hub, `sys_interval = "1s"`) }

// TestSysTopics: a subscriber gets what matches at once, as retained, then changes; the values are true.
func TestSysTopics(t *testing.T) {
	addr := hubtest.Start(t, fastSys).Addr()
	c := hubtest.Dial(t, addr, clean("c", 5))
	c.Sub("$SYS/broker/clients/+", 0)
	values := map[string]string{}
	for len(values) < 7 {
		p, err := c.Receive(mqttc.Patience)
		if err != nil {
			t.Fatalf("%v; got %v", err, values)
		}
		if p.QoS != 0 || !strings.HasPrefix(p.Topic, "$SYS/broker/clients/") {
			t.Fatalf("got %v", p)
		}
		if p.Retain { // a change that was published at that moment may come before
			values[p.Topic] = string(p.Payload)
		}
	}
	hubtest.Dial(t, addr, clean("d", 5))
	for {
		p, err := c.Receive(mqttc.Patience)
		if err != nil {
			t.Fatalf("no change was published: %v", err)
		}
		if p.Topic == "$SYS/broker/clients/connected" && string(p.Payload) == "2" {
			if p.Retain {
				t.Error("a change is not a retained message")
			}
			break
		}
	}
}

// TestSysIsNoStream: the topics are not in the log, and no wildcard in front matches them.
func TestSysIsNoStream(t *testing.T) {
	h := hubtest.Start(t, fastSys)
	c := hubtest.Dial(t, h.Addr(), clean("c", 5))
	c.Sub("#", 1)
	c.Sub("+/broker/uptime", 1)
	own := hubtest.Dial(t, h.Addr(), clean("own", 5))
	own.Sub("$SYS/broker/uptime", 1)
	for range 2 {
		if p, err := own.Receive(mqttc.Patience); err != nil || !strings.HasSuffix(string(p.Payload), " seconds") {
			t.Fatalf("got %v %q, %v", p, p.Payload, err)
		}
	}
	c.WantNothing()
	st, err := h.Status()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range st.Streams {
		for _, p := range s.Partitions {
			if p.NextOffset > 0 {
				t.Errorf("stream %s has %d records", s.Name, p.NextOffset)
			}
		}
	}
}

// TestSysRefusesPublishers: the topics are the hub's own. Who cannot be told is acknowledged all the same
// [MQTT-3.3.5-2 of 3.1.1].
func TestSysRefusesPublishers(t *testing.T) {
	h := hubtest.Start(t, nil)
	sub := hubtest.Dial(t, h.Addr(), clean("sub", 5))
	sub.Sub("$SYS/mine", 0)
	for _, name := range []string{"$SYS/mine", "$SYS", "$share/g/a", "$unrouted/a"} {
		for qos, ack := range []byte{0, mqttc.PUBACK, mqttc.PUBREC} {
			old := hubtest.Dial(t, h.Addr(), clean("old", 4))
			now := hubtest.Dial(t, h.Addr(), clean("now", 5))
			p := mqttc.Packet{Kind: mqttc.PUBLISH, Topic: name, QoS: byte(qos), ID: uint16(qos), Payload: []byte("x")}
			old.Send(p)
			now.Send(p)
			if qos > 0 {
				old.WantPacket(ack)
				if a := now.WantPacket(ack); a.Code != 0x87 {
					t.Errorf("%s at QoS %d: answered with %v", name, qos, a)
				}
			}
			old.WantNothing()
			now.WantNothing()
			old.Bye()
			now.Bye()
		}
	}
	sub.WantNothing()
	st, err := h.Status()
	if err != nil {
		t.Fatal(err)
	}
	if n := st.Dropped["refused_no_stream"]; n != 24 {
		t.Errorf("%d refusals counted, want 24: %v", n, st.Dropped)
	}
}

// TestSysCounts: what the hub counts, the hub says.
func TestSysCounts(t *testing.T) {
	addr := hubtest.Start(t, fastSys).Addr()
	pub := hubtest.Dial(t, addr, clean("pub", 5))
	for i := range 10 {
		pub.PubPacket(mqttc.Packet{Topic: "r/" + strconv.Itoa(i%3), Payload: []byte("x"), QoS: 1, Retain: true})
	}
	c := hubtest.Dial(t, addr, clean("c", 5))
	c.Sub("$SYS/broker/load/messages/received/+", 0)
	for seen := map[string]bool{}; len(seen) < 3; {
		p, err := c.Receive(mqttc.Patience)
		if err != nil {
			t.Fatalf("%v; averages above 0: %v", err, seen)
		}
		if v, err := strconv.ParseFloat(string(p.Payload), 64); err == nil && v > 0 && v < 100 {
			seen[strings.TrimPrefix(p.Topic, "$SYS/broker/load/messages/received/")] = true
		}
	}
	c.Sub("$SYS/broker/#", 0)
	want := map[string]string{"publish/messages/received": "10", "retained messages/count": "3", "store/messages/count": "10"}
	for len(want) > 0 {
		p, err := c.Receive(mqttc.Patience)
		if err != nil {
			t.Fatalf("%v; missing %v", err, want)
		}
		if name := strings.TrimPrefix(p.Topic, "$SYS/broker/"); want[name] == string(p.Payload) {
			delete(want, name)
		}
	}
}
