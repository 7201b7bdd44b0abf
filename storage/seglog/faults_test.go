package seglog

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"edgehub/internal/vfs"
	"edgehub/internal/vfs/vfstest"
)

// faultyLog is a log on a file system that fails on demand.
func faultyLog(t *testing.T) (*Log, *vfstest.Faults, Options) {
	t.Helper()
	o := testOptions(t)
	f := vfstest.New(vfs.OS)
	o.FS = f
	l, _ := mustOpen(t, o)
	return l, f, o
}

// tryFill appends one batch of n records and returns the error.
func tryFill(l *Log, n int) error {
	var b Builder
	b.Floor(l.LastTime())
	b.Reset(l.Next())
	for range n {
		b.Append(timeOf(b.Next()), []byte("k"), value(b.Next(), 100), Headers{})
	}
	return l.Append(&b)
}

// reopen starts again on the files of a log that was not closed, as after a kill.
func reopen(t *testing.T, o Options) (*Log, Recovery) {
	t.Helper()
	o.FS = vfs.OS
	return mustOpen(t, o)
}

func TestFailedWrite(t *testing.T) {
	for _, short := range []int{0, 1, headerSize, 400, 1200} { // 1200: whole batches reach the file, and must go again
		for _, cause := range []error{syscall.ENOSPC, syscall.EIO} {
			t.Run(fmt.Sprintf("%v after %d", cause, short), func(t *testing.T) {
				l, f, o := faultyLog(t)
				fill(t, l, 20, 5, 100)
				length := l.Bytes()
				f.Add(vfstest.Fault{Op: vfstest.OpWrite, Pattern: "*.log", Count: 2, Err: cause, Short: short})
				for range 2 {
					if err := tryFill(l, 5); !errors.Is(err, cause) {
						t.Fatal(err)
					}
					if info, err := os.Stat(filepath.Join(o.Dir, segmentName(0, 0))); err != nil || info.Size() != length || l.Next() != 20 || l.Bytes() != length {
						t.Fatalf("size %d, want %d; next %d; %v", info.Size(), length, l.Next(), err)
					}
				}
				wantDense(t, readAll(t, l, 0), 0, 20)
				fill(t, l, 7, 7, 50) // resumes by itself
				wantDense(t, readAll(t, l, 0), 0, 27)
				if n := l.Stats().WriteFailures; n != 2 {
					t.Fatal(n)
				}
				l2, rec := reopen(t, o)
				if rec.TornBytes != 0 || l2.Next() != 27 {
					t.Fatalf("%+v, next %d", rec, l2.Next())
				}
			})
		}
	}
}

// TestFailedWriteCannotBeCut: as long as the rest of a failed write is in the file, nothing is written behind it.
func TestFailedWriteCannotBeCut(t *testing.T) {
	l, f, o := faultyLog(t)
	fill(t, l, 20, 5, 100)
	f.Add(vfstest.Fault{Op: vfstest.OpWrite, Count: 1, Err: syscall.ENOSPC, Short: 5000})
	f.Add(vfstest.Fault{Op: vfstest.OpTruncate, Count: 3, Err: syscall.EIO})
	if err := tryFill(l, 20); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	for range 2 {
		if err := tryFill(l, 1); !errors.Is(err, syscall.EIO) {
			t.Fatal(err)
		}
	}
	if err := l.Roll(); err != nil { // the third truncate failed above; now it works
		t.Fatal(err)
	}
	fill(t, l, 1, 1, 1)
	wantDense(t, readAll(t, l, 0), 0, 21)
	l2, rec := reopen(t, o)
	if rec.TornBytes != 0 || l2.Next() != 21 {
		t.Fatalf("%+v, next %d", rec, l2.Next())
	}
	wantDense(t, readAll(t, l2, 0), 0, 21)
}

