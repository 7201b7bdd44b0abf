package bench

import (
	"runtime"
	"syscall"
	"time"
)

// prSetTimerSlack is the prctl that says how late a thread may be woken; 50 µs unless told otherwise.
const prSetTimerSlack = 29

// precise prepares the calling goroutine for pauses that are exact to some microseconds: those of the runtime's timers
// are rounded up to a millisecond when nothing else is going on.
func precise() (pause func(time.Duration), done func()) {
	runtime.LockOSThread()
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetTimerSlack, 1, 0) // without it pauses are a little longer
	return func(d time.Duration) {
		t := syscall.NsecToTimespec(int64(d))
		_ = syscall.Nanosleep(&t, nil) // an interrupted pause is a short one; the pacer looks at the clock anyway
	}, runtime.UnlockOSThread
}
