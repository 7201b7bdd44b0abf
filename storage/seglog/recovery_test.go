package seglog

import (
	"bytes"
	"encoding/binary"
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

// damagedLog makes a log of three segments, 10 batches of 5 records in each, and returns its options closed.
func damagedLog(t *testing.T) (Options, []SegmentInfo) {
	t.Helper()
	o := testOptions(t)
	l, _ := mustOpen(t, o)
	for range 3 {
		fill(t, l, 50, 5, 100)
		if len(l.Segments()) < 3 {
			if err := l.Roll(); err != nil {
				t.Fatal(err)
			}
		}
	}
	segs := l.Segments()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	o.Index = &memIndex{} // lost: recovery has only the files
	return o, segs
}

// batchPositions returns the positions of the batches in a segment file, and its size as the last.
func batchPositions(t testing.TB, path string) []int {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return positions(b)
}

// positions returns the positions of the batches in b, and its size as the last.
func positions(b []byte) []int {
	var pos []int
	at := 0
	for at < len(b) {
		pos = append(pos, at)
		at += lengthFrom + int(binary.BigEndian.Uint32(b[at+posLength:]))
	}
	return append(pos, at)
}

// edit changes a file.
func edit(t testing.TB, path string, f func(b []byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, f(b), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestTornTail(t *testing.T) {
	o, segs := damagedLog(t)
	path := filepath.Join(o.Dir, segmentName(segs[2].Base, 0))
	pos := batchPositions(t, path)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	size := len(whole)
	last := pos[len(pos)-2]
	zeros := make([]byte, 5000)
	for _, tc := range []struct {
		name string
		file []byte
		next int64
		torn int64
	}{
		{"one byte short", whole[:size-1], 145, int64(size - 1 - last)},
		{"header only", whole[:last+headerSize], 145, headerSize},
		{"half a header", whole[:last+30], 145, 30},
		{"one byte of it", whole[:last+1], 145, 1},
		{"zeros after it", append(bytes.Clone(whole), zeros...), 150, int64(len(zeros))},
		{"zeros in its second half", append(bytes.Clone(whole[:size-100]), zeros[:100]...), 145, int64(size - last)},
		{"noise after it", append(bytes.Clone(whole), bytes.Repeat([]byte("noise\x02"), 100)...), 150, 600},
		{"a copy of it after it", append(bytes.Clone(whole), whole[last:]...), 150, int64(size - last)},
		{"only the first batch begun", whole[:pos[1]-1], 100, int64(pos[1] - 1)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := os.WriteFile(path, tc.file, 0o600); err != nil {
				t.Fatal(err)
			}
			for round := range 2 {
				l, rec := mustOpen(t, o)
				if round == 0 && (rec.TornBytes != tc.torn || rec.Torn.Bytes != tc.torn || rec.Torn.From != tc.next || rec.Torn.Err == nil) {
					t.Fatalf("torn %d (%v), want %d", rec.TornBytes, rec.Torn, tc.torn)
				}
				if round == 1 && rec.TornBytes != 0 || len(rec.Quarantined) != 0 || len(rec.Damaged) != 0 {
					t.Fatalf("round %d: %+v", round, rec)
				}
				if l.Next() != tc.next || l.Synced() != tc.next {
					t.Fatalf("next %d, want %d", l.Next(), tc.next)
				}
				wantDense(t, readAll(t, l, 0), 0, tc.next)
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
			}
			l, _ := mustOpen(t, o)
			fill(t, l, 10, 3, 80)
			wantDense(t, readAll(t, l, 0), 0, tc.next+10)
			_ = l.Close()
		})
	}
}

// TestFlippedBit flips one bit in each region of a batch, in a sealed and in the active segment, at the start, in the
// middle and at the end: at most that batch is lost, and it is named.
func TestFlippedBit(t *testing.T) {
	regions := map[string]int{
		"base offset": 3, "length": posLength + 2, "length, high": posLength, "header crc": posHeaderCRC, "magic": posMagic,
		"crc": posCRC + 1, "attributes": posAttrs, "last delta": posLastDelta + 3, "base time": posBaseTime + 7,
		"producer": posProducer, "count": posCount + 3, "record length": headerSize, "record": headerSize + 60,
	}
	for name, at := range regions {
		for _, segment := range []int{0, 2} {
			for _, batch := range []int{0, 4, 9} {
				t.Run(fmt.Sprintf("%s/segment %d batch %d", name, segment, batch), func(t *testing.T) {
					o, segs := damagedLog(t)
					path := filepath.Join(o.Dir, segmentName(segs[segment].Base, 0))
					pos := batchPositions(t, path)
					edit(t, path, func(b []byte) []byte {
						b[pos[batch]+at] ^= 0x10
						return b
					})
					checkDamaged(t, o, segs[segment].Base+int64(batch)*5, segment == 2 && batch == 9)
				})
			}
		}
	}
}

// checkDamaged opens a log of 150 records in which the batch of five at bad is damaged.
func checkDamaged(t *testing.T, o Options, bad int64, atEnd bool) {
	t.Helper()
	l, rec := mustOpen(t, o)
	if atEnd { // not to be told from a torn write
		if rec.TornBytes == 0 || l.Next() != 145 {
			t.Fatalf("%+v, next %d", rec, l.Next())
		}
		wantDense(t, readAll(t, l, 0), 0, 145)
		return
	}
	if rec.TornBytes != 0 || len(rec.Quarantined) != 0 || l.Next() != 150 {
		t.Fatalf("%+v, next %d", rec, l.Next())
	}
	wantGap(t, readAll(t, l, 0), 0, bad, bad+5, 150)
	d := l.Damage()
	if len(d) != 1 || d[0].From != bad || d[0].To != bad+5 || d[0].Err == nil {
		t.Fatalf("damage %v, want %d to %d", d, bad, bad+4)
	}
	for from := bad - 2; from < bad+7; from++ { // reads that begin around it
		if from < 0 {
			continue
		}
		wantGap(t, readAll(t, l, from), from, max(bad, from), max(bad+5, from), 150)
	}
	var verified []Damage
	if err := l.Verify(func(d Damage) { verified = append(verified, d) }); err != nil || len(verified) != 1 || verified[0].From != bad {
		t.Fatal(verified, err)
	}
	if n, err := l.SeekTime(timeOf(bad)); n != bad+5 || err != nil {
		t.Fatal(n, err)
	}
	if n := l.Stats().DamagedBatches; n != 1 {
		t.Fatal(n)
	}
}

func TestUnusableFiles(t *testing.T) {
	noise := bytes.Repeat([]byte("this is no segment "), 1000)
	for _, tc := range []struct {
		name, file string
		content    []byte
		reason     string
		next       int64
	}{
		{"text file", "notes.txt", noise, reasonForeign, 150},
		{"almost a name", "0000000000000000150.log", noise, reasonForeign, 150},
		{"generation 0", "00000000000000000150.0.log", noise, reasonForeign, 150},
		{"generation 01", "00000000000000000150.01.log", noise, reasonForeign, 150},
		{"sign", "-0000000000000000150.log", noise, reasonForeign, 150},
		{"beyond", "09223372036854775807.log", noise, reasonForeign, 150},
		{"noise at the end", "00000000000000000150.log", noise, reasonContent, 150},
		{"zeros at the end", "00000000000000000150.log", make([]byte, 10_000), reasonZero, 150},
		{"zeros after a gap", "00000000000000000170.log", make([]byte, 10_000), reasonZero, 170},
		{"empty in the middle", "00000000000000000060.log", nil, reasonEmpty, 150},
		{"short in the middle", "00000000000000000060.log", []byte("short"), reasonEmpty, 150},
		{"rewrite", rewriteName, noise, reasonLeftover, 150},
		{"prepared", preparedName, nil, "", 150},
		{"forged generation", "00000000000000000000.7.log", nil, reasonEmpty, 150},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o, _ := damagedLog(t)
			o.QuarantineDir = filepath.Join(filepath.Dir(o.Dir), "q", "quarantine")
			if err := os.WriteFile(filepath.Join(o.Dir, tc.file), tc.content, 0o600); err != nil {
				t.Fatal(err)
			}
			l, rec := mustOpen(t, o)
			if l.Next() != tc.next {
				t.Fatalf("next %d, want %d", l.Next(), tc.next)
			}
			wantDense(t, readAll(t, l, 0), 0, 150)
			if tc.reason == "" {
				if len(rec.Quarantined) != 0 {
					t.Fatalf("%+v", rec)
				}
				return
			}
			if len(rec.Quarantined) != 1 || rec.Quarantined[0].Name != tc.file || rec.Quarantined[0].Reason != tc.reason {
				t.Fatalf("%+v", rec.Quarantined)
			}
			moved, err := os.ReadFile(rec.Quarantined[0].Path)
			if err != nil || !bytes.Equal(moved, tc.content) {
				t.Fatalf("moved file: %d bytes, %v", len(moved), err)
			}
			why, err := os.ReadFile(rec.Quarantined[0].Path + ".reason")
			if err != nil || !strings.Contains(string(why), tc.reason) {
				t.Fatalf("%q, %v", why, err)
			}
			fill(t, l, 5, 5, 10)
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			l, rec = mustOpen(t, o)
			if len(rec.Quarantined) != 0 || l.Next() != tc.next+5 {
				t.Fatalf("second start: %+v, next %d", rec, l.Next())
			}
			if got := readAll(t, l, 0); len(got) != 155 || got[150] != tc.next {
				t.Fatalf("%d records, %d after the gap", len(got), got[150])
			}
		})
	}
}

