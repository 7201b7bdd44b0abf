package mqtt

import (
	"fmt"
	"strings"
	"testing"

	"edgehub/test/harness"
	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/mqttc"
)

const (
	quotaExceeded = 0x97
	badPayload    = 0x99
)

func limits(lines ...string) func(*harness.Config) {
	return func(c *harness.Config) { c.Limits = lines }
}

// publish sends one message at QoS 1 or 2 and returns the reason code of the answer.
func publish(t *testing.T, c *hubtest.Client, p mqttc.Packet) byte {
	t.Helper()
	p.Kind, p.ID = mqttc.PUBLISH, c.NextID()
	c.Send(p)
	a, err := c.Next(mqttc.Patience)
	if err != nil || a.ID != p.ID {
		t.Fatalf("publish to %q: %v, %v", p.Topic, a, err)
	}
	if a.Kind == mqttc.PUBREC && a.Code < 0x80 {
		if _, err := c.Request(mqttc.Packet{Kind: mqttc.PUBREL, ID: p.ID}, mqttc.PUBCOMP); err != nil {
			t.Fatal(err)
		}
	}
	return a.Code
}

func dropped(t *testing.T, h *harness.Hub, reason string) int64 {
	t.Helper()
	st, err := h.Status()
	if err != nil {
		t.Fatal(err)
	}
	return st.Dropped[reason]
}

// TestPublishRate: beyond its rate a client is refused, or dropped at QoS 0; a moment later it may again.
func TestPublishRate(t *testing.T) {
	for _, limit := range []string{"publish_messages_per_s = 20", `publish_bytes_per_s = "1KiB"`} {
		t.Run(limit, func(t *testing.T) {
			h := hubtest.Start(t, limits(limit))
			c := hubtest.Dial(t, h.Addr(), clean("c", 5))
			m := mqttc.Packet{Topic: "rate", Payload: []byte(strings.Repeat("x", 60)), QoS: 1}
			refused := 0
			for i := range 60 {
				m.QoS = byte(1 + i%2)
				switch code := publish(t, c, m); code {
				case 0:
				case quotaExceeded:
					refused++
				default:
					t.Fatalf("code %#x", code)
				}
			}
			if refused == 0 || refused == 60 {
				t.Fatalf("%d of 60 were refused", refused)
			}
			if n := dropped(t, h, "refused_publish_rate"); n != int64(refused) {
				t.Errorf("%d refusals are counted, %d came", n, refused)
			}
			hubtest.Eventually(t, mqttc.Patience, "another message is taken", func() bool { return publish(t, c, m) == 0 })
			other := hubtest.Dial(t, h.Addr(), clean("other", 4))
			for range 60 {
				other.Pub("rate", strings.Repeat("x", 60), 0)
			}
			other.WantNothing()
			if n := dropped(t, h, "refused_publish_rate"); n <= int64(refused) {
				t.Error("no QoS 0 message was dropped")
			}
		})
	}
}

// TestRetainedLimits: a retained message beyond the limits is refused; one that replaces another is not, nor one that
// clears; the counts survive a kill.
func TestRetainedLimits(t *testing.T) {
	h := hubtest.Start(t, limits("retained_messages = 3", `retained_bytes = "2KiB"`))
	m := func(topic, payload string) mqttc.Packet {
		return mqttc.Packet{Topic: topic, Payload: []byte(payload), QoS: 1, Retain: true}
	}
	c := hubtest.Dial(t, h.Addr(), clean("c", 5))
	for i := range 5 {
		want := byte(0)
		if i >= 3 {
			want = quotaExceeded
		}
		if code := publish(t, c, m(fmt.Sprintf("r/%d", i), "x")); code != want {
			t.Errorf("retained message %d: code %#x", i, code)
		}
	}
	hubtest.Restart(t, h)
	c = hubtest.Dial(t, h.Addr(), clean("c", 5))
	steps := []struct {
		topic, payload string
		code           byte
	}{
		{"r/3", "x", quotaExceeded},
		{"r/0", "replaced", 0},
		{"r/1", "", 0},
		{"r/3", "x", 0},
		{"r/1", "x", quotaExceeded},
		{"r/0", strings.Repeat("x", 3000), quotaExceeded},
		{"r/0", strings.Repeat("x", 1900), 0},
		{"r/2", strings.Repeat("x", 300), quotaExceeded},
		{"r/0", "", 0},
		{"r/2", strings.Repeat("x", 300), 0},
	}
	for i, s := range steps {
		if code := publish(t, c, m(s.topic, s.payload)); code != s.code {
			t.Errorf("step %d, %d bytes to %s: code %#x, want %#x", i, len(s.payload), s.topic, code, s.code)
		}
	}
	if n := dropped(t, h, "refused_retained_full"); n != 4 {
		t.Errorf("%d refusals counted since the restart, want 4", n)
	}
	if code := publish(t, c, mqttc.Packet{Topic: "r/9", Payload: []byte("not retained"), QoS: 1}); code != 0 {
		t.Errorf("a message that is not retained: code %#x", code)
	}
}

