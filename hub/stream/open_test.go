package stream

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"edgehub/internal/hubtime"
	"edgehub/internal/vfs"
	"edgehub/internal/vfs/vfstest"
	"edgehub/storage/seglog"
)

// TestOpenTogether: the logs of many partitions are opened beside each other, so that what the disk takes for making
// each durable is not waited for one by one; and what one of them cannot do stops the start in one line.
func TestOpenTogether(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "streams")
	spec := []Spec{{Name: "a", Filters: []string{"a/#"}, Partitions: 48}, {Name: "b", Filters: []string{"#"}, Partitions: 16}}
	f := vfstest.New(vfs.OS)
	o := Options{FS: f, Dir: dir, Clock: hubtime.New(0)}
	s, err := Open(spec, o)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range s.Partitions {
		if p.ID != uint32(i) || p.Log == nil || len(s.Recoveries) != 64 {
			t.Fatalf("partition %d: %+v", i, p)
		}
		var b seglog.Builder
		b.Append(1, []byte("k"), fmt.Append(nil, p.Name), seglog.Headers{})
		if err := p.Log.Append(&b); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	// All of these stand in the sync of their directory at once; a start one by one would never get there.
	var together sync.WaitGroup
	together.Add(openAtOnce)
	f.Add(vfstest.Fault{Op: vfstest.OpSyncDir, Count: openAtOnce, Hook: func() {
		together.Done()
		together.Wait()
	}})
	if s, err = Open(spec, o); err != nil {
		t.Fatal(err)
	}
	for _, p := range s.Partitions {
		if p.Committed() != 1 || p.Log.Next() != 1 {
			t.Fatalf("%s: %d", p.Name, p.Committed())
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	f.Add(vfstest.Fault{Op: vfstest.OpReadDir, Pattern: "7", Err: syscall.EIO}) // of both streams
	if _, err = Open(spec, o); !errors.Is(err, syscall.EIO) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "and 1 more") {
		t.Fatal(err)
	}
	if n := f.OpenFiles(); n != 0 {
		t.Fatalf("%d files are still open", n)
	}
}
