package broker

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"edgehub/hub/stream"
)

func (cn *tconn) retain(topic, payload string) {
	cn.publish(pkt{topic: topic, payload: payload, qos: 1, id: 1, retain: true})
	cn.r.settle()
}

func TestRetained(t *testing.T) {
	r := newRig(t, oneStream, 1)
	p, live := r.connect(0, ConnectRequest{ClientID: "p"}), r.connect(0, ConnectRequest{ClientID: "live"})
	live.ask(SubRequest{Filter: "#", QoS: 1}, SubRequest{Filter: "a/kept", QoS: 1, RetainAsPublished: true})
	live.take()
	p.retain("a/1", "old")
	p.retain("a/1", "new")
	p.retain("a/2", "two")
	p.retain("a/gone", "x")
	p.retain("a/gone", "")
	p.retain("a/kept", "k")
	for _, x := range kinds(live.take(), "publish") {
		if x.retain != (x.topic == "a/kept") {
			t.Errorf("live: %v", x) // [MQTT-3.3.1-9], retain as published [MQTT-3.3.1-12, -13]
		}
	}
	if n := r.b.Retained(); n != 3 {
		t.Fatalf("%d retained messages", n)
	}
	s := r.connect(0, ConnectRequest{ClientID: "s"})
	s.ask(SubRequest{Filter: "a/+", QoS: 0, ID: 5})
	got := s.answerAll()
	slices.SortFunc(got, func(a, b pkt) int { return int(a.topic[2]) - int(b.topic[2]) })
	wantTexts(t, got, "new", "two", "k")
	for _, x := range got {
		if !x.retain || x.qos != 0 || !slices.Equal(x.subIDs, []uint32{5}) {
			t.Errorf("%v, ids %v", x, x.subIDs)
		}
	}
}

func TestRetainHandling(t *testing.T) {
	r := newRig(t, oneStream, 1)
	r.connect(0, ConnectRequest{ClientID: "p"}).retain("a", "x")
	s := r.connect(0, ConnectRequest{ClientID: "s"})
	for i, want := range []int{1, 0, 0, 1} { // always; only when new: it is not; never; always
		s.ask(SubRequest{Filter: "a", QoS: 1, RetainHandling: []byte{0, 1, 2, 0}[i]})
		if got := s.answerAll(); len(got) != want {
			t.Errorf("subscription %d: %v", i, got)
		}
	}
	n := r.connect(0, ConnectRequest{ClientID: "n"})
	n.ask(SubRequest{Filter: "a", QoS: 1, RetainHandling: 1})
	if got := n.answerAll(); len(got) != 1 {
		t.Errorf("new subscription: %v", got)
	}
}

// A retained message that is replaced or cleared while it is on its way to a new subscriber: the last thing that the
// subscriber hears is the last thing that was said.
func TestRetainedChangesOnTheWay(t *testing.T) {
	for _, qos := range []byte{0, 1, 2} {
		for _, now := range []string{"new", ""} {
			for _, when := range []string{"before the read", "after the read"} {
				r := newRig(t, oneStream, 2)
				p := r.connect(1, ConnectRequest{ClientID: "p"})
				p.retain("a", "old")
				s := r.connect(0, ConnectRequest{ClientID: "s"})
				s.take()
				s.subscribe(qos, "a")
				r.step(0)
				j := r.takeJob()
				if when == "after the read" {
					r.finishJob(j)
				}
				p.publish(pkt{topic: "a", payload: now, qos: 1, id: 1, retain: true})
				r.step(1)
				if when == "before the read" {
					r.finishJob(j)
				}
				got := texts(s.answerAll())
				if len(got) == 0 || got[len(got)-1] != now {
					t.Errorf("QoS %d, %q, changed %s: heard %q", qos, now, when, got)
				}
			}
		}
	}
}

