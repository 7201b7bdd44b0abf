package broker

import (
	"slices"
	"testing"

	"edgehub/internal/vfs/vfstest"
)

// failWrites makes the next write to a segment fail.
func (r *rig) failWrites(n int) {
	r.fs.Clear()
	r.fs.Add(vfstest.Fault{Op: vfstest.OpWrite, Pattern: "*.log", Err: errInjected, Count: n})
}

func wantPayloads(t *testing.T, r *rig, p *partition, want ...string) {
	t.Helper()
	if got := r.payloads(p); !slices.Equal(got, want) {
		t.Fatalf("in the log: %v, want %v", got, want)
	}
}

// A repetition waits for the first copy: it is acknowledged when that is in the log, not before.
func TestBarrierOfARepeatedPublish(t *testing.T) {
	r := newRig(t, oneStream, 1)
	c := r.connect(0, persistent("c"))
	c.take()
	c.pub("t", "once", 2, 7)
	c.pub("t", "once", 2, 7)
	if len(c.out) > 0 {
		t.Fatal("acknowledged before the commit")
	}
	r.settle()
	if got := kinds(c.take(), "pubrec"); len(got) != 2 || got[0].code != CodeOK || got[1].code != CodeOK {
		t.Fatalf("answers: %v", got)
	}
	wantPayloads(t, r, r.part("t"), "once")
}

// When the first copy was refused, so is the repetition; then the packet id is free for a new attempt.
func TestBarrierIsRefusedWithTheFirstCopy(t *testing.T) {
	r := newRig(t, oneStream, 1)
	c := r.connect(0, persistent("c"))
	c.take()
	r.failWrites(1)
	c.pub("t", "once", 2, 7)
	c.pub("t", "once", 2, 7)
	r.settle()
	if got := kinds(c.take(), "pubrec"); len(got) != 2 || got[0].code < 0x80 || got[1].code < 0x80 {
		t.Fatalf("answers: %v", got)
	}
	c.pub("t", "once", 2, 7)
	r.settle()
	if got := kinds(c.take(), "pubrec"); len(got) != 1 || got[0].code != CodeOK {
		t.Fatalf("answers to the new attempt: %v", got)
	}
	wantPayloads(t, r, r.part("t"), "once")
}

// What is in the log is acknowledged again, whatever else is refused at that moment.
func TestARefusalDoesNotTouchWhatIsCommitted(t *testing.T) {
	for _, expiry := range []uint32{0, 3600} {
		r := newRig(t, oneStream, 1)
		c := r.connect(0, ConnectRequest{ClientID: "c", Expiry: expiry})
		c.pub("t", "first", 2, 7)
		r.settle()
		c.take()
		r.failWrites(1)
		c.pub("t", "refused", 1, 1)
		c.pub("t", "first", 2, 7)
		r.settle()
		if got := kinds(c.take(), "pubrec"); len(got) != 1 || got[0].code != CodeOK {
			t.Fatalf("answers: %v", got)
		}
		c.pub("t", "first", 2, 7)
		r.settle()
		wantPayloads(t, r, r.part("t"), "first")
	}
}

// A publish that is refused on the spot waits for its turn to be answered; so does its repetition.
func TestARepetitionOfWhatWasRefusedOnTheSpot(t *testing.T) {
	r := newRig(t, oneStream, 1)
	c := r.connect(0, persistent("c"))
	c.take()
	c.pub("t", "x", 1, 1)
	r.b.o.Limits.InboundBytes = 0
	c.pub("t", "busy", 2, 7)
	c.pub("t", "busy", 2, 7)
	r.settle()
	if got := kinds(c.take(), "pubrec"); len(got) != 2 || got[0].code < 0x80 || got[1].code < 0x80 {
		t.Fatalf("answers: %v", got)
	}
	r.b.o.Limits.InboundBytes = 1 << 20
	c.pub("t", "busy", 2, 7)
	r.settle()
	wantPayloads(t, r, r.part("t"), "x", "busy")
}

