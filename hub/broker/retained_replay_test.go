package broker

import (
	"fmt"
	"slices"
	"testing"
)

// A client that subscribes to everything again and again, and takes nothing, makes the hub hold one replay of each
// filter besides the one under way; and gets the last of them whole.
func TestRepeatedSubscriptionsDoNotPileUp(t *testing.T) {
	r := newRig(t, oneStream, 1)
	p := r.connect(0, ConnectRequest{ClientID: "p"})
	const topics = 300
	for i := range topics {
		p.publish(pkt{topic: fmt.Sprint("a/", i), payload: "x", qos: 1, id: uint16(i + 1), retain: true})
	}
	r.settle()
	s := r.connect(0, ConnectRequest{ClientID: "s"})
	s.take()
	s.room = 0
	for i := range 1000 {
		s.ask(SubRequest{Filter: "#", QoS: 1, ID: uint32(i + 1)}, SubRequest{Filter: "a/#", QoS: 1})
		r.settle()
		if o := s.c.owed; len(o.retq) > topics || cap(o.retq) > 2*topics || len(o.replays) > 2 {
			t.Fatalf("after %d subscriptions: %d messages and %d replays wait", 2*(i+1), len(o.retq), len(o.replays))
		}
	}
	if n := r.b.Stats.ReplaysJoined.Load(); n != 2000-3 {
		t.Errorf("%d joined, want all but 3", n)
	}
	s.room = -1
	s.l.Pump(s.c)
	byID := map[uint32]map[string]bool{}
	for _, x := range s.answerAll() {
		id := uint32(0)
		if len(x.subIDs) > 0 {
			id = x.subIDs[0]
		}
		if byID[id] == nil {
			byID[id] = map[string]bool{}
		}
		byID[id][x.topic] = true
	}
	for _, id := range []uint32{0, 1, 1000} { // of a/#, and the first and the last of #
		if len(byID[id]) != topics {
			t.Errorf("subscription identifier %d: %d of %d topics", id, len(byID[id]), topics)
		}
	}
	if len(byID) != 3 {
		t.Errorf("%d replays", len(byID))
	}
}

// A replay whose subscription has ended before its turn is not sent.
func TestReplayEndsWithItsSubscription(t *testing.T) {
	r := newRig(t, oneStream, 1)
	p := r.connect(0, ConnectRequest{ClientID: "p"})
	p.retain("a", "1")
	p.retain("b", "2")
	s := r.connect(0, ConnectRequest{ClientID: "s"})
	s.room = 0
	s.subscribe(1, "a", "b")
	s.l.Unsubscribe(s.c, []string{"b"}, nil)
	r.settle()
	s.room = -1
	s.l.Pump(s.c)
	wantTexts(t, s.answerAll(), "1")
}

// [MQTT-3.8.3-3] A client's own message comes by its subscriptions without No Local alone, at their QoS and with their
// identifiers; others' by all of them [MQTT-3.3.4-3]. Live, from the log, and from a copy.
func TestNoLocalBesideAnotherSubscription(t *testing.T) {
	subs := []SubRequest{{Filter: "t/#", QoS: 2, ID: 1, NoLocal: true}, {Filter: "t/+", QoS: 1, ID: 2}, {Filter: "+/x", QoS: 0, ID: 3}}
	want := func(t *testing.T, when string, got []pkt, topic string, own bool) {
		t.Helper()
		qos, ids := byte(2), []uint32{1, 2}
		if own {
			qos, ids = 1, []uint32{2}
		}
		if topic == "t/x" {
			ids = append(ids, 3)
		}
		got = kinds(got, "publish")
		if len(got) != 1 || got[0].qos != qos || got[0].topic != topic {
			t.Fatalf("%s, own %v: %v", when, own, got)
		}
		slices.Sort(got[0].subIDs)
		if !slices.Equal(got[0].subIDs, ids) {
			t.Errorf("%s, own %v: identifiers %v, want %v", when, own, got[0].subIDs, ids)
		}
	}
	for _, topic := range []string{"t/a", "t/x"} {
		for _, own := range []bool{true, false} {
			r := newRig(t, oneStream, 1)
			me, other := r.connect(0, persistent("me")), r.connect(0, ConnectRequest{ClientID: "other"})
			me.ask(subs...)
			from := other
			if own {
				from = me
			}
			me.answerAll()
			from.pub(topic, "x", 2, 1)
			want(t, "live", me.answerAll(), topic, own)

			me.room = 0
			from.pub(topic, "x", 2, 2)
			r.settle()
			me.room = -1
			me.l.Pump(me.c)
			want(t, "from the log", me.answerAll(), topic, own)

			me.room = 0
			from.pub(topic, "x", 2, 3)
			r.settle()
			me.drop()
			r.settle()
			r.trim(r.part(topic))
			me = r.connect(0, persistent("me"))
			want(t, "from a copy", me.answerAll(), topic, own)
		}
	}
	r := newRig(t, oneStream, 1)
	me := r.connect(0, persistent("me"))
	me.ask(subs[0], SubRequest{Filter: "other/#"})
	me.pub("t/a", "x", 1, 1)
	wantTexts(t, me.answerAll())
	if n := r.b.Stats.NoLocal.Load(); n != 1 {
		t.Errorf("%d counted as withheld", n)
	}
}
