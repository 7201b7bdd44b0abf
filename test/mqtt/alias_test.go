package mqtt

import (
	"fmt"
	"strings"
	"testing"

	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/mqttc"
)

// resolver is a client's side of topic aliases.
type resolver map[uint32]string

// resolve returns the topic that a PUBLISH is about, and its alias.
func (r resolver) resolve(t *testing.T, p mqttc.Packet) (topic string, alias uint32) {
	t.Helper()
	a, ok := p.Props.Get(mqttc.PropTopicAlias)
	switch {
	case !ok:
		return p.Topic, 0
	case p.Topic != "":
		r[a.Num] = p.Topic
	case r[a.Num] == "":
		t.Fatalf("alias %d was never set", a.Num)
	}
	return r[a.Num], a.Num
}

// TestAliasesTowardsTheClient: the hub gives aliases within the client's maximum, and only to clients that take them.
func TestAliasesTowardsTheClient(t *testing.T) {
	addr := hubtest.Start(t, nil).Addr()
	for _, max := range []uint32{0, 1, 3, 65535} {
		t.Run(fmt.Sprint(max), func(t *testing.T) {
			o := clean("sub", 5)
			if max > 0 {
				o.Props = mqttc.Props{{ID: mqttc.PropTopicAliasMax, Num: max}}
			}
			c := hubtest.Dial(t, addr, o)
			plain := hubtest.Dial(t, addr, clean("plain", 5))
			c.Sub("alias/#", 2)
			plain.Sub("alias/#", 2)
			pub := hubtest.Dial(t, addr, clean("pub", 5))
			known, saved := resolver{}, 0
			for i := range 60 {
				topic, qos := fmt.Sprintf("alias/%d/topic", i%5), byte(i%3)
				pub.Pub(topic, "x", qos)
				p, err := c.Receive(mqttc.Patience)
				if err != nil {
					t.Fatal(err)
				}
				got, alias := known.resolve(t, p)
				if got != topic || alias > max {
					t.Fatalf("message %d on %q came as %v with alias %d", i, topic, p, alias)
				}
				if p.Topic == "" {
					saved++
				}
				if _, has := plain.Want(topic, "x", qos).Props.Get(mqttc.PropTopicAlias); has {
					t.Fatal("an alias for a client that takes none")
				}
			}
			if want := 11 * int(min(max, 5)); saved < want {
				t.Errorf("%d of 60 topics were replaced by an alias, want at least %d", saved, want)
			}
		})
	}
}

// TestAliasesEndWithTheConnection: an alias that the client has set means nothing on its next connection
// [MQTT-3.3.2-7].
func TestAliasesEndWithTheConnection(t *testing.T) {
	addr := hubtest.Start(t, nil).Addr()
	c := hubtest.Dial(t, addr, kept("c", 5))
	sub := hubtest.Dial(t, addr, clean("sub", 5))
	sub.Sub("#", 1)
	set := mqttc.Props{{ID: mqttc.PropTopicAlias, Num: 1}}
	c.PubPacket(mqttc.Packet{Topic: "alias/set", Payload: []byte("a"), QoS: 1, Props: set})
	c.PubPacket(mqttc.Packet{Payload: []byte("b"), QoS: 1, Props: set})
	sub.Want("alias/set", "a", 1)
	sub.Want("alias/set", "b", 1)
	c.Bye()
	c = hubtest.Dial(t, addr, kept("c", 5))
	c.Send(mqttc.Packet{Kind: mqttc.PUBLISH, ID: 1, QoS: 1, Payload: []byte("c"), Props: set})
	wantReason(t, c, 0x94, 0x82)
	sub.WantNothing()
}

// TestAliasesDoNotOutgrowAPacket: a packet that fits exactly without an alias is sent without one.
func TestAliasesDoNotOutgrowAPacket(t *testing.T) {
	addr := hubtest.Start(t, nil).Addr()
	o := clean("sub", 5)
	o.Props = mqttc.Props{{ID: mqttc.PropTopicAliasMax, Num: 10}, {ID: mqttc.PropMaxPacket, Num: 100}}
	c := hubtest.Dial(t, addr, o)
	c.Sub("alias/#", 1)
	pub := hubtest.Dial(t, addr, clean("pub", 5))
	const head = 2 + 2 + len("alias/fit") + 2 + 1 // fixed header, topic, id, properties
	pub.Pub("alias/fit", strings.Repeat("x", 100-head), 1)
	pub.Pub("alias/fit", strings.Repeat("x", 100-head+1), 1) // too large by one: not sent [MQTT-3.1.2-25]
	pub.Pub("alias/fit", "end", 1)
	if p := c.Want("alias/fit", strings.Repeat("x", 100-head), 1); len(p.Props) > 0 {
		t.Errorf("got %v", p)
	}
	c.Want("alias/fit", "end", 1)
	c.WantNothing()
}

// wantReason waits for the hub's DISCONNECT with one of the codes.
func wantReason(t *testing.T, c *hubtest.Client, codes ...byte) mqttc.Packet {
	t.Helper()
	var last mqttc.Packet
	for _, p := range c.WantClose(mqttc.Patience) {
		last = p
	}
	for _, code := range codes {
		if last.Kind == mqttc.DISCONNECT && last.Code == code {
			return last
		}
	}
	t.Fatalf("want DISCONNECT with one of % x, got %v", codes, last)
	return last
}
