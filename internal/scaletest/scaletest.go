// Package scaletest compares what the same work costs on two sizes, one ten times the other. It is for benchmarks
// named BenchmarkScale: the hub promises that a message costs no more because there is more of everything else.
package scaletest

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"
)

// SizeEnv names the variable with the larger size.
const SizeEnv = "HUB_BENCH_SCALE"

// Size is the larger size: 1,000,000 unless the variable says something else.
func Size(b *testing.B) int { return Int(b, SizeEnv, 1_000_000) }

// Int reads a positive number from the environment.
func Int(b *testing.B, name string, otherwise int) int {
	b.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 10 {
		b.Fatalf("%s=%q is not a number of at least 10", name, s)
	}
	return n
}

// Step is how often each function is called between two looks at the clock.
const Step = 256

// Compare calls small and large in turn with rising numbers and reports the cost of one call of each, and their ratio:
// of the medians, since whatever else the machine does makes the mean.
func Compare(b *testing.B, small, large func(i int)) {
	b.Helper()
	var took [2][]time.Duration
	i := 0
	runtime.GC() // what was built before is not this work's garbage
	for b.Loop() {
		for k, fn := range [2]func(int){small, large} {
			start := time.Now()
			for n := range Step {
				fn(i + n)
			}
			took[k] = append(took[k], time.Since(start))
		}
		i += Step
	}
	lo, hi := Median(took[0])/Step, Median(took[1])/Step
	b.ReportMetric(0, "ns/op") // of many calls on two sizes: says nothing
	b.ReportMetric(lo, "small-ns")
	b.ReportMetric(hi, "large-ns")
	b.ReportMetric(hi/lo, "ratio")
}

// Median of durations, in nanoseconds. It sorts them.
func Median(d []time.Duration) float64 {
	slices.Sort(d)
	n := len(d)
	if n%2 == 1 {
		return float64(d[n/2])
	}
	return float64(d[n/2-1]+d[n/2]) / 2
}

// Heap is the bytes that are in use now.
func Heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