func TestFailedRoll(t *testing.T) {
	l, f, _ := faultyLog(t)
	fill(t, l, 20, 5, 100)
	f.Add(vfstest.Fault{Op: vfstest.OpCreate, Count: 1, Err: syscall.ENOSPC})
	if err := l.Roll(); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	fill(t, l, 5, 5, 100)
	f.Add(vfstest.Fault{Op: vfstest.OpRename, Count: 1, Err: syscall.EIO})
	if err := l.Prepare(); err != nil {
		t.Fatal(err)
	}
	if err := l.Roll(); err != nil { // falls back to a new file
		t.Fatal(err)
	}
	fill(t, l, 5, 5, 100)
	wantDense(t, readAll(t, l, 0), 0, 30)
}

// TestFailedSync: whatever is in doubt is written again before Sync says that it is durable.
func TestFailedSync(t *testing.T) {
	for _, tc := range []struct {
		name                  string
		synced, rolls, doubt  int
		failing               string // segment whose fsync fails
		segments, firstUnsafe int
	}{
		{"everything", 0, 0, 20, "00000000000000000000.log", 1, 0},
		{"tail of the active segment", 20, 0, 20, "00000000000000000000.log", 2, 20},
		{"sealed segment", 20, 1, 20, "00000000000000000000.log", 2, 20},
		{"active after a sealed one", 20, 1, 20, "00000000000000000040.log", 2, 20},
		{"several segments", 20, 3, 20, "00000000000000000060.log", 2, 20},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, f, o := faultyLog(t)
			if tc.synced > 0 {
				fill(t, l, tc.synced, 5, 100)
			}
			if n, err := l.Sync(); n != int64(tc.synced) || err != nil {
				t.Fatal(n, err)
			}
			fill(t, l, tc.doubt, 5, 100)
			for range tc.rolls {
				if err := l.Roll(); err != nil {
					t.Fatal(err)
				}
				fill(t, l, tc.doubt, 5, 100)
			}
			next := l.Next()
			f.Add(vfstest.Fault{Op: vfstest.OpSync, Pattern: tc.failing, Count: 1, Err: syscall.EIO})
			if n, err := l.Sync(); n != next || err != nil {
				t.Fatal(n, err)
			}
			if st := l.Stats(); st.SyncFailures != 1 || st.Rewrites != 1 || st.DamagedBatches != 0 {
				t.Fatalf("%+v", st)
			}
			segs := l.Segments()
			if len(segs) != tc.segments || segs[len(segs)-1].Base != int64(tc.firstUnsafe) {
				t.Fatalf("%+v", segs)
			}
			if !slices.Contains(files(t, o.Dir), segmentName(int64(tc.firstUnsafe), 1)) {
				t.Fatal(files(t, o.Dir))
			}
			wantDense(t, readAll(t, l, 0), 0, next)
			fill(t, l, 10, 5, 100)
			if err := l.Roll(); err != nil {
				t.Fatal(err)
			}
			fill(t, l, 10, 5, 100)
			wantDense(t, readAll(t, l, 0), 0, next+20)
			if err := l.Verify(func(d Damage) { t.Error(d) }); err != nil {
				t.Fatal(err)
			}
			l2, rec := reopen(t, o)
			if rec.TornBytes != 0 || len(rec.Damaged) != 0 || len(rec.Quarantined) != 0 || l2.Next() != next+20 {
				t.Fatalf("%+v, next %d", rec, l2.Next())
			}
			wantDense(t, readAll(t, l2, 0), 0, next+20)
		})
	}
}

