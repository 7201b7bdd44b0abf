package scaletest

import (
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		in   []time.Duration
		want float64
	}{{[]time.Duration{7}, 7}, {[]time.Duration{9, 1, 5}, 5}, {[]time.Duration{4, 1, 2, 100}, 3}} {
		if got := Median(c.in); got != c.want {
			t.Errorf("%v: %v, want %v", c.in, got, c.want)
		}
	}
}

// Both functions do the same number of calls with the same numbers.
func TestCompareIsFair(t *testing.T) {
	var calls [2]int
	var sum [2]int
	r := testing.Benchmark(func(b *testing.B) {
		Compare(b, func(i int) { calls[0]++; sum[0] += i }, func(i int) { calls[1]++; sum[1] += i })
	})
	if calls[0] == 0 || calls[0] != calls[1] || sum[0] != sum[1] {
		t.Errorf("calls %v, sums %v", calls, sum)
	}
	if r.Extra["ratio"] <= 0 {
		t.Errorf("no ratio in %v", r.Extra)
	}
}
