package offline

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"edgehub/test/harness"
	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/load"
)

// TestCommandsSurviveTelemetry: commands for sessions that are away, then
// telemetry of fifty times what their common stream may hold, with kills in
// between. The sessions get all commands, and the disk is given back.
func TestCommandsSurviveTelemetry(t *testing.T) {
	const (
		maxBytes = 4 << 20
		// overrun is what may come while the deletion of a segment waits for
		// a disk that others use as well.
		overrun = 64 << 20
	)
	commands := 1000
	telemetry := hubtest.Scale(t, "HUB_OVERRUN_MESSAGES", 50*maxBytes/1000, 50*maxBytes/1000, 12*maxBytes/1000)
	h := hubtest.Start(t, func(c *harness.Config) {
		c.Streams = []harness.Stream{{Name: "all", Filters: []string{"#"}, Partitions: 2,
			Lines: []string{fmt.Sprintf("retention = { max_bytes = %d }", maxBytes)}}}
	})
	rs := []*receiver{newReceiver(h, "once-311", 4, 1), newReceiver(h, "once-5", 5, 1),
		newReceiver(h, "exact-311", 4, 2), newReceiver(h, "exact-5", 5, 2)}
	for _, r := range rs {
		if err := r.subscribe("cmd/#"); err != nil {
			t.Fatal(err)
		}
	}
	send := load.New(load.Options{Addr: h.Addr(), Name: "commands", Publishers: 2, Each: uint64(commands / 2), QoS: func(int) byte { return 2 },
		Topic: func(p int) string { return fmt.Sprint("cmd/", p) }})
	send.Start()
	if err := send.Wait(time.Minute); err != nil {
		t.Fatal(err)
	}

	stream, copies := filepath.Join(h.Config.DataDir, "streams", "all"), filepath.Join(h.Config.DataDir, "streams", "$offline")
	stop := peakDisk(stream, copies)
	flood := load.New(load.Options{Addr: h.Addr(), Name: "telemetry", Publishers: 4, Each: uint64(telemetry / 4), Size: 1000,
		Topic: func(p int) string { return fmt.Sprint("telemetry/", p) }})
	flood.Start()
	for kill := range 3 {
		hubtest.Eventually(t, time.Minute, "telemetry arrives", func() bool {
			return flood.Counters().Acked > int64(telemetry*(kill+1)/4)
		})
		hubtest.Restart(t, h)
	}
	if err := flood.Wait(2 * time.Minute); err != nil {
		t.Fatal(err)
	}
	most := stop()
	t.Logf("the stream took up to %d KiB of %d, the copies %d", most[0]>>10, maxBytes>>10, most[1]>>10)
	if most[0] > maxBytes+overrun || most[1] > 1<<20 {
		t.Errorf("the stream took %d KiB, its limit is %d; the copies of %d commands %d", most[0]>>10, maxBytes>>10, commands, most[1]>>10)
	}
	hubtest.Eventually(t, 30*time.Second, "the stream fits its limit", func() bool {
		n, err := diskUse(stream)
		return err == nil && n <= maxBytes+maxBytes/8
	})
	hubtest.Restart(t, h)

	drainAll(t, rs, commands)
	for _, r := range rs {
		if r.received != commands || r.repeated != 0 {
			t.Errorf("%s: received %d of %d, %d of them repeated", r.id, r.received, commands, r.repeated)
		}
		nothingLeft(t, r)
	}
	hubtest.Eventually(t, 30*time.Second, "the copies are given back", func() bool {
		n, err := diskUse(copies)
		return err == nil && n <= 64<<10
	})
}

// diskUse is what du says of a directory.
func diskUse(dir string) (total int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, os.ErrNotExist) { // deleted meanwhile
				return nil
			}
			return err
		}
		if info, err := e.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				total += st.Blocks * 512
			}
		}
		return nil
	})
	return total, err
}

// peakDisk samples the use of directories until stop is called, which returns
// the largest sample of each.
func peakDisk(dirs ...string) (stop func() []int64) {
	most := make([]int64, len(dirs))
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			for i, dir := range dirs {
				if n, err := diskUse(dir); err == nil {
					most[i] = max(most[i], n)
				}
			}
			select {
			case <-quit:
				return
			case <-tick.C:
			}
		}
	})
	return func() []int64 {
		close(quit)
		wg.Wait()
		return most
	}
}
