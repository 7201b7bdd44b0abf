package bench

import (
	"runtime"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Delays from one microsecond to ten minutes, to three digits. What is longer counts as ten minutes.
const (
	delayMin    = time.Microsecond
	delayMax    = 10 * time.Minute
	delayDigits = 3
)

// Latency describes delays, in milliseconds. Quantiles are of the measured messages, not of samples of them.
type Latency struct {
	Count  int64   `json:"count"`
	MeanMs float64 `json:"mean_ms"`
	P50Ms  float64 `json:"p50_ms"`
	P99Ms  float64 `json:"p99_ms"`
	P999Ms float64 `json:"p999_ms"`
	MaxMs  float64 `json:"max_ms"`
}

// recorder collects delays of several goroutines. The lock is taken once for everything that one read has brought.
type recorder struct {
	mu sync.Mutex
	h  *hdrhistogram.Histogram // guarded by mu
}

func newRecorder() *recorder {
	return &recorder{h: hdrhistogram.New(int64(delayMin), int64(delayMax), delayDigits)}
}

// addLocked counts one delay. Under mu.
func (r *recorder) addLocked(ns int64) {
	// In range by the bounds: the error cannot be.
	_ = r.h.RecordValue(min(max(ns, 0), int64(delayMax)))
}

func (r *recorder) add(ns int64) {
	r.mu.Lock()
	r.addLocked(ns)
	r.mu.Unlock()
}

// recorders share the work: a histogram each for thousands of connections would be hundreds of megabytes, one for all
// would be waited for.
type recorders []*recorder

func newRecorders(users int) recorders {
	rs := make(recorders, max(1, min(users, 4*runtime.GOMAXPROCS(0))))
	for i := range rs {
		rs[i] = newRecorder()
	}
	return rs
}

func (rs recorders) of(user int) *recorder { return rs[user%len(rs)] }

// summary is nil when nothing was recorded.
func (rs recorders) summary() *Latency {
	all := newRecorder().h
	for _, r := range rs {
		r.mu.Lock()
		all.Merge(r.h)
		r.mu.Unlock()
	}
	if all.TotalCount() == 0 {
		return nil
	}
	q := all.ValueAtPercentilesSlice([]float64{50, 99, 99.9})
	return &Latency{Count: all.TotalCount(), MeanMs: ms(all.Mean()), P50Ms: ms(float64(q[0])), P99Ms: ms(float64(q[1])),
		P999Ms: ms(float64(q[2])), MaxMs: ms(float64(all.Max()))}
}

func ms(ns float64) float64 { return round(ns/1e6, 4) }

// round keeps so many digits after the point: more would pretend.
func round(v float64, digits int) float64 {
	scale := 1.0
	for range digits {
		scale *= 10
	}
	if v < 0 {
		return -round(-v, digits)
	}
	return float64(int64(v*scale+0.5)) / scale
}