// Retained messages outlive their segment, a kill after it, and are found where they have gone.
func TestRetainedOutlivesItsSegment(t *testing.T) {
	r := newRig(t, oneStream, 1)
	p := r.connect(0, ConnectRequest{ClientID: "p"})
	for i := range 5 {
		p.retain(fmt.Sprintf("a/%d", i), fmt.Sprintf("v%d", i))
	}
	p.retain("a/0", "")
	part := r.part("a/1")
	if err := r.b.Roll(part.Partition); err != nil {
		t.Fatal(err)
	}
	p.retain("a/1", "newer")
	seg := part.Log.Segments()[0]
	if err := r.b.KeepRetained(part.Partition, seg); err != nil {
		t.Fatal(err)
	}
	if _, err := part.Log.DropOldest(); err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		t.Helper()
		s := r.connect(0, ConnectRequest{ClientID: "s" + when})
		s.subscribe(1, "#")
		got := texts(s.answerAll())
		slices.Sort(got)
		if want := []string{"newer", "v2", "v3", "v4"}; !slices.Equal(got, want) {
			t.Fatalf("%s: %v, want %v", when, got, want)
		}
	}
	check("copied")
	r.kill()
	check("after a kill")
	kept, err := r.set.Stream(RetainedStream)
	if err != nil || kept.Partitions[0].Log.Next() != 3 {
		t.Fatalf("%d copies, %v", kept.Partitions[0].Log.Next(), err)
	}
	p = r.connect(0, ConnectRequest{ClientID: "p"})
	p.retain("a/2", "")
	if n := r.b.Retained(); n != 3 {
		t.Fatalf("%d retained messages after one was cleared", n)
	}
}

// The copies are as durable as the segment was when it goes: a power cut right after that takes none.
func TestRetainedOutlivesItsSegmentAndAPowerCut(t *testing.T) {
	r := newRig(t, oneStream, 1)
	r.connect(0, ConnectRequest{ClientID: "p"}).retain("a", "x")
	part := r.part("a")
	if err := r.b.Roll(part.Partition); err != nil {
		t.Fatal(err)
	}
	if err := r.b.KeepRetained(part.Partition, part.Log.Segments()[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := part.Log.DropOldest(); err != nil {
		t.Fatal(err)
	}
	r.disk = r.disk.Crash(rand.New(rand.NewPCG(1, 1)), 0, false)
	r.meta = r.meta.kill(0)
	r.start(1)
	s := r.connect(0, ConnectRequest{ClientID: "s"})
	s.subscribe(1, "a")
	wantTexts(t, s.answerAll(), "x")
}

// A segment stays while what is needed of it could not be copied.
func TestKeepRetainedReportsFailure(t *testing.T) {
	r := newRig(t, oneStream, 1)
	r.connect(0, ConnectRequest{ClientID: "p"}).retain("a", "x")
	part := r.part("a")
	if err := r.b.Roll(part.Partition); err != nil {
		t.Fatal(err)
	}
	seg := part.Log.Segments()[0]
	r.failWrites(1)
	if err := r.b.KeepRetained(part.Partition, seg); err == nil {
		t.Fatal("the copy failed and the segment may go")
	}
	r.fs.Clear()
	if err := r.b.KeepRetained(part.Partition, seg); err != nil {
		t.Fatal(err)
	}
}

// A kill between the write of a retained message and its metadata loses nothing.
func TestRetainedThroughAKill(t *testing.T) {
	r := newRig(t, oneStream, 1)
	p := r.connect(0, ConnectRequest{ClientID: "p"})
	p.retain("a", "x")
	p.retain("b", "y")
	r.meta.around = func(bool) error { return errInjected } // from now on nothing of the metadata is durable
	p.publish(pkt{topic: "a", payload: "z", qos: 1, id: 1, retain: true})
	p.publish(pkt{topic: "b", payload: "", qos: 1, id: 2, retain: true})
	r.b.commit(r.part("a"), r.loops[0])
	r.kill()
	s := r.connect(0, ConnectRequest{ClientID: "s"})
	s.subscribe(1, "#")
	wantTexts(t, s.answerAll(), "z")
}

// By client partitions: one topic lies in several partitions, and its retained message is the last one of all.
func TestRetainedOfATopicInSeveralPartitions(t *testing.T) {
	r := newRig(t, []stream.Spec{{Name: "main", Filters: []string{"#"}, Partitions: 4, SegmentBytes: 1 << 20, ByClient: true}, oneStream[1]}, 1)
	for i := range 8 {
		r.connect(0, ConnectRequest{ClientID: fmt.Sprintf("p%d", i)}).retain("a", fmt.Sprintf("v%d", i))
	}
	hears := func(when string) {
		t.Helper()
		s := r.connect(0, ConnectRequest{ClientID: "s" + when})
		s.subscribe(1, "a")
		wantTexts(t, s.answerAll(), "v7")
	}
	hears("live")
	r.kill()
	hears("after a kill")
}
