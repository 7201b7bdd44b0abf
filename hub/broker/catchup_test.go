package broker

import (
	"fmt"
	"slices"
	"testing"

	"edgehub/internal/vfs/vfstest"
)

// publishN publishes messages m0 … on one topic and commits them.
func (r *rig) publishN(from *tconn, name string, n int) {
	for i := range n {
		from.pub(name, fmt.Sprintf("m%d", i), 1, uint16(i+1))
	}
	r.settle()
}

func wantTexts(t *testing.T, got []pkt, want ...string) {
	t.Helper()
	if s := texts(got); !slices.Equal(s, want) {
		t.Fatalf("delivered %v, want %v", s, want)
	}
}

func numbered(from, to int) []string {
	var list []string
	for i := from; i < to; i++ {
		list = append(list, fmt.Sprintf("m%d", i))
	}
	return list
}

// A session that cannot take more reads the log and comes back to the live flow, without gap or repetition.
func TestFallBehindAndGoLive(t *testing.T) {
	for _, qos := range []byte{0, 1, 2} {
		t.Run(fmt.Sprintf("QoS %d", qos), func(t *testing.T) {
			r := newRig(t, oneStream, 2)
			sub := r.connect(0, ConnectRequest{ClientID: "s", Window: 3})
			sub.subscribe(qos, "t")
			from := r.connect(1, ConnectRequest{ClientID: "p"})
			sub.take()
			sub.room = 2
			r.publishN(from, "t", 10)
			got := sub.take()
			if len(texts(got)) != 2 {
				t.Fatalf("%d deliveries with room for 2", len(texts(got)))
			}
			for _, p := range got {
				sub.answer(p)
			}
			sub.room = -1
			sub.l.Pump(sub.c)
			got = append(got, sub.answerAll()...)
			if sub.c.IsBehind() {
				t.Fatal("everything is delivered and the session is not live")
			}
			from.pub("t", "live", 1, 100)
			got = append(got, sub.answerAll()...)
			wantTexts(t, got, append(numbered(0, 10), "live")...)
			if jobs := r.b.Stats.CatchupJobs.Load(); jobs == 0 {
				t.Fatal("the log was not read")
			}
		})
	}
}

// While a session reads the log, its loop goes on: what is read and what goes by meet exactly.
func TestGoLiveMeetsRecordsOnTheirWay(t *testing.T) {
	r := newRig(t, oneStream, 2)
	sub := r.connect(0, ConnectRequest{ClientID: "s", Window: 2})
	sub.subscribe(2, "t")
	from := r.connect(1, ConnectRequest{ClientID: "p"})
	sub.take()
	r.publishN(from, "t", 3) // two in flight, the third left behind
	var got []pkt
	for i := 3; i < 40; i++ {
		from.pub("t", fmt.Sprintf("m%d", i), 1, uint16(i))
		r.step(1) // commits, posts to loop 0
		if i%3 == 0 {
			r.readJob()
		}
		if i%2 == 0 {
			r.step(0)
		}
		for _, p := range sub.take() {
			got = append(got, p)
			sub.answer(p)
		}
	}
	got = append(got, sub.answerAll()...)
	wantTexts(t, kinds(got, "publish"), numbered(0, 40)...)
}

// A read that began before a subscription knows nothing of it: its outcome may not move the position.
func TestSubscribeWhileALogReadIsUnderWay(t *testing.T) {
	r := newRig(t, oneStream, 1)
	sub := r.connect(0, ConnectRequest{ClientID: "s", Window: 1})
	sub.subscribe(1, "a")
	from := r.connect(0, ConnectRequest{ClientID: "p"})
	sub.take()
	r.publishN(from, "a", 2) // m1 stays behind
	sub.answer(sub.take()[0])
	r.step(0)
	j := r.takeJob()
	sub.subscribe(1, "b")
	from.pub("b", "new", 1, 50)
	r.step(0)
	r.finishJob(j)
	wantTexts(t, sub.answerAll(), "m1", "new")
}

// Two subscriptions of a session that lags: nothing that is older than the second one comes because of it.
func TestNothingOlderThanItsSubscription(t *testing.T) {
	for _, expiry := range []uint32{0, 3600} {
		r := newRig(t, oneStream, 2)
		sub := r.connect(0, ConnectRequest{ClientID: "s", Window: 1, Expiry: expiry})
		sub.subscribe(1, "a")
		from := r.connect(1, ConnectRequest{ClientID: "p"})
		sub.take()
		from.pub("a", "a1", 1, 1)
		from.pub("a", "a2", 1, 2)
		from.pub("b", "too old", 1, 3)
		r.step(1) // a1 and a2 are in the mail of loop 0
		sub.subscribe(1, "b")
		from.pub("b", "b1", 1, 4)
		r.step(1)
		wantTexts(t, sub.answerAll(), "a1", "a2", "b1")
	}
}

