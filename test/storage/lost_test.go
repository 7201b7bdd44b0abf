package storage

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/mqttc"
)

// TestLostFilesAreNamed: after a kill, a segment file that is of no use any more is named by the log, by verify, by the
// count of damaged ranges and by health.
func TestLostFilesAreNamed(t *testing.T) {
	noise := bytes.Repeat([]byte("this is no segment "), 500)
	cut := func(n int64) func(string) error { return func(p string) error { return os.Truncate(p, n) } }
	for _, tc := range []struct {
		name    string
		segment func(n int) int
		harm    func(string) error
		lost    int  // 1 names offsets, 0 says that they are not known, -1 is no loss
		again   bool // the next start says so as well
	}{
		{"oldest cut to 10 bytes", func(int) int { return 0 }, cut(10), 1, true},
		{"middle cut to 10 bytes", func(int) int { return 1 }, cut(10), 1, true},
		{"newest cut to 20 bytes", func(n int) int { return n - 1 }, cut(20), 0, false},
		{"newest is noise", func(n int) int { return n - 1 }, func(p string) error { return os.WriteFile(p, noise, 0o600) }, 0, true},
		{"newest is empty", func(n int) int { return n - 1 }, cut(0), -1, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := hubtest.Start(t, oneStream(`segment_bytes = "16KiB"`))
			c := hubtest.Dial(t, h.Addr(), mqttc.Connect{Version: 5, ClientID: "p", Clean: true})
			for i := range 400 {
				c.Pub("plant/a", fmt.Sprintf("%d %s", i, strings.Repeat("x", 100)), 1)
			}
			h.Kill()
			segs := segments(t, h, "plant/0")
			if len(segs) < 3 {
				t.Fatal(segs)
			}
			victim := segs[tc.segment(len(segs))]
			if err := tc.harm(victim); err != nil {
				t.Fatal(err)
			}
			for start := range 2 {
				if err := h.Start(); err != nil {
					t.Fatal(err)
				}
				said := tc.lost >= 0 && (start == 0 || tc.again)
				if out := ctl(t, h, 0, "status"); strings.Contains(out, "1 damaged range") != said {
					t.Errorf("start %d: %s", start, out)
				}
				exit := 0
				if said {
					exit = 1
				}
				out := ctl(t, h, exit, "stream", "verify", "plant")
				if said && (!strings.Contains(out, filepath.Base(victim)) || strings.Contains(out, "not known") != (tc.lost == 0) ||
					strings.Contains(out, ": offsets ") != (tc.lost == 1)) {
					t.Errorf("start %d: %s", start, out)
				}
				log, err := os.ReadFile(h.OutputPath())
				if err != nil || said && !strings.Contains(string(log), "part of a segment is damaged") {
					t.Errorf("start %d: %v %s", start, err, log)
				}
				h.Kill()
			}
		})
	}
}

// TestMetadataGone: a hub whose metadata are gone, all of them, says so; a new one, and one that lost only the index, do not.
func TestMetadataGone(t *testing.T) {
	for _, tc := range []struct {
		name string
		gone []string
		kill bool
		said bool
	}{
		{"both, after a clean stop", []string{"meta", "streams/$meta"}, false, true},
		{"both, after a kill", []string{"meta", "streams/$meta"}, true, true},
		{"only the index", []string{"meta"}, true, false},
		{"only the log", []string{"streams/$meta"}, false, false},
		{"nothing", nil, true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := hubtest.Start(t, oneStream())
			if out := ctl(t, h, 0, "status"); strings.Contains(out, "streams/$meta") {
				t.Fatalf("a new hub: %s", out)
			}
			hubtest.Dial(t, h.Addr(), mqttc.Connect{Version: 4, ClientID: "s"}).Sub("plant/#", 1)
			if tc.kill {
				h.Kill()
			} else {
				stop(t, h)
			}
			for _, dir := range tc.gone {
				if err := os.RemoveAll(filepath.Join(h.Config.DataDir, filepath.FromSlash(dir))); err != nil {
					t.Fatal(err)
				}
			}
			for start := range 2 {
				if err := h.Start(); err != nil {
					t.Fatal(err)
				}
				said := tc.said && start == 0
				out := ctl(t, h, 0, "status")
				if strings.Contains(out, "degraded") != said || strings.Contains(out, "all sessions") != said {
					t.Errorf("start %d: %s", start, out)
				}
				log, err := os.ReadFile(h.OutputPath())
				if n := strings.Count(string(log), "all metadata of earlier runs are gone"); err != nil || n > 1 || (n == 1) != tc.said {
					t.Errorf("start %d: %v %s", start, err, log)
				}
				h.Kill()
			}
		})
	}
}
