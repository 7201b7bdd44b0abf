package seglog

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestLostFiles: what was lost with a whole segment file is told by Open, by Damage and by Check, at this start and at
// the next, until a repair puts an end to it. An empty last segment and a torn end lose nothing that was promised.
func TestLostFiles(t *testing.T) {
	noise := bytes.Repeat([]byte("this is no segment "), 1000)
	short := func(b []byte) []byte { return b[:10] }
	for _, tc := range []struct {
		name     string
		segment  int // of three of 50 records each
		harm     func([]byte) []byte
		from, to int64 // -1: nothing is lost
		err      error
		once     bool // told by the first start only
		next     int64
		aside    bool // in quarantine
	}{
		{"oldest, 10 bytes", 0, short, 0, 50, ErrTruncated, false, 150, false},
		{"oldest, empty", 0, func([]byte) []byte { return nil }, 0, 50, ErrMissing, false, 150, false},
		{"middle, 10 bytes", 1, short, 50, 100, ErrTruncated, false, 150, false},
		{"middle, empty", 1, func([]byte) []byte { return nil }, 50, 100, ErrMissing, false, 150, false},
		{"newest, 20 bytes", 2, func(b []byte) []byte { return b[:20] }, 100, 100, ErrCutShort, true, 100, false},
		{"newest, noise", 2, func([]byte) []byte { return noise }, 100, 100, ErrQuarantined, false, 100, true},
		{"newest, zeros", 2, func([]byte) []byte { return make([]byte, 9000) }, 100, 100, ErrQuarantined, false, 100, true},
		{"newest, empty", 2, func([]byte) []byte { return nil }, -1, -1, nil, true, 100, false},
		{"newest, torn", 2, func(b []byte) []byte { return b[:len(b)-1] }, -1, -1, nil, true, 145, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o, segs := damagedLog(t)
			o.QuarantineDir = filepath.Join(t.TempDir(), "quarantine")
			edit(t, filepath.Join(o.Dir, segmentName(segs[tc.segment].Base, 0)), tc.harm)
			next := tc.next
			for start := range 3 {
				l, rec := mustOpen(t, o)
				if l.Next() != next || (len(rec.Quarantined) > 0) != (tc.aside && start == 0) {
					t.Fatalf("start %d: next %d, want %d; %+v", start, l.Next(), next, rec)
				}
				var checked []Damage
				if _, err := l.Check(context.Background(), func(d Damage) { checked = append(checked, d) }); err != nil {
					t.Fatal(err)
				}
				for where, list := range map[string][]Damage{"recovery": rec.Damaged, "log": l.Damage(), "check": checked} {
					if tc.from < 0 || tc.once && start > 0 {
						if len(list) > 0 {
							t.Errorf("start %d: %s: %v", start, where, list)
						}
					} else if len(list) != 1 || list[0].From != tc.from || list[0].To != tc.to || !errors.Is(list[0].Err, tc.err) {
						t.Errorf("start %d: %s: %v, want %d to %d, %v", start, where, list, tc.from, tc.to, tc.err)
					}
				}
				wantGap(t, readAll(t, l, 0), 0, max(tc.from, 0), max(tc.to, 0), next)
				fill(t, l, 5, 5, 10)
				if next += 5; l.Next() != next {
					t.Fatal(l.Next())
				}
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := Repair(o, false, func(r Repaired) {
				if r.Action == "" {
					t.Errorf("%+v", r)
				}
			}); err != nil {
				t.Fatal(err)
			}
			l, rec := mustOpen(t, o)
			if len(rec.Damaged) > 0 || l.Next() != next {
				t.Errorf("repaired: %+v, next %d", rec, l.Next())
			}
			if err := l.Verify(func(d Damage) { t.Errorf("repaired: %v", d) }); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestQuarantineOfOthers: only this log's segments in the quarantine directory count, and only those that took records
// with them. A reason that is lost does not hide a file.
func TestQuarantineOfOthers(t *testing.T) {
	name := segmentName(7, 0)
	for _, tc := range []struct {
		file, reason string
		told         bool
	}{
		{"test_0-0_" + name, "test/0-0/" + name + ": " + reasonContent, true},
		{"test_0-0_" + name + ".1", "test/0-0/" + name + ": " + reasonZero, true},
		{"test_0-0_" + name, "", true},
		{"test_0-0_" + name, "test/0-0/" + name + ": " + reasonSuperseded, false},
		{"test_0-0_" + name, "test/0-0/" + name + ": " + reasonEmpty, false},
		{"test_0-0_" + name + ".damaged", "", false},
		{"test_0-0_" + name + ".torn.2", "", false},
		{"test_1-0_" + name, "", false},
		{"test_0-0_notes.txt", "", false},
	} {
		o, _ := damagedLog(t)
		o.QuarantineDir = t.TempDir()
		files := map[string]string{tc.file: "x"}
		if tc.reason != "" {
			files[tc.file+".reason"] = tc.reason + "\n"
		}
		for f, content := range files {
			if err := os.WriteFile(filepath.Join(o.QuarantineDir, f), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		l, rec := mustOpen(t, o)
		if told := len(rec.Damaged) == 1 && len(l.Damage()) == 1; told != tc.told {
			t.Errorf("%s, %q: %v, want told %v", tc.file, tc.reason, rec.Damaged, tc.told)
		}
	}
	// What lay before the first record kept is lost up to the next file.
	o, segs := damagedLog(t)
	o.QuarantineDir = t.TempDir()
	for _, i := range []int{0, 1} {
		from := filepath.Join(o.Dir, segmentName(segs[i].Base, 0))
		if err := os.Rename(from, filepath.Join(o.QuarantineDir, "test_0-0_"+filepath.Base(from))); err != nil {
			t.Fatal(err)
		}
	}
	_, rec := mustOpen(t, o)
	if d := rec.Damaged; len(d) != 2 || d[0].From != 0 || d[0].To != 50 || d[1].From != 50 || d[1].To != 100 {
		t.Error(d)
	}
}