// A chunk without progress is taken back while others wait for its memory; everybody is served in the end.
func TestCatchupMemoryIsBoundedAndShared(t *testing.T) {
	r := newRig(t, oneStream, 1)
	r.b.o.Limits.CatchupBytes = 2 * chunkBytes
	var subs []*tconn
	for i := range 20 {
		s := r.connect(0, ConnectRequest{ClientID: fmt.Sprintf("s%d", i), Window: 1})
		s.subscribe(1, "t")
		subs = append(subs, s)
	}
	from := r.connect(0, ConnectRequest{ClientID: "p"})
	r.publishN(from, "t", 12)
	got := make([]int, len(subs))
	for n := 0; ; n++ {
		r.settle()
		r.b.catchup.mu.Lock()
		inUse, waiting := r.b.catchup.inUse, len(r.b.catchup.waiting)
		r.b.catchup.mu.Unlock()
		if inUse > 3*chunkBytes {
			t.Fatalf("%d bytes of chunks, limit %d", inUse, r.b.o.Limits.CatchupBytes)
		}
		if waiting > len(subs) {
			t.Fatalf("%d entries wait for %d sessions", waiting, len(subs))
		}
		all := true
		for i, s := range subs {
			if i == 0 && n < 30 {
				continue // holds a chunk and does not answer
			}
			for _, p := range s.take() {
				if p.kind == "publish" {
					got[i]++
				}
				s.answer(p)
			}
			all = all && got[i] == 12
		}
		if all {
			break
		}
		if n%5 == 4 {
			r.checkpoint()
		}
		if n > 400 {
			t.Fatalf("not everybody was served: %v", got)
		}
	}
	r.checkpoint()
	r.settle()
	if r.b.catchup.inUse != 0 {
		t.Fatalf("%d bytes are still counted", r.b.catchup.inUse)
	}
}

// A session that waited for memory and has no need of it any more passes its turn on.
func TestATurnThatIsNotUsedIsPassedOn(t *testing.T) {
	r := newRig(t, oneStream, 1)
	r.b.o.Limits.CatchupBytes = 1
	names := []string{"holder", "gone", "last"}
	subs := map[string]*tconn{}
	for _, n := range names {
		subs[n] = r.connect(0, ConnectRequest{ClientID: n, Window: 1})
		subs[n].subscribe(1, "t")
	}
	from := r.connect(0, ConnectRequest{ClientID: "p"})
	for _, s := range subs {
		s.take()
	}
	r.publishN(from, "t", 3)
	for _, n := range names { // each has one in flight; the answer makes it read
		got := subs[n].take()
		subs[n].answer(got[0])
		r.step(0)
	}
	subs["gone"].drop()
	r.step(0)
	r.settle()
	for range 2 {
		for _, p := range subs["holder"].take() {
			subs["holder"].answer(p)
		}
		r.settle()
	}
	wantTexts(t, subs["last"].answerAll(), "m1", "m2")
}

// A failing disk is no reason to forget a message in flight, nor to read as fast as one can.
func TestLogReadErrors(t *testing.T) {
	r := newRig(t, oneStream, 1)
	s := r.connect(0, persistent("s"))
	s.subscribe(1, "t")
	from := r.connect(0, ConnectRequest{ClientID: "p"})
	s.take()
	r.publishN(from, "t", 2)
	wantTexts(t, s.take(), "m0", "m1")
	s.drop()
	r.settle()
	from.pub("t", "m2", 1, 9)
	r.settle()
	r.sync()
	if !r.part("t").Log.Park() {
		t.Fatal("the log keeps its file open")
	}
	r.fs.Add(vfstest.Fault{Op: vfstest.OpOpen, Err: errInjected}) // out of descriptors, say
	s = r.conn(0)
	s.l.Connect(s, ConnectRequest{ClientID: "s", Expiry: 3600, Window: 10})
	s.l.Schedule()
	for range 20 {
		for r.step(0) {
		}
		r.readJob()
	}
	if jobs := r.b.Stats.CatchupJobs.Load(); jobs > 5 {
		t.Fatalf("%d reads of a log that cannot be read", jobs)
	}
	wantTexts(t, s.take())
	r.fs.Clear()
	r.checkpoint()
	got := s.answerAll()
	wantTexts(t, got, "m0", "m1", "m2")
	if !got[0].dup || got[2].dup {
		t.Fatalf("redelivery without its mark: %v", got)
	}
}

