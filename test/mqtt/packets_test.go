package mqtt

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/mqttc"
)

// TestAcknowledgementsKeepTheirOrder: PUBACK and PUBREC leave in the order of the publishes, although these go to
// several partitions; PUBREL in the order of the PUBRECs [MQTT-4.6.0-2 .. -4].
func TestAcknowledgementsKeepTheirOrder(t *testing.T) {
	addr := hubtest.Start(t, nil).Addr()
	c := hubtest.Dial(t, addr, clean("c", 5))
	for _, qos := range []byte{1, 2} {
		var b []byte
		for i := range 500 {
			p := mqttc.Packet{Kind: mqttc.PUBLISH, Topic: fmt.Sprintf("o/%d", i%17), ID: uint16(i + 1), QoS: qos}
			b = p.Append(b, 5)
		}
		if err := c.SendRaw(b); err != nil {
			t.Fatal(err)
		}
		for i := range 500 {
			p, err := c.Next(mqttc.Patience)
			if err != nil || p.ID != uint16(i+1) || p.Code >= 0x80 {
				t.Fatalf("answer %d at QoS %d: %v, %v", i, qos, p, err)
			}
		}
	}
	for i := range 500 {
		c.Send(mqttc.Packet{Kind: mqttc.PUBREL, ID: uint16(i + 1)})
	}
	for i := range 500 {
		if p := c.WantPacket(mqttc.PUBCOMP); p.ID != uint16(i+1) {
			t.Fatalf("PUBCOMP %d: %v", i, p)
		}
	}
	sub := hubtest.Dial(t, addr, clean("sub", 5))
	sub.Sub("r/#", 2)
	for i := range 50 {
		c.Pub(fmt.Sprintf("r/%d", i%17), "x", 2)
	}
	var ids []uint16
	for range 50 {
		ids = append(ids, sub.WantPacket(mqttc.PUBLISH).ID)
	}
	slices.Reverse(ids)
	for _, id := range ids {
		sub.Send(mqttc.Packet{Kind: mqttc.PUBREC, ID: id})
	}
	for i, id := range ids {
		if p := sub.WantPacket(mqttc.PUBREL); p.ID != id {
			t.Fatalf("PUBREL %d: %v, want id %d", i, p, id)
		}
	}
}

// TestOneAnswerForManyFilters: one SUBACK and one UNSUBACK, a code for each filter in order, with the request's packet
// id [MQTT-3.8.4-5 .. -7] [MQTT-3.10.4-5 .. -6].
func TestOneAnswerForManyFilters(t *testing.T) {
	addr := hubtest.Start(t, nil).Addr()
	for _, version := range []byte{4, 5} {
		c := hubtest.Dial(t, addr, clean("c", version))
		bad, none := byte(0x80), byte(0)
		if version == 5 {
			bad, none = 0x8F, 0x11
		}
		c.Send(mqttc.Packet{Kind: mqttc.SUBSCRIBE, ID: 700, Filters: []mqttc.Filter{{Name: "a", Options: 2}, {Name: "b/" + strings.Repeat("/", 200)}, {Name: "c", Options: 1}, {Name: "d"}, {Name: "a", Options: 1}}})
		if p := c.WantPacket(mqttc.SUBACK); p.ID != 700 || !slices.Equal(p.Codes, []byte{2, bad, 1, 0, 1}) {
			t.Errorf("version %d: %v, codes % x", version, p, p.Codes)
		}
		c.Send(mqttc.Packet{Kind: mqttc.UNSUBSCRIBE, ID: 701, Filters: []mqttc.Filter{{Name: "a"}, {Name: "never"}, {Name: "c"}, {Name: "a"}}})
		p := c.WantPacket(mqttc.UNSUBACK)
		if version == 5 && !slices.Equal(p.Codes, []byte{0, none, 0, none}) || p.ID != 701 {
			t.Errorf("version %d: %v, codes % x", version, p, p.Codes)
		}
		c.Bye()
	}
}

// TestNothingAfterARefusedConnect: what a client sends behind a CONNECT that is refused is not looked at
// [MQTT-3.1.4-6]; nor is what it sends behind its DISCONNECT.
func TestNothingAfterARefusedConnect(t *testing.T) {
	addr := hubtest.Start(t, nil).Addr()
	sub := hubtest.Dial(t, addr, clean("sub", 5))
	sub.Sub("#", 1)
	p := mqttc.Packet{Kind: mqttc.PUBLISH, Topic: "after", Payload: []byte("x")}
	o := clean("c", 5)
	o.Props = mqttc.Props{{ID: 0x15, Str: "unknown"}}
	c, err := mqttc.Open(addr, 5)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Abort)
	if err := c.SendRaw(p.Append(o.Append(nil), 5)); err != nil {
		t.Fatal(err)
	}
	got, err := c.AwaitClose(mqttc.Patience)
	if err != nil || len(got) != 1 || got[0].Kind != mqttc.CONNACK || got[0].Code != 0x8C || got[0].SessionPresent {
		t.Errorf("got %v, %v", got, err)
	}
	d := hubtest.Dial(t, addr, clean("d", 5))
	bye := mqttc.Packet{Kind: mqttc.DISCONNECT}
	if err := d.SendRaw(p.Append(bye.Append(nil, 5), 5)); err != nil {
		t.Fatal(err)
	}
	if got := d.WantClose(mqttc.Patience); len(got) != 0 {
		t.Errorf("after DISCONNECT came %v", got)
	}
	sub.WantNothing()
}