// TestPayloadFormat: asked to, the hub looks whether a payload is what it is said to be [MQTT-3.3.2-4].
func TestPayloadFormat(t *testing.T) {
	utf8 := mqttc.Props{{ID: mqttc.PropPayloadFormat, Num: 1}}
	bad := mqttc.Packet{Topic: "f", Payload: []byte("a\xffb"), QoS: 1, Props: utf8}
	for _, asked := range []bool{false, true} {
		h := hubtest.Start(t, limits(fmt.Sprintf("validate_payload_format = %t", asked)))
		want := byte(0)
		if asked {
			want = badPayload
		}
		c := hubtest.Dial(t, h.Addr(), clean("c", 5))
		for _, qos := range []byte{1, 2} {
			bad.QoS = qos
			if code := publish(t, c, bad); code != want {
				t.Errorf("asked %t, QoS %d: code %#x", asked, qos, code)
			}
		}
		if code := publish(t, c, mqttc.Packet{Topic: "f", Payload: []byte("äöü"), QoS: 1, Props: utf8}); code != 0 {
			t.Errorf("a good payload: code %#x", code)
		}
		if code := publish(t, c, mqttc.Packet{Topic: "f", Payload: []byte("a\xffb"), QoS: 1}); code != 0 {
			t.Errorf("a payload of which nothing is said: code %#x", code)
		}
		if !asked {
			continue
		}
		c.Send(mqttc.Packet{Kind: mqttc.PUBLISH, Topic: "f", Payload: []byte("a\xffb"), Props: utf8})
		wantReason(t, c, badPayload)
		o := clean("will", 5)
		o.Will = &mqttc.Will{Topic: "w", Payload: []byte("a\xffb"), Props: utf8}
		conn, ack, err := mqttc.Dial(h.Addr(), o)
		if err != nil || ack.Code != badPayload {
			t.Fatalf("a will with a bad payload: %v, %v", ack, err)
		}
		conn.Abort()
	}
}

// TestFlapping: clients with the same id cannot keep each other out for ever: the last one stays.
func TestFlapping(t *testing.T) {
	h := hubtest.Start(t, limits("takeovers_per_minute = 5"))
	last := hubtest.Dial(t, h.Addr(), clean("same", 5))
	for range 5 {
		next := hubtest.Dial(t, h.Addr(), clean("same", 5))
		wantReason(t, last, 0x8E)
		last = next
	}
	for _, version := range []byte{4, 5} {
		conn, ack, err := mqttc.Dial(h.Addr(), clean("same", version))
		if version == 5 && (err != nil || ack.Code != 0x9F) {
			t.Errorf("got %v, %v", ack, err)
		}
		if version == 4 && err == nil && ack.Code == 0 {
			t.Errorf("got %v", ack)
		}
		if conn != nil {
			conn.Abort()
		}
	}
	last.WantNothing() // it is still there
	hubtest.Dial(t, h.Addr(), clean("other", 5))
	last.Bye()
	hubtest.Dial(t, h.Addr(), clean("same", 5)) // nobody is kept out who keeps nobody out
	if n := dropped(t, h, "refused_flapping"); n != 2 {
		t.Errorf("%d refusals counted, want 2", n)
	}
}