// A smaller receive maximum than before binds the redelivery too [MQTT-3.3.4-9].
func TestRedeliveryKeepsTheWindow(t *testing.T) {
	r := newRig(t, oneStream, 1)
	s := r.connect(0, persistent("s"))
	s.subscribe(2, "t")
	from := r.connect(0, ConnectRequest{ClientID: "p"})
	r.publishN(from, "t", 5)
	for i := 5; i < 10; i++ {
		from.pub("t", fmt.Sprintf("m%d", i), 2, uint16(i+1))
	}
	r.settle()
	s.take()
	s.drop()
	r.settle()
	req := persistent("s")
	req.Window = 2
	s = r.connect(0, req)
	var got []pkt
	open := map[uint16]bool{}
	for range 100 {
		r.settle()
		list := s.take()
		for _, p := range kinds(list, "publish") {
			got = append(got, p)
			open[p.id] = true
		}
		if len(open) > 2 {
			t.Fatalf("%d messages in flight, receive maximum 2", len(open))
		}
		for _, p := range list {
			if p.kind == "pubrel" || p.kind == "publish" && p.qos == 1 {
				delete(open, p.id)
			}
			s.answer(p)
		}
	}
	wantTexts(t, got, numbered(0, 10)...)
}

// A session that has just fallen behind is as good as its position record when the hub is killed.
func TestBehindAtAKill(t *testing.T) {
	r := newRig(t, oneStream, 1)
	s := r.connect(0, persistent("s"))
	s.subscribe(1, "t")
	from := r.connect(0, ConnectRequest{ClientID: "p"})
	r.checkpoint()
	r.checkpoint()
	s.room = 0
	from.pub("t", "x", 1, 1)
	r.step(0)
	for range 3 { // no reader has got to it
		r.checkpoint()
	}
	r.kill()
	wantTexts(t, r.connect(0, persistent("s")).answerAll(), "x")
}

// A loop that does not keep up takes no more records into its mailbox: its clients read what it missed from the log,
// each once and in order, and are live again afterwards.
func TestMailboxIsBounded(t *testing.T) {
	for _, qos := range []byte{0, 1, 2} {
		r := newRig(t, oneStream, 2)
		s := r.connect(0, persistent("s"))
		s.subscribe(qos, "t")
		other := r.connect(0, ConnectRequest{ClientID: "other"})
		other.subscribe(qos, "u")
		p := r.connect(1, ConnectRequest{ClientID: "p"})
		s.take()
		other.take()
		p.pub("t", "m0", 2, 1)
		r.step(1)
		for range mailItemsMax {
			r.loops[0].Post(func() {})
		}
		for i := 1; i < 20; i++ {
			p.pub("t", fmt.Sprintf("m%d", i), 2, uint16(i+1))
			r.step(1)
		}
		if n := len(r.loops[0].mail.in.items); n > mailItemsMax+2 {
			t.Fatalf("%d items in the mailbox", n)
		}
		got := s.answerAll()
		p.pub("t", "m20", 2, 99)
		got = append(got, s.answerAll()...)
		wantTexts(t, got, numbered(0, 21)...)
		wantTexts(t, other.answerAll())
		if r.b.Stats.MailGaps.Load() == 0 || s.c.IsBehind() {
			t.Fatalf("%d gaps, behind %v", r.b.Stats.MailGaps.Load(), s.c.IsBehind())
		}
	}
}

// A session that leaves its loop while the loop has a gap takes its place in the log along.
func TestTakeoverInsideAGap(t *testing.T) {
	r := newRig(t, oneStream, 2)
	s := r.connect(0, persistent("s"))
	s.subscribe(2, "t")
	p := r.connect(1, ConnectRequest{ClientID: "p"})
	s.take()
	for range mailItemsMax {
		r.loops[0].Post(func() {})
	}
	for i := range 5 {
		p.pub("t", fmt.Sprintf("m%d", i), 2, uint16(i+1))
	}
	r.step(1)
	n := r.connect(1, persistent("s"))
	wantTexts(t, append(s.take(), n.answerAll()...), numbered(0, 5)...)
}
