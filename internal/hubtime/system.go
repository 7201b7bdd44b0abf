package hubtime

import (
	"encoding/binary"
	"time"
)

// The machine's clock is not believed. A gateway without a battery boots in 1970, one with an empty battery in any year,
// and a hub that took that for the truth would delete a year of messages for their age. So after a start hub time goes
// on from where it was: by the time since boot when the machine has not been restarted, and otherwise as if no time had
// passed. When the kernel says that its clock is synchronised, hub time goes forward to it; it never goes back.

// Mark is a moment of hub time that is kept for the next start.
type Mark struct {
	HubMs  int64
	BootMs int64  // time since boot at that moment
	Boot   string // which boot; empty: not known
}

// Bytes encodes a mark.
func (m Mark) Bytes() []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(m.HubMs))
	if m.Boot == "" {
		return b
	}
	return append(binary.BigEndian.AppendUint64(b, uint64(m.BootMs)), m.Boot...)
}

// ParseMark decodes a mark. False: it is none.
func ParseMark(b []byte) (Mark, bool) {
	switch {
	case len(b) == 8:
		return Mark{HubMs: int64(binary.BigEndian.Uint64(b))}, true
	case len(b) > 16:
		return Mark{HubMs: int64(binary.BigEndian.Uint64(b)), BootMs: int64(binary.BigEndian.Uint64(b[8:])), Boot: string(b[16:])}, true
	}
	return Mark{}, false
}

// System is what a clock asks the machine.
type System struct {
	BootID string // names the present boot; empty: not known
	// SinceBoot is how many milliseconds ago that was, suspension included.
	SinceBoot func() int64
	// Synced reports that the kernel calls its clock synchronised.
	Synced func() bool
	// Trust takes the machine's clock at a start although it is not synchronised: for a machine with a clock that is
	// right and no time server.
	Trust bool
}

// Machine is the machine that the program runs on.
func Machine(trust bool) System {
	return System{BootID: bootID(), SinceBoot: sinceBoot, Synced: synced, Trust: trust}
}

// Continue returns a clock that goes on from a mark of the previous run; without one it begins at the machine's time.
func Continue(m Mark, sys System) *Clock {
	c := New(0)
	c.sys = &sys
	c.bootMs = sys.SinceBoot()
	wall, hub := c.base.Load(), m.HubMs
	if sys.BootID != "" && sys.BootID == m.Boot {
		hub += max(c.bootMs-m.BootMs, 0)
	}
	if m.HubMs > 0 {
		c.base.Store(hub)
		if sys.Trust || sys.Synced() {
			c.base.Store(max(hub, wall))
		}
	}
	c.Tick()
	return c
}

// Follow looks at the machine again: time that it was suspended counts, and a synchronised clock that is ahead is
// followed. It returns by how much hub time went forward for that. It is called by one goroutine.
func (c *Clock) Follow() time.Duration {
	if c.sys == nil {
		return 0
	}
	before := c.base.Load()
	if c.sys.BootID != "" {
		// The monotonic clock stands still while the machine is suspended, and the time since boot does not.
		if lost := c.sys.SinceBoot() - c.bootMs - int64(time.Since(c.start)/time.Millisecond) - c.slept; lost > suspendedMin {
			c.slept += lost
			c.base.Add(lost)
		}
	}
	if c.sys.Synced() {
		c.Raise(time.Now().UnixMilli())
	}
	return time.Duration(c.base.Load()-before) * time.Millisecond
}

// suspendedMin is from how many milliseconds on the two clocks of the kernel count as apart.
const suspendedMin = 1000

// Mark is the present moment.
func (c *Clock) Mark() Mark {
	m := Mark{HubMs: c.NowMs()}
	if c.sys != nil {
		m.Boot, m.BootMs = c.sys.BootID, c.sys.SinceBoot()
	}
	return m
}

// Behind is by how much hub time lags the machine's clock; negative when it is ahead.
func (c *Clock) Behind() time.Duration {
	return time.Duration(time.Now().UnixMilli()-c.NowMs()) * time.Millisecond
}
