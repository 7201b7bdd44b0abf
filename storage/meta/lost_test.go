package meta

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"edgehub/storage/seglog"
)

// bitsOfABatch are places in a batch, as they follow each other on the disk, and whether the keys of its records can
// still be read when a bit there is wrong.
var bitsOfABatch = map[string]struct {
	at  func(batch []byte) int
	key string // what becomes illegible with it: "": nothing
}{
	"base offset": {at: func([]byte) int { return 6 }},
	"length":      {at: func([]byte) int { return 10 }},
	"header crc":  {at: func([]byte) int { return 13 }},
	"magic":       {at: func([]byte) int { return 16 }},
	"crc":         {at: func([]byte) int { return 18 }},
	"attributes":  {at: func([]byte) int { return 22 }},
	"count":       {at: func([]byte) int { return 60 }},
	"a value":     {at: func(b []byte) int { return strings.Index(string(b), "value of k3") + 4 }},
	"a length":    {at: func(b []byte) int { return strings.Index(string(b), "\x01value of k3") - 1 }, key: "k3"},
}

// TestFlippedBit: a bit of the metadata log that is wrong costs, without the index, the changes of one commit, and names
// their keys. With the index it costs nothing: the log is written again, and then nothing is lost without it either.
func TestFlippedBit(t *testing.T) {
	base := testOptions(t.TempDir())
	s, _ := open_(t, base)
	want := map[string]string{}
	put := func(keys ...string) {
		for _, k := range keys {
			want[k] = "value of " + k
			s.Put([]byte(k), []byte(want[k]))
		}
		check(t, s.Commit())
	}
	put("k0", "k1")
	put("k2", "k3", "k4", "k5") // the second batch is the one that suffers
	put("k6", "k5")             // k5 has a later record
	check(t, s.Flush())
	check(t, s.Close())
	name := "00000000000000000000.log"
	raw, err := os.ReadFile(filepath.Join(base.DataDir, logDir, name))
	check(t, err)
	begins, ends := batchAt(t, raw, 1), batchAt(t, raw, 2)

	for region, c := range bitsOfABatch {
		at := begins + c.at(raw[begins:ends])
		for _, bit := range []int{0, 5} {
			t.Run(fmt.Sprintf("%s, bit %d", region, bit), func(t *testing.T) {
				o := base
				o.DataDir = copyDir(t, base.DataDir)
				harmed := slices.Clone(raw)
				harmed[at] ^= 1 << bit
				check(t, os.WriteFile(filepath.Join(o.DataDir, logDir, name), harmed, 0o600))
				withIndex(t, o, want)
				o.DataDir = copyDir(t, base.DataDir)
				check(t, os.WriteFile(filepath.Join(o.DataDir, logDir, name), harmed, 0o600))
				check(t, os.RemoveAll(filepath.Join(o.DataDir, indexDir)))
				withoutIndex(t, o, want, c.key)
			})
		}
	}
}

// batchAt returns the position of the n-th batch.
func batchAt(t *testing.T, raw []byte, n int) int {
	t.Helper()
	at := -1
	err := seglog.Dump(strings.NewReader(string(raw)), int64(len(raw)), "x.log", nil, func(b seglog.BatchInfo, _ []byte, err error) error {
		if n == 0 {
			at = int(b.Position)
		}
		n--
		return err
	})
	if err != nil || at < 0 {
		t.Fatal(at, err)
	}
	return at
}

// withIndex starts on a damaged log whose index is whole.
func withIndex(t *testing.T, o Options, want map[string]string) {
	t.Helper()
	s, rec := open_(t, o)
	if rec.Rebuilt || len(rec.Lost) > 0 {
		t.Fatalf("%+v", rec)
	}
	d, _ := dump(t, s)
	same(t, "with the index", d, want)
	<-s.audited
	if err := s.log.Verify(func(d seglog.Damage) { t.Errorf("still there: %v", d) }); err != nil {
		t.Fatal(err)
	}
	check(t, s.Close())
	check(t, os.RemoveAll(filepath.Join(o.DataDir, indexDir)))
	s, rec = open_(t, o)
	if d, _ := dump(t, s); len(rec.Damaged) > 0 || len(rec.Lost) > 0 {
		t.Fatalf("%+v", rec)
	} else {
		same(t, "after the log was written again", d, want)
	}
	check(t, s.Close())
}

// withoutIndex starts on a damaged log that has lost its index.
func withoutIndex(t *testing.T, o Options, want map[string]string, illegible string) {
	t.Helper()
	l, _, err := seglog.Open(seglog.Options{Dir: filepath.Join(o.DataDir, logDir), Name: logName, Salt: o.Salt, ReadOnly: true})
	check(t, err)
	check(t, l.Verify(func(d seglog.Damage) {
		if keys := DamagedKeys(l, d); !slices.Contains(keys, "k2") || !strings.Contains(KeyList(keys), `"k4"`) {
			t.Errorf("%q", keys)
		}
	}))
	check(t, l.Close())
	s, rec := open_(t, o)
	if len(rec.Damaged) != 1 || rec.Damaged[0].From != 2 || rec.Damaged[0].To != 6 {
		t.Fatalf("%+v", rec)
	}
	lost := []string{"k2", "k3", "k4"} // and not k5, which was set again
	if illegible != "" {
		lost = slices.DeleteFunc(lost, func(k string) bool { return k == illegible && !slices.Contains(rec.Lost, k) })
	}
	if !slices.Equal(rec.Lost, lost) {
		t.Errorf("named %q, want %q", rec.Lost, lost)
	}
	d, _ := dump(t, s)
	left := map[string]string{"k0": want["k0"], "k1": want["k1"], "k5": want["k5"], "k6": want["k6"]}
	same(t, "without the index", d, left)
	check(t, s.Close())
}

// TestEmptyIsTold: only a directory without any file of the index and of the log counts as one that holds nothing.
func TestEmptyIsTold(t *testing.T) {
	for name, tc := range map[string]struct {
		harm func(dir string) error
		want bool
	}{
		"nothing gone": {func(string) error { return nil }, false},
		"index gone":   {func(dir string) error { return os.RemoveAll(filepath.Join(dir, indexDir)) }, false},
		"log gone":     {func(dir string) error { return os.RemoveAll(filepath.Join(dir, logDir)) }, false},
		"both gone": {func(dir string) error {
			return errors.Join(os.RemoveAll(filepath.Join(dir, indexDir)), os.RemoveAll(filepath.Join(dir, "streams")))
		}, true},
		"both emptied": {func(dir string) error {
			err := errors.Join(os.RemoveAll(filepath.Join(dir, indexDir)), os.RemoveAll(filepath.Join(dir, logDir)))
			return errors.Join(err, os.MkdirAll(filepath.Join(dir, indexDir), 0o700), os.MkdirAll(filepath.Join(dir, logDir), 0o700))
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			o, _, _ := populated(t, 10)
			check(t, tc.harm(o.DataDir))
			s, rec := open_(t, o)
			if rec.Empty != tc.want {
				t.Errorf("%+v", rec)
			}
			check(t, s.Close())
			if s, rec = open_(t, o); rec.Empty {
				t.Errorf("after a run: %+v", rec)
			}
			check(t, s.Close())
		})
	}
}
