package uplink

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// rig is a replicator against a fake remote that delivers at once.
type rig struct {
	t       *testing.T
	src     *fakeSource
	remote  *fakeRemote
	cursors *fakeCursors
	r       *Replicator
	stop    func()
}

func newRig(t *testing.T, partitions int) *rig {
	return &rig{t: t, src: newFakeSource(t, partitions), remote: &fakeRemote{up: true}, cursors: &fakeCursors{pos: map[string]int64{}}}
}

func (g *rig) start(change func(*Options)) {
	g.t.Helper()
	o := Options{Name: "u", Instance: testInstance, Source: g.src, Cursors: g.cursors, Sink: g.remote, Create: true, Hold: true}
	if change != nil {
		change(&o)
	}
	r, err := New(o)
	if err != nil {
		g.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Run(ctx); err != nil {
			g.t.Errorf("Run: %v", err)
		}
	}()
	g.r, g.stop = r, func() { cancel(); <-done }
}

// pass lets a time go by while the remote takes whatever comes.
func (g *rig) pass(d time.Duration) {
	const step = 10 * time.Millisecond
	rng := rand.New(rand.NewPCG(1, 1))
	for t := time.Duration(0); t < d; t += step {
		g.remote.step(rng, math.MaxInt)
		time.Sleep(step)
		synctest.Wait()
	}
}

// run is a test in a bubble with a running replicator.
func run(t *testing.T, partitions int, change func(*Options), f func(t *testing.T, g *rig)) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, partitions)
		g.start(change)
		f(t, g)
		g.stop()
	})
}

func TestOnlyWhatIsSynced(t *testing.T) {
	run(t, 1, nil, func(t *testing.T, g *rig) {
		g.src.append(0, 10, true)
		g.src.append(0, 5, false)
		g.pass(time.Minute)
		st := g.r.Status()
		if st.Counters.Acked != 10 || st.LagMessages != 5 || st.Acked["main/0-0"] != 9 {
			t.Errorf("%+v: want the 10 synced ones sent, 5 waiting", st)
		}
		g.src.sync(0)
		g.pass(time.Second)
		if st := g.r.Status(); st.Counters.Acked != 15 || st.LagMessages != 0 {
			t.Errorf("%+v after the sync", st)
		}
	})
}

func TestPauseIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, 1)
		g.start(nil)
		g.src.append(0, 10, true)
		g.pass(time.Second)
		if err := g.r.Pause(); err != nil {
			t.Fatal(err)
		}
		g.src.append(0, 7, true)
		g.pass(time.Minute)
		if st := g.r.Status(); st.State != Paused || st.Connected || st.LagMessages != 7 || st.Counters.Failures != 0 {
			t.Errorf("paused: %+v", st)
		}
		g.stop()
		g.start(nil)
		g.pass(time.Minute)
		if st := g.r.Status(); st.State != Paused || st.Counters.Connects != 0 || st.LagMessages != 7 {
			t.Errorf("paused, after a restart: %+v", st)
		}
		if err := g.r.Resume(); err != nil {
			t.Fatal(err)
		}
		g.pass(time.Second)
		if st := g.r.Status(); st.State != Stream || st.LagMessages != 0 {
			t.Errorf("resumed: %+v", st)
		}
		g.stop()
		g.start(nil)
		g.pass(time.Second)
		if st := g.r.Status(); st.State != Stream {
			t.Errorf("resumed, after a restart: %+v", st)
		}
		g.stop()
	})
}

