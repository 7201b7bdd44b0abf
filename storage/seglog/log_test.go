package seglog

import (
	"errors"
	"fmt"
	"testing"
)

func TestAppendReadReopen(t *testing.T) {
	for _, batch := range []int{1, 16, 1000} {
		t.Run(fmt.Sprint(batch), func(t *testing.T) {
			o := testOptions(t)
			o.SegmentBytes = 40_000
			l, rec := mustOpen(t, o)
			if rec.TornBytes != 0 || len(rec.Quarantined) != 0 || l.Next() != 0 || l.First() != 0 {
				t.Fatalf("fresh log: %+v, %d to %d", rec, l.First(), l.Next())
			}
			fill(t, l, 3000, batch, 100)
			wantDense(t, readAll(t, l, 0), 0, 3000)
			for _, from := range []int64{1, 17, 999, 1000, 1001, 2999} {
				wantDense(t, readAll(t, l, from), from, 3000)
			}
			if batch < 1000 && len(l.Segments()) < 5 {
				t.Fatalf("%d segments", len(l.Segments()))
			}
			if n, err := l.Sync(); n != 3000 || err != nil {
				t.Fatal(n, err)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			l, rec = mustOpen(t, o)
			if rec.TornBytes != 0 || len(rec.Damaged) != 0 || l.Next() != 3000 || l.Synced() != 3000 || l.LastTime() != timeOf(2999) {
				t.Fatalf("reopened: %+v, next %d, synced %d, last time %d", rec, l.Next(), l.Synced(), l.LastTime())
			}
			wantDense(t, readAll(t, l, 0), 0, 3000)
			fill(t, l, 100, batch, 50)
			wantDense(t, readAll(t, l, 2500), 2500, 3100)
			if err := l.Verify(func(d Damage) { t.Error(d) }); err != nil {
				t.Fatal(err)
			}
			if l.Stats() != (Stats{}) {
				t.Fatalf("%+v", l.Stats())
			}
		})
	}
}

func TestReadLimits(t *testing.T) {
	l, _ := mustOpen(t, testOptions(t))
	fill(t, l, 10, 1, 1000)
	one, err := l.Read(0, 1, nil)
	if err != nil || len(one) == 0 {
		t.Fatal(len(one), err)
	}
	if two, _ := l.Read(0, 2*len(one), nil); len(two) != 2*len(one) {
		t.Fatalf("%d bytes, want 2 batches of %d", len(two), len(one))
	}
	if two, _ := l.Read(0, 3*len(one)-1, nil); len(two) != 2*len(one) {
		t.Fatalf("%d bytes, want 2 batches of %d", len(two), len(one))
	}
	pre := []byte("prefix")
	if out, _ := l.Read(3, 1, pre); string(out[:6]) != "prefix" || len(out) != 6+len(one) {
		t.Fatalf("%q", out)
	}
	for _, from := range []int64{10, 11, 1 << 40} {
		if out, err := l.Read(from, 100, nil); err != nil || len(out) != 0 {
			t.Fatal(len(out), err)
		}
	}
}

func TestLargeRecords(t *testing.T) {
	o := testOptions(t)
	l, _ := mustOpen(t, o)
	fill(t, l, 3, 3, 300_000)
	fill(t, l, 3, 3, 10)
	fill(t, l, 1, 1, 3<<20)
	wantDense(t, readAll(t, l, 0), 0, 7)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l, _ = mustOpen(t, o)
	wantDense(t, readAll(t, l, 0), 0, 7)
}

func TestAppendMustContinue(t *testing.T) {
	l, _ := mustOpen(t, testOptions(t))
	var b Builder
	b.Reset(1)
	b.Append(1, nil, nil, Headers{})
	if err := l.Append(&b); !errors.Is(err, ErrBase) {
		t.Fatal(err)
	}
	b.Reset(0)
	if err := l.Append(&b); err != nil { // nothing to write
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	b.Append(1, nil, nil, Headers{})
	if err := l.Append(&b); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	if _, err := l.Read(0, 1, nil); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	if _, err := l.Sync(); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
}

func TestDropOldest(t *testing.T) {
	o := testOptions(t)
	o.SegmentBytes = 10_000
	l, _ := mustOpen(t, o)
	if _, err := l.DropOldest(); !errors.Is(err, ErrActive) {
		t.Fatal(err)
	}
	fill(t, l, 500, 10, 100)
	before := l.Segments()
	info, err := l.DropOldest()
	if err != nil || info != before[0] {
		t.Fatal(info, before[0], err)
	}
	if l.First() != before[1].Base {
		t.Fatalf("first %d, want %d", l.First(), before[1].Base)
	}
	if _, err := l.Read(0, 1000, nil); !errors.Is(err, ErrTrimmed) {
		t.Fatal(err)
	}
	wantDense(t, readAll(t, l, l.First()), l.First(), 500)
	for len(l.Segments()) > 1 {
		if _, err := l.DropOldest(); err != nil {
			t.Fatal(err)
		}
	}
	// With everything else gone, the offset lives on in the name of the last segment.
	if err := l.Roll(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.DropOldest(); err != nil {
		t.Fatal(err)
	}
	if l.First() != 500 || l.Next() != 500 || l.Bytes() != 0 {
		t.Fatal(l.First(), l.Next(), l.Bytes())
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l, _ = mustOpen(t, o)
	if l.First() != 500 || l.Next() != 500 {
		t.Fatal(l.First(), l.Next())
	}
	fill(t, l, 1, 1, 1)
	wantDense(t, readAll(t, l, 500), 500, 501)
}

func TestSeekTime(t *testing.T) {
	for _, withIndex := range []bool{true, false} {
		t.Run(fmt.Sprint(withIndex), func(t *testing.T) {
			o := testOptions(t)
			o.SegmentBytes = 30_000
			if !withIndex {
				o.Index = nil
			}
			l, _ := mustOpen(t, o)
			if n, err := l.SeekTime(5); n != 0 || err != nil {
				t.Fatal(n, err)
			}
			fill(t, l, 2000, 7, 60)
			check := func() {
				t.Helper()
				for offset := int64(0); offset < 2000; offset += 31 {
					for _, back := range []int64{0, 9} { // the record's own time, and one just after the record before
						if n, err := l.SeekTime(timeOf(offset) - back); n != offset || err != nil {
							t.Fatalf("time of %d − %d: %d, %v", offset, back, n, err)
						}
					}
				}
				if n, err := l.SeekTime(timeOf(1999) + 1); n != 2000 || err != nil {
					t.Fatal(n, err)
				}
			}
			check()
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			l, _ = mustOpen(t, o)
			check()
			for i, s := range l.Segments() {
				if s.MaxTimeMs != timeOf(s.Next-1) {
					t.Fatalf("segment %d: %+v, want %d", i, s, timeOf(s.Next-1))
				}
			}
		})
	}
}

func TestBytesFrom(t *testing.T) {
	o := testOptions(t)
	o.SegmentBytes = 100_000
	l, _ := mustOpen(t, o)
	fill(t, l, 5000, 10, 100)
	total := l.Bytes()
	if l.BytesFrom(0) != total || l.BytesFrom(5000) != 0 || l.BytesFrom(9999) != 0 {
		t.Fatal(l.BytesFrom(0), total, l.BytesFrom(5000))
	}
	for offset := int64(100); offset < 5000; offset += 777 {
		got, want := l.BytesFrom(offset), total*(5000-offset)/5000
		if d := got - want; d > 9000 || d < -9000 {
			t.Fatalf("from %d: %d bytes, want about %d", offset, got, want)
		}
	}
}

func TestPrepare(t *testing.T) {
	o := testOptions(t)
	o.SegmentBytes = 20_000
	l, _ := mustOpen(t, o)
	rolled := 0
	for range 100 {
		segments := len(l.Segments())
		fill(t, l, 10, 10, 100)
		if len(l.Segments()) > segments {
			rolled++
		}
		if l.NeedsPrepare() {
			if err := l.Prepare(); err != nil {
				t.Fatal(err)
			}
			if l.NeedsPrepare() {
				t.Fatal("prepared, and needs it again")
			}
		}
	}
	if rolled < 4 {
		t.Fatal(rolled)
	}
	wantDense(t, readAll(t, l, 0), 0, 1000)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range files(t, o.Dir) {
		if _, _, ok := parseSegmentName(name); !ok {
			t.Fatalf("%s left behind", name)
		}
	}
}

func TestPark(t *testing.T) {
	o := testOptions(t)
	o.SegmentBytes = 2000
	l, _ := mustOpen(t, o)
	fill(t, l, 8, 1, 100)
	if !l.NeedsPrepare() {
		t.Fatal("half full, and needs no preparation")
	}
	if err := l.Prepare(); err != nil {
		t.Fatal(err)
	}
	fill(t, l, 2, 1, 100)
	if l.Park() {
		t.Fatal("parked with unsynced records")
	}
	if _, err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	if !l.Park() {
		t.Fatal("not parked")
	}
	if s := l.view.Load().segs[0]; s.file != nil || s.refs != 0 {
		t.Fatal("holds a descriptor")
	}
	if l.prepared != nil || l.NeedsPrepare() {
		t.Fatal("prepares while parked")
	}
	wantDense(t, readAll(t, l, 0), 0, 10)
	l.Park()
	fill(t, l, 10, 1, 100)
	wantDense(t, readAll(t, l, 0), 0, 20)
	if !l.NeedsPrepare() && len(l.Segments()) < 2 {
		t.Fatal("in use again, and never prepares")
	}
}
