// Package offline proves the third promise for absent clients: what arrives
// for them is kept through kill -9, comes in order, for QoS 2 exactly once,
// and costs next to no memory however much it is.
package offline

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"edgehub/test/harness"
	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/load"
)

func TestMain(m *testing.M) { hubtest.Main(m) }

// growthMax is the promise about resident memory.
const growthMax = 32 << 20

const publishers = 4

// peak samples the resident memory of a hub until stop is called, which
// returns the largest sample.
func peak(h *harness.Hub) (stop func() int64) {
	var most atomic.Int64
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			if rss, err := h.RSS(); err == nil && rss > most.Load() {
				most.Store(rss)
			}
			select {
			case <-quit:
				return
			case <-tick.C:
			}
		}
	})
	return func() int64 {
		close(quit)
		wg.Wait()
		return most.Load()
	}
}

func rss(t *testing.T, h *harness.Hub) int64 {
	t.Helper()
	n, err := h.RSS()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func grown(t *testing.T, what string, before, most int64) {
	t.Helper()
	const mib = 1 << 20
	t.Logf("%s: resident %.1f MiB before, at most %.1f MiB", what, float64(before)/mib, float64(most)/mib)
	// The race detector multiplies the memory of the program under test.
	if most-before >= growthMax && os.Getenv(harness.RaceEnv) == "" {
		t.Errorf("%s: resident memory grew by %.1f MiB, want less than 32", what, float64(most-before)/mib)
	}
}

// absent makes the sessions under test and leaves them.
func absent(t *testing.T, h *harness.Hub) []*receiver {
	t.Helper()
	all := []*receiver{
		newReceiver(h, "once-311", 4, 1), newReceiver(h, "once-5", 5, 1),
		newReceiver(h, "exact-311", 4, 2), newReceiver(h, "exact-5", 5, 2),
	}
	for _, r := range all {
		if err := r.subscribe("load/#"); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// fill publishes total messages with QoS 2.
func fill(t *testing.T, h *harness.Hub, total int) {
	t.Helper()
	f := load.New(load.Options{Addr: h.Addr(), Name: "off", Publishers: publishers, Each: uint64(total / publishers),
		QoS: func(int) byte { return 2 }})
	f.Start()
	if err := f.Wait(3 * time.Minute); err != nil {
		t.Fatal(err)
	}
	if c := f.Counters(); c.Acked != int64(total) || c.Lost != 0 {
		t.Fatalf("%v", c)
	}
}

func drainAll(t *testing.T, rs []*receiver, total int) {
	t.Helper()
	var wg sync.WaitGroup
	for _, r := range rs {
		wg.Go(func() {
			if err := r.drain(total); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestAbsentSessionsGetEverything(t *testing.T) {
	total := hubtest.Scale(t, "HUB_OFFLINE_MESSAGES", 100_000, 100_000, 20_000)
	h := hubtest.Start(t, nil)
	rs := absent(t, h)

	before, stop := rss(t, h), peak(h)
	fill(t, h, total)
	grown(t, "while the messages arrive", before, stop())

	hubtest.Restart(t, h)
	before, stop = rss(t, h), peak(h)
	drainAll(t, rs, total)
	grown(t, "while the sessions drain after kill -9", before, stop())

	for _, r := range rs {
		if r.received != total || r.repeated != 0 {
			t.Errorf("%s: received %d of %d, %d of them repeated", r.id, r.received, total, r.repeated)
		}
		nothingLeft(t, r)
	}
}

// nothingLeft reconnects and expects silence, but for the end of handshakes.
func nothingLeft(t *testing.T, r *receiver) {
	t.Helper()
	c, _, err := r.connect()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Abort()
	r.expect = map[int]uint64{}
	had := r.received
	if err := c.Ping(); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		err = r.step(c, 300*time.Millisecond)
	}
	var broken *violation
	if errors.As(err, &broken) || r.received != had {
		t.Errorf("%s: %v; received %d more", r.id, err, r.received-had)
	}
}

// TestKillWhileDraining kills the hub again and again while the sessions
// receive, so that handshakes of both directions are cut anywhere.
func TestKillWhileDraining(t *testing.T) {
	total := hubtest.Scale(t, "HUB_OFFLINE_MESSAGES", 100_000, 40_000, 12_000)
	kills := hubtest.Scale(t, "HUB_OFFLINE_KILLS", 10, 4, 2)
	h := hubtest.Start(t, nil)
	rs := absent(t, h)
	fill(t, h, total)
	var wg sync.WaitGroup
	var done atomic.Int64
	for _, r := range rs {
		wg.Go(func() {
			defer done.Add(1)
			persist(t, r, total)
		})
	}
	for i := range kills {
		hubtest.Eventually(t, time.Minute, "the sessions receive", func() bool {
			st, err := h.Status()
			return done.Load() == int64(len(rs)) || err == nil && st.MessagesOut > int64(total/kills/4*(1+i%3))
		})
		hubtest.Restart(t, h)
	}
	wg.Wait()
	for _, r := range rs {
		t.Logf("%s: received %d, repeated %d", r.id, r.received, r.repeated)
		if r.received != total {
			t.Errorf("%s: received %d of %d", r.id, r.received, total)
		}
	}
}

// persist drains over as many connections as it takes.
func persist(t *testing.T, r *receiver, total int) {
	deadline := time.Now().Add(2 * time.Minute)
	tick := time.NewTicker(30 * time.Millisecond)
	defer tick.Stop()
	for time.Now().Before(deadline) {
		err := r.drain(total)
		var broken *violation
		if err == nil {
			return
		}
		if errors.As(err, &broken) {
			t.Error(err)
			return
		}
		<-tick.C
	}
	t.Errorf("%s: received %d of %d in time", r.id, r.received, total)
}
