package seglog

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"edgehub/internal/vfs"
	"edgehub/internal/vfs/vfstest"
)

// TestConcurrent runs a committer, readers, a syncer and retention against each other, once on a good disk and once on
// one whose fsyncs and writes fail now and then; the race detector and the readers' checks are the judges.
func TestConcurrent(t *testing.T) {
	t.Run("good disk", func(t *testing.T) {
		l := runConcurrently(t, vfs.OS, testOptions(t))
		if st := l.Stats(); st != (Stats{}) {
			t.Fatalf("%+v", st)
		}
	})
	t.Run("bad disk", func(t *testing.T) {
		disk, r := vfstest.NewMem(), rand.New(rand.NewPCG(1, 1))
		disk.BeforeSync = func(op vfstest.Op, _ string) error { // only the syncer gets here
			if op == vfstest.OpSync && r.IntN(10) == 0 {
				return syscall.EIO
			}
			return nil
		}
		faults := vfstest.New(disk)
		for i := range 200 {
			faults.Add(vfstest.Fault{Op: vfstest.OpWrite, After: i * 20, Count: 1, Err: syscall.ENOSPC, Short: i * 7})
		}
		l := runConcurrently(t, faults, testOptions(t))
		if st := l.Stats(); st.Rewrites == 0 || st.WriteFailures == 0 || st.DamagedBatches != 0 {
			t.Fatalf("%+v", st)
		}
		disk.BeforeSync = nil
		wantDense(t, readAll(t, l, l.First()), l.First(), l.Next())
	})
}

func runConcurrently(t *testing.T, disk vfs.FS, o Options) *Log {
	o.FS, o.SegmentBytes = disk, 50_000
	l, _ := mustOpen(t, o)
	const total = 20_000
	var done atomic.Bool
	var reads, drops atomic.Int64
	var wg sync.WaitGroup
	run := func(f func() error) {
		wg.Go(func() {
			for !done.Load() {
				if err := f(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	run(func() error {
		before := l.Next()
		n, err := l.Sync()
		if err == nil && n < before {
			return fmt.Errorf("synced %d after %d were appended", n, before)
		}
		if errors.Is(err, syscall.EIO) || errors.Is(err, syscall.ENOSPC) {
			return nil // in doubt: the next call repairs
		}
		return err
	})
	run(func() error {
		_ = l.Segments()
		if l.NeedsPrepare() {
			return l.Prepare()
		}
		if l.Next()-l.First() < 5000 {
			return nil
		}
		_, err := l.DropOldest()
		if errors.Is(err, ErrActive) {
			return nil
		}
		drops.Add(1)
		return err
	})
	for range 3 {
		from, chunk := int64(0), []byte(nil)
		run(func() (err error) {
			chunk, err = l.Read(from, 10_000, chunk[:0])
			if errors.Is(err, ErrTrimmed) {
				from = l.First()
				return nil
			}
			for r := range Records(chunk) {
				if r.Offset > from {
					return fmt.Errorf("offset %d, want %d", r.Offset, from)
				}
				from = max(from, r.Offset+1)
			}
			reads.Add(1)
			l.BytesFrom(from)
			return err
		})
	}
	for l.Next() < total {
		if err := tryFill(l, 5); err != nil && !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, ErrInDoubt) {
			t.Error(err)
			break
		}
	}
	done.Store(true)
	wg.Wait()
	if reads.Load() == 0 || drops.Load() == 0 {
		t.Fatalf("%d reads, %d drops", reads.Load(), drops.Load())
	}
	return l
}

// TestSlowDisk: an fsync that hangs holds up neither appends nor reads; a write that hangs holds up no reader.
func TestSlowDisk(t *testing.T) {
	l, f, _ := faultyLog(t)
	fill(t, l, 20, 5, 100)
	hang := func(op vfstest.Op, do func() error, meanwhile func()) {
		t.Helper()
		entered, leave, result := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		f.Add(vfstest.Fault{Op: op, Pattern: "*.log", Count: 1, Hook: func() {
			close(entered)
			<-leave
		}})
		go func() { result <- do() }()
		<-entered
		meanwhile()
		close(leave)
		if err := <-result; err != nil {
			t.Fatal(err)
		}
	}
	hang(vfstest.OpSync, func() error { _, err := l.Sync(); return err }, func() {
		fill(t, l, 20, 5, 100)
		if err := l.Roll(); err != nil {
			t.Fatal(err)
		}
		fill(t, l, 20, 5, 100)
		wantDense(t, readAll(t, l, 0), 0, 60)
		if l.Synced() != 0 {
			t.Fatal(l.Synced())
		}
	})
	// What came while the fsync hung is not covered by it.
	if l.Synced() != 20 {
		t.Fatal(l.Synced())
	}
	hang(vfstest.OpWrite, func() error { return tryFill(l, 5) }, func() {
		wantDense(t, readAll(t, l, 0), 0, 60)
		if n, err := l.SeekTime(timeOf(42)); n != 42 || err != nil {
			t.Fatal(n, err)
		}
		if _, err := l.DropOldest(); err != nil {
			t.Fatal(err)
		}
	})
	wantDense(t, readAll(t, l, l.First()), 40, 65)
	if n, err := l.Sync(); n != 65 || err != nil {
		t.Fatal(n, err)
	}
}