// TestForeignSegments: files of another hub, of another partition's place, and of another name are not served.
func TestForeignSegments(t *testing.T) {
	o, segs := damagedLog(t)
	last := segmentName(segs[2].Base, 0)
	t.Run("other salt", func(t *testing.T) {
		other := o
		other.Salt++
		l, rec := mustOpen(t, other)
		if len(rec.Quarantined) != 3 || l.First() != 100 || l.Next() != 100 {
			t.Fatalf("%+v, next %d", rec, l.Next())
		}
	})
	o, _ = damagedLog(t)
	t.Run("other partition", func(t *testing.T) {
		other := o
		other.Name = "test/1-0"
		l, rec := mustOpen(t, other)
		if len(rec.Quarantined) != 3 || l.First() != 100 {
			t.Fatalf("%+v, first %d", rec, l.First())
		}
	})
	o, _ = damagedLog(t)
	t.Run("renamed", func(t *testing.T) {
		if err := os.Rename(filepath.Join(o.Dir, last), filepath.Join(o.Dir, segmentName(200, 0))); err != nil {
			t.Fatal(err)
		}
		l, rec := mustOpen(t, o)
		if len(rec.Quarantined) != 1 || rec.Quarantined[0].Reason != reasonContent || l.Next() != 200 {
			t.Fatalf("%+v, next %d", rec, l.Next())
		}
		wantDense(t, readAll(t, l, 0), 0, 100)
		if d := l.Damage(); len(d) != 2 || d[0].From != 100 || d[0].To != 200 || d[1].From != 200 || !errors.Is(d[1].Err, ErrQuarantined) {
			t.Fatal(d)
		}
	})
}

