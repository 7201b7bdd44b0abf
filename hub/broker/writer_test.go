package broker

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"edgehub/hub/stream"
	"edgehub/internal/vfs/vfstest"
)

const slowDisk = 2 * time.Second

// slowRig is a rig with writers, on a disk that takes two seconds for each of its next n writes of logs. For use in a
// synctest bubble: time is not real.
func slowRig(t *testing.T, specs []stream.Spec, loops, n int) *rig {
	t.Helper()
	r := newRig(t, specs, loops)
	r.b.writers.wait = 20 * time.Millisecond
	r.b.writers.start()
	t.Cleanup(func() {
		close(r.b.stop)
		r.b.writers.stop()
	})
	r.slow(n)
	return r
}

func (r *rig) slow(n int) {
	r.fs.Add(vfstest.Fault{Op: vfstest.OpWrite, Pattern: "*.log", Count: n, Hook: func() { time.Sleep(slowDisk) }})
}

// rounds runs what the loops have to do until they have nothing, and returns how long that took.
func (r *rig) rounds() time.Duration {
	start := time.Now()
	for busy := true; busy; {
		busy = false
		for i := range r.loops {
			busy = r.step(i) || busy
		}
	}
	return time.Since(start)
}

// The very first slow write does not hold a loop up, and neither do those that follow; nothing is acknowledged before
// it is written, everything after, in order.
func TestSlowWritesDoNotHoldLoops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := slowRig(t, twoKinds, 2, 8)
		s := r.connect(1, ConnectRequest{ClientID: "s"})
		s.subscribe(1, "#")
		r.settle()
		s.take()
		a := r.connect(0, ConnectRequest{ClientID: "a"})
		a.take()
		p := r.part("a")
		var worst time.Duration
		for i := range 10 {
			a.pub("a", fmt.Sprint(i), 1, uint16(i+1))
			calm := r.conn(i % 2) // does not rest on the log
			calm.l.Connect(calm, ConnectRequest{ClientID: fmt.Sprint("calm", i)})
			calm.l.Schedule()
			worst = max(worst, r.rounds())
			if len(calm.take()) != 1 {
				t.Fatal("no CONNACK while a write of the log is slow")
			}
		}
		if worst > 25*time.Millisecond {
			t.Errorf("a round took %v", worst)
		}
		if got := a.take(); len(got) != 0 || p.Log.Next() != 0 {
			t.Fatalf("acknowledged before it was written: %v", got)
		}
		if op, late := r.set.Slow.Running(); !late || op.File != p.Name || op.Kind != stream.SlowWrite {
			t.Errorf("running: %+v, %v", op, late)
		}
		for range 8 {
			time.Sleep(slowDisk)
			synctest.Wait()
			worst = max(worst, r.rounds())
		}
		if got := kinds(a.take(), "puback"); len(got) != 10 || got[0].id != 1 || got[9].id != 10 || got[9].code != CodeOK {
			t.Errorf("acknowledged: %v", got)
		}
		want := countUp(0, 10)
		wantTexts(t, s.take(), want...)
		if got := r.payloads(p); !slices.Equal(got, want) {
			t.Errorf("in the log: %v", got)
		}
		if n := r.set.Slow.Writes.Total.Load(); n < 2 || time.Duration(r.set.Slow.Writes.Longest.Load()) < slowDisk {
			t.Errorf("%d slow writes, longest %v", n, time.Duration(r.set.Slow.Writes.Longest.Load()))
		}
		if _, late := r.set.Slow.Running(); late || r.b.writers.slow.Load() != 0 || p.bytes != 0 {
			t.Errorf("late %v, %d, %d bytes", late, r.b.writers.slow.Load(), p.bytes)
		}
		// Fast again: the loop waits for its writes, and acknowledges in the same round.
		r.fs.Clear()
		a.pub("a", "fast", 1, 20)
		if r.step(0); len(kinds(a.take(), "puback")) != 1 {
			t.Error("a fast write is not waited for")
		}
	})
}

// However many partitions a round has touched, it waits once; and no more threads are held than there are writers.
func TestManySlowWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 4 * writersMax
		r := slowRig(t, []stream.Spec{{Name: "main", Filters: []string{"#"}, Partitions: n, SegmentBytes: 1 << 20, ByClient: true},
			{Name: RetainedStream, Partitions: 1, SegmentBytes: 1 << 20}}, 1, 0)
		var list []*tconn
		for i := range 8 * n {
			cn := r.connect(0, ConnectRequest{ClientID: fmt.Sprint("c", i)})
			cn.take()
			list = append(list, cn)
		}
		for _, cn := range list {
			cn.pub("t", cn.c.ClientID, 1, 1)
		}
		if took := r.rounds(); took > 25*time.Millisecond {
			t.Errorf("the round took %v", took)
		}
		if r.b.writers.running > writersMax {
			t.Errorf("%d writers", r.b.writers.running)
		}
		for range 8 {
			time.Sleep(slowDisk)
			synctest.Wait()
			r.rounds()
		}
		for _, cn := range list {
			if got := cn.take(); len(got) != 1 {
				t.Fatalf("%s: %v", cn.c.ClientID, got)
			}
		}
		if len(r.b.writers.idle) != r.b.writers.running || len(r.b.writers.left) != 0 {
			t.Errorf("%d of %d idle, %d left", len(r.b.writers.idle), r.b.writers.running, len(r.b.writers.left))
		}
	})
}

