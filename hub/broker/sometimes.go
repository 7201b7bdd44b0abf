package broker

import "sync/atomic"

// sayEveryMs is how often the same complaint goes to the log.
const sayEveryMs = 10_000

// sometimes lets a complaint through once in a while: what goes wrong for every message must not fill the disk with
// log lines. The counters have all of them.
type sometimes struct {
	nextMs  atomic.Int64
	skipped atomic.Int64
}

// next reports whether to say it now, and how many times it was not said since the last time.
func (s *sometimes) next(nowMs int64) (skipped int64, say bool) {
	due := s.nextMs.Load()
	if nowMs < due || !s.nextMs.CompareAndSwap(due, nowMs+sayEveryMs) {
		s.skipped.Add(1)
		return 0, false
	}
	return s.skipped.Swap(0), true
}