func TestMissingSegments(t *testing.T) {
	for missing, want := range [][2]int64{{50, 150}, {0, 150}, {0, 100}} {
		o, segs := damagedLog(t)
		if err := os.Remove(filepath.Join(o.Dir, segmentName(segs[missing].Base, 0))); err != nil {
			t.Fatal(err)
		}
		l, _ := mustOpen(t, o)
		if l.First() != want[0] || l.Next() != want[1] {
			t.Fatalf("without segment %d: %d to %d", missing, l.First(), l.Next())
		}
		got := readAll(t, l, l.First())
		if missing == 1 {
			wantGap(t, got, 0, 50, 100, 150)
			if d := l.Damage(); len(d) != 1 || d[0].From != 50 || d[0].To != 100 || !errors.Is(d[0].Err, ErrMissing) {
				t.Fatal(d)
			}
			continue
		}
		wantDense(t, got, want[0], want[1])
	}
}

// TestEmptyLastSegment: the roll was durable, the end of the segment before it was not.
func TestEmptyLastSegment(t *testing.T) {
	o, segs := damagedLog(t)
	last, before := filepath.Join(o.Dir, segmentName(segs[2].Base, 0)), filepath.Join(o.Dir, segmentName(segs[1].Base, 0))
	edit(t, last, func(b []byte) []byte { return nil })
	pos := batchPositions(t, before)
	edit(t, before, func(b []byte) []byte { return b[:pos[8]+20] })
	l, rec := mustOpen(t, o)
	if l.Next() != 100 || len(rec.Damaged) != 1 || rec.Damaged[0].From != 90 || rec.Damaged[0].To != 100 {
		t.Fatalf("%+v, next %d", rec, l.Next())
	}
	if l.LastTime() != timeOf(89) {
		t.Fatalf("last time %d", l.LastTime())
	}
	fill(t, l, 5, 5, 10)
	wantGap(t, readAll(t, l, 0), 0, 90, 100, 105)
}