// TestSyncStaysInDoubt: while writing again fails, too, nothing is acknowledged and nothing appended; then all goes on.
func TestSyncStaysInDoubt(t *testing.T) {
	for _, op := range []vfstest.Op{vfstest.OpCreate, vfstest.OpWrite, vfstest.OpSync, vfstest.OpRename, vfstest.OpSyncDir} {
		t.Run(string(op), func(t *testing.T) {
			l, f, o := faultyLog(t)
			fill(t, l, 20, 5, 100)
			if _, err := l.Sync(); err != nil {
				t.Fatal(err)
			}
			fill(t, l, 20, 5, 100)
			f.Add(vfstest.Fault{Op: vfstest.OpSync, Pattern: segmentName(0, 0), Count: 1, Err: syscall.EIO})
			f.Add(vfstest.Fault{Op: op, Count: 2, Err: syscall.ENOSPC})
			for range 2 {
				if n, err := l.Sync(); n != 20 || !errors.Is(err, syscall.EIO) || !errors.Is(err, syscall.ENOSPC) {
					t.Fatal(n, err)
				}
				if err := tryFill(l, 5); !errors.Is(err, ErrInDoubt) || !errors.Is(err, syscall.EIO) {
					t.Fatal(err)
				}
				if err := l.Roll(); !errors.Is(err, ErrInDoubt) {
					t.Fatal(err)
				}
				if l.Synced() != 20 || l.Next() != 40 {
					t.Fatal(l.Synced(), l.Next())
				}
				wantDense(t, readAll(t, l, 0), 0, 40)
			}
			if n, err := l.Sync(); n != 40 || err != nil {
				t.Fatal(n, err)
			}
			fill(t, l, 5, 5, 100)
			wantDense(t, readAll(t, l, 0), 0, 45)
			l2, rec := reopen(t, o)
			if rec.TornBytes != 0 || len(rec.Damaged) != 0 || l2.Next() != 45 {
				t.Fatalf("%+v, next %d", rec, l2.Next())
			}
			wantDense(t, readAll(t, l2, 0), 0, 45)
		})
	}
}

// TestKilledInRewrite starts again from every state of the directory that a rewrite passes through.
func TestKilledInRewrite(t *testing.T) {
	for _, stop := range []vfstest.Fault{
		{Op: vfstest.OpWrite, Pattern: rewriteName, After: 1},
		{Op: vfstest.OpSync, Pattern: rewriteName},
		{Op: vfstest.OpRename},
		{Op: vfstest.OpSyncDir},
		{Op: vfstest.OpRemove},
		{Op: vfstest.OpTruncate},
	} {
		t.Run(string(stop.Op)+" "+stop.Pattern, func(t *testing.T) {
			l, f, o := faultyLog(t)
			fill(t, l, 20, 5, 100)
			if _, err := l.Sync(); err != nil {
				t.Fatal(err)
			}
			fill(t, l, 20, 5, 100)
			if err := l.Roll(); err != nil {
				t.Fatal(err)
			}
			fill(t, l, 20, 5, 100)
			killed := false
			f.Add(vfstest.Fault{Op: vfstest.OpSync, Pattern: "*.log", Count: 1, Err: syscall.EIO})
			stop.Err, stop.Count = errors.New("killed"), 1
			stop.Hook = func() {
				killed = true
				copied := filepath.Join(t.TempDir(), "0-0")
				if err := os.CopyFS(copied, os.DirFS(o.Dir)); err != nil {
					t.Error(err)
				}
				oc := o
				oc.Dir = copied
				oc.Index = nil
				l2, rec := reopen(t, oc)
				if rec.TornBytes != 0 || len(rec.Damaged) != 0 || l2.Next() != 60 {
					t.Errorf("%+v, next %d", rec, l2.Next())
				}
				wantDense(t, readAll(t, l2, 0), 0, 60)
				if err := l2.Verify(func(d Damage) { t.Error(d) }); err != nil {
					t.Error(err)
				}
				fill(t, l2, 10, 5, 100)
				wantDense(t, readAll(t, l2, 0), 0, 70)
			}
			f.Add(stop)
			_, _ = l.Sync() // whether it goes on depends on where it was hit
			if !killed {
				t.Fatal("never got there")
			}
		})
	}
}

// TestSyncLosesPages: after the failed fsync the kernel has forgotten some pages. What cannot be proven any more is
// named, everything else is there, and no offset changes.
func TestSyncLosesPages(t *testing.T) {
	l, f, o := faultyLog(t)
	fill(t, l, 20, 5, 100)
	if _, err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	fill(t, l, 20, 5, 100)
	path := filepath.Join(o.Dir, segmentName(0, 0))
	pos := batchPositions(t, path)
	f.Add(vfstest.Fault{Op: vfstest.OpSync, Pattern: "*.log", Count: 1, Err: syscall.EIO, Hook: func() {
		w, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer w.Close()
		if _, err := w.WriteAt(make([]byte, 300), int64(pos[5])+100); err != nil {
			t.Error(err)
		}
	}})
	if n, err := l.Sync(); n != 40 || err != nil {
		t.Fatal(n, err)
	}
	d := l.Damage()
	if len(d) != 1 || d[0].From != 25 || d[0].To != 30 {
		t.Fatal(d)
	}
	wantGap(t, readAll(t, l, 0), 0, 25, 30, 40)
}

