package uplink

import (
	"context"
	"math/rand/v2"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"edgehub/storage/seglog"
)

// TestSimulation runs seeded histories of appends, lost connections whose data
// arrives late and interleaved with the next connection's, unreachable times and
// killed hubs, against a remote that remembers no duplicates at all. The remote
// has to hold exactly the log, in order per partition.
func TestSimulation(t *testing.T) { simulations(t, false) }

// TestSimulationReplicated is the same against a remote that compares sequences
// and not ids, and knows duplicates. What a killed hub had sent is reset.
func TestSimulationReplicated(t *testing.T) { simulations(t, true) }

func simulations(t *testing.T, replicated bool) {
	seeds := 150
	if testing.Short() {
		seeds = 15
	}
	var sum Counters
	late := 0
	for seed := range seeds {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, l := simulate(t, uint64(seed), replicated)
				sum.Acked += c.Acked
				sum.Failures += c.Failures
				late += l
			})
		})
	}
	// A simulation in which nothing went wrong proves nothing.
	if !t.Failed() && (sum.Failures < uint64(seeds) || late < 100 || sum.Acked < 1000) {
		t.Errorf("too quiet: %+v, %d records arrived late", sum, late)
	}
	t.Logf("%d histories: %d acknowledged, %d connections lost, %d records arrived late", seeds, sum.Acked, sum.Failures, late)
}

type simulation struct {
	t       *testing.T
	rng     *rand.Rand
	src     *fakeSource
	remote  *fakeRemote
	cursors *fakeCursors
	r       *Replicator
	cancel  context.CancelFunc
	done    chan struct{}
	total   Counters
}

func (s *simulation) start() {
	r, err := New(Options{Name: "u", Instance: testInstance, Source: s.src, Cursors: s.cursors, Sink: s.remote, Create: true, Hold: true,
		Window: Window{Messages: 8 << s.rng.IntN(6), Bytes: 1 << 20}, SaveEvery: time.Duration(1+s.rng.IntN(2000)) * time.Millisecond,
		Timing: Timing{BackoffMin: 10 * time.Millisecond, BackoffMax: time.Second, AckTimeout: 3 * time.Second}})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.r, s.cancel, s.done = r, cancel, make(chan struct{})
	go func() {
		defer close(s.done)
		if err := r.Run(ctx); err != nil {
			s.t.Errorf("Run: %v", err)
		}
	}()
}

func (s *simulation) stop() {
	s.cancel()
	<-s.done
	c := s.r.Status().Counters
	s.total.Acked += c.Acked
	s.total.Failures += c.Failures
}

func (s *simulation) kill() {
	s.cursors.freeze()
	s.stop()
	s.cursors = s.cursors.clone()
	if s.remote.replicated {
		s.remote.drop()
	}
	s.src.crash()
	s.start()
}

func simulate(t *testing.T, seed uint64, replicated bool) (Counters, int) {
	rng := rand.New(rand.NewPCG(seed, 77))
	s := &simulation{t: t, rng: rng, src: newFakeSource(t, 1+rng.IntN(5)), remote: &fakeRemote{up: true}, cursors: &fakeCursors{pos: map[string]int64{}}}
	if s.remote.replicated = replicated; replicated {
		s.remote.ids = map[string]uint64{}
	}
	s.start()
	for range 400 {
		switch d := rng.IntN(100); {
		case d < 35:
			s.src.append(rng.IntN(len(s.src.logs)), 1+rng.IntN(60), rng.IntN(4) > 0)
		case d < 85:
			s.remote.step(rng, 1+rng.IntN(40))
		case d < 90:
			s.remote.cut()
		case d < 92:
			s.remote.mu.Lock()
			s.remote.up = !s.remote.up
			s.remote.mu.Unlock()
		case d < 93:
			s.kill()
		default:
			time.Sleep(time.Duration(rng.IntN(1500)) * time.Millisecond)
		}
		time.Sleep(time.Duration(rng.IntN(30)) * time.Millisecond)
		synctest.Wait()
	}
	s.settle()
	s.stop()
	s.compare()
	return s.total, s.remote.late
}

// settle lets everything arrive.
func (s *simulation) settle() {
	s.remote.mu.Lock()
	s.remote.up = true
	s.remote.mu.Unlock()
	for i := range s.src.logs {
		s.src.append(i, 1, true)
	}
	for range 10000 {
		s.remote.step(s.rng, 100)
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		if st := s.r.Status(); st.State == Stream && st.LagMessages == 0 && s.remote.idle() {
			return
		}
	}
	s.t.Fatalf("does not come to rest: %+v", s.r.Status())
}

func (s *simulation) compare() {
	if len(s.remote.unsafe) > 0 {
		s.t.Errorf("%d records were sent too early, such as %s", len(s.remote.unsafe), s.remote.unsafe[0])
	}
	got := map[string][]fakeStored{}
	for _, m := range s.remote.stored {
		id, ok := parseIdent(m.ID)
		if !ok {
			s.t.Fatalf("stored id %q", m.ID)
		}
		if m.Seq%positionsEvery == 0 && m.Positions == "" {
			s.t.Fatalf("sequence %d has no positions", m.Seq)
		}
		got[id.Partition] = append(got[id.Partition], m)
	}
	for _, l := range s.src.logs {
		rest := got[l.Name()]
		for from := l.First(); from < l.Next(); {
			chunk, err := l.Read(from, 1<<20, nil)
			if err != nil {
				s.t.Fatal(err)
			}
			var sc seglog.Scanner
			for sc.Reset(chunk); sc.Next(); {
				rec := sc.Record()
				from = rec.Offset + 1
				want := string(appendIdent(nil, testInstance, l.Name(), s.src.EpochAt(l.Name(), rec.Offset), rec.Offset))
				if len(rest) == 0 || rest[0].ID != want || rest[0].payload != string(rec.Value) {
					s.t.Fatalf("%s offset %d: remote has %+v, want %s", l.Name(), rec.Offset, rest[:min(1, len(rest))], want)
				}
				rest = rest[1:]
			}
		}
		if len(rest) > 0 {
			s.t.Fatalf("%s: remote has %d records beyond the log", l.Name(), len(rest))
		}
	}
}
