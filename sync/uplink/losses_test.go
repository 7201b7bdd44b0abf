package uplink

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// dropOldest removes the oldest segments of a partition, as retention does.
func (s *fakeSource) dropOldest(partition, n int) (first int64) {
	s.t.Helper()
	for range n {
		if _, err := s.logs[partition].DropOldest(); err != nil {
			s.t.Fatal(err)
		}
	}
	return s.logs[partition].First()
}

// TestLossesAreKnownAtOnce: what retention takes is counted while the remote is
// away, stays counted through restarts and kills, and is counted once.
func TestLossesAreKnownAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, 2)
		g.start(nil)
		lost := func(when string, want int64) {
			t.Helper()
			l := g.r.Status().Losses["main/0-0"]
			if l.Retention != want || l.Unseen != want || want > 0 && time.Since(l.At) > 10*time.Minute {
				t.Errorf("%s: %+v, want %d", when, l, want)
			}
		}
		g.remote.mu.Lock()
		g.remote.next = map[string]int64{}
		g.remote.mu.Unlock()
		g.setUp(false)
		g.remote.cut()
		synctest.Wait()
		for range 100 {
			g.src.append(0, 100, true)
		}
		lost("nothing gone", 0)
		first := g.src.dropOldest(0, 2)
		lost("gone, never connected", first)
		g.stop()
		g.start(nil)
		lost("after a restart", first)
		first = g.src.dropOldest(0, 1)
		lost("more gone", first)
		g.remote.mu.Lock()
		g.remote.next["main/0-0"] = first
		g.remote.mu.Unlock()
		g.setUp(true)
		g.pass(3 * time.Minute)
		lost("caught up", first)
		g.cursors.freeze() // killed
		g.stop()
		g.cursors = g.cursors.clone()
		g.start(nil)
		g.pass(time.Second)
		lost("after a kill", first)
		g.src.dropOldest(0, 2) // of what was sent
		lost("what was sent is gone", first)
		if err := g.r.Acknowledge(); err != nil {
			t.Fatal(err)
		}
		g.stop()
		g.start(nil)
		if l := g.r.Status().Losses["main/0-0"]; l.Unseen != 0 || l.Retention != first {
			t.Errorf("acknowledged: %+v", l)
		}
		g.stop()
	})
}

// TestWhatWasGoneBeforeIsNoLoss: an uplink that is added to a log whose beginning
// retention has removed already did not lose it.
func TestWhatWasGoneBeforeIsNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, 1)
		for range 40 {
			g.src.append(0, 100, true)
		}
		first := g.src.dropOldest(0, 2)
		g.remote.next = map[string]int64{"main/0-0": first}
		g.start(nil)
		g.pass(time.Minute)
		if st := g.r.Status(); len(st.Losses) != 0 || st.LagMessages != 0 || st.Counters.Acked != uint64(4000-first) {
			t.Errorf("%+v", st)
		}
		g.stop()
	})
}

// TestErrorIsPast: once records flow, the last error is a thing of the past; until
// then it is not, whatever the socket says.
func TestErrorIsPast(t *testing.T) {
	run(t, 1, nil, func(t *testing.T, g *rig) {
		g.src.append(0, 10, true)
		g.pass(time.Second)
		g.setUp(false)
		g.remote.cut()
		g.pass(time.Minute)
		if st := g.r.Status(); st.LastError == "" || !st.RecoveredAt.IsZero() {
			t.Errorf("down: %+v", st)
		}
		g.src.append(0, 10, true)
		g.setUp(true)
		time.Sleep(3 * time.Minute) // connections are taken, records are not acknowledged
		synctest.Wait()
		if st := g.r.Status(); st.LastError == "" || !st.RecoveredAt.IsZero() {
			t.Errorf("connected, nothing acknowledged: %+v", st)
		}
		g.pass(3 * time.Minute)
		st := g.r.Status()
		if st.LastError == "" || !st.RecoveredAt.After(st.LastErrorAt) || st.LagMessages != 0 {
			t.Errorf("up: %+v", st)
		}
		g.remote.cut()
		g.pass(10 * time.Millisecond)
		if st := g.r.Status(); !st.RecoveredAt.IsZero() {
			t.Errorf("down again: %+v", st)
		}
		g.pass(3 * time.Minute)
		if st := g.r.Status(); st.RecoveredAt.IsZero() {
			t.Errorf("up again, with nothing to send: %+v", st)
		}
	})
}

