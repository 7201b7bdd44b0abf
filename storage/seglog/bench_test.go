package seglog

import (
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"edgehub/internal/vfs"
)

var benchKey = []byte("devices/gateway-17/telemetry")

// BenchmarkBuilder is the copy of one record into the open batch.
func BenchmarkBuilder(b *testing.B) {
	for _, size := range []int{16, 100, 1024} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			var w Builder
			w.Reset(0)
			v := value(0, size)
			b.SetBytes(int64(len(v) + len(benchKey)))
			b.ReportAllocs()
			for i := range b.N {
				if w.Len() > 512<<10 {
					w.Reset(0)
				}
				w.Append(int64(i/1000), benchKey, v, Headers{})
			}
		})
	}
}

// BenchmarkAppend is Builder and Log.Append together; records/s is the figure of docs/BENCHMARKS.md. Beside it the
// physical limit: a bare loop that checksums and writes as many bytes, into files of the same size, as many of them.
// Both pay for the files' coming and going: stopping the timer would cost more than that and fall on the next writes.
func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{100, 1024} {
		for _, batch := range []int{1, 16, 256} {
			b.Run(fmt.Sprintf("%dB/x%d", size, batch), func(b *testing.B) { benchAppend(b, size, batch) })
			b.Run(fmt.Sprintf("%dB/x%d/limit", size, batch), func(b *testing.B) { benchLimit(b, size, batch) })
		}
	}
}

const (
	benchSegment  = 32 << 20
	benchSegments = 4
)

func benchAppend(b *testing.B, size, batch int) {
	o := testOptions(b)
	o.SegmentBytes = benchSegment
	l, _ := mustOpen(b, o)
	var w Builder
	v := value(0, size)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		w.Reset(l.Next())
		for range batch {
			w.Append(w.Base(), benchKey, v, Headers{})
		}
		if err := l.Append(&w); err != nil {
			b.Fatal(err)
		}
		if l.NeedsPrepare() {
			if err := l.Prepare(); err != nil {
				b.Fatal(err)
			}
		}
		if len(l.view.Load().segs) > benchSegments {
			if _, err := l.DropOldest(); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(batch)*float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

func benchLimit(b *testing.B, size, batch int) {
	dir := b.TempDir()
	var files []*os.File
	buf := make([]byte, headerSize+batch*(size+len(benchKey)+8))
	at, sum := int64(benchSegment), uint32(0)
	b.ResetTimer()
	for i := range b.N {
		if at+int64(len(buf)) > benchSegment {
			f, err := os.Create(filepath.Join(dir, fmt.Sprint(i)))
			if err != nil {
				b.Fatal(err)
			}
			if files = append(files, f); len(files) > benchSegments {
				_ = os.Remove(files[0].Name())
				_ = files[0].Close()
				files = files[1:]
				if err := vfs.OS.SyncDir(dir); err != nil { // as DropOldest does: it makes the disk work meanwhile
					b.Fatal(err)
				}
			}
			at = 0
		}
		sum ^= crc32.Checksum(buf, castagnoli)
		if _, err := files[len(files)-1].WriteAt(buf, at); err != nil {
			b.Fatal(err)
		}
		at += int64(len(buf))
	}
	b.ReportMetric(float64(batch)*float64(b.N)/b.Elapsed().Seconds(), "records/s")
	for _, f := range files {
		_ = f.Close()
	}
	_ = sum
}

// BenchmarkAppendSync is durability synced with a commit of so many records.
func BenchmarkAppendSync(b *testing.B) {
	for _, batch := range []int{1, 256} {
		b.Run(fmt.Sprintf("x%d", batch), func(b *testing.B) {
			l, _ := mustOpen(b, testOptions(b))
			var w Builder
			v := value(0, 100)
			for range b.N {
				w.Reset(l.Next())
				for range batch {
					w.Append(w.Base(), benchKey, v, Headers{})
				}
				if err := l.Append(&w); err != nil {
					b.Fatal(err)
				}
				if _, err := l.Sync(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(batch)*float64(b.N)/b.Elapsed().Seconds(), "records/s")
		})
	}
}

// benchLog is a log of 256 MiB in batches of 64 records.
func benchLog(b *testing.B) *Log {
	o := testOptions(b)
	o.SegmentBytes = 64 << 20
	l, _ := mustOpen(b, o)
	for l.Bytes() < 256<<20 {
		fill(b, l, 64*100, 64, 100)
	}
	if _, err := l.Sync(); err != nil {
		b.Fatal(err)
	}
	return l
}

// BenchmarkRead reads a log sequentially from the page cache: chunks only, and with every record decoded.
func BenchmarkRead(b *testing.B) {
	l := benchLog(b)
	for _, size := range []int{64 << 10, 1 << 20} {
		for _, decode := range []bool{false, true} {
			b.Run(fmt.Sprintf("%dKiB/decode=%v", size>>10, decode), func(b *testing.B) {
				chunk := make([]byte, 0, size)
				from, bytes, records := int64(0), int64(0), int64(0)
				var s Scanner
				b.ReportAllocs()
				for range b.N {
					var err error
					if chunk, err = l.Read(from, size, chunk[:0]); err != nil {
						b.Fatal(err)
					}
					bytes += int64(len(chunk))
					if decode {
						for s.Reset(chunk); s.Next(); {
							from = s.Record().Offset + 1
							records++
						}
					} else {
						for rest := chunk; len(rest) > 0; {
							h, err := parseHeader(rest)
							if err != nil {
								b.Fatal(err)
							}
							from, rest = h.last+1, rest[h.size:]
						}
					}
					if from >= l.Next() {
						from = 0
					}
				}
				b.SetBytes(bytes / int64(b.N))
				b.ReportMetric(float64(records)/b.Elapsed().Seconds(), "records/s")
			})
		}
	}
}

// BenchmarkSeek finds a random offset, and a random time, in a log of several segments.
func BenchmarkSeek(b *testing.B) {
	l := benchLog(b)
	b.Run("offset", func(b *testing.B) {
		chunk := make([]byte, 0, 256<<10)
		b.ReportAllocs()
		for i := range b.N {
			offset := int64(i) * 7_919_003 % l.Next()
			var err error
			if chunk, err = l.Read(offset, 1, chunk[:0]); err != nil || len(chunk) == 0 {
				b.Fatal(len(chunk), err)
			}
		}
	})
	b.Run("time", func(b *testing.B) {
		b.ReportAllocs()
		for i := range b.N {
			offset := int64(i) * 7_919_003 % l.Next()
			if n, err := l.SeekTime(timeOf(offset)); n != offset || err != nil {
				b.Fatal(n, offset, err)
			}
		}
	})
}
