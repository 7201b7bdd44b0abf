package uplink

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"edgehub/storage/seglog"
)

// copied is a copy of a hub's data directory.
type copied struct {
	dir     string
	epochs  map[string][]EpochStart
	cursors *fakeCursors
	unclean bool
}

// copy copies what there is at the moment.
func (s *fakeSource) copy(c *fakeCursors, unclean bool) copied {
	s.t.Helper()
	out := copied{dir: s.t.TempDir(), epochs: maps.Clone(s.epochs), cursors: c.clone(), unclean: unclean}
	if err := os.CopyFS(out.dir, os.DirFS(s.dir)); err != nil {
		s.t.Fatal(err)
	}
	return out
}

// putBack replaces the log, its epochs and the cursors. No uplink runs.
func (s *fakeSource) putBack(c copied) *fakeCursors {
	s.t.Helper()
	n := len(s.logs)
	for _, l := range s.logs {
		if err := l.Close(); err != nil {
			s.t.Fatal(err)
		}
	}
	s.dir = s.t.TempDir()
	if err := os.CopyFS(s.dir, os.DirFS(c.dir)); err != nil {
		s.t.Fatal(err)
	}
	s.open(n)
	s.mu.Lock()
	s.epochs = maps.Clone(c.epochs)
	s.mu.Unlock()
	if c.unclean {
		s.crash()
	}
	return c.cursors.clone()
}

func (s *fakeSource) syncAll() {
	for i := range s.logs {
		s.sync(i)
	}
}

// payloads returns what a log has from an offset on.
func payloads(t testing.TB, l *seglog.Log, from int64) []string {
	var out []string
	for from < l.Next() {
		chunk, err := l.Read(from, 1<<20, nil)
		if err != nil {
			t.Fatal(err)
		}
		for rec := range seglog.Records(chunk) {
			if rec.Offset >= from {
				out = append(out, string(rec.Value))
				from = rec.Offset + 1
			}
		}
	}
	return out
}

// holds checks that the remote has every record of the log, in the order of its
// partition, and no id twice, whatever of other histories is between them. It
// returns how many records are there more than once.
func (r *fakeRemote) holds(t *testing.T, src *fakeSource) (again int) {
	t.Helper()
	ids, by, times := map[string]bool{}, map[string][]string{}, map[string]int{}
	for _, m := range r.stored {
		id, _ := parseIdent(m.ID)
		if ids[m.ID] {
			t.Fatalf("id %s is there twice", m.ID)
		}
		ids[m.ID] = true
		by[id.Partition] = append(by[id.Partition], m.payload)
		times[m.payload]++
	}
	for _, l := range src.logs {
		got := by[l.Name()]
		for i, p := range payloads(t, l, 0) {
			if times[p] > 1 {
				again++
			}
			at := slices.Index(got, p)
			if at < 0 {
				t.Fatalf("%s offset %d is there %d times, and not in order", l.Name(), i, times[p])
			}
			got = got[at+1:]
		}
	}
	return again
}

func (g *rig) wantAll(t *testing.T) {
	t.Helper()
	if again := g.remote.holds(t, g.src); again > 0 {
		t.Errorf("%d records are there more than once", again)
	}
}

// otherHistories are rigs whose log was replaced by an older copy.
func otherHistories(t *testing.T, f func(t *testing.T, g *rig, unclean bool)) {
	for _, unclean := range []bool{false, true} {
		t.Run(fmt.Sprintf("unclean %t", unclean), func(t *testing.T) {
			run(t, 3, nil, func(t *testing.T, g *rig) {
				for i := range 8 {
					g.src.append(i%2, 250, true)
					g.src.append(2, 1, true)
					g.pass(100 * time.Millisecond)
				}
				g.stop()
				older := g.src.copy(g.cursors, unclean)
				g.start(nil)
				for i := range 6 {
					g.src.append(i%2, 100, true)
					g.pass(100 * time.Millisecond)
				}
				g.stop()
				g.cursors = g.src.putBack(older)
				f(t, g, unclean)
			})
		})
	}
}

func (g *rig) setUp(up bool) {
	g.remote.mu.Lock()
	g.remote.up = up
	g.remote.mu.Unlock()
}

func (g *rig) wantBlocked(t *testing.T, why string) {
	t.Helper()
	st := g.r.Status()
	if st.State != Blocked || st.Blocked == nil || !strings.Contains(st.LastError, why) || !strings.Contains(st.LastError, "hubctl uplink resume u") || st.Counters.Sent != 0 {
		t.Fatalf("%+v, want it blocked, saying %q and the cure", st, why)
	}
}