// TestResumeEndsBackoff: Resume does not wait for the back-off to end.
func TestResumeEndsBackoff(t *testing.T) {
	run(t, 1, nil, func(t *testing.T, g *rig) {
		g.remote.mu.Lock()
		g.remote.up = false
		g.remote.mu.Unlock()
		g.remote.cut()
		g.pass(10 * time.Minute)
		st := g.r.Status()
		if st.State != Backoff || !strings.Contains(st.LastError, "refused") || st.NextProbe.IsZero() || st.Counters.Failures < 8 || st.Counters.Failures > 25 {
			t.Fatalf("%+v", st)
		}
		g.remote.mu.Lock()
		g.remote.up = true
		g.remote.mu.Unlock()
		if err := g.r.Resume(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if st := g.r.Status(); st.State != Stream {
			t.Errorf("%+v", st)
		}
	})
}

// TestRefusedIsTriedSoon: while connections are refused, the next try is never
// further away than 15 s, however long the outage; the waits stay spread.
func TestRefusedIsTriedSoon(t *testing.T) {
	run(t, 1, nil, func(t *testing.T, g *rig) {
		g.pass(time.Second)
		g.remote.mu.Lock()
		g.remote.up, g.remote.refuse = false, true
		g.remote.mu.Unlock()
		g.remote.cut()
		waits := map[time.Duration]bool{}
		for range 100 {
			g.pass(10 * time.Second)
			st := g.r.Status()
			wait := time.Until(st.NextProbe)
			if st.State != Backoff || wait > 15*time.Second {
				t.Fatalf("next try in %s: %+v", wait, st)
			}
			waits[wait] = true
		}
		if n := g.r.Status().Counters.Failures; n < 1000/15 || n > 1000/7+10 || len(waits) < 50 {
			t.Errorf("%d tries in 1000 s, %d different waits", n, len(waits))
		}
		g.setUp(true)
		g.pass(15 * time.Second)
		if st := g.r.Status(); st.State != Stream {
			t.Errorf("15 s after the outage: %+v", st)
		}
	})
}

func TestRates(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Options)
		least  uint64
		most   uint64
	}{
		{"messages", func(o *Options) { o.MessagesPerS = 100 }, 980, 1020},
		{"bytes", func(o *Options) { o.BytesPerS = 300 }, 980, 1100}, // payloads of 1 to 4 bytes
		{"slow", func(o *Options) { o.MessagesPerS = 1 }, 10, 11},
	} {
		t.Run(c.name, func(t *testing.T) {
			run(t, 2, c.change, func(t *testing.T, g *rig) {
				g.src.append(0, 2000, true)
				synctest.Wait() // else the other one may come first: its payloads are longer
				g.src.append(1, 2000, true)
				g.pass(10 * time.Second)
				if n := g.r.Status().Counters.Acked; n < c.least || n > c.most {
					t.Errorf("%d records in 10 s, want %d to %d", n, c.least, c.most)
				}
			})
		})
	}
}

// TestFairness: a backlog in one partition does not make the others wait.
func TestFairness(t *testing.T) {
	run(t, 3, func(o *Options) { o.MessagesPerS = 5000 }, func(t *testing.T, g *rig) {
		for range 20 {
			g.src.append(0, 5000, true)
		}
		g.src.append(1, 10, true)
		g.pass(2 * time.Second)
		g.src.append(2, 10, true)
		g.pass(3 * time.Second)
		st := g.r.Status()
		if st.Acked["main/1-0"] != 9 || st.Acked["main/2-0"] != 9 || st.Acked["main/0-0"] > 40000 {
			t.Errorf("%+v", st)
		}
	})
}

// TestWindowBoundsWhatIsSent: a remote that takes and does not acknowledge gets
// a window and no more.
func TestWindowBoundsWhatIsSent(t *testing.T) {
	run(t, 2, func(o *Options) { o.Window = Window{Messages: 100, Bytes: 1 << 20} }, func(t *testing.T, g *rig) {
		g.src.append(0, 3000, true)
		g.src.append(1, 3000, true)
		time.Sleep(9 * time.Second)
		synctest.Wait()
		if st := g.r.Status(); st.Counters.Sent != 100 || st.InFlight != 100 || st.State != Stream {
			t.Errorf("before the time is up: %+v", st)
		}
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		st := g.r.Status()
		if st.Counters.Failures != 1 || !strings.Contains(st.LastError, ErrNoProgress.Error()) {
			t.Errorf("after it: %+v", st)
		}
		g.pass(2 * time.Minute)
		if st := g.r.Status(); st.LagMessages != 0 {
			t.Errorf("in the end: %+v", st)
		}
	})
}

func TestFloorKeepsGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, 1)
		grace := func(o *Options) { o.RemoteGrace = 5 * time.Minute }
		g.start(grace)
		floor := func() int64 { return g.r.Floor("main/0-0") }
		if f := g.r.Floor("other/0-0"); f != math.MaxInt64 {
			t.Errorf("another stream's floor is %d", f)
		}
		g.src.append(0, 10, true)
		g.pass(time.Minute)
		if f := floor(); f != 0 {
			t.Errorf("floor %d a minute after the acknowledgement, want 0", f)
		}
		g.src.append(0, 10, true)
		g.pass(3 * time.Minute)
		g.stop()
		g.start(grace) // the grace time begins anew: longer is safe
		g.pass(2 * time.Minute)
		if f := floor(); f >= 20 {
			t.Errorf("floor %d within the grace time of the second ten", f)
		}
		g.pass(4 * time.Minute)
		if f := floor(); f != 20 {
			t.Errorf("floor %d after the grace time, want 20", f)
		}
		g.stop()
		g.start(func(o *Options) { o.Hold = false })
		if f := floor(); f != math.MaxInt64 {
			t.Errorf("floor %d without hold", f)
		}
		g.stop()
	})
}

// TestRemoteLostPower: it comes back with less than it acknowledged.
func TestRemoteLostPower(t *testing.T) {
	run(t, 2, nil, func(t *testing.T, g *rig) {
		for range 5 {
			g.src.append(0, 100, true)
			g.src.append(1, 100, true)
			g.pass(time.Second)
		}
		for _, keep := range []int{700, 999, 300, 0} {
			g.remote.mu.Lock()
			g.remote.stored = g.remote.stored[:keep]
			g.remote.last, g.remote.lastID = uint64(keep), ""
			if keep > 0 {
				g.remote.lastID = g.remote.stored[keep-1].ID
			}
			g.remote.next = map[string]int64{}
			for _, m := range g.remote.stored {
				id, _ := parseIdent(m.ID)
				g.remote.next[id.Partition] = id.Offset + 1
			}
			g.remote.mu.Unlock()
			g.remote.cut()
			g.pass(5 * time.Second)
			if st := g.r.Status(); st.State != Stream || st.LagMessages != 0 {
				t.Fatalf("after a loss down to %d: %+v", keep, st)
			}
			(&simulation{t: t, src: g.src, remote: g.remote}).compare()
		}
		if st := g.r.Status(); st.Counters.Rewound != 300+1+700+1000 {
			t.Errorf("%+v", st.Counters)
		}
	})
}

// TestRetentionOvertakes: what retention took is counted, named, and not waited for.
func TestRetentionOvertakes(t *testing.T) {
	run(t, 2, nil, func(t *testing.T, g *rig) {
		g.remote.mu.Lock()
		g.remote.up = false
		g.remote.mu.Unlock()
		g.remote.cut()
		for range 40 {
			g.src.append(0, 100, true)
		}
		g.src.append(1, 5, true)
		log := g.src.logs[0]
		for range 3 {
			if _, err := log.DropOldest(); err != nil {
				t.Fatal(err)
			}
		}
		first := log.First()
		if first == 0 {
			t.Fatal("nothing was dropped")
		}
		g.remote.mu.Lock()
		g.remote.up = true
		g.remote.next = map[string]int64{"main/0-0": first} // as far as its check of the order goes
		g.remote.mu.Unlock()
		g.pass(5 * time.Minute)
		st := g.r.Status()
		if st.LagMessages != 0 || st.Counters.Skipped != uint64(first) || st.Counters.Acked != uint64(4000-first+5) || !strings.Contains(st.LastError, fmt.Sprintf("main/0-0: %d records were removed", first)) {
			t.Errorf("%+v, first %d", st, first)
		}
		(&simulation{t: t, src: g.src, remote: g.remote}).compare()
		// A restart does not count them again.
		g.stop()
		g.start(nil)
		g.src.append(0, 1, true)
		g.pass(time.Second)
		if st := g.r.Status(); st.Counters.Skipped != 0 || st.LagMessages != 0 {
			t.Errorf("after a restart: %+v", st)
		}
	})
}

