package vfstest

import (
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

func write(t *testing.T, m *Mem, name, data string, off int64) {
	t.Helper()
	f, err := m.OpenFile(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte(data), off); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, m *Mem, name string) (string, error) {
	t.Helper()
	f, err := m.OpenFile(name, os.O_RDONLY)
	if err != nil {
		return "", err
	}
	n, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, n+1)
	k, err := f.ReadAt(b, 0)
	if !errors.Is(err, io.EOF) || int64(k) != n {
		t.Fatal(k, n, err)
	}
	return string(b[:k]), nil
}

func syncFile(t *testing.T, m *Mem, name string) error {
	t.Helper()
	f, err := m.OpenFile(name, os.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	return f.Sync()
}

func TestMemCrash(t *testing.T) {
	m := NewMem()
	r := rand.New(rand.NewPCG(1, 2))
	if err := m.MkdirAll("d/e"); err != nil {
		t.Fatal(err)
	}
	want := func(m *Mem, name, data string) {
		t.Helper()
		if got, err := read(t, m, name); got != data || err != nil {
			t.Fatalf("%s: %q, %v, want %q\n%s", name, got, err, data, m)
		}
	}
	write(t, m, "d/e/a", "one", 0)
	if _, err := read(t, m.Crash(r, 0, false), "d/e/a"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal("a name survived that was not synced:", err)
	}
	want(m.Crash(r, 1, true), "d/e/a", "one")
	if err := m.SyncDir("d/e"); err != nil {
		t.Fatal(err)
	}
	want(m.Crash(r, 0, false), "d/e/a", "")
	if err := syncFile(t, m, "d/e/a"); err != nil {
		t.Fatal(err)
	}
	write(t, m, "d/e/a", "two", 3)
	want(m, "d/e/a", "onetwo")
	want(m.Crash(r, 0, false), "d/e/a", "one")
	want(m.Kill(), "d/e/a", "onetwo")
	want(m.Kill().Crash(r, 0, false), "d/e/a", "one")

	// Each sector for itself: some of the pages of a large write, the others zeros.
	write(t, m, "d/e/b", strings.Repeat("x", 100*memSector), 0)
	if err := m.SyncDir("d/e"); err != nil {
		t.Fatal(err)
	}
	some := false
	for range 20 {
		got, err := read(t, m.Crash(r, 0.5, true), "d/e/b")
		n := strings.Count(got, "x")
		some = some || n > 20*memSector && n < 80*memSector && n%memSector == 0
		if err != nil {
			t.Fatal(err)
		}
	}
	if !some {
		t.Fatal("no write was torn")
	}

	// A rename happens or not; the name is never at both places or none.
	if err := m.Rename("d/e/a", "d/e/c"); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		k := m.Crash(r, 0.5, false)
		_, errA := read(t, k, "d/e/a")
		_, errC := read(t, k, "d/e/c")
		if (errA == nil) == (errC == nil) {
			t.Fatal(errA, errC)
		}
	}
	entries, err := m.ReadDir("d/e")
	if err != nil || len(entries) != 2 || entries[0].Name() != "b" {
		t.Fatal(entries, err)
	}
	if entries, err = m.ReadDir("d"); err != nil || len(entries) != 1 || !entries[0].IsDir() {
		t.Fatal(entries, err)
	}
	if err := m.Remove("d/e/c"); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Stat("d/e/c"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	want(m.Crash(r, 0, false), "d/e/a", "one")
}

// TestMemFailedSync: after a failed fsync, a second one succeeds and has not written what the first one lost.
func TestMemFailedSync(t *testing.T) {
	m := NewMem()
	r := rand.New(rand.NewPCG(1, 2))
	write(t, m, "a", "data", 0)
	if err := m.SyncDir("."); err != nil {
		t.Fatal(err)
	}
	fail := errors.New("fail")
	m.BeforeSync = func(Op, string) error { return fail }
	if err := syncFile(t, m, "a"); !errors.Is(err, fail) {
		t.Fatal(err)
	}
	m.BeforeSync = nil
	if err := syncFile(t, m, "a"); err != nil {
		t.Fatal(err)
	}
	if got, _ := read(t, m, "a"); got != "data" {
		t.Fatalf("%q", got)
	}
	if got, _ := read(t, m.Crash(r, 1, false), "a"); got != "" {
		t.Fatalf("%q reached the disk", got)
	}
}