func TestFailedDirSync(t *testing.T) {
	l, f, _ := faultyLog(t)
	fill(t, l, 20, 5, 100)
	f.Add(vfstest.Fault{Op: vfstest.OpSyncDir, Count: 1, Err: syscall.EIO})
	if n, err := l.Sync(); n != 0 || !errors.Is(err, syscall.EIO) || l.Synced() != 0 {
		t.Fatal(n, err)
	}
	if n, err := l.Sync(); n != 20 || err != nil {
		t.Fatal(n, err)
	}
}

func TestFailedDrop(t *testing.T) {
	l, f, _ := faultyLog(t)
	fill(t, l, 20, 5, 100)
	if err := l.Roll(); err != nil {
		t.Fatal(err)
	}
	f.Add(vfstest.Fault{Op: vfstest.OpRemove, Count: 1, Err: syscall.EIO})
	if _, err := l.DropOldest(); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	wantDense(t, readAll(t, l, 0), 0, 20)
	if _, err := l.DropOldest(); err != nil || l.First() != 20 {
		t.Fatal(err, l.First())
	}
}

// TestDropWhileReading: a reader inside a segment that is dropped finishes, and the file is closed after it.
func TestDropWhileReading(t *testing.T) {
	l, f, o := faultyLog(t)
	fill(t, l, 20, 5, 100)
	if err := l.Roll(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	f.Add(vfstest.Fault{Op: vfstest.OpRead, Pattern: segmentName(0, 0), Hook: func() {
		once.Do(func() {
			if _, err := l.DropOldest(); err != nil {
				t.Error(err)
			}
		})
	}})
	chunk, err := l.Read(0, 1<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for range Records(chunk) {
		n++
	}
	if n != 20 {
		t.Fatal(n)
	}
	if _, err := l.Read(0, 1<<20, nil); !errors.Is(err, ErrTrimmed) {
		t.Fatal(err)
	}
	if f.OpenFiles() != 1 {
		t.Fatalf("%d files open: the dropped one keeps its space", f.OpenFiles())
	}
	if got := files(t, o.Dir); len(got) != 1 {
		t.Fatal(got)
	}
}

// TestIndexLies: an index store that returns anything at all costs time, never records.
func TestIndexLies(t *testing.T) {
	liar := &memIndex{}
	o := testOptions(t)
	o.SegmentBytes = 60_000
	o.Index = liar
	l, _ := mustOpen(t, o)
	fill(t, l, 2000, 5, 100)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	truth := liar.m
	for name, lie := range map[string]func(e []IndexEntry) []IndexEntry{
		"position off by one": func(e []IndexEntry) []IndexEntry {
			for i := range e[:len(e)-1] {
				e[i].Position++
			}
			return e
		},
		"offset off by one": func(e []IndexEntry) []IndexEntry {
			for i := range e[:len(e)-1] {
				e[i].Offset++
			}
			return e
		},
		"empty":         func([]IndexEntry) []IndexEntry { return nil },
		"end missing":   func(e []IndexEntry) []IndexEntry { return e[:len(e)-1] },
		"falling":       func(e []IndexEntry) []IndexEntry { slices.Reverse(e); return e },
		"other segment": func([]IndexEntry) []IndexEntry { return []IndexEntry{{1, 1, 1}, {1 << 40, 1 << 40, 5}} },
		"huge": func(e []IndexEntry) []IndexEntry {
			for len(e) < 5000 {
				e = append(e, IndexEntry{e[len(e)-1].Offset + 1, e[len(e)-1].Position + 1, 1 << 50})
			}
			return e
		},
	} {
		t.Run(name, func(t *testing.T) {
			o.Index = &memIndex{m: map[string][]IndexEntry{}}
			for k, e := range truth {
				o.Index.(*memIndex).m[k] = lie(slices.Clone(e))
			}
			l, rec := mustOpen(t, o)
			if rec.TornBytes != 0 || len(rec.Damaged) != 0 || l.Next() != 2000 {
				t.Fatalf("%+v, next %d", rec, l.Next())
			}
			for from := int64(0); from < 2000; from += 97 {
				wantDense(t, readAll(t, l, from), from, 2000)
				if n, err := l.SeekTime(timeOf(from)); n != from || err != nil {
					t.Fatal(n, from, err)
				}
			}
			if d := l.Damage(); len(d) != 0 {
				t.Fatal(d)
			}
		})
	}
	o.Index = failingIndex{}
	l, _ = mustOpen(t, o)
	wantDense(t, readAll(t, l, 777), 777, 2000)
	fill(t, l, 500, 5, 100)
	if _, err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	if l.Stats().IndexFailures == 0 {
		t.Fatal("a failing index store is not counted")
	}
}

type failingIndex struct{}

func (failingIndex) SaveIndex(string, int64, []IndexEntry) error { return io.ErrUnexpectedEOF }
func (failingIndex) LoadIndex(string, int64) ([]IndexEntry, error) {
	return nil, io.ErrUnexpectedEOF
}
func (failingIndex) DropIndex(string, int64) error { return io.ErrUnexpectedEOF }

// TestOpenFails: an Open that cannot do its work says so and leaves nothing open.
func TestOpenFails(t *testing.T) {
	for _, op := range []vfstest.Op{vfstest.OpMkdir, vfstest.OpReadDir, vfstest.OpStat, vfstest.OpOpen, vfstest.OpTruncate, vfstest.OpSync, vfstest.OpSyncDir} {
		o, segs := damagedLog(t)
		edit(t, filepath.Join(o.Dir, segmentName(segs[2].Base, 0)), func(b []byte) []byte { return b[:len(b)-1] })
		f := vfstest.New(vfs.OS)
		f.Add(vfstest.Fault{Op: op, Err: syscall.EIO})
		o.FS = f
		if _, _, err := Open(o); !errors.Is(err, syscall.EIO) {
			t.Fatalf("%s: %v", op, err)
		}
		if f.OpenFiles() != 0 {
			t.Fatalf("%s: %d files open", op, f.OpenFiles())
		}
	}
}

// TestOperations is the golden list of what touches the disk, in order: a missing fsync is a visible difference.
func TestOperations(t *testing.T) {
	l, f, o := faultyLog(t)
	step := func(name string, want string, do func()) {
		t.Helper()
		f.Record()
		do()
		var got []string
		for _, e := range f.Events() {
			got = append(got, string(e.Op)+" "+strings.TrimLeft(e.Name, "0"))
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%s:\n got %s\nwant %s", name, strings.Join(got, ", "), want)
		}
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	sync := func() { _, err := l.Sync(); check(err) }
	step("first append", "create .log, write .log", func() { check(tryFill(l, 10)) })
	step("append", "write .log", func() { check(tryFill(l, 10)) })
	step("sync", "sync .log, syncdir -0", sync)
	step("idle sync", "", sync)
	step("append again", "write .log", func() { check(tryFill(l, 10)) })
	step("sync again", "sync .log", sync)
	step("prepare", "create prepared.tmp", func() { check(l.Prepare()) })
	step("roll", "rename 30.log", func() { check(l.Roll()) })
	step("append after the roll", "write 30.log", func() { check(tryFill(l, 10)) })
	step("sync after the roll", "sync .log, sync 30.log, syncdir -0", sync)
	step("retention", "remove .log, close .log, syncdir -0", func() { _, err := l.DropOldest(); check(err) })
	step("close", "close 30.log", func() { check(l.Close()) })
	step("open", "mkdir -0, readdir -0, stat 30.log, open 30.log, read 30.log, sync 30.log, syncdir -0, readdir quarantine", func() {
		l, _ = mustOpen(t, o)
	})
}
