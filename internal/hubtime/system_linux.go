package hubtime

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// bootID is the id that the kernel gives each boot.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// sinceBoot is CLOCK_BOOTTIME.
func sinceBoot() int64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0
	}
	return ts.Nano() / 1e6
}

// synced asks adjtimex(2), which only reads here. Setting the clock by hand makes it unsynchronised.
func synced() bool {
	var t unix.Timex
	const timeError = 5
	state, err := unix.Adjtimex(&t)
	return err == nil && state != timeError && t.Status&unix.STA_UNSYNC == 0
}