// TestStreamsLeftOutAreRemembered: a partition that is no longer forwarded keeps
// its place for when it is again.
func TestStreamsLeftOutAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, 3)
		g.start(nil)
		for i := range 3 {
			g.src.append(i, 50, true)
		}
		g.pass(time.Second)
		g.stop()
		all := g.src.logs
		g.src.logs = all[:2]
		g.start(nil)
		for range 40 {
			g.src.append(0, 30, true)
			g.src.append(1, 30, true)
			g.pass(50 * time.Millisecond)
		}
		g.stop()
		g.src.logs = all
		g.cursors = &fakeCursors{pos: map[string]int64{}} // and the local cursors are lost
		g.start(nil)
		for i := range 3 {
			g.src.append(i, 5, true)
		}
		g.pass(time.Second)
		g.stop()
		(&simulation{t: t, src: g.src, remote: g.remote}).compare()
	})
}

func TestAge(t *testing.T) {
	run(t, 2, nil, func(t *testing.T, g *rig) {
		g.remote.mu.Lock()
		g.remote.up = false
		g.remote.mu.Unlock()
		g.remote.cut()
		g.src.append(1, 1, true)
		time.Sleep(time.Hour)
		g.src.append(0, 1, true)
		if st := g.r.Status(); st.LagAge != time.Hour || st.LagMessages != 2 || st.LagBytes == 0 {
			t.Errorf("%+v, want an hour", st)
		}
	})
}

func TestNewRefuses(t *testing.T) {
	g := newRig(t, 1)
	for _, c := range []struct {
		name string
		cur  Cursors
	}{
		{"state", badCursors{state: []byte("{"), err: nil}},
		{"load", badCursors{err: errors.New("disk")}},
	} {
		if _, err := New(Options{Name: "u", Source: g.src, Cursors: c.cur, Sink: g.remote}); err == nil || !strings.Contains(err.Error(), "uplink u") && !strings.Contains(err.Error(), "state") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

type badCursors struct {
	state []byte
	err   error
}

func (b badCursors) Load(string, string) (int64, bool, error) { return 0, false, b.err }
func (b badCursors) Save(string, string, int64) error         { return b.err }
func (b badCursors) LoadState(string) ([]byte, error)         { return b.state, b.err }
func (b badCursors) SaveState(string, []byte) error           { return b.err }

func TestGraceIsBoundedAndNeverShort(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	g := grace{keep: time.Minute}
	now := time.Unix(0, 0)
	type at struct {
		t     time.Time
		acked int64
	}
	var all []at
	acked := int64(0)
	for range 5000 {
		now = now.Add(time.Duration(rng.IntN(3000)) * time.Millisecond)
		acked += int64(rng.IntN(50))
		g.note(now, acked)
		all = append(all, at{now, acked})
		if len(g.samples) > graceSamples+2 {
			t.Fatalf("%d samples", len(g.samples))
		}
		floor := g.at(now)
		most := int64(0)
		for _, a := range all {
			if now.Sub(a.t) >= g.keep {
				most = a.acked
			}
		}
		if floor > most {
			t.Fatalf("floor %d, but only %d was acknowledged a minute ago", floor, most)
		}
		if len(all) > 200 {
			all = all[len(all)-150:]
		}
	}
	if f := g.at(now.Add(time.Minute)); f != acked {
		t.Errorf("floor %d after the grace time, want %d", f, acked)
	}
}

// TestCheckpointIsExact: what a stop leaves behind says at which sequence of the
// remote the cursors were right.
func TestCheckpointIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, 2)
		g.start(func(o *Options) { o.SaveEvery = time.Hour })
		for range 3 {
			g.src.append(0, 10, true)
			g.src.append(1, 5, true)
			g.pass(time.Second)
		}
		g.stop()
		s, err := decodeState(g.cursors.state)
		if err != nil || s.Seq != 45 || g.cursors.pos["main/0-0"] != 30 || g.cursors.pos["main/1-0"] != 15 || s.Remote != "EDGE" || !s.Created.Equal(g.remote.created) {
			t.Errorf("%+v, %v, cursors %v", s, err, g.cursors.pos)
		}
	})
}