// TestOlderCopyGrows: the log of an older copy grows past what the remote has, in
// its sight or out of it, and over restarts. The uplink stays blocked; when the
// operator resumes, everything that the remote does not have follows, once.
func TestOlderCopyGrows(t *testing.T) {
	for _, seen := range []bool{true, false} {
		t.Run(fmt.Sprintf("seen %t", seen), func(t *testing.T) {
			otherHistories(t, func(t *testing.T, g *rig, unclean bool) {
				why := "another time, topic or payload than this log"
				if unclean {
					why = "here it is of epoch 2"
				}
				g.setUp(seen)
				g.start(nil)
				if seen {
					if !unclean {
						why = "this log ended at"
					}
					g.pass(time.Second)
					g.wantBlocked(t, why)
				}
				g.src.append(0, 900, true)
				g.src.append(1, 300, true) // exactly as many as the remote has
				g.src.append(2, 3, true)
				g.pass(10 * time.Minute)
				g.setUp(true)
				g.pass(3 * time.Minute)
				g.wantBlocked(t, why)
				g.stop()
				g.setUp(false) // and a restart does not let go of it, whether or not it can look
				g.start(nil)
				g.pass(time.Minute)
				g.wantBlocked(t, why)
				g.setUp(true)
				g.pass(10 * time.Minute)
				g.wantBlocked(t, why)
				g.resumeAndCompare(t)
			})
		})
	}
}

func (g *rig) resumeAndCompare(t *testing.T) {
	t.Helper()
	if err := g.r.Resume(); err != nil {
		t.Fatal(err)
	}
	g.pass(10 * time.Second)
	if st := g.r.Status(); st.State != Stream || st.LagMessages != 0 {
		t.Fatalf("resumed: %+v", st)
	}
	g.wantAll(t)
	for range 3 {
		g.stop()
		g.src.crash()
		g.start(nil)
		g.src.append(0, 30, true)
		g.src.append(2, 30, true)
		g.pass(10 * time.Second)
		if st := g.r.Status(); st.State != Stream || st.LagMessages != 0 {
			t.Fatalf("after a restart: %+v", st)
		}
	}
	g.wantAll(t)
}

// TestDecisionIsKept: the operator resumes while the remote cannot be reached, or
// the hub dies before the first record of the decision has arrived.
func TestDecisionIsKept(t *testing.T) {
	otherHistories(t, func(t *testing.T, g *rig, _ bool) {
		g.start(nil)
		g.pass(time.Second)
		g.setUp(false)
		if err := g.r.Resume(); err != nil {
			t.Fatal(err)
		}
		g.pass(time.Second)
		g.stop()
		g.start(nil)
		g.setUp(true)
		g.pass(time.Minute)
		if st := g.r.Status(); st.State != Stream || st.Counters.Sent != 0 {
			t.Fatalf("after the decision and a restart: %+v", st)
		}
		g.stop() // nothing was there to send: the remote does not know of the decision
		g.start(nil)
		g.pass(time.Minute)
		if st := g.r.Status(); st.State != Stream {
			t.Fatalf("the decision was forgotten: %+v", st)
		}
		g.src.append(0, 600, true)
		g.src.append(1, 10, true)
		g.pass(time.Minute)
		g.wantAll(t)
		g.resumeAndCompare(t)
	})
}

// TestPauseDecidesNothing: the end of a pause is not the word for a block.
func TestPauseDecidesNothing(t *testing.T) {
	otherHistories(t, func(t *testing.T, g *rig, _ bool) {
		g.start(nil)
		g.pass(time.Second)
		for _, restart := range []bool{false, true} {
			if err := g.r.Pause(); err != nil {
				t.Fatal(err)
			}
			g.src.append(0, 2000, true)
			g.pass(time.Second)
			if restart {
				g.stop()
				g.start(nil)
				g.pass(time.Second)
			}
			if st := g.r.Status(); st.State != Paused {
				t.Fatalf("paused: %+v", st)
			}
			if err := g.r.Resume(); err != nil {
				t.Fatal(err)
			}
			g.pass(5 * time.Minute)
			g.wantBlocked(t, "offset")
		}
		g.resumeAndCompare(t)
	})
}