// The outcome of a publish reaches the session although the connection that made it is gone: a repetition of what was
// refused is a new publish, and may not be acknowledged for the sake of a record that does not exist.
func TestRefusedAfterTheConnectionIsGone(t *testing.T) {
	for name, move := range map[string]func(r *rig, old *tconn) *tconn{
		"reconnected": func(r *rig, old *tconn) *tconn {
			old.drop()
			r.settle()
			return r.connect(1, persistent("c"))
		},
		"taken over": func(r *rig, _ *tconn) *tconn { return r.connect(1, persistent("c")) },
		"old version": func(r *rig, old *tconn) *tconn {
			old.old = true
			r.settle()
			return r.connect(1, persistent("c"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, oneStream, 2)
			c := r.connect(0, persistent("c"))
			r.failWrites(1)
			c.pub("t", "one", 2, 1)
			c.pub("t", "two", 2, 2)
			c = move(r, c)
			c.take()
			c.pub("t", "two", 2, 2)
			r.settle()
			got := kinds(c.take(), "pubrec")
			if len(got) == 1 && got[0].code >= 0x80 { // refused once more is true; then it is taken
				c.pub("t", "two", 2, 2)
				r.settle()
				got = kinds(c.take(), "pubrec")
			}
			if len(got) != 1 || got[0].code != CodeOK {
				t.Fatalf("answers: %v", got)
			}
			wantPayloads(t, r, r.part("t"), "two")
		})
	}
}

// The record of a publish whose connection died before the answer is known after a kill, however much later.
func TestCommittedAfterTheConnectionIsGoneThenKilled(t *testing.T) {
	r := newRig(t, oneStream, 1)
	c := r.connect(0, persistent("c"))
	c.pub("t", "once", 2, 7)
	c.gone = true // the answer finds nobody
	c.l.AtSafePoint(c.disconnect)
	r.settle()
	r.checkpoint()
	r.checkpoint()
	r.checkpoint()
	r.kill()
	c = r.connect(0, persistent("c"))
	c.take()
	c.pub("t", "once", 2, 7)
	r.settle()
	if got := kinds(c.take(), "pubrec"); len(got) != 1 || got[0].code != CodeOK {
		t.Fatalf("answers: %v", got)
	}
	wantPayloads(t, r, r.part("t"), "once")
}

// A PUBREC that has to wait for an earlier publish: its record is known as committed all the same.
func TestCommittedBehindASlowSyncThenKilled(t *testing.T) {
	r := newRig(t, twoKinds, 2)
	c := r.connect(0, persistent("c"))
	c.take()
	c.pub("s/1", "slow", 1, 1)
	c.pub("t", "once", 2, 2)
	c.pub("u", "other", 2, 3)
	for r.step(0) || r.step(1) {
	}
	if got := c.take(); len(got) != 0 {
		t.Fatalf("answered out of order: %v", got)
	}
	for range 3 {
		r.checkpoint()
	}
	r.kill()
	c = r.connect(1, persistent("c"))
	c.pub("t", "once", 2, 2)
	r.settle()
	wantPayloads(t, r, r.part("t"), "once")
}

// A session that leaves with publishes under way hears of each when its own partition is done, whatever the others do.
func TestOutcomeDoesNotWaitForOtherPartitions(t *testing.T) {
	r := newRig(t, twoKinds, 2)
	c := r.connect(0, persistent("c"))
	c.pub("s/1", "slow", 2, 1)
	c.pub("t", "once", 2, 2)
	c.gone = true
	c.disconnect()
	for r.step(0) || r.step(1) { // no sync: the first one stays open
	}
	for range 3 {
		r.checkpoint()
	}
	r.kill()
	c = r.connect(1, persistent("c"))
	c.pub("t", "once", 2, 2)
	r.settle()
	wantPayloads(t, r, r.part("t"), "once")
}

// Numbers of QoS 2 publishes are not given again to a later session of the same client: after a kill, its records
// would be taken for those of the new session.
func TestAKillDoesNotMixUpSessionsOfOneClient(t *testing.T) {
	for name, renew := range map[string]func(r *rig){
		"clean start": func(r *rig) {
			req := persistent("c")
			req.Clean = true
			r.connect(0, req)
		},
		"ended and begun again": func(r *rig) {
			r.connect(0, ConnectRequest{ClientID: "c", Clean: true}).drop()
			r.settle()
			r.connect(0, persistent("c"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, oneStream, 1)
			c := r.connect(0, persistent("c"))
			c.pub("t", "a", 2, 5)
			c.pub("t", "b", 2, 7)
			r.settle()
			renew(r)
			r.kill()
			c = r.connect(0, persistent("c"))
			if !c.present {
				t.Fatal("the session is gone")
			}
			c.take()
			c.pub("t", "new", 2, 7)
			r.settle()
			wantPayloads(t, r, r.part("t"), "a", "b", "new")
		})
	}
}

