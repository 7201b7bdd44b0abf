package seglog

import (
	"testing"

	"edgehub/internal/scaletest"
)

// backlogEnv names the variable with the larger backlog in MiB. 10240 is the 10 GB of the promise and takes as much disk.
const backlogEnv = "HUB_BENCH_BACKLOG_MIB"

// BenchmarkScale appends to, reads from and looks things up in a log with ten times more in it.
func BenchmarkScale(b *testing.B) {
	mib := scaletest.Int(b, backlogEnv, 256)
	small, large := scaleLog(b, mib/10), scaleLog(b, mib)
	b.Run("backlog/append", func(b *testing.B) { scaletest.Compare(b, appendOne(b, small), appendOne(b, large)) })
	b.Run("backlog/read", func(b *testing.B) { scaletest.Compare(b, readOne(b, small), readOne(b, large)) })
	b.Run("backlog/seek", func(b *testing.B) { scaletest.Compare(b, seekOne(b, small), seekOne(b, large)) })
	b.Run("backlog/lag", func(b *testing.B) {
		scaletest.Compare(b, func(i int) { small.BytesFrom(int64(i) * 7_919_003 % small.Next()) }, func(i int) { large.BytesFrom(int64(i) * 7_919_003 % large.Next()) })
	})
}

// scaleLog is a log of so many MiB in batches of 64 records, in segments of 8 MiB: more of them than a hub would have.
func scaleLog(b *testing.B, mib int) *Log {
	o := testOptions(b)
	o.SegmentBytes = 8 << 20
	l, _ := mustOpen(b, o)
	for l.Bytes() < int64(mib)<<20 {
		fill(b, l, 64*100, 64, 100)
	}
	if _, err := l.Sync(); err != nil {
		b.Fatal(err)
	}
	return l
}

// appendOne commits sixteen records.
func appendOne(b *testing.B, l *Log) func(int) {
	var w Builder
	v := value(0, 100)
	return func(int) {
		w.Reset(l.Next())
		for range 16 {
			w.Append(timeOf(w.Base()), benchKey, v, Headers{})
		}
		if err := l.Append(&w); err != nil {
			b.Fatal(err)
		}
	}
}

// readOne reads one batch somewhere.
func readOne(b *testing.B, l *Log) func(int) {
	var chunk []byte
	return func(i int) {
		var err error
		if chunk, err = l.Read(int64(i)*7_919_003%l.Next(), 1, chunk[:0]); err != nil || len(chunk) == 0 {
			b.Fatal(len(chunk), err)
		}
	}
}

func seekOne(b *testing.B, l *Log) func(int) {
	n := l.Next()
	return func(i int) {
		if _, err := l.SeekTime(timeOf(int64(i) * 7_919_003 % n)); err != nil {
			b.Fatal(err)
		}
	}
}
