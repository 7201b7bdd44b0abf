package broker

import (
	"fmt"
	"strings"
	"testing"

	"edgehub/storage/seglog"
)

// summaries is an index store that keeps summaries only.
type summaries map[string][]byte

func (s summaries) key(log string, base int64) string { return fmt.Sprint(log, "#", base) }

func (summaries) SaveIndex(string, int64, []seglog.IndexEntry) error   { return nil }
func (summaries) LoadIndex(string, int64) ([]seglog.IndexEntry, error) { return nil, nil }
func (summaries) DropIndex(string, int64) error                        { return nil }
func (s summaries) SaveSummary(log string, base int64, b []byte) error {
	s[s.key(log, base)] = b
	return nil
}
func (s summaries) LoadSummary(log string, base int64) ([]byte, error) {
	return s[s.key(log, base)], nil
}

// A session that comes back for a few of many messages gets all of them, and the log is not read for the others.
func TestReplaySkipsSegments(t *testing.T) {
	var scanned [2]int64
	for i, with := range []bool{false, true} {
		specs := append(oneStream[:0:0], oneStream...)
		specs[0].SegmentBytes = 64 << 10
		r := newRig(t, specs, 1)
		r.index = summaries{}
		r.kill() // opens it with the index
		s := r.connect(0, persistent("s"))
		s.subscribe(1, "rare/+")
		r.settle()
		s.drop()
		a := r.connect(0, ConnectRequest{ClientID: "a"})
		payload := strings.Repeat("x", 1000)
		want := ""
		for n := range 4000 { // 4 MiB
			topic, text := "often", payload
			if n%1500 == 750 {
				topic, text = fmt.Sprint("rare/", n), fmt.Sprint(n)
				want += text + " "
			}
			a.pub(topic, text, 1, uint16(n+1))
			if n%100 == 0 {
				r.settle()
			}
		}
		r.settle()
		if with {
			r.set.Summarize()
		}
		before := r.b.Stats.CatchupScanned.Load()
		s = r.connect(0, persistent("s"))
		got := ""
		for _, p := range s.answerAll() {
			got += p.payload + " "
		}
		scanned[i] = r.b.Stats.CatchupScanned.Load() - before
		if got != want {
			t.Fatalf("with summaries %v: %q, want %q", with, got, want)
		}
		if skipped := r.b.Stats.CatchupSkipped.Load(); (skipped > 2000) != with {
			t.Errorf("with summaries %v: %d records stepped over", with, skipped)
		}
	}
	if scanned[1] > scanned[0]/3 {
		t.Errorf("%d bytes scanned, %d without summaries", scanned[1], scanned[0])
	}
	t.Logf("%d bytes scanned, %d without summaries", scanned[1], scanned[0])
}
