package basic

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/mqttc"
)

func TestQoSIsTheLowerOfBoth(t *testing.T) {
	addr := serve(t)
	for _, version := range []byte{3, 4, 5} {
		sub := hubtest.Dial(t, addr, clean("sub", version))
		pub := hubtest.Dial(t, addr, clean("pub", version))
		for granted := range byte(3) {
			sub.Sub(fmt.Sprintf("q/%d/#", granted), granted)
			for sent := range byte(3) {
				topic := fmt.Sprintf("q/%d/x", granted)
				payload := fmt.Sprintf("version %d granted %d sent %d", version, granted, sent)
				pub.Pub(topic, payload, sent)
				if p := sub.Want(topic, payload, min(granted, sent)); p.Retain || p.Dup {
					t.Errorf("%s: %v", payload, p)
				}
			}
		}
		sub.WantNothing()
		sub.Bye()
		pub.Bye()
	}
}

func TestPayloadSizes(t *testing.T) {
	addr := serve(t)
	sub := hubtest.Dial(t, addr, clean("sub", 4))
	sub.Sub("size", 1)
	pub := hubtest.Dial(t, addr, clean("pub", 5))
	for _, size := range []int{0, 1, 126, 127, 128, 16_000, 16_384, 65_535, 65_536, 131_072, 1_000_000} {
		payload := strings.Repeat("z", size)
		pub.Pub("size", payload, 1)
		sub.Want("size", payload, 1)
	}
}

// TestWildcards asks one connection per filter, so that overlaps do not hide
// anything.
func TestWildcards(t *testing.T) {
	addr := serve(t)
	topics := []string{"a", "a/b", "a/b/c", "a/", "/a", "/", "b", "b/b", "a//b", "ab", "A", "$app/a", "é/ü", "a b"}
	pub := hubtest.Dial(t, addr, clean("pub", 4))
	for _, tt := range []struct {
		filter string
		want   []string
	}{
		{"a", []string{"a"}},
		{"a/b", []string{"a/b"}},
		{"#", []string{"a", "a/b", "a/b/c", "a/", "/a", "/", "b", "b/b", "a//b", "ab", "A", "é/ü", "a b"}},
		{"+", []string{"a", "b", "ab", "A", "a b"}},
		{"a/#", []string{"a", "a/b", "a/b/c", "a/", "a//b"}},
		{"a/+", []string{"a/b", "a/"}},
		{"+/b", []string{"a/b", "b/b"}},
		{"+/+", []string{"a/b", "a/", "/a", "/", "b/b", "é/ü"}},
		{"/+", []string{"/a", "/"}},
		{"+/#", []string{"a", "a/b", "a/b/c", "a/", "/a", "/", "b", "b/b", "a//b", "ab", "A", "é/ü", "a b"}},
		{"a/+/#", []string{"a/b", "a/b/c", "a/", "a//b"}},
		{"a/+/b", []string{"a//b"}},
		{"+/b/#", []string{"a/b", "a/b/c", "b/b"}},
		{"$app/#", []string{"$app/a"}},
		{"$app/+", []string{"$app/a"}},
		{"+/a", []string{"/a"}},
		{"é/+", []string{"é/ü"}},
	} {
		sub := hubtest.Dial(t, addr, clean("sub", 4))
		sub.Sub(tt.filter, 0)
		for _, topic := range topics {
			pub.Pub(topic, "x", 1)
		}
		pub.Pub("$end", "x", 1)
		sub.Sub("$end", 0) // from here on a fence passes
		pub.Pub("$end", "x", 1)
		var got []string
		for {
			p, err := sub.Receive(mqttc.Patience)
			if err != nil {
				t.Fatalf("%q: %v", tt.filter, err)
			}
			if p.Topic == "$end" {
				break
			}
			got = append(got, p.Topic)
		}
		// Topics live in different partitions, so their order among each
		// other is not promised.
		slices.Sort(got)
		slices.Sort(tt.want)
		if !slices.Equal(got, tt.want) {
			t.Errorf("%q: got %q, want %q", tt.filter, got, tt.want)
		}
		sub.Bye()
	}
}