// What waits for a slow disk is bounded, and refused beyond that with a reason that is counted.
func TestSlowWriteBacklogIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := slowRig(t, oneStream, 1, 1)
		r.b.o.Limits.InboundBytes = 10_000
		a := r.connect(0, ConnectRequest{ClientID: "a"})
		a.take()
		text := strings.Repeat("x", 999)
		for i := range 50 {
			a.pub("t", text, 1, uint16(i+1))
			r.rounds()
		}
		n := r.b.Stats.RefusedBusy.Load()
		if n < 35 || n > 42 {
			t.Errorf("%d of 50 refused", n)
		}
		time.Sleep(slowDisk)
		synctest.Wait()
		r.rounds()
		ok := 0
		for i, p := range kinds(a.take(), "puback") {
			if p.id != uint16(i+1) {
				t.Fatalf("answer %d is for %d", i, p.id)
			}
			if p.code == CodeOK {
				ok++
			}
		}
		if int64(ok) != 50-n || r.part("t").Log.Next() != int64(ok) {
			t.Errorf("%d acknowledged, %d refused, %d in the log", ok, n, r.part("t").Log.Next())
		}
	})
}

// A slow write that fails in the end refuses its messages, and those that were to follow it.
func TestSlowWriteFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := slowRig(t, oneStream, 1, 0)
		r.fs.Clear()
		r.fs.Add(vfstest.Fault{Op: vfstest.OpWrite, Pattern: "*.log", Count: 1, Err: errInjected, Hook: func() { time.Sleep(slowDisk) }})
		a := r.connect(0, ConnectRequest{ClientID: "a"})
		a.take()
		for i := range 3 {
			a.pub("t", fmt.Sprint(i), 1, uint16(i+1))
			r.rounds()
		}
		time.Sleep(slowDisk)
		synctest.Wait()
		r.rounds()
		for _, p := range kinds(a.take(), "puback") {
			if p.code != CodeQuotaExceeded {
				t.Errorf("%v", p)
			}
		}
		if n := r.b.Stats.RefusedWrite.Load(); n != 3 {
			t.Errorf("%d refused", n)
		}
		a.pub("t", "again", 1, 9)
		r.rounds()
		if got := r.payloads(r.part("t")); !slices.Equal(got, []string{"again"}) {
			t.Errorf("in the log: %v", got)
		}
	})
}

// With durability memory not even a slow write holds acknowledgements back.
func TestSlowWriteBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := slowRig(t, []stream.Spec{{Name: "main", Filters: []string{"#"}, Partitions: 1, SegmentBytes: 1 << 20, Durability: stream.Memory, Linger: 100 * time.Millisecond},
			{Name: RetainedStream, Partitions: 1, SegmentBytes: 1 << 20}}, 1, 1)
		a := r.connect(0, ConnectRequest{ClientID: "a"})
		a.take()
		for i := range 20 { // over the start of the write, and beyond
			a.pub("t", fmt.Sprint(i), 1, uint16(i+1))
			if took := r.rounds(); took > 0 || len(a.take()) != 1 {
				t.Fatalf("message %d: %v", i, took)
			}
			time.Sleep(30 * time.Millisecond)
			synctest.Wait()
		}
		p := r.part("t")
		if n, busy := p.behind(); p.Log.Next() != 0 || n != 20 || busy {
			t.Fatalf("written: %d, behind: %d; somebody is the committer: %v", p.Log.Next(), n, busy)
		}
		time.Sleep(2 * slowDisk)
		synctest.Wait()
		n, _ := p.behind()
		if got := r.payloads(p); !slices.Equal(got, countUp(0, 20)) || n != 0 {
			t.Errorf("in the log: %v, %d not written", got, n)
		}
	})
}

// A will that a loop publishes is written by its round, not in the middle of what the loop does.
func TestSlowWill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := slowRig(t, oneStream, 1, 1)
		cn := r.connect(0, ConnectRequest{ClientID: "w", Will: willOf("gone", "x", 0)})
		cn.drop()
		if took := r.rounds(); took > 25*time.Millisecond {
			t.Errorf("took %v", took)
		}
		time.Sleep(slowDisk)
		synctest.Wait()
		r.rounds()
		if n := len(r.payloads(r.part("gone"))); n != 1 || r.b.Stats.WillsFired.Load() != 1 {
			t.Errorf("%d wills in the log", n)
		}
	})
}
