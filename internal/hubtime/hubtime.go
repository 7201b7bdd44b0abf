// Package hubtime is the hub's own clock. Ages, expiries and due times run on it, never on the wall clock alone:
// a gateway may boot in 1970 and have its clock stepped by years while it runs.
package hubtime

import (
	"sync/atomic"
	"time"
)

// Clock yields hub time: milliseconds that follow the monotonic clock from where the previous run was, see Continue. A
// step of the wall clock does not move it; it never goes back, within a run or over restarts.
//
// A Clock is safe for concurrent use.
type Clock struct {
	base  atomic.Int64 // milliseconds of hub time at start
	start time.Time
	last  atomic.Int64

	// Of Continue; owned by whoever calls Follow.
	sys    *System
	bootMs int64 // time since boot when the clock was made
	slept  int64 // milliseconds suspended since
}

// New returns a clock that begins at the wall time, or at floor if that is later, and asks the machine nothing else.
func New(floor int64) *Clock {
	now := time.Now()
	c := &Clock{start: now}
	c.base.Store(max(now.UnixMilli(), floor))
	c.last.Store(c.base.Load())
	return c
}

// NowMs is the hub time in milliseconds since the Unix epoch.
func (c *Clock) NowMs() int64 {
	return c.base.Load() + int64(time.Since(c.start)/time.Millisecond)
}

// Raise makes hub time at least floor, the time of a record that is in the log already. It is for the start of a run,
// before anybody has read the clock for keeps.
func (c *Clock) Raise(floor int64) {
	if ahead := floor - c.NowMs(); ahead > 0 {
		c.base.Add(ahead)
	}
	c.Tick()
}

// Coarse is the hub time as of the last Tick, in milliseconds: for paths that run per packet and need no more
// than the resolution of the tick.
func (c *Clock) Coarse() int64 { return c.last.Load() }

// Tick refreshes Coarse and returns it.
func (c *Clock) Tick() int64 {
	now := c.NowMs()
	c.last.Store(now)
	return now
}

// Until is how long it is until hub time is a multiple of step. Timers that wait for this go off together, and wake the
// process once.
func (c *Clock) Until(step time.Duration) time.Duration {
	since := time.Duration(c.base.Load())*time.Millisecond%step + time.Since(c.start)
	return step - since%step
}

// At is the wall-clock form of a hub time in milliseconds, for people and for remote systems.
func At(ms int64) time.Time { return time.UnixMilli(ms).UTC() }