func TestUnsubscribe(t *testing.T) {
	addr := serve(t)
	versions(t, func(t *testing.T, version byte) {
		sub := hubtest.Dial(t, addr, clean("sub", version))
		pub := hubtest.Dial(t, addr, clean("pub", version))
		sub.Sub("u/a", 1)
		sub.Sub("u/b", 1)
		ack, err := sub.Unsubscribe("u/a", "u/never")
		if err != nil {
			t.Fatal(err)
		}
		if version == 5 && !slices.Equal(ack.Codes, []byte{0, 0x11}) {
			t.Errorf("UNSUBACK codes % x", ack.Codes)
		}
		pub.Pub("u/a", "no", 1)
		pub.Pub("u/b", "yes", 1)
		sub.Want("u/b", "yes", 1)
		sub.WantNothing()
	})
}

// TestOrder sends fast on one topic and expects the same order at every
// quality of service.
func TestOrder(t *testing.T) {
	const n = 500
	addr := serve(t)
	versions(t, func(t *testing.T, version byte) {
		for qos := range byte(3) {
			sub := hubtest.Dial(t, addr, clean("sub", version))
			sub.Sub("order", qos)
			pub := hubtest.Dial(t, addr, clean("pub", version))
			for i := range n {
				pub.Send(mqttc.Packet{Kind: mqttc.PUBLISH, Topic: "order", QoS: 1, ID: uint16(i + 1), Payload: fmt.Append(nil, i)})
			}
			for i := range n {
				if ack := pub.WantPacket(mqttc.PUBACK); ack.ID != uint16(i+1) {
					t.Fatalf("acknowledgement %d has packet id %d", i, ack.ID)
				}
			}
			for i := range n {
				sub.Want("order", fmt.Sprint(i), min(qos, 1))
			}
			sub.Bye()
		}
	})
}

func TestProperties(t *testing.T) {
	addr := serve(t)
	sub := hubtest.Dial(t, addr, clean("sub", 5))
	sub.Sub("props", 1)
	old := hubtest.Dial(t, addr, clean("old", 4))
	old.Sub("props", 1)
	pub := hubtest.Dial(t, addr, clean("pub", 5))
	sent := mqttc.Props{
		{ID: mqttc.PropPayloadFormat, Num: 1}, {ID: mqttc.PropContentType, Str: "text/plain"},
		{ID: mqttc.PropResponseTopic, Str: "answers"}, {ID: mqttc.PropCorrelation, Str: "\x00\x01"},
		{ID: mqttc.PropUser, Str: "k", Pair: "2"}, {ID: mqttc.PropUser, Str: "k", Pair: "1"}, {ID: mqttc.PropUser, Str: "a", Pair: ""},
	}
	pub.PubPacket(mqttc.Packet{Topic: "props", QoS: 1, Payload: []byte("x"), Props: append(slices.Clone(sent), mqttc.Prop{ID: mqttc.PropMessageExpiry, Num: 1000})})
	got := sub.Want("props", "x", 1).Props
	for _, want := range sent {
		if !slices.Contains(got, want) {
			t.Errorf("property %v is lost: %v", want, got)
		}
	}
	if users := got.All(mqttc.PropUser); !slices.Equal(users, sent[4:]) {
		t.Errorf("user properties %v, want %v in that order", users, sent[4:])
	}
	if e, ok := got.Get(mqttc.PropMessageExpiry); !ok || e.Num > 1000 || e.Num < 990 {
		t.Errorf("expiry %v", e)
	}
	old.Want("props", "x", 1)
}

func TestExpiredIsNotDelivered(t *testing.T) {
	addr := serve(t)
	hubtest.Dial(t, addr, kept("exp", 5)).Sub("exp/#", 1)
	sub := hubtest.Dial(t, addr, kept("exp", 5))
	sub.Bye()
	pub := hubtest.Dial(t, addr, clean("pub", 5))
	for _, s := range []uint32{1, 100} {
		pub.PubPacket(mqttc.Packet{Topic: "exp/a", QoS: 1, Payload: fmt.Append(nil, s), Props: mqttc.Props{{ID: mqttc.PropMessageExpiry, Num: s}}})
	}
	<-time.After(2100 * time.Millisecond)
	sub = hubtest.Dial(t, addr, kept("exp", 5))
	p := sub.Want("exp/a", "100", 1)
	if e, _ := p.Props.Get(mqttc.PropMessageExpiry); e.Num > 98 || e.Num < 90 {
		t.Errorf("expiry left: %v", e)
	}
	sub.WantNothing()
}