// TestEverythingBehindConnect: a client need not wait for the CONNACK.
func TestEverythingBehindConnect(t *testing.T) {
	addr := hubtest.Start(t, nil).Addr()
	for _, version := range []byte{3, 4, 5} {
		o := clean("c", version)
		s := mqttc.Packet{Kind: mqttc.SUBSCRIBE, ID: 1, Filters: []mqttc.Filter{{Name: "own"}}}
		p := mqttc.Packet{Kind: mqttc.PUBLISH, Topic: "own", Payload: []byte("x")}
		c, err := mqttc.Open(addr, version)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Abort)
		if err := c.SendRaw(p.Append(s.Append(o.Append(nil), version), version)); err != nil {
			t.Fatal(err)
		}
		for _, kind := range []byte{mqttc.CONNACK, mqttc.SUBACK, mqttc.PUBLISH} {
			if p, err := c.Next(mqttc.Patience); err != nil || p.Kind != kind || p.Code != 0 {
				t.Fatalf("version %d: want %s, got %v, %v", version, mqttc.KindName(kind), p, err)
			}
		}
	}
}

// TestDupIsNotPassedOn: DUP says whether this packet is a repetition, not whether the publisher's was [MQTT-3.3.1-3].
func TestDupIsNotPassedOn(t *testing.T) {
	addr := hubtest.Start(t, nil).Addr()
	sub := hubtest.Dial(t, addr, clean("sub", 5))
	sub.Sub("d", 2)
	pub := hubtest.Dial(t, addr, clean("pub", 5))
	for _, qos := range []byte{1, 2} {
		pub.PubPacket(mqttc.Packet{Topic: "d", Payload: []byte("x"), QoS: qos, Dup: true})
		if p := sub.Want("d", "x", qos); p.Dup {
			t.Errorf("QoS %d came with DUP", qos)
		}
	}
}

// TestAssignedClientID: a client without an id gets one of its own, and MQTT 5 clients are told [MQTT-3.1.3-6 .. -7].
func TestAssignedClientID(t *testing.T) {
	addr := hubtest.Start(t, nil).Addr()
	seen := map[string]bool{}
	for range 20 {
		c := hubtest.Dial(t, addr, mqttc.Connect{Version: 5, Clean: true})
		id, ok := c.Connack.Props.Get(mqttc.PropAssignedClient)
		if !ok || id.Str == "" || seen[id.Str] {
			t.Fatalf("assigned %v", id)
		}
		seen[id.Str] = true
	}
	hubtest.Dial(t, addr, mqttc.Connect{Version: 4, Clean: true})
	if _, ok := hubtest.Dial(t, addr, clean("named", 5)).Connack.Props.Get(mqttc.PropAssignedClient); ok {
		t.Error("a client with an id was assigned another one")
	}
}

// TestTextIsNotTouched: names are compared and passed on byte by byte: no byte order mark is stripped, nothing is
// normalised [MQTT-1.5.4-3] [MQTT-4.7.3-4].
func TestTextIsNotTouched(t *testing.T) {
	addr := hubtest.Start(t, nil).Addr()
	c := hubtest.Dial(t, addr, clean("c", 5))
	c.Sub("t/+", 1)
	c.Sub("\ufeffmark", 1)
	c.Sub("t/plain", 1)
	pub := hubtest.Dial(t, addr, clean("pub", 5))
	for _, topic := range []string{"t/\ufeffx", "t/\u00e9", "t/e\u0301", "t/UPPER", "t/ space ", "t/", "\ufeffmark"} {
		pub.Pub(topic, topic, 1)
		c.Want(topic, topic, 1)
	}
	for _, topic := range []string{"mark", "T/plain", "t/plain/", "/t/plain", "t//plain"} {
		pub.Pub(topic, topic, 1)
	}
	c.WantNothing()
}

// TestSessionPresentOfOldClients: MQTT 3.1 has no such flag: its byte is reserved.
func TestSessionPresentOfOldClients(t *testing.T) {
	addr := hubtest.Start(t, nil).Addr()
	for _, version := range []byte{3, 4, 5} {
		id := fmt.Sprint("c", version)
		if hubtest.Dial(t, addr, kept(id, version)).Connack.SessionPresent {
			t.Errorf("version %d: a session from nowhere", version)
		}
		c := hubtest.Dial(t, addr, kept(id, version))
		if c.Connack.SessionPresent != (version > 3) {
			t.Errorf("version %d: session present is %t", version, c.Connack.SessionPresent)
		}
		c.Bye()
	}
}

// TestServerKeepAlive: a keep-alive that is longer than the hub allows is shortened, and MQTT 5 clients are told
// [MQTT-3.2.2-21 .. -22].
func TestServerKeepAlive(t *testing.T) {
	addr := hubtest.Start(t, limits(`keep_alive_max = "60s"`)).Addr()
	for asked, told := range map[uint16]uint32{0: 60, 30: 0, 60: 0, 61: 60, 65535: 60} {
		o := clean("c", 5)
		o.KeepAlive = asked
		p, has := hubtest.Dial(t, addr, o).Connack.Props.Get(mqttc.PropServerKeepAlive)
		if has != (told > 0) || p.Num != told {
			t.Errorf("asked for %d, told %v", asked, p)
		}
	}
}
