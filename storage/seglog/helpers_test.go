package seglog

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"edgehub/internal/vfs"
)

const testSalt = 0x5eed

// memIndex is an IndexStore in memory.
type memIndex struct {
	mu sync.Mutex
	m  map[string][]IndexEntry
}

func (x *memIndex) key(log string, base int64) string { return fmt.Sprint(log, "/", base) }

func (x *memIndex) SaveIndex(log string, base int64, e []IndexEntry) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.m == nil {
		x.m = make(map[string][]IndexEntry)
	}
	x.m[x.key(log, base)] = append([]IndexEntry(nil), e...)
	return nil
}

func (x *memIndex) LoadIndex(log string, base int64) ([]IndexEntry, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return append([]IndexEntry(nil), x.m[x.key(log, base)]...), nil
}

func (x *memIndex) DropIndex(log string, base int64) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.m, x.key(log, base))
	return nil
}

func testOptions(t testing.TB) Options {
	t.Helper()
	return Options{FS: vfs.OS, Dir: filepath.Join(t.TempDir(), "0-0"), Name: "test/0-0", Salt: testSalt, SegmentBytes: 1 << 20, Index: &memIndex{}}
}

func mustOpen(t testing.TB, o Options) (*Log, Recovery) {
	t.Helper()
	l, rec, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l, rec
}

// value is the payload of the record at an offset in tests.
func value(offset int64, size int) []byte {
	v := fmt.Appendf(nil, "value-%d-", offset)
	for len(v) < size {
		v = append(v, byte('a'+len(v)%26))
	}
	return v[:max(size, len(v))]
}

// timeOf is the timestamp of the record at an offset in tests.
func timeOf(offset int64) int64 { return 1_000_000 + offset*10 }

// fill appends n records, in appends of batch records each.
func fill(t testing.TB, l *Log, n, batch, size int) {
	t.Helper()
	var b Builder
	b.Floor(l.LastTime())
	for n > 0 {
		b.Reset(l.Next())
		for range min(n, batch) {
			o := b.Next()
			b.Append(timeOf(o), fmt.Appendf(nil, "topic/%d", o%7), value(o, size), Headers{})
			n--
		}
		if err := l.Append(&b); err != nil {
			t.Fatal(err)
		}
	}
}

// readAll reads all records from an offset on and checks their content; it returns their offsets.
func readAll(t testing.TB, l *Log, from int64) []int64 {
	t.Helper()
	var offsets []int64
	var chunk []byte
	for {
		var err error
		chunk, err = l.Read(from, 100_000, chunk[:0])
		if err != nil {
			t.Fatalf("read at %d: %v", from, err)
		}
		if len(chunk) == 0 {
			return offsets
		}
		var s Scanner
		for s.Reset(chunk); s.Next(); {
			r := s.Record()
			if r.Offset < from {
				continue
			}
			if n := len(offsets); n > 0 && r.Offset <= offsets[n-1] {
				t.Fatalf("offset %d after %d", r.Offset, offsets[n-1])
			}
			if !bytes.Equal(r.Value, value(r.Offset, len(r.Value))) {
				t.Fatalf("offset %d: value %q", r.Offset, r.Value)
			}
			offsets = append(offsets, r.Offset)
			from = r.Offset + 1
		}
		if s.Err() != nil {
			t.Fatal(s.Err())
		}
	}
}

// wantDense checks that offsets are from…to−1 without gaps.
func wantDense(t testing.TB, offsets []int64, from, to int64) {
	t.Helper()
	if int64(len(offsets)) != to-from {
		t.Fatalf("%d records, want %d to %d", len(offsets), from, to)
	}
	for i, o := range offsets {
		if o != from+int64(i) {
			t.Fatalf("record %d has offset %d, want %d", i, o, from+int64(i))
		}
	}
}

// wantGap checks that offsets are from…to−1 without those in the gap.
func wantGap(t testing.TB, offsets []int64, from, gapFrom, gapTo, to int64) {
	t.Helper()
	var want []int64
	for o := from; o < to; o++ {
		if o < gapFrom || o >= gapTo {
			want = append(want, o)
		}
	}
	if fmt.Sprint(offsets) != fmt.Sprint(want) {
		t.Fatalf("offsets %v, want %d to %d without %d to %d", offsets, from, to, gapFrom, gapTo)
	}
}

// files returns the names in the log's directory.
func files(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