func TestSubscriptionOptions(t *testing.T) {
	addr := serve(t)
	c := hubtest.Dial(t, addr, clean("self", 5))
	const noLocal, asPublished, never = 1 << 2, 1 << 3, 2 << 4
	c.Sub("own/#", 1|noLocal)
	c.Pub("own/x", "mine", 1)
	c.WantNothing()
	other := hubtest.Dial(t, addr, clean("other", 5))
	other.Pub("own/x", "theirs", 1)
	c.Want("own/x", "theirs", 1)

	other.PubPacket(mqttc.Packet{Topic: "keep/1", QoS: 1, Retain: true, Payload: []byte("r")})
	c.Sub("keep/#", 1|never)
	c.WantNothing()
	c.Sub("keep/+", 1|asPublished)
	if p := c.Want("keep/1", "r", 1); !p.Retain {
		t.Error("a retained message came without its flag")
	}
	if _, err := c.Unsubscribe("keep/#"); err != nil {
		t.Fatal(err)
	}
	other.PubPacket(mqttc.Packet{Topic: "keep/1", QoS: 1, Retain: true, Payload: []byte("live")})
	if p := c.Want("keep/1", "live", 1); !p.Retain {
		t.Error("retain as published is not honoured")
	}
	const onlyNew = 1 << 4
	c.Sub("keep/+", 1|onlyNew)
	c.WantNothing()
}

func TestSubscriptionIdentifier(t *testing.T) {
	addr := serve(t)
	c := hubtest.Dial(t, addr, clean("sub", 5))
	_, err := c.Request(mqttc.Packet{Kind: mqttc.SUBSCRIBE, ID: c.NextID(), Filters: []mqttc.Filter{{Name: "id/#", Options: 1}},
		Props: mqttc.Props{{ID: mqttc.PropSubscriptionID, Num: 300}}}, mqttc.SUBACK)
	if err != nil {
		t.Fatal(err)
	}
	c.Pub("id/x", "x", 1)
	p, err := c.Await(mqttc.PUBLISH)
	if err != nil {
		t.Fatal(err)
	}
	if id, _ := p.Props.Get(mqttc.PropSubscriptionID); id.Num != 300 {
		t.Errorf("got %v", p)
	}
}

func TestTopicAlias(t *testing.T) {
	addr := serve(t)
	sub := hubtest.Dial(t, addr, clean("sub", 4))
	sub.Sub("alias/#", 1)
	pub := hubtest.Dial(t, addr, clean("pub", 5))
	if most, ok := pub.Connack.Props.Get(mqttc.PropTopicAliasMax); !ok || most.Num == 0 {
		t.Skip("the server takes no aliases")
	}
	alias := mqttc.Props{{ID: mqttc.PropTopicAlias, Num: 1}}
	pub.PubPacket(mqttc.Packet{Topic: "alias/a", QoS: 1, Payload: []byte("1"), Props: alias})
	pub.PubPacket(mqttc.Packet{Topic: "", QoS: 1, Payload: []byte("2"), Props: alias})
	pub.PubPacket(mqttc.Packet{Topic: "alias/b", QoS: 1, Payload: []byte("3"), Props: alias})
	pub.PubPacket(mqttc.Packet{Topic: "", QoS: 2, Payload: []byte("4"), Props: alias})
	for _, want := range [][2]string{{"alias/a", "1"}, {"alias/a", "2"}, {"alias/b", "3"}, {"alias/b", "4"}} {
		sub.Want(want[0], want[1], 1)
	}
}

func TestReceiveMaximum(t *testing.T) {
	addr := serveHub(t).Addr() // Debian's mosquitto counts an acknowledgement twice
	o := clean("sub", 5)
	o.Props = mqttc.Props{{ID: mqttc.PropReceiveMaximum, Num: 2}}
	sub := hubtest.Dial(t, addr, o)
	sub.Sub("rm", 1)
	pub := hubtest.Dial(t, addr, clean("pub", 4))
	for i := range 5 {
		pub.Pub("rm", fmt.Sprint(i), 1)
	}
	var ids []uint16
	for i := range 5 {
		if len(ids) == 2 {
			sub.WantNothing()
			if err := sub.Ack(mqttc.PUBACK, ids[0]); err != nil {
				t.Fatal(err)
			}
			ids = ids[1:]
		}
		p := sub.WantPacket(mqttc.PUBLISH)
		if string(p.Payload) != fmt.Sprint(i) {
			t.Fatalf("got %s, want %d", p.Payload, i)
		}
		ids = append(ids, p.ID)
	}
}
