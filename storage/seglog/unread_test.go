package seglog

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"edgehub/internal/vfs"
	"edgehub/internal/vfs/vfstest"
)

// spotted makes a sealed segment of 20 batches of five records, and returns options that read it from a disk with a
// bad spot inside of its eighth batch, records 35 to 39.
func spotted(t *testing.T) (o Options, mended *atomic.Bool) {
	t.Helper()
	o = testOptions(t)
	l, _ := mustOpen(t, o)
	fill(t, l, 100, 5, 2000) // batches of about 10 KB, larger than the spot
	if err := l.Roll(); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	pos := batchPositions(t, filepath.Join(o.Dir, segmentName(0, 0)))
	spot := int64(pos[7]+5000) &^ 4095
	mended = new(atomic.Bool)
	o.FS = badSpot{vfs.OS, spot, spot + 4096, mended}
	return o, mended
}

// TestUnreadable: a read that the disk refuses is an error that says so, again and again, wherever it begins. What is
// before the spot and what is behind it is served; nothing is skipped, moved, cut or counted as damaged; and when the
// disk reads again, all is there.
func TestUnreadable(t *testing.T) {
	for name, index := range map[string]bool{"with its index": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			o, mended := spotted(t)
			if !index {
				o.Index = &memIndex{}
			}
			for from := int64(0); from < 100; from += 3 {
				mended.Store(false)
				l, rec := mustOpen(t, o)
				for _, d := range rec.Damaged { // met only without the index
					if !d.Unread() {
						t.Errorf("taken for damage: %v", d)
					}
				}
				if rec.TornBytes != 0 || len(rec.Quarantined) != 0 || l.Next() != 100 {
					t.Fatalf("%+v", rec)
				}
				readAroundSpot(t, l, from)
				mended.Store(true)
				wantDense(t, readAll(t, l, from), from, 100)
				if _, err := l.Unread(); err != nil && from < 40 {
					t.Errorf("still said after it was read: %v", err)
				}
				if n, err := l.SeekTime(timeOf(from)); n != from || err != nil {
					t.Fatal(n, from, err)
				}
				if d := l.Damage(); len(d) != 0 {
					t.Fatal(d)
				}
				_ = l.Close()
			}
		})
	}
}

// readAroundSpot reads a spotted log from an offset on, and checks that it ends at the spot with an error, twice.
func readAroundSpot(t *testing.T, l *Log, from int64) {
	t.Helper()
	at, failures := from, l.Stats().ReadFailures
	for refused := 0; at < 100 && refused < 2; {
		chunk, err := l.Read(at, 1<<20, nil)
		if err != nil {
			var re *ReadError
			if !errors.As(err, &re) || !errors.Is(err, syscall.EIO) || re.Segment != segmentName(0, 0) || at < 35 || at >= 40 {
				t.Fatalf("at %d: %v", at, err)
			}
			if offset, err := l.Unread(); offset != at || !errors.Is(err, syscall.EIO) {
				t.Fatal(offset, err)
			}
			refused++
			continue
		}
		for r := range Records(chunk) {
			if r.Offset >= at {
				if r.Offset != at {
					t.Fatalf("%d follows %d", r.Offset, at-1)
				}
				at++
			}
		}
	}
	if want := int64(100); from < 40 {
		if at != max(from, 35) || l.Stats().ReadFailures != failures+2 {
			t.Fatalf("from %d: ended at %d after %d refusals", from, at, l.Stats().ReadFailures-failures)
		}
	} else if at != want {
		t.Fatalf("from %d: ended at %d", from, at)
	}
}

// TestUnreadableVerify: a check names what cannot be read, as what it is, and looks at all the rest.
func TestUnreadableVerify(t *testing.T) {
	o, mended := spotted(t)
	l, _ := mustOpen(t, o)
	var found []Damage
	c, err := l.Check(t.Context(), func(d Damage) { found = append(found, d) })
	if err != nil || c.Records != 95 || len(found) != 1 || found[0].From != 35 || found[0].To != 40 || !found[0].Unread() ||
		!strings.Contains(found[0].String(), "cannot be read") {
		t.Fatalf("%+v %v %v", c, found, err)
	}
	if d := l.Damage(); len(d) != 0 {
		t.Fatal(d)
	}
	mended.Store(true)
	if c, err = l.Check(t.Context(), func(d Damage) { t.Error(d) }); err != nil || c.Records != 100 {
		t.Fatalf("%+v %v", c, err)
	}
}

// TestUnreadableRepair: only an operator's repair gives up what cannot be read; the bytes around it are set aside.
func TestUnreadableRepair(t *testing.T) {
	o, _ := spotted(t)
	var done []Repaired
	if _, err := Repair(o, false, func(r Repaired) { done = append(done, r) }); err != nil {
		t.Fatal(err)
	}
	if len(done) != 1 || done[0].Damage.From != 35 || done[0].Damage.To != 40 || done[0].Aside == "" {
		t.Fatalf("%+v", done)
	}
	o.FS = vfs.OS
	l, _ := mustOpen(t, o)
	wantGap(t, readAll(t, l, 0), 0, 35, 40, 100)
}

// TestUnreadableInDoubt: while what an fsync left in doubt cannot be read back, it stays in doubt. It is not given up.
func TestUnreadableInDoubt(t *testing.T) {
	l, f, _ := faultyLog(t)
	fill(t, l, 20, 5, 100)
	f.Add(vfstest.Fault{Op: vfstest.OpSync, Pattern: "*.log", Count: 1, Err: syscall.EIO})
	f.Add(vfstest.Fault{Op: vfstest.OpRead, Pattern: "*.log", Count: 40, Err: syscall.EIO})
	if n, err := l.Sync(); n != 0 || !errors.Is(err, syscall.EIO) {
		t.Fatal(n, err)
	}
	if err := tryFill(l, 5); !errors.Is(err, ErrInDoubt) {
		t.Fatal(err)
	}
	f.Clear()
	if n, err := l.Sync(); n != 20 || err != nil {
		t.Fatal(n, err)
	}
	wantDense(t, readAll(t, l, 0), 0, 20)
	if d := l.Damage(); len(d) != 0 {
		t.Fatal(d)
	}
}

