package broker

import (
	"fmt"
	"slices"
	"testing"
)

// trimTo deletes the oldest segments of a partition but for some.
func (r *rig) trimTo(p *partition, keep int) {
	r.t.Helper()
	if err := r.b.Roll(p.Partition); err != nil {
		r.t.Fatal(err)
	}
	for segs := p.Log.Segments(); len(segs) > keep+1; segs = p.Log.Segments() {
		r.b.offline.snap = nil
		if err := r.b.keepOffline(p, segs[0], r.askNow); err != nil {
			r.t.Fatal(err)
		}
		if _, err := p.Log.DropOldest(); err != nil {
			r.t.Fatal(err)
		}
	}
}

// Whoever wants all of a busy stream and has its queue full with what is in the log has nothing copied; beside it,
// whoever wants little gets all of that. When the stream runs dry the newest are copied again.
func TestOfflineOfAQueueThatTheLogFills(t *testing.T) {
	r := newRig(t, oneStream, 1)
	r.b.o.Limits.QueuedMessages = 100
	r.away("all", SubRequest{Filter: "#", QoS: 1})
	r.away("few", SubRequest{Filter: "cmd", QoS: 1})
	p := r.connect(0, ConnectRequest{ClientID: "p"})
	main := r.part("cmd")
	var all, few []string
	for i := range 40 {
		for k := range 100 {
			topic, text := "t", fmt.Sprint(i, "-", k)
			if k == 50 {
				topic = "cmd"
				few = append(few, text)
			}
			all = append(all, text)
			p.pub(topic, text, 1, uint16(k+1))
		}
		p.answerAll()
		r.trimTo(main, 5)
	}
	// Some 100 for each limit that is reached, and the commands: not the 3,500 that have gone.
	if n := r.b.Stats.OfflineCopied.Load(); n > 700 {
		t.Errorf("%d copies of %d messages", n, len(all))
	}
	info, _ := r.b.Session("all")
	waits := int64(100 * 5)
	if lost := r.b.Stats.OfflineSessionFull.Load(); info.Queued.Dropped != lost || lost != int64(len(all))-waits || info.Queued.Messages != 0 {
		t.Errorf("%d lost, %+v; %d were published", lost, info.Queued, len(all))
	}

	r.trimTo(main, 0)
	info, _ = r.b.Session("all")
	if n := info.Queued.Messages; n < 100-100/bucketShare || n > 100 {
		t.Errorf("%d copies at the end, the limit is 100", n)
	}
	got := texts(r.connect(0, persistent("all")).answerAll())
	if tail := all[len(all)-int(info.Queued.Messages):]; !slices.Equal(got, tail) {
		t.Errorf("delivered %d, from %s on; want the last %d, from %s on", len(got), got[0], len(tail), tail[0])
	}
	wantTexts(t, r.connect(0, persistent("few")).answerAll(), few...)
}

// What is known of the log ends when the session moves.
func TestOfflineAheadEndsWhenTheSessionMoves(t *testing.T) {
	r := newRig(t, oneStream, 1)
	r.b.o.Limits.QueuedMessages = 20
	r.away("s", SubRequest{Filter: "#", QoS: 1})
	p := r.connect(0, ConnectRequest{ClientID: "p"})
	main := r.part("t")
	publish := func(prefix string, n int) {
		for i := range n {
			p.pub("t", fmt.Sprint(prefix, i), 1, uint16(i+1))
			if i%10 == 9 {
				p.answerAll()
				if err := r.b.Roll(main.Partition); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	publish("a", 200)
	r.trimTo(main, 10)
	if u := r.b.offline.users["s"]; u.aheadIn(main.ID) == nil {
		t.Fatal("the log fills the queue and that is not known")
	}
	s := r.connect(0, persistent("s"))
	if n := len(s.answerAll()); n != 100 {
		t.Fatalf("%d delivered, 100 are in the log", n)
	}
	s.drop()
	r.settle()
	publish("b", 20)
	r.trimTo(main, 0)
	wantTexts(t, r.connect(0, persistent("s")).answerAll(), texted("b", 20)...)
}
