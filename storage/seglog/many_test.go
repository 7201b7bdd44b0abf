package seglog

import (
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"edgehub/internal/vfs"
	"edgehub/internal/vfs/vfstest"
)

// TestThousandPartitions: a thousand logs open quickly, and idle ones cost little memory and no descriptor.
func TestThousandPartitions(t *testing.T) {
	const n = 1000
	f := vfstest.New(vfs.OS)
	dir := t.TempDir()
	options := func(i int) Options {
		return Options{FS: f, Dir: filepath.Join(dir, strconv.Itoa(i)), Name: "many/" + strconv.Itoa(i) + "-0", Salt: testSalt}
	}
	for i := range n {
		l, _, err := Open(options(i))
		if err != nil {
			t.Fatal(err)
		}
		fill(t, l, 20, 5, 50)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start := time.Now()
	logs := make([]*Log, n)
	for i := range n {
		l, rec := mustOpen(t, options(i))
		if rec.TornBytes != 0 || l.Next() != 20 {
			t.Fatalf("%+v", rec)
		}
		logs[i] = l
	}
	took := time.Since(start)
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := int64(after.HeapAlloc-before.HeapAlloc) / n
	t.Logf("%v to open, %d bytes of heap each, %d files open", took, each, f.OpenFiles())
	if f.OpenFiles() > openFilesMax || each > 8<<10 {
		t.Fatalf("%d files open, %d bytes each", f.OpenFiles(), each)
	}
	runtime.KeepAlive(logs)
}