// TestHostilePayload: a payload that is a batch of this very log, or a whole segment of it, is never taken for one:
// not even when the batch around it is damaged, so that the search for the next batch runs through it.
func TestHostilePayload(t *testing.T) {
	o := testOptions(t)
	l, _ := mustOpen(t, o)
	fill(t, l, 50, 5, 100)
	copied, err := os.ReadFile(filepath.Join(o.Dir, segmentName(0, 0)))
	if err != nil {
		t.Fatal(err)
	}
	var b Builder
	b.Floor(l.LastTime())
	b.Reset(50)
	b.Append(0, []byte("evil"), copied, Headers{})
	if err := l.Append(&b); err != nil {
		t.Fatal(err)
	}
	fill(t, l, 50, 5, 100)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	o.Index = nil
	edit(t, filepath.Join(o.Dir, segmentName(0, 0)), func(b []byte) []byte {
		b[len(copied)+2] ^= 1 // its base offset
		return b
	})
	l, rec := mustOpen(t, o)
	if l.Next() != 101 || rec.TornBytes != 0 || len(rec.Damaged) != 1 {
		t.Fatalf("%+v, next %d", rec, l.Next())
	}
	wantGap(t, readAll(t, l, 0), 0, 50, 51, 101)
}

func TestStartDoesNotScanTheBacklog(t *testing.T) {
	o := testOptions(t)
	o.SegmentBytes = 32 << 20
	l, _ := mustOpen(t, o)
	for l.Bytes() < 70<<20 {
		fill(t, l, 64*50, 64, 1000)
		if _, err := l.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	want := l.Next()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l, rec := mustOpen(t, o)
	if rec.Scanned > 256<<10 || l.Next() != want {
		t.Fatalf("after a clean stop: scanned %d bytes, next %d, want %d", rec.Scanned, l.Next(), want)
	}
	_ = l.Close()
	// Killed: the index of the active segment is as old as the last time it was stored while running.
	stale := o.Index.(*memIndex)
	base := l.Segments()[len(l.Segments())-1].Base
	e, _ := stale.LoadIndex(o.Name, base)
	_ = stale.SaveIndex(o.Name, base, e[:len(e)/2])
	l, _ = mustOpen(t, o)
	if l.Next() != want {
		t.Fatalf("next %d, want %d", l.Next(), want)
	}
	_ = l.Close()
	_ = stale.DropIndex(o.Name, base)
	l, rec = mustOpen(t, o)
	if rec.Scanned > 32<<20 || l.Next() != want {
		t.Fatalf("without an index: scanned %d bytes, next %d", rec.Scanned, l.Next())
	}
}

// TestStaleHeader: the header of a lost write, genuine at its place and with a length that even fits, does not swallow
// the good batches that were written over the rest of it.
func TestStaleHeader(t *testing.T) {
	o := testOptions(t)
	l, _ := mustOpen(t, o)
	fill(t, l, 20, 5, 100)
	start := l.Bytes()
	salt := l.view.Load().segs[0].salt
	batch := func(base int64, n int, pos int64) []byte {
		var b Builder
		b.Floor(timeOf(19))
		b.Reset(base)
		for range n {
			b.Append(timeOf(b.Next()), []byte("k"), value(b.Next(), 50), Headers{})
		}
		b.seal(salt, pos)
		return b.Bytes()
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	lost := batch(20, 7, start)                  // refused: only its beginning is left
	good := batch(21, 5, start+200)              // written later, after one of 200 bytes that was lost
	tail := batch(26, 5, start+200+sizeOf(good)) // and another, up to beyond where the lost one would have ended
	if sizeOf(lost) <= 200+headerSize || sizeOf(lost) > 200+sizeOf(good)+sizeOf(tail) {
		t.Fatal("the batches do not lie as they should")
	}
	edit(t, filepath.Join(o.Dir, segmentName(0, 0)), func(b []byte) []byte {
		b = append(b, lost[:200]...)
		return append(append(b, good...), tail...)
	})
	o.Index = nil
	l, rec := mustOpen(t, o)
	if rec.TornBytes != 0 || l.Next() != 31 || len(rec.Damaged) != 1 || rec.Damaged[0].From != 20 || rec.Damaged[0].To != 21 {
		t.Fatalf("%+v, next %d", rec, l.Next())
	}
	wantGap(t, readAll(t, l, 0), 0, 20, 21, 31)
}

func sizeOf(b []byte) int64 { return int64(len(b)) }

// TestReadOnly: a log opened for reading tells all that a start would, and changes nothing on the disk.
func TestReadOnly(t *testing.T) {
	o, segs := damagedLog(t)
	edit(t, filepath.Join(o.Dir, segmentName(segs[2].Base, 0)), func(b []byte) []byte { return b[:len(b)-1] })
	for name, content := range map[string]string{
		"notes.txt": "x", preparedName: "", rewriteName: "x", segmentName(60, 0): "", segmentName(400, 0): string(make([]byte, 5000)),
	} {
		if err := os.WriteFile(filepath.Join(o.Dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f := vfstest.New(vfs.OS)
	for _, op := range []vfstest.Op{
		vfstest.OpCreate, vfstest.OpRemove, vfstest.OpRename, vfstest.OpMkdir, vfstest.OpSync, vfstest.OpSyncDir, vfstest.OpWrite, vfstest.OpTruncate,
	} {
		f.Add(vfstest.Fault{Op: op, Err: syscall.EROFS, Hook: func() { t.Errorf("%s in a log that is read only", op) }})
	}
	o.FS, o.ReadOnly = f, true
	l, rec, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	if rec.TornBytes == 0 || len(rec.Quarantined) != 4 || l.Next() < 145 {
		t.Fatalf("%+v, next %d", rec, l.Next())
	}
	wantDense(t, readAll(t, l, 0), 0, 145)
	if err := l.Verify(func(d Damage) {
		if d.Segment != segmentName(400, 0) || d.From != 400 || !errors.Is(d.Err, ErrQuarantined) {
			t.Error(d)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.SeekTime(timeOf(77)); err != nil {
		t.Fatal(err)
	}
	_, drop := l.DropOldest()
	for _, err := range []error{tryFill(l, 1), l.Roll(), l.Prepare(), drop} {
		if !errors.Is(err, ErrReadOnly) {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil || f.OpenFiles() != 0 {
		t.Fatal(err, f.OpenFiles())
	}
	missing := o
	missing.Dir = filepath.Join(o.Dir, "missing")
	if _, _, err := Open(missing); !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
}
