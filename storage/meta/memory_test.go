package meta

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"edgehub/internal/vfs"
)

// The store's share of an idle hub's resident memory, in KiB: of an empty one,
// and of one with 20,000 sessions just opened.
const (
	idleEmptyKiBMax  = 12 << 10
	idleFilledKiBMax = 32 << 10
)

// TestIdleMemory opens stores in a process of their own and compares its
// resident memory before and after.
func TestIdleMemory(t *testing.T) {
	if dir := os.Getenv("META_TEST_IDLE"); dir != "" {
		idleChild(dir)
		return
	}
	if raceEnabled {
		t.Skip("the race detector's shadow memory would be measured")
	}
	empty := testOptions(t.TempDir())
	filled, _, _ := populated(t, 20000)
	for _, c := range []struct {
		name string
		dir  string
		max  int
	}{{"empty", empty.DataDir, idleEmptyKiBMax}, {"20,000 keys", filled.DataDir, idleFilledKiBMax}} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestIdleMemory$")
		cmd.Env = append(os.Environ(), "META_TEST_IDLE="+c.dir)
		out, err := cmd.Output()
		check(t, err)
		var before, after int
		if _, err := fmt.Sscanf(string(out), "%d %d", &before, &after); err != nil {
			t.Fatalf("child said %q: %v", out, err)
		}
		t.Logf("%s: %d KiB before, %d KiB with the store", c.name, before, after)
		if before == 0 {
			t.Skip("no resident size on this system")
		}
		if after-before > c.max {
			t.Errorf("%s: the store takes %d KiB, more than %d", c.name, after-before, c.max)
		}
	}
}

func idleChild(dir string) {
	before := residentKiB()
	s, _, err := Open(Options{FS: vfs.OS, DataDir: dir, Salt: testSalt, FlushEvery: time.Millisecond})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	fmt.Println(before, residentKiB())
	_ = s.Close()
	os.Exit(0)
}

// residentKiB is the resident memory after all that can be given back was.
func residentKiB() int {
	runtime.GC()
	debug.FreeOSMemory()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(b, []byte("VmRSS:"))
	n, _ := strconv.Atoi(strings.Fields(string(rest))[0])
	return n
}