// TestResumeReadsLittle: after a lost connection only what was in flight is read
// back, not a window of what had long been acknowledged.
func TestResumeReadsLittle(t *testing.T) {
	run(t, 3, nil, func(t *testing.T, g *rig) {
		for i := range 3 {
			g.src.append(i, 5000, true)
		}
		g.pass(time.Minute)
		for round, inFlight := range []int{0, 7, 100} {
			for i := range 3 {
				g.src.append(i, inFlight, true)
			}
			synctest.Wait()
			g.remote.mu.Lock()
			g.remote.read = 0
			g.remote.mu.Unlock()
			g.remote.cut()
			g.pass(time.Minute)
			g.remote.mu.Lock()
			n := g.remote.read
			g.remote.mu.Unlock()
			// The record at the last acknowledgement, and what was delivered of the rest.
			if n < 1 || n > 1+3*inFlight {
				t.Errorf("round %d: %d records read back, %d were in flight", round, n, 3*inFlight)
			}
		}
		if st := g.r.Status(); st.LagMessages != 0 {
			t.Errorf("%+v", st)
		}
		(&simulation{t: t, src: g.src, remote: g.remote}).compare()
	})
}

// TestUnreadablePartitionWaits: a partition that cannot be read is tried once a
// second, not in a loop, and no longer once it can be read.
func TestUnreadablePartitionWaits(t *testing.T) {
	run(t, 2, nil, func(t *testing.T, g *rig) {
		g.src.append(0, 10, true)
		g.src.append(1, 10, true)
		g.pass(time.Second)
		bad := &failingPartition{Partition: g.r.parts[1], err: fmt.Errorf("disk")}
		g.r.parts[1], g.r.merge.parts[1] = bad, bad
		g.src.append(1, 10, true)
		g.src.append(0, 10, true)
		g.pass(10 * time.Second)
		st := g.r.Status()
		if !strings.Contains(st.LastError, "reading main/1-0: disk") || !st.RecoveredAt.IsZero() || st.LagMessages != 10 || bad.reads < 9 || bad.reads > 11 {
			t.Errorf("%d reads, %+v", bad.reads, st)
		}
		bad.err = nil
		g.pass(2 * time.Second)
		if st := g.r.Status(); st.LagMessages != 0 || st.RecoveredAt.IsZero() {
			t.Errorf("readable again: %+v", st)
		}
		if at := g.r.merge.retryAt(time.Now()); !at.IsZero() {
			t.Errorf("it is still waited for, until %s", at)
		}
	})
}

type failingPartition struct {
	Partition
	err   error
	reads int
}

func (p *failingPartition) Read(from int64, limit int, dst []byte) ([]byte, error) {
	if p.err != nil {
		if limit > 1 { // not by Status
			p.reads++
		}
		return dst, p.err
	}
	return p.Partition.Read(from, limit, dst)
}

// TestPassedRanges: ranges that were left out join, and those that are sent again
// are no longer left out.
func TestPassedRanges(t *testing.T) {
	l := &loss{}
	for i := range int64(passedKept + 8) {
		l.leaveOut(span{From: 10 * i, To: 10*i + 3})
	}
	if len(l.Passed) != passedKept || l.Skipped != 3*(passedKept+8) {
		t.Errorf("%d ranges, %d records", len(l.Passed), l.Skipped)
	}
	l.Passed = []span{{10, 20}, {30, 40}, {20, 25}}
	for offset, want := range map[int64]int64{9: 9, 10: 25, 19: 25, 24: 25, 25: 25, 30: 40, 40: 40} {
		if got := l.behind(offset); got != want {
			t.Errorf("behind %d is %d, want %d", offset, got, want)
		}
	}
	l.takeIn(35)
	if want := []span{{10, 20}, {30, 35}, {20, 25}}; !slices.Equal(l.Passed, want) {
		t.Errorf("%v, want %v", l.Passed, want)
	}
	l.takeIn(5)
	if len(l.Passed) != 0 {
		t.Errorf("%v", l.Passed)
	}
}
