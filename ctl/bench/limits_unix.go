//go:build unix

package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// descriptorsOwn are those of this process beside connections: output, the poller, files of /proc.
const descriptorsOwn = 32

// checkDescriptors says before a run what would stop it in the middle. pid is the broker's, 0 when not known.
func checkDescriptors(conns, pid int) error {
	var lim syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim); err != nil {
		return nil // the run will show
	}
	if lim.Cur < lim.Max { // as much as is allowed without asking anybody
		raised := lim
		raised.Cur = raised.Max
		if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &raised) == nil {
			lim = raised
		}
	}
	if need := uint64(conns) + descriptorsOwn; need > lim.Cur {
		return fmt.Errorf("%d connections need %d descriptors and this process may have %d: raise `ulimit -Hn`, or take at most %d connections",
			conns, need, lim.Cur, lim.Cur-min(lim.Cur, descriptorsOwn))
	}
	if limit, ok := descriptorsOf(pid); ok && conns >= limit {
		return fmt.Errorf("the broker, process %d, may have %d descriptors, which are not enough for %d connections: raise its limit (LimitNOFILE in systemd), or take fewer connections",
			pid, limit, conns)
	}
	return nil
}

// descriptorsOf reads the limit of another process.
func descriptorsOf(pid int) (int, bool) {
	if pid == 0 {
		return 0, false
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "Max open files"); ok {
			f := strings.Fields(rest)
			if len(f) == 0 {
				return 0, false
			}
			n, err := strconv.Atoi(f[0])
			return n, err == nil // "unlimited" is none
		}
	}
	return 0, false
}

// ownCPU is what this process has used so far.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