// TestUnreadableTwice: with two bad spots close to each other, of which a start can step over the first, the second is
// still not taken for a torn write.
func TestUnreadableTwice(t *testing.T) {
	o := testOptions(t)
	l, _ := mustOpen(t, o)
	fill(t, l, 40, 5, 2000)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	o.Index = nil
	path := filepath.Join(o.Dir, segmentName(0, 0))
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pos := batchPositions(t, path)
	spot := func(batch int) int64 { return int64(pos[batch]+5000) &^ 4095 }
	bad := o
	bad.FS = badSpot{badSpot{vfs.OS, spot(2), spot(2) + 4096, nil}, spot(7), spot(7) + 4096, nil}
	l, rec := mustOpen(t, bad)
	if rec.TornBytes != 0 || len(rec.Damaged) != 2 || !rec.Damaged[0].Unread() || !rec.Damaged[1].Unread() || l.Next() < 40 {
		t.Fatalf("%+v, next %d", rec, l.Next())
	}
	next := l.Next()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
		t.Fatalf("%d bytes became %d, %v", len(before), len(after), err)
	}
	l, rec = mustOpen(t, o)
	fill(t, l, 5, 5, 10)
	wantGap(t, readAll(t, l, 0), 0, 40, next, next+5)
	if rec.TornBytes != 0 {
		t.Fatalf("%+v", rec)
	}
}

// TestUnreadableRefused: a log that must be whole does not open without its end, and nothing of it changes. Neither
// does one of which it cannot be told which generation holds.
func TestUnreadableRefused(t *testing.T) {
	o := testOptions(t)
	l, _ := mustOpen(t, o)
	fill(t, l, 20, 5, 2000)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	o.Index = nil
	path := filepath.Join(o.Dir, segmentName(0, 0))
	pos := batchPositions(t, path)
	bad := o
	bad.WholeOrNothing = true
	bad.FS = badSpot{vfs.OS, int64(pos[3]+4095) &^ 4095, 1 << 40, nil}
	var re *ReadError
	if _, _, err := Open(bad); !errors.As(err, &re) || !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	if got := files(t, o.Dir); len(got) != 1 {
		t.Fatal(got)
	}
	l, _ = mustOpen(t, o)
	wantDense(t, readAll(t, l, 0), 0, 20)
	_ = l.Close()

	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(o.Dir, segmentName(10, 1)), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	bad.WholeOrNothing, bad.FS = false, badSpot{vfs.OS, 0, 4096, nil}
	if _, _, err := Open(bad); !errors.As(err, &re) {
		t.Fatal(err)
	}
	if got := files(t, o.Dir); len(got) != 2 {
		t.Fatal(got)
	}
}

// TestUnreadableEnd: what the disk cannot read at a start is not taken for a torn write. Nothing is cut, no offset is
// used again, and when the disk can read it again, all is there.
func TestUnreadableEnd(t *testing.T) {
	for _, at := range []int64{0, 15} { // in the first and in a later batch, both times up to the end of the file
		o := testOptions(t)
		l, _ := mustOpen(t, o)
		fill(t, l, 20, 5, 2000)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		o.Index = nil
		pos := batchPositions(t, filepath.Join(o.Dir, segmentName(0, 0)))
		bad := o
		bad.FS = badSpot{vfs.OS, int64(pos[at/5]+4095) &^ 4095, 1 << 40, nil}
		l, rec := mustOpen(t, bad)
		if rec.TornBytes != 0 || len(rec.Quarantined) != 0 || len(rec.Damaged) != 1 || rec.Damaged[0].From != at || !errors.Is(rec.Damaged[0].Err, syscall.EIO) {
			t.Fatalf("%+v", rec)
		}
		next := l.Next()
		if next < 20 {
			t.Fatalf("next %d", next)
		}
		for range 2 { // up to the spot, and no further, however often
			for got := int64(0); ; {
				chunk, err := l.Read(got, 1<<20, nil)
				for r := range Records(chunk) {
					got = r.Offset + 1
				}
				if err != nil {
					if got != at || !errors.Is(err, syscall.EIO) {
						t.Fatal(got, err)
					}
					break
				}
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		l, rec = mustOpen(t, o)
		fill(t, l, 5, 5, 10)
		wantGap(t, readAll(t, l, 0), 0, 20, next, next+5)
		if rec.TornBytes != 0 || l.Next() != next+5 {
			t.Fatalf("%+v, next %d", rec, l.Next())
		}
		_ = l.Close()
	}
}

// badSpot is a disk that cannot read a range of any segment, until it is mended.
type badSpot struct {
	vfs.FS
	from, to int64
	mended   *atomic.Bool // nil: never
}

func (b badSpot) OpenFile(name string, flag int) (vfs.File, error) {
	f, err := b.FS.OpenFile(name, flag)
	if err != nil || !strings.HasSuffix(name, segmentExt) {
		return f, err
	}
	return badSpotFile{f, b}, nil
}

type badSpotFile struct {
	vfs.File
	b badSpot
}

func (f badSpotFile) ReadAt(p []byte, off int64) (int, error) {
	if off < f.b.to && off+int64(len(p)) > f.b.from && (f.b.mended == nil || !f.b.mended.Load()) {
		return 0, syscall.EIO
	}
	return f.File.ReadAt(p, off)
}
