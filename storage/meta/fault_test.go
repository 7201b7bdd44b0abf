package meta

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"edgehub/internal/vfs"
	"edgehub/internal/vfs/vfstest"
)

// TestFailedCommitIsTriedAgain: a commit that failed acknowledges nothing, and
// its records, in order, go out with the next one that works.
func TestFailedCommitIsTriedAgain(t *testing.T) {
	faults := vfstest.New(vfs.OS)
	o := testOptions(t.TempDir())
	o.FS = faults
	s, _ := open_(t, o)
	s.Put([]byte("a"), []byte("0"))
	check(t, s.Commit())

	faults.Add(vfstest.Fault{Op: vfstest.OpWrite, Err: syscall.ENOSPC})
	s.Put([]byte("a"), []byte("1"))
	for range 3 {
		s.Put([]byte("b"), []byte("1"))
		if err := s.Commit(); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("Commit: %v", err)
		}
		if err := s.Flush(); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("Flush: %v", err)
		}
	}
	s.Put([]byte("a"), []byte("2"))
	if v, _, err := s.Get([]byte("a")); err != nil || string(v) != "2" {
		t.Fatalf("%q, %v", v, err)
	}
	o2 := o
	o2.FS, o2.DataDir = vfs.OS, copyDir(t, o.DataDir)
	killed, _ := open_(t, o2)
	d, _ := dump(t, killed)
	same(t, "killed while the disk was full", d, map[string]string{"a": "0"})

	faults.Clear()
	check(t, s.Commit())
	o2.DataDir = copyDir(t, o.DataDir)
	killed, rec := open_(t, o2)
	d, _ = dump(t, killed)
	same(t, "killed later", d, map[string]string{"a": "2", "b": "1"})
	if rec.Replayed != 5+1 {
		t.Fatalf("%d records replayed, want all six, once", rec.Replayed)
	}
}

// TestOverflowAcknowledgesNothingMore: a disk that stays full costs bounded
// memory, and no commit succeeds after a record had to be dropped.
func TestOverflowAcknowledgesNothingMore(t *testing.T) {
	faults := vfstest.New(vfs.OS)
	o := testOptions(t.TempDir())
	o.FS = faults
	s, _ := open_(t, o)
	s.Put([]byte("before"), nil)
	check(t, s.Commit())
	faults.Add(vfstest.Fault{Op: vfstest.OpWrite, Err: syscall.ENOSPC})
	value := make([]byte, 64<<10)
	for i := range 2 * overlayMax / len(value) {
		s.Put([]byte(fmt.Sprint("k", i)), value)
	}
	if n := s.Stats().OverlayBytes; n > overlayMax+int64(2*len(value)) {
		t.Fatalf("%d bytes held", n)
	}
	faults.Clear()
	for range 3 {
		if err := s.Commit(); !errors.Is(err, ErrOverflow) {
			t.Fatalf("Commit: %v", err)
		}
	}
	if err := s.Close(); !errors.Is(err, ErrOverflow) {
		t.Fatalf("Close: %v", err)
	}
	s, _ = open_(t, o)
	d, _ := dump(t, s)
	same(t, "after a restart", d, map[string]string{"before": ""})
	s.Put([]byte("again"), nil)
	check(t, s.Commit())
}

func TestOverlayIsBoundedByFlushing(t *testing.T) {
	o := testOptions(t.TempDir())
	s, _ := open_(t, o)
	value := make([]byte, 64<<10)
	for i := range 600 {
		if i%2 == 0 {
			s.PutHint([]byte(fmt.Sprint("h", i%100)), append(value, byte(i)))
		} else {
			s.Put([]byte(fmt.Sprint("k", i)), value)
		}
		check(t, s.Commit())
		if n := s.Stats().OverlayBytes; n > overlayFull+int64(2*len(value)) {
			t.Fatalf("%d bytes held", n)
		}
	}
}

// TestFailedCompactionHarmsNothing makes each kind of operation of a
// compaction fail once.
func TestFailedCompactionHarmsNothing(t *testing.T) {
	for _, op := range []vfstest.Op{vfstest.OpCreate, vfstest.OpWrite, vfstest.OpSync, vfstest.OpSyncDir, vfstest.OpRemove, vfstest.OpRename} {
		t.Run(string(op), func(t *testing.T) {
			faults := vfstest.New(vfs.OS)
			o := testOptions(t.TempDir())
			o.FS, o.SegmentBytes = faults, 16<<10
			s, _ := open_(t, o)
			want := map[string]string{}
			for round := range 5 {
				fill(s, want, 300, round)
				check(t, s.Commit())
			}
			faults.Add(vfstest.Fault{Op: op, Count: 1, Err: syscall.EIO})
			err := s.Compact()
			if err != nil && !errors.Is(err, syscall.EIO) {
				t.Fatalf("Compact: %v", err)
			}
			d, _ := dump(t, s)
			same(t, "after the failure", d, want)
			faults.Clear()
			_ = s.Close()
			for _, lose := range []bool{false, true} {
				if lose {
					check(t, os.RemoveAll(filepath.Join(o.DataDir, indexDir)))
				}
				again, _ := open_(t, o)
				d, _ = dump(t, again)
				same(t, fmt.Sprint("index lost: ", lose), d, want)
				check(t, again.Compact())
				check(t, again.Close())
			}
		})
	}
}

// TestDamagedLogNamesWhatIsLost flips a bit in each part of the log: with the
// index nothing is lost; without it, at most that batch, and it is reported.
func TestDamagedLogNamesWhatIsLost(t *testing.T) {
	o := testOptions(t.TempDir())
	s, _ := open_(t, o)
	want := map[string]string{}
	for i := range 40 {
		k := fmt.Sprintf("key/%02d", i)
		s.Put([]byte(k), []byte(strings.Repeat("v", 200)))
		want[k] = strings.Repeat("v", 200)
		check(t, s.Commit()) // a batch of its own
	}
	check(t, s.Close())
	names, err := filepath.Glob(filepath.Join(o.DataDir, filepath.FromSlash(logDir), "*.log"))
	check(t, err)
	info, err := os.Stat(names[0])
	check(t, err)
	for at := info.Size() / 4; at < info.Size()/4+300; at += 7 {
		o := o
		o.DataDir = copyDir(t, o.DataDir)
		path := filepath.Join(o.DataDir, filepath.FromSlash(logDir), filepath.Base(names[0]))
		b, err := os.ReadFile(path)
		check(t, err)
		b[at] ^= 0x10
		check(t, os.WriteFile(path, b, 0o600))

		s, rec := open_(t, o)
		d, _ := dump(t, s)
		same(t, "with its index", d, want)
		if rec.Rebuilt {
			t.Fatalf("byte %d: rebuilt from a damaged log: %+v", at, rec)
		}
		check(t, s.Close())

		check(t, os.RemoveAll(filepath.Join(o.DataDir, indexDir)))
		s, rec = open_(t, o)
		d, _ = dump(t, s)
		if len(d) < len(want)-1 {
			t.Fatalf("byte %d: %d keys of %d left", at, len(d), len(want))
		}
		if len(d) < len(want) && len(rec.Damaged) == 0 {
			t.Fatalf("byte %d: a key is lost and nothing says so: %+v", at, rec)
		}
		check(t, s.Close())
	}
}
