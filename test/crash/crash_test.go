// Package crash proves the first promise: what the hub has acknowledged is in
// its log after kill -9, in each publisher's order, and the hub is back soon.
package crash

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"edgehub/test/harness"
	"edgehub/test/harness/hublog"
	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/load"
)

func TestMain(m *testing.M) { hubtest.Main(m) }

// startMax is the promise about a start after kill -9.
const startMax = 2 * time.Second

// The suite's stream: the built-in one, with its default partitions.
const stream = "main"

// suite is a hub under load and the account of it.
type suite struct {
	hub      *harness.Hub
	fleets   []*load.Fleet
	checkers []*load.Checker
	next     map[string]int64 // by partition: where the next reading begins
}

func newSuite(t *testing.T) *suite {
	s := &suite{hub: hubtest.Start(t, nil), next: map[string]int64{}}
	// At full length as fast as it goes; else slow enough that reading
	// everything back, with the race detector on, takes seconds.
	rate := 20_000.0
	if hubtest.Full() {
		rate = 0
	}
	s.add(load.Options{Name: "once", Publishers: 50, Rate: rate, QoS: func(int) byte { return 1 }})
	s.add(load.Options{Name: "exact", Publishers: 10, Window: 16, Rate: rate / 10, QoS: func(int) byte { return 2 }})
	return s
}

func (s *suite) add(o load.Options) {
	o.Addr = s.hub.Addr()
	f := load.New(o)
	s.fleets = append(s.fleets, f)
	s.checkers = append(s.checkers, load.NewChecker(f))
}

// acked is the number of acknowledged messages of each fleet.
func (s *suite) acked() []int64 {
	out := make([]int64, len(s.fleets))
	for i, f := range s.fleets {
		out[i] = f.Counters().Acked
	}
	return out
}

// readLog gives every checker the records since the last call. They share
// the log; each takes the records of its own fleet.
func (s *suite) readLog(t *testing.T) {
	t.Helper()
	err := hublog.ReadFiles(s.hub.Config.DataDir, stream, s.next, func(r *hublog.Record) error {
		for _, c := range s.checkers {
			c.Add(r.Partition, r.Offset, r.Topic, r.Payload)
		}
		s.next[r.Partition] = r.Offset + 1
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// judge fails the test when a promise is broken and returns how many
// acknowledged ids were looked up.
func (s *suite) judge(t *testing.T, when string) int64 {
	t.Helper()
	checked := int64(0)
	for _, c := range s.checkers {
		r := c.Report()
		checked += r.Checked
		if !r.OK() {
			t.Fatalf("%s: %v", when, r.String())
		}
	}
	return checked
}

// round lets the load flow for a while, kills the hub in the middle of it,
// starts it again and looks everything up.
func (s *suite) round(t *testing.T, round int) {
	before := s.acked()
	hubtest.Eventually(t, 20*time.Second, "every fleet is being acknowledged", func() bool {
		for i, n := range s.acked() {
			if n < before[i]+500 {
				return false
			}
		}
		return true
	})
	<-time.After(time.Duration(rand.IntN(400)) * time.Millisecond)
	s.hub.Kill()
	for _, c := range s.checkers {
		c.Mark()
	}
	if err := s.hub.Start(); err != nil {
		t.Fatalf("round %d: %v", round, err)
	}
	took := s.hub.StartTook()
	if took > startMax {
		t.Errorf("round %d: ready after %v, want at most %v", round, took, startMax)
	}
	s.readLog(t)
	checked := s.judge(t, "after the restart")
	t.Logf("round %d: ready after %v, %d acknowledged ids checked", round, took.Round(time.Millisecond), checked)
}

func TestAcknowledgedSurvivesKill(t *testing.T) {
	rounds := hubtest.Scale(t, "HUB_CRASH_ROUNDS", 20, 5, 2)
	s := newSuite(t)
	for _, f := range s.fleets {
		f.Start()
	}
	for i := range rounds {
		s.round(t, i+1)
	}
	for _, f := range s.fleets {
		if err := f.Stop(60 * time.Second); err != nil {
			t.Fatal(err)
		}
	}
	s.final(t, rounds)
}

// final reads the whole log again, from its beginning and in both ways: an
// earlier round must not have been undone by a later start.
func (s *suite) final(t *testing.T, rounds int) {
	t.Helper()
	for i, f := range s.fleets {
		s.checkers[i] = load.NewChecker(f)
	}
	clear(s.next)
	s.readLog(t)
	checked := s.judge(t, "at the end")
	files, tail := hublog.Digest{}, hublog.Digest{}
	if err := hublog.ReadFiles(s.hub.Config.DataDir, stream, nil, files.Add); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := hublog.ReadTail(ctx, s.hub, stream, tail.Add); err != nil {
		t.Fatal(err)
	}
	if diff := files.Diff(tail); diff != "" {
		t.Errorf("segment files and hubctl tail: %s", diff)
	}
	t.Logf("%d rounds of kill -9: %d acknowledged ids checked, all in the log, in order", rounds, checked)
	for _, c := range s.checkers {
		r := c.Report()
		t.Log(r.String())
	}
}
