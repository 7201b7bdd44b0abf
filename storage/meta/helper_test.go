package meta

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"edgehub/internal/vfs"
)

const testSalt = 0xfeed0123

// testOptions has a flusher that never wakes by itself.
func testOptions(dir string) Options {
	return Options{FS: vfs.OS, DataDir: dir, Salt: testSalt, FlushEvery: time.Hour}
}

func open_(t testing.TB, o Options) (*Store, Recovery) {
	t.Helper()
	s, rec, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, rec
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// copyDir copies a data directory as it is now: what a kill of the process
// would leave. The caller writes nothing meanwhile; Badger may compact behind
// its back, and then the copy is made again.
func copyDir(t testing.TB, from string) string {
	t.Helper()
	for range 100 {
		before := picture(t, from)
		to := t.TempDir()
		copyTree(t, from, to)
		if picture(t, from) == before {
			return to
		}
		check(t, os.RemoveAll(to))
	}
	t.Fatal("the directory does not come to rest")
	return ""
}

// picture describes the files of a tree, by name, size and time.
func picture(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	check(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			fmt.Fprintln(&b, path, info.Size(), info.ModTime().UnixNano())
		}
		return err
	}))
	return b.String()
}

func copyTree(t testing.TB, from, to string) {
	t.Helper()
	entries, err := os.ReadDir(from)
	check(t, err)
	for _, e := range entries {
		a, b := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		if e.IsDir() {
			check(t, os.MkdirAll(b, 0o700))
			copyTree(t, a, b)
			continue
		}
		copySparse(t, a, b)
	}
}

// copySparse copies a file without writing its zeros: Badger's are mostly holes.
func copySparse(t testing.TB, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) {
		return // removed meanwhile; copyDir will see it
	}
	check(t, err)
	defer in.Close()
	out, err := os.Create(to)
	check(t, err)
	defer out.Close()
	var zero, buf [64 << 10]byte
	size := int64(0)
	for {
		n, err := io.ReadFull(in, buf[:])
		if !bytes.Equal(buf[:n], zero[:n]) {
			_, werr := out.WriteAt(buf[:n], size)
			check(t, werr)
		}
		size += int64(n)
		if err != nil {
			break
		}
	}
	check(t, out.Truncate(size))
}

// dump returns all keys of both spaces.
func dump(t testing.TB, s *Store) (durable, hints map[string]string) {
	t.Helper()
	durable, hints = make(map[string]string), make(map[string]string)
	last := ""
	check(t, s.Scan(nil, func(k, v []byte) error {
		if last != "" && string(k) <= last && len(k) <= foldBytes && len(last) <= foldBytes {
			t.Fatalf("scan: %q after %q", k, last)
		}
		last = string(k)
		durable[last] = string(v)
		return nil
	}))
	check(t, s.ScanHints(nil, func(k, v []byte) error { hints[string(k)] = string(v); return nil }))
	return durable, hints
}

// same compares maps without printing megabytes.
func same(t testing.TB, what string, got, want map[string]string) {
	t.Helper()
	for k, v := range want {
		if g, ok := got[k]; !ok || g != v {
			t.Fatalf("%s: key %.40q: %.40q (there %v), want %.40q; %d keys, want %d", what, k, g, ok, v, len(got), len(want))
		}
	}
	for k := range got {
		if _, ok := want[k]; !ok {
			t.Fatalf("%s: key %.40q is not wanted", what, k)
		}
	}
}

// fill puts n keys in sorted families and records them in want.
func fill(s *Store, want map[string]string, n, round int) {
	for i := range n {
		k, v := fmt.Sprintf("session/%05d", i), fmt.Sprintf("value %d of round %d", i, round)
		s.Put([]byte(k), []byte(v))
		want[k] = v
	}
}

// steppedClock is a clock that never stands still, so that times differ.
func steppedClock() func() time.Time {
	var ms atomic.Int64
	return func() time.Time { return time.UnixMilli(1_700_000_000_000 + ms.Add(1)) }
}
