package meta

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"edgehub/internal/vfs"
)

func benchStore(b *testing.B, keys int) (*Store, [][]byte) {
	b.Helper()
	s, _ := open_(b, Options{FS: vfs.OS, DataDir: b.TempDir(), Salt: testSalt, FlushEvery: time.Second})
	list := make([][]byte, keys)
	for i := range list {
		list[i] = []byte(fmt.Sprintf("session/client-%06d", i*7919%keys))
	}
	b.ReportAllocs()
	return s, list
}

var benchValue = make([]byte, 100)

// BenchmarkPut puts into an overlay of 10,000 keys, and commits every 256.
func BenchmarkPut(b *testing.B) {
	s, keys := benchStore(b, 10_000)
	for i := range b.N {
		s.Put(keys[i%len(keys)], benchValue)
		if i%256 == 255 {
			check(b, s.Commit())
		}
	}
}

func BenchmarkPutCommit(b *testing.B) {
	s, keys := benchStore(b, 10_000)
	for i := range b.N {
		s.Put(keys[i%len(keys)], benchValue)
		check(b, s.Commit())
	}
}

func BenchmarkCommitNothing(b *testing.B) {
	s, _ := benchStore(b, 1)
	for range b.N {
		check(b, s.Commit())
	}
}

func BenchmarkPutSync(b *testing.B) {
	s, keys := benchStore(b, 10_000)
	for i := range b.N {
		s.Put(keys[i%len(keys)], benchValue)
		check(b, s.Sync())
	}
}

func BenchmarkGet(b *testing.B) {
	for _, where := range []string{"overlay", "index"} {
		b.Run(where, func(b *testing.B) {
			s, keys := benchStore(b, 10_000)
			for _, k := range keys {
				s.Put(k, benchValue)
			}
			if where == "index" {
				check(b, s.Flush())
			}
			b.ResetTimer()
			for i := range b.N {
				if _, ok, err := s.Get(keys[i%len(keys)]); err != nil || !ok {
					b.Fatal(ok, err)
				}
			}
		})
	}
}

// BenchmarkScan reads 10 keys of one prefix among 100,000.
func BenchmarkScan(b *testing.B) {
	s, _ := benchStore(b, 1)
	for i := range 100_000 {
		s.Put([]byte(fmt.Sprintf("sub/%05d/%d", i/10, i%10)), benchValue)
	}
	check(b, s.Flush())
	b.ResetTimer()
	for i := range b.N {
		n := 0
		check(b, s.Scan([]byte(fmt.Sprintf("sub/%05d/", i%10_000)), func(_, _ []byte) error { n++; return nil }))
		if n != 10 {
			b.Fatal(n)
		}
	}
}

// BenchmarkOpen opens a store of 100,000 durable keys, with its index and
// without.
func BenchmarkOpen(b *testing.B) {
	o := Options{FS: vfs.OS, DataDir: b.TempDir(), Salt: testSalt}
	s, _ := open_(b, o)
	for i := range 100_000 {
		s.Put([]byte(fmt.Sprintf("session/%06d", i)), benchValue)
		if i%1000 == 0 {
			check(b, s.Commit())
		}
	}
	check(b, s.Close())
	for _, lost := range []bool{false, true} {
		b.Run(map[bool]string{false: "index", true: "rebuild"}[lost], func(b *testing.B) {
			for range b.N {
				if lost {
					check(b, os.RemoveAll(filepath.Join(o.DataDir, indexDir)))
				}
				s, _, err := Open(o)
				check(b, err)
				check(b, s.Close())
			}
		})
	}
}

// BenchmarkFlush is what the flusher does per key, in batches of 1,000 changed
// keys of 10,000.
func BenchmarkFlush(b *testing.B) {
	s, keys := benchStore(b, 10_000)
	for i := range b.N {
		s.Put(keys[i%len(keys)], fmt.Append(nil, i, string(benchValue)))
		if i%1000 == 999 {
			check(b, s.Flush())
		}
	}
}