// TestResponseInformation: told to those who ask, when there is some [MQTT-3.1.2-28].
func TestResponseInformation(t *testing.T) {
	const asks, informs = 0x19, 0x1A
	h := hubtest.Start(t, func(c *harness.Config) { c.Hub = []string{`response_information = "answers/{client}"`} })
	o := clean("c", 5)
	if _, has := hubtest.Dial(t, h.Addr(), o).Connack.Props.Get(informs); has {
		t.Error("told without being asked")
	}
	o.ClientID, o.Props = "d", mqttc.Props{{ID: asks, Num: 1}}
	if p, _ := hubtest.Dial(t, h.Addr(), o).Connack.Props.Get(informs); p.Str != "answers/d" {
		t.Errorf("told %v", p)
	}
}

// TestReasonsOnlyWhenWanted: a client that wants no problem information gets no reason string [MQTT-3.1.2-29].
func TestReasonsOnlyWhenWanted(t *testing.T) {
	const problems, reason = 0x17, 0x1F
	addr := hubtest.Start(t, nil).Addr()
	for _, wants := range []uint32{0, 1} {
		o := clean("c", 5)
		o.Props = mqttc.Props{{ID: problems, Num: wants}}
		c := hubtest.Dial(t, addr, o)
		c.Send(mqttc.Packet{Kind: mqttc.PUBLISH, Topic: "a/+"})
		_, has := wantReason(t, c, 0x90, 0x81, 0x82).Props.Get(reason)
		if has != (wants == 1) {
			t.Errorf("wanted %d, a reason string came: %t", wants, has)
		}
	}
}

// TestUnknownAuthMethod: the hub has no method of extended authentication [MQTT-4.12.0-1].
func TestUnknownAuthMethod(t *testing.T) {
	addr := hubtest.Start(t, nil).Addr()
	o := clean("c", 5)
	o.Props = mqttc.Props{{ID: 0x15, Str: "SCRAM-SHA-1"}, {ID: 0x16, Str: "data"}}
	conn, ack, err := mqttc.Dial(addr, o)
	if err != nil || ack.Code != 0x8C {
		t.Fatalf("got %v, %v", ack, err)
	}
	conn.Abort()
	c := hubtest.Dial(t, addr, clean("c", 5))
	c.Send(mqttc.Packet{Kind: mqttc.AUTH, Code: 0x19, Props: mqttc.Props{{ID: 0x15, Str: "SCRAM-SHA-1"}}})
	wantReason(t, c, 0x82)
}

// TestReasonReachesABusyClient: what the hub says before it closes is seen also by a client that is still sending.
func TestReasonReachesABusyClient(t *testing.T) {
	addr := hubtest.Start(t, nil).Addr()
	for range 20 {
		c := hubtest.Dial(t, addr, clean("c", 5))
		go func() {
			bad := mqttc.Packet{Kind: mqttc.PUBLISH, Topic: "a/+"}
			b := bad.Append(nil, 5)
			more := mqttc.Packet{Kind: mqttc.PUBLISH, Topic: "a", Payload: make([]byte, 1000)}
			for range 200 {
				b = more.Append(b, 5)
			}
			_ = c.SendRaw(b)
			_ = c.SendRaw(b) // fails when the hub has closed
		}()
		wantReason(t, c, 0x90, 0x81, 0x82)
	}
}

// TestSessionLivesUntilItsConnectionEnds: an expiry of 0 at a reconnect ends the session with that connection, not
// before.
func TestSessionLivesUntilItsConnectionEnds(t *testing.T) {
	addr := hubtest.Start(t, nil).Addr()
	c := hubtest.Dial(t, addr, kept("c", 5))
	c.Sub("s/#", 2)
	c.Bye()
	pub := hubtest.Dial(t, addr, clean("pub", 5))
	pub.Pub("s/1", "one", 1)
	pub.Pub("s/1", "two", 2)
	c = hubtest.Dial(t, addr, mqttc.Connect{Version: 5, ClientID: "c"}) // no expiry: 0
	if !c.Connack.SessionPresent {
		t.Fatal("the session is gone")
	}
	c.Want("s/1", "one", 1)
	c.Want("s/1", "two", 2)
	pub.Pub("s/1", "three", 1)
	c.Want("s/1", "three", 1)
	c.Bye()
	c = hubtest.Dial(t, addr, kept("c", 5))
	if c.Connack.SessionPresent {
		t.Error("the session outlived its connection")
	}
}