// TestAnotherRemoteCures: under a new name the uplink goes on from what the copy
// knows to be acknowledged; a stream created anew is one that the operator decides about.
func TestAnotherRemoteCures(t *testing.T) {
	otherHistories(t, func(t *testing.T, g *rig, _ bool) {
		g.start(nil)
		g.pass(time.Second)
		g.wantBlocked(t, "offset")
		g.stop()
		g.src.append(0, 2000, true)
		old := g.remote.created
		g.remote.mu.Lock()
		g.remote.stored, g.remote.last, g.remote.lastID, g.remote.created = nil, 0, "", old.Add(time.Hour)
		g.remote.mu.Unlock()
		g.start(nil)
		g.pass(3 * time.Minute)
		if st := g.r.Status(); st.Blocked == nil || st.Blocked.Cause != CauseRecreated {
			t.Fatalf("%+v, want recreated", st)
		}
		g.stop()
		g.remote.mu.Lock()
		g.remote.name = "OTHER"
		g.remote.mu.Unlock()
		g.start(func(o *Options) { o.Remote = "OTHER" })
		g.pass(time.Minute)
		if st := g.r.Status(); st.State != Stream || st.LagMessages != 0 || len(g.remote.stored) != 2000 {
			t.Fatalf("%d records, %+v", len(g.remote.stored), st)
		}
	})
}

// TestSimulationRestored is TestSimulation with copies of the data directory that
// are taken and put back at any time, after clean stops and others. Whenever the
// uplink says that it is blocked, the operator resumes sooner or later. In the
// end the remote has all of the last log, in order and under ids of its own.
func TestSimulationRestored(t *testing.T) {
	seeds := 150
	if testing.Short() {
		seeds = 15
	}
	blocks, restores, again := 0, 0, 0
	for seed := range seeds {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, r, a := simulateRestored(t, uint64(seed))
				blocks += b
				restores += r
				again += a
			})
		})
	}
	if !t.Failed() && (blocks < seeds/2 || restores < seeds) {
		t.Errorf("too quiet: %d blocks, %d copies put back", blocks, restores)
	}
	t.Logf("%d histories: %d copies put back, %d blocks, %d records are there more than once", seeds, restores, blocks, again)
}

func simulateRestored(t *testing.T, seed uint64) (blocks, restores, again int) {
	rng := rand.New(rand.NewPCG(seed, 99))
	s := &simulation{t: t, rng: rng, src: newFakeSource(t, 1+rng.IntN(3)), remote: &fakeRemote{up: true}, cursors: &fakeCursors{pos: map[string]int64{}}}
	if s.remote.replicated = seed%4 == 3; s.remote.replicated {
		s.remote.ids = map[string]uint64{}
	}
	s.start()
	clean := func() {
		s.src.syncAll()
		s.stop()
		if s.remote.replicated {
			s.remote.drop()
		}
	}
	var copies []copied
	for range 300 {
		switch d := rng.IntN(100); {
		case d < 35:
			s.src.append(rng.IntN(len(s.src.logs)), 1+rng.IntN(90), rng.IntN(4) > 0)
		case d < 80:
			s.remote.step(rng, 1+rng.IntN(80))
		case d < 84:
			s.remote.cut()
		case d < 86:
			s.remote.mu.Lock()
			s.remote.up = !s.remote.up
			s.remote.mu.Unlock()
		case d < 87:
			s.kill()
		case d < 89:
			clean()
			copies = append(copies, s.src.copy(s.cursors, false))
			s.start()
		case d < 90:
			copies = append(copies, s.src.copy(s.cursors, true))
		case d < 92 && len(copies) > 0:
			restores++
			clean()
			s.cursors = s.src.putBack(copies[rng.IntN(len(copies))])
			s.start()
		case d < 94 && s.r.Status().State == Blocked:
			blocks++
			if err := s.r.Resume(); err != nil {
				t.Fatal(err)
			}
		default:
			time.Sleep(time.Duration(rng.IntN(1500)) * time.Millisecond)
		}
		time.Sleep(time.Duration(rng.IntN(30)) * time.Millisecond)
		synctest.Wait()
	}
	s.remote.mu.Lock()
	s.remote.up = true
	s.remote.mu.Unlock()
	s.src.syncAll()
	for range 10000 {
		s.remote.step(rng, 100)
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		st := s.r.Status()
		if st.State == Blocked {
			blocks++
			if !st.Blocked.Cause.history() {
				t.Fatalf("blocked for %+v", st.Blocked)
			}
			if err := s.r.Resume(); err != nil {
				t.Fatal(err)
			}
		}
		if st.State == Stream && st.LagMessages == 0 && s.remote.idle() {
			s.stop()
			return blocks, restores, s.remote.holds(t, s.src)
		}
	}
	t.Fatalf("does not come to rest: %+v", s.r.Status())
	return 0, 0, 0
}
