package stream

import (
	"sync"
	"sync/atomic"
	"time"
)

// The kinds of operations that Slow knows.
const (
	SlowWrite = "write"
	SlowSync  = "sync"
)

// Slow knows what the disk takes long for. The zero value is ready.
type Slow struct {
	// Writes and Syncs count what took longer than event loops wait; Longest is the longest of them.
	Writes, Syncs SlowCount
	// SyncBound is from when on a sync counts; set before Start.
	SyncBound time.Duration

	mu      sync.Mutex
	running map[*SlowOp]struct{}
}

// SlowCount counts one kind of operations.
type SlowCount struct {
	Total   atomic.Int64
	Longest atomic.Int64 // nanoseconds
}

// SlowOp is an operation that takes long, or may.
type SlowOp struct {
	Kind, File string
	Since      time.Time
}

// Begin notes a write that is late, or a sync. End must follow.
func (s *Slow) Begin(kind, file string, since time.Time) *SlowOp {
	op := &SlowOp{kind, file, since}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		s.running = map[*SlowOp]struct{}{}
	}
	s.running[op] = struct{}{}
	return op
}

// End notes that the operation is over and returns how long it took.
func (s *Slow) End(op *SlowOp) time.Duration {
	s.mu.Lock()
	delete(s.running, op)
	s.mu.Unlock()
	took, c := time.Since(op.Since), &s.Writes
	if op.Kind == SlowSync {
		if c = &s.Syncs; took < s.SyncBound {
			return took
		}
	}
	c.Total.Add(1)
	for old := c.Longest.Load(); int64(took) > old && !c.Longest.CompareAndSwap(old, int64(took)); old = c.Longest.Load() {
	}
	return took
}

// Running returns the operation that has been taking longest; false: there is none.
func (s *Slow) Running() (op SlowOp, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for x := range s.running {
		if !ok || x.Since.Before(op.Since) {
			op, ok = *x, true
		}
	}
	return op, ok
}
