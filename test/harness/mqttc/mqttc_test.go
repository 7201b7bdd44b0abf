package mqttc_test

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"edgehub/test/harness"
	"edgehub/test/harness/mqttc"
)

// broker starts a server that is not ours, to check the client against.
func broker(t *testing.T) string {
	t.Helper()
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

func dial(t *testing.T, addr string, o mqttc.Connect) (*mqttc.Conn, mqttc.Packet) {
	t.Helper()
	c, ack, err := mqttc.Dial(addr, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Abort)
	if ack.Code != 0 {
		t.Fatalf("refused: %v", ack)
	}
	return c, ack
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestCodecRoundTrip(t *testing.T) {
	props := mqttc.Props{{ID: mqttc.PropMessageExpiry, Num: 70000}, {ID: mqttc.PropSubscriptionID, Num: 300},
		{ID: mqttc.PropTopicAlias, Num: 7}, {ID: mqttc.PropPayloadFormat, Num: 1},
		{ID: mqttc.PropContentType, Str: "text/plain"}, {ID: mqttc.PropUser, Str: "a", Pair: "b"}}
	for _, version := range []byte{4, 5} {
		for _, p := range []mqttc.Packet{
			{Kind: mqttc.CONNACK, SessionPresent: true, Code: 2},
			{Kind: mqttc.PUBLISH, Dup: true, Retain: true, QoS: 2, ID: 513, Topic: "a/b", Payload: []byte("hello"), Props: props},
			{Kind: mqttc.PUBLISH, Topic: "a", Payload: []byte{}},
			{Kind: mqttc.PUBACK, ID: 1}, {Kind: mqttc.PUBREL, ID: 65535},
			{Kind: mqttc.SUBSCRIBE, ID: 9, Filters: []mqttc.Filter{{Name: "a/#", Options: 1}, {Name: "b", Options: 2}}},
			{Kind: mqttc.SUBACK, ID: 9, Codes: []byte{1, 0x80}},
			{Kind: mqttc.UNSUBSCRIBE, ID: 10, Filters: []mqttc.Filter{{Name: "a/#"}}},
			{Kind: mqttc.PINGREQ}, {Kind: mqttc.DISCONNECT},
		} {
			if version == 4 {
				p.Props = nil
			}
			b := p.Append(nil, version)
			got, err := mqttc.Decode(version, b[0], b[2:])
			if err != nil || !reflect.DeepEqual(got, p) {
				t.Errorf("version %d: %v came back as %v, %v", version, p, got, err)
			}
		}
	}
	reason := mqttc.Packet{Kind: mqttc.PUBREC, ID: 3, Code: 0x97, Props: mqttc.Props{{ID: 0x1F, Str: "full"}}}
	b := reason.Append(nil, 5)
	if got, err := mqttc.Decode(5, b[0], b[2:]); err != nil || !reflect.DeepEqual(got, reason) {
		t.Errorf("%v came back as %v, %v", reason, got, err)
	}
	for n := 2; n < len(b)-1; n++ {
		if _, err := mqttc.Decode(5, b[0], b[2:n]); err == nil && n > 4 && n != 5 {
			t.Errorf("% x was accepted", b[2:n])
		}
	}
}

func TestAgainstMosquitto(t *testing.T) {
	addr := broker(t)
	for _, version := range []byte{3, 4, 5} {
		for qos := range byte(3) {
			sub, _ := dial(t, addr, mqttc.Connect{Version: version, ClientID: "sub", Clean: true})
			ack := must[mqttc.Packet](t)(sub.Subscribe(mqttc.Filter{Name: "t/+", Options: 2}, mqttc.Filter{Name: "u/#", Options: 0}))
			if !reflect.DeepEqual(ack.Codes, []byte{2, 0}) {
				t.Fatalf("SUBACK %v", ack)
			}
			pub, _ := dial(t, addr, mqttc.Connect{Version: version, ClientID: "pub", Clean: true})
			for _, topic := range []string{"t/1", "u/1"} {
				out := mqttc.Packet{Topic: topic, Payload: []byte("x"), QoS: qos}
				if version == 5 {
					out.Props = mqttc.Props{{ID: mqttc.PropUser, Str: "k", Pair: "v"}}
				}
				if err := pub.Publish(out); err != nil {
					t.Fatal(err)
				}
				got := must[mqttc.Packet](t)(sub.Receive(mqttc.Patience))
				want := qos
				if topic == "u/1" {
					want = 0
				}
				if got.Topic != topic || string(got.Payload) != "x" || got.QoS != want || version == 5 && len(got.Props) != 1 {
					t.Errorf("version %d: sent %v, got %v", version, out, got)
				}
			}
			must[mqttc.Packet](t)(sub.Unsubscribe("t/+"))
			if err := errors.Join(sub.Ping(), pub.Ping(), pub.Disconnect(), sub.Disconnect()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestSessionAndTakeoverAgainstMosquitto(t *testing.T) {
	addr := broker(t)
	o := mqttc.Connect{Version: 5, ClientID: "keeper", SessionExpiry: 100}
	first, ack := dial(t, addr, o)
	if ack.SessionPresent {
		t.Fatal("a session from nowhere")
	}
	must[mqttc.Packet](t)(first.Subscribe(mqttc.Filter{Name: "s/#", Options: 2}))
	second, ack := dial(t, addr, o)
	if !ack.SessionPresent {
		t.Fatal("no session")
	}
	// Debian's mosquitto closes without the DISCONNECT that MQTT 5 asks for.
	must[[]mqttc.Packet](t)(first.AwaitClose(mqttc.Patience))
	second.Abort()
	pub, _ := dial(t, addr, mqttc.Connect{ClientID: "pub", Clean: true})
	if err := pub.Publish(mqttc.Packet{Topic: "s/1", QoS: 2, Payload: []byte("kept")}); err != nil {
		t.Fatal(err)
	}
	third, _ := dial(t, addr, o)
	// Break off after PUBREC: the server must go on with PUBREL, not PUBLISH.
	got := must[mqttc.Packet](t)(third.Await(mqttc.PUBLISH))
	if err := third.Ack(mqttc.PUBREC, got.ID); err != nil {
		t.Fatal(err)
	}
	must[mqttc.Packet](t)(third.Await(mqttc.PUBREL))
	third.Abort()
	fourth, _ := dial(t, addr, o)
	rel := must[mqttc.Packet](t)(fourth.Next(mqttc.Patience))
	if rel.Kind != mqttc.PUBREL || rel.ID != got.ID {
		t.Fatalf("%v instead of PUBREL", rel)
	}
	if err := errors.Join(fourth.Ack(mqttc.PUBCOMP, rel.ID), fourth.Ping(), fourth.Quiet(50*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
}

func TestWillAndRefusalAgainstMosquitto(t *testing.T) {
	addr := broker(t)
	sub, _ := dial(t, addr, mqttc.Connect{Version: 5, ClientID: "sub", Clean: true})
	must[mqttc.Packet](t)(sub.Subscribe(mqttc.Filter{Name: "will/#", Options: 1}))
	dying, _ := dial(t, addr, mqttc.Connect{Version: 5, ClientID: "dying", Clean: true, Username: "u", Password: "p", KeepAlive: 10,
		Will: &mqttc.Will{Topic: "will/1", Payload: []byte("gone"), QoS: 1, Props: mqttc.Props{{ID: mqttc.PropContentType, Str: "c"}}}})
	dying.Abort()
	got := must[mqttc.Packet](t)(sub.Receive(mqttc.Patience))
	if got.Topic != "will/1" || string(got.Payload) != "gone" || len(got.Props) != 1 {
		t.Fatalf("got %v", got)
	}
	_, ack, err := mqttc.Dial(addr, mqttc.Connect{Version: 4, ClientID: ""})
	if err != nil || ack.Code != 2 {
		t.Fatalf("an empty client id without Clean Session: %v, %v", ack, err)
	}
}
