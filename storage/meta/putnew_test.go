package meta

import (
	"fmt"
	"testing"

	"edgehub/internal/vfs"
)

// TestPutNewLeavesNoTrace: a key that is put as new and deleted before a flush is nowhere afterwards, in whatever
// state the older layers are, and after a restart.
func TestPutNewLeavesNoTrace(t *testing.T) {
	o := Options{FS: vfs.OS, DataDir: t.TempDir(), Salt: 7, FlushEvery: 1 << 40}
	s, _, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	want := func(key string, there bool) {
		t.Helper()
		if _, ok, err := s.Get([]byte(key)); err != nil || ok != there {
			t.Fatalf("key %s: there %v, want %v (%v)", key, ok, there, err)
		}
	}
	for i := range 500 {
		s.PutNew(fmt.Appendf(nil, "k%03d", i), []byte("v"))
	}
	want("k123", true)
	for i := range 500 {
		if i%5 != 0 {
			s.Delete(fmt.Appendf(nil, "k%03d", i))
		}
	}
	s.mu.Lock()
	count := s.live.durable.count
	s.mu.Unlock()
	if count != 100 {
		t.Fatalf("%d keys in the overlay, want the 100 that were not deleted", count)
	}
	want("k123", false)
	want("k125", true)
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	// Now in the index: a delete must reach it, and a new life of the key comes and goes above the tombstone.
	s.Delete([]byte("k125"))
	s.PutNew([]byte("k125"), []byte("w"))
	want("k125", true)
	s.Delete([]byte("k125"))
	want("k125", false)
	if err := s.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, _, err = Open(o); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	want("k125", false)
	want("k130", true)
	want("k131", false)
}
