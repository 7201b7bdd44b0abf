package broker

import (
	"strings"
	"testing"
)

const paceHold = 10_000 // ms: real time plays no part, the tests raise the clock

// pacedRig is a hub that waits for subscribers which are more than lag bytes behind.
func pacedRig(t *testing.T, loops int, lag int64) *rig {
	r := newRig(t, oneStream, loops)
	r.b.o.Limits.AckHoldMs, r.b.o.Limits.LagBytes = paceHold, lag
	return r
}

func (r *rig) passTime(ms int64) {
	r.b.o.Clock.Raise(r.b.o.Clock.NowMs() + ms)
	for _, l := range r.loops {
		l.Schedule()
	}
	r.settle()
}

// fill publishes n messages of about 100 bytes, numbered from first.
func (cn *tconn) fill(first, n int) {
	for i := range n {
		cn.pub("t", strings.Repeat("x", 100), 1, uint16(first+i))
	}
	cn.r.settle()
}

func (cn *tconn) acked() int { return len(kinds(cn.take(), "puback")) }

// Publishers, on the subscriber's loop and on another, are acknowledged when a connected subscriber has come near
// enough, not before; and then without any timer.
func TestPublishersGoAtTheSubscribersPace(t *testing.T) {
	for loop, name := range []string{"same loop", "another loop"} {
		t.Run(name, func(t *testing.T) {
			r := pacedRig(t, 2, 1000)
			sub := r.connect(0, ConnectRequest{ClientID: "s", Window: 4})
			sub.subscribe(1, "t")
			from := r.connect(loop, ConnectRequest{ClientID: "p"})
			sub.take()
			from.take()
			from.fill(1, 4) // in flight to the subscriber, which acknowledges nothing
			if n := from.acked(); n != 4 {
				t.Fatalf("%d of 4 acknowledged while nobody is behind", n)
			}
			from.fill(5, 30)
			from.take() // whatever came before it was noticed
			from.fill(35, 30)
			if n := from.acked(); n != 0 {
				t.Fatalf("%d acknowledged although the subscriber is far behind", n)
			}
			if next := r.part("t").Committed(); next != 64 {
				t.Fatalf("%d records committed: an acknowledgement is held, not the record", next)
			}
			if got := len(sub.answerAll()); got != 64 {
				t.Fatalf("%d delivered", got)
			}
			r.settle()
			if n := from.acked(); n < 30 {
				t.Fatalf("%d acknowledged after the subscriber has caught up", n)
			}
			if over := r.b.Stats.AckHoldsOver.Load(); over != 0 {
				t.Fatal("it took the timer")
			}
			if far := r.part("t").far.Load(); far != 0 || len(r.loops[0].paced) != 0 {
				t.Fatalf("still waited for: %d", far)
			}
		})
	}
}

// A subscriber that takes nothing delays an acknowledgement once, by the bound; after that nobody waits for it.
func TestNobodyWaitsForASlowSubscriber(t *testing.T) {
	r := pacedRig(t, 2, 1000)
	sub := r.connect(0, ConnectRequest{ClientID: "s", Window: 4})
	sub.subscribe(1, "t")
	from := r.connect(1, ConnectRequest{ClientID: "p"})
	from.take()
	from.fill(1, 40)
	from.take()
	from.fill(41, 40)
	if n := from.acked(); n != 0 {
		t.Fatalf("%d acknowledged at once", n)
	}
	for i := range pacePatience + 1 { // each of its own publishes is delayed by the bound, as long as it lasts
		r.passTime(paceHold + 1)
		if n := from.acked(); n == 0 {
			t.Fatalf("nothing acknowledged when its time was up, %d", i)
		}
		from.fill(1000+i, 1)
		if i < pacePatience-1 && r.b.Stats.PaceGivenUp.Load() > 0 {
			t.Fatalf("given up after %d holds", i+1)
		}
	}
	from.take()
	from.fill(100, 40)
	if n := from.acked(); n != 40 {
		t.Fatalf("%d of 40 acknowledged: the slow one is waited for again", n)
	}
	if r.b.Stats.PaceGivenUp.Load() != 1 {
		t.Fatalf("given up %d times", r.b.Stats.PaceGivenUp.Load())
	}
	// Having kept up again, and after its time, it is waited for once more; after a short time it would not be.
	sub.answerAll()
	for _, step := range []struct {
		passMs int64
		held   bool
	}{{100, false}, {max(10*pacePatience*paceHold, paceBanMin), true}} {
		r.passTime(step.passMs)
		from.fill(200, 40)
		from.take()
		from.fill(300, 40)
		if n := from.acked(); (n == 0) != step.held {
			t.Fatalf("after %d ms: %d acknowledged, held expected: %v", step.passMs, n, step.held)
		}
		sub.answerAll()
		from.take()
	}
}

// One that gains ground is waited for beyond the time of a single acknowledgement.
func TestASubscriberThatGainsGroundIsWaitedFor(t *testing.T) {
	r := pacedRig(t, 1, 1000)
	sub := r.connect(0, ConnectRequest{ClientID: "s", Window: 20})
	sub.subscribe(1, "t")
	from := r.connect(0, ConnectRequest{ClientID: "p"})
	from.fill(1, 100)
	from.take()
	for range 3 {
		r.passTime(pacePatience * paceHold * 3 / 4)
		for _, p := range sub.take() {
			sub.answer(p)
		}
		r.settle()
		from.fill(101, 1)
	}
	if n := r.b.Stats.PaceGivenUp.Load(); n != 0 || r.part("t").far.Load() == 0 {
		t.Fatalf("given up %d times, waited for: %d", n, r.part("t").far.Load())
	}
}

// Who was absent reads at its own pace, and a connection that goes is not waited for any longer.
func TestAbsentSubscribersAreNotWaitedFor(t *testing.T) {
	t.Run("far too far", func(t *testing.T) {
		r := pacedRig(t, 1, 10)
		sub := r.connect(0, ConnectRequest{ClientID: "s", Window: 1})
		sub.subscribe(1, "t")
		from := r.connect(0, ConnectRequest{ClientID: "p"})
		from.fill(1, 100)
		from.take()
		from.fill(101, 10)
		if n := from.acked(); n != 10 {
			t.Fatalf("%d of 10 acknowledged", n)
		}
	})
	t.Run("gone", func(t *testing.T) {
		r := pacedRig(t, 2, 1000)
		sub := r.connect(0, ConnectRequest{ClientID: "s", Window: 1})
		sub.subscribe(1, "t")
		from := r.connect(1, ConnectRequest{ClientID: "p"})
		from.fill(1, 40)
		from.take()
		from.fill(41, 40)
		if n := from.acked(); n != 0 {
			t.Fatalf("%d acknowledged", n)
		}
		sub.drop()
		r.settle()
		if n := from.acked(); n < 40 {
			t.Fatalf("%d acknowledged after the subscriber has gone", n)
		}
	})
	t.Run("the hub stops", func(t *testing.T) {
		r := pacedRig(t, 1, 1000)
		sub := r.connect(0, ConnectRequest{ClientID: "s", Window: 1})
		sub.subscribe(1, "t")
		from := r.connect(0, ConnectRequest{ClientID: "p"})
		from.fill(1, 40)
		if n := from.acked(); n != 0 {
			t.Fatalf("%d acknowledged", n)
		}
		r.b.ReleaseAcks()
		r.settle()
		if n := from.acked(); n != 40 {
			t.Fatalf("%d acknowledged", n)
		}
	})
}