// What is released stays released through a kill; what is not stays known.
func TestInboundStateThroughAKill(t *testing.T) {
	r := newRig(t, oneStream, 1)
	c := r.connect(0, persistent("c"))
	c.pub("t", "done", 2, 1)
	c.pub("t", "open", 2, 2)
	r.settle()
	for _, p := range c.take() {
		if p.kind == "pubrec" && p.id == 1 {
			c.answer(p)
		}
	}
	r.settle()
	if got := kinds(c.take(), "pubcomp"); len(got) != 1 {
		t.Fatalf("answers: %v", got)
	}
	r.kill()
	c = r.connect(0, persistent("c"))
	c.pub("t", "open", 2, 2)
	c.pub("t", "another", 2, 1)
	r.settle()
	wantPayloads(t, r, r.part("t"), "done", "open", "another")
}

// A QoS 2 delivery survives a kill at every step, under its packet id, and comes exactly once.
func TestOutboundStateThroughAKill(t *testing.T) {
	for _, steps := range []int{0, 1, 2} { // PUBREC, PUBCOMP sent before the kill
		for _, late := range []bool{false, true} { // long enough for checkpoints to pass
			r := newRig(t, oneStream, 1)
			s := r.connect(0, persistent("s"))
			s.subscribe(2, "t")
			p := r.connect(0, ConnectRequest{ClientID: "p"})
			s.take()
			p.pub("t", "x", 2, 1)
			r.settle()
			got := kinds(s.take(), "publish")
			for i := range steps {
				s.answer(got[0])
				r.settle()
				if got = kinds(s.take(), "pubrel"); i == 0 && len(got) != 1 {
					t.Fatalf("PUBREC was answered by %v", got)
				}
			}
			if late {
				r.checkpoint()
				r.checkpoint()
				r.checkpoint()
			}
			r.kill()
			s = r.connect(0, persistent("s"))
			r.settle()
			again := kinds(s.take(), "publish")
			switch {
			case steps == 0 && (len(again) != 1 || !again[0].dup || again[0].id != 1):
				t.Errorf("nothing answered: %v", again)
			case steps > 0 && len(again) > 0:
				t.Errorf("after %d answers, late %v: delivered again: %v", steps, late, again)
			}
		}
	}
}

// An early flush commits what the packet rests on; a kill right after it may not bring the message again once it is
// completed.
func TestEarlyFlushNamesThePositionBehindTheMessage(t *testing.T) {
	r := newRig(t, oneStream, 1)
	s := r.connect(0, persistent("s"))
	s.subscribe(2, "t")
	p := r.connect(0, ConnectRequest{ClientID: "p"})
	s.drop()
	r.settle()
	p.pub("t", "x", 2, 1)
	r.settle()
	s = r.conn(0)
	s.sent = func() { s.l.CommitMeta(s.c) }
	s.l.Connect(s, ConnectRequest{ClientID: "s", Expiry: 3600, Window: 10})
	s.l.Schedule()
	if got := s.answerAll(); len(got) != 1 {
		t.Fatalf("delivered %v", got)
	}
	r.kill()
	s = r.connect(0, persistent("s"))
	wantTexts(t, s.answerAll())
}

// One record can be in flight twice: as it was published, and retained for a new subscription.
func TestOneRecordInFlightTwice(t *testing.T) {
	r := newRig(t, oneStream, 1)
	s := r.connect(0, persistent("s"))
	s.subscribe(2, "t")
	p := r.connect(0, ConnectRequest{ClientID: "p"})
	s.take()
	p.publish(pkt{topic: "t", payload: "x", qos: 2, id: 1, retain: true})
	r.settle()
	s.subscribe(2, "+")
	r.settle()
	got := kinds(s.take(), "publish")
	if len(got) != 2 || got[0].retain || !got[1].retain {
		t.Fatalf("delivered %v", got)
	}
	r.kill()
	s = r.connect(0, persistent("s"))
	again := kinds(s.take(), "publish")
	if len(again) != 2 || again[0].id != got[0].id || again[1].id != got[1].id || again[0].retain || !again[1].retain {
		t.Fatalf("after the kill: %v, before: %v", again, got)
	}
}
