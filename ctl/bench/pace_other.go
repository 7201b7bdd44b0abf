//go:build !linux

package bench

import "time"

// precise pauses as exactly as the runtime's timers do.
func precise() (pause func(time.Duration), done func()) { return time.Sleep, func() {} }
