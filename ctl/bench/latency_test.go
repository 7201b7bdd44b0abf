package bench

import (
	"math"
	"testing"
	"time"
)

func TestSummaryOfKnownDelays(t *testing.T) {
	rs := newRecorders(1000)
	if rs.summary() != nil {
		t.Fatal("a summary of nothing")
	}
	// 1, 2, ..., 10,000 ms, spread over users.
	for i := 1; i <= 10_000; i++ {
		rs.of(i).add(int64(i) * int64(time.Millisecond))
	}
	s := rs.summary()
	for name, x := range map[string][2]float64{"P50": {s.P50Ms, 5000}, "P99": {s.P99Ms, 9900}, "P99.9": {s.P999Ms, 9990}, "max": {s.MaxMs, 10000}, "mean": {s.MeanMs, 5000.5}} {
		if math.Abs(x[0]-x[1]) > x[1]/500 {
			t.Errorf("%s is %v, want %v within 0.2 %%", name, x[0], x[1])
		}
	}
	if s.Count != 10_000 {
		t.Errorf("count %d", s.Count)
	}
}

func TestDelaysOutOfRangeAreCounted(t *testing.T) {
	r := newRecorder()
	for _, ns := range []int64{-5, 0, 1, int64(time.Hour), math.MaxInt64} {
		r.add(ns)
	}
	s := recorders{r}.summary()
	if s.Count != 5 {
		t.Errorf("%d of 5 delays counted", s.Count)
	}
	if want := float64(delayMax / time.Millisecond); math.Abs(s.MaxMs-want) > want/500 {
		t.Errorf("an hour counts as %v ms, want %v", s.MaxMs, want)
	}
}

func TestRecordersAreBounded(t *testing.T) {
	if few, many := newRecorders(1), newRecorders(1_000_000); len(few) != 1 || len(many) > 1024 {
		t.Errorf("%d for one user, %d for a million", len(few), len(many))
	}
}

func TestRound(t *testing.T) {
	for _, c := range []struct {
		v      float64
		digits int
		want   float64
	}{{1.23456, 2, 1.23}, {1.235, 1, 1.2}, {-1.26, 1, -1.3}, {7, 0, 7}, {0.00004, 4, 0}} {
		if got := round(c.v, c.digits); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("round(%v, %d) = %v, want %v", c.v, c.digits, got, c.want)
		}
	}
}
