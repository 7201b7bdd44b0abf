package seglog

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"edgehub/internal/vfs/vfstest"
)

// FuzzScanner feeds the record decoder anything: it must neither panic nor return a record outside of its input.
func FuzzScanner(f *testing.F) {
	var b Builder
	b.Reset(7)
	var h Headers
	h.Append("a", []byte("b"))
	h.Append("", nil)
	b.Append(1, []byte("key"), []byte("value"), h)
	b.Append(2, nil, nil, Headers{})
	b.seal(0, 0)
	f.Add(b.Bytes(), int64(8))
	f.Add(b.Bytes()[:70], int64(0))
	f.Add([]byte{}, int64(0))
	f.Fuzz(func(t *testing.T, chunk []byte, skip int64) {
		var s Scanner
		n, last := 0, int64(-1)
		for s.Reset(chunk); s.Next(); n++ {
			r := s.Record()
			if r.Offset <= last {
				t.Fatalf("offset %d after %d", r.Offset, last)
			}
			last = r.Offset
			got := len(r.Key) + len(r.Value)
			headers := 0
			for k, v := range r.Headers.All() {
				got += len(k) + len(v)
				headers++
			}
			if headers != r.Headers.Count || got > len(chunk) {
				t.Fatalf("%d of %d headers, %d bytes out of %d", headers, r.Headers.Count, got, len(chunk))
			}
		}
		if n > len(chunk) {
			t.Fatalf("%d records in %d bytes", n, len(chunk))
		}
		if err := VerifyChunk(chunk); err == nil && s.Err() != nil {
			t.Fatal(s.Err())
		}
		// Skipping must agree with reading everything, as far as the chunk is sound.
		if s.Err() != nil {
			for s.Reset(chunk); s.err == nil && s.Next(); {
				s.SkipTo(skip)
			}
			return
		}
		var want, got []int64
		for r := range Records(chunk) {
			if r.Offset >= skip {
				want = append(want, r.Offset)
			}
		}
		s.Reset(chunk)
		for s.SkipTo(skip); s.Next(); {
			got = append(got, s.Record().Offset)
		}
		if s.Err() == nil && len(got) != len(want) {
			t.Fatalf("after SkipTo(%d): %v, want %v", skip, got, want)
		}
	})
}

// FuzzBuilder writes records made from the input and reads them back.
func FuzzBuilder(f *testing.F) {
	f.Add([]byte("some records to be"), int64(0), uint16(3))
	f.Add(bytes.Repeat([]byte{0, 255, 7}, 100), int64(1)<<40, uint16(60_000))
	f.Fuzz(func(t *testing.T, data []byte, base int64, big uint16) {
		base &= 1<<62 - 1
		type rec struct {
			ms         int64
			key, value []byte
			h          Headers
		}
		var b Builder
		b.Reset(base)
		var want []rec
		last := int64(0)
		for i := 0; i+4 <= len(data) && len(want) < 200; i += 4 {
			r := rec{ms: int64(data[i])*1000 - 3, key: data[i : i+int(data[i+1]%4)]}
			switch data[i+2] % 4 {
			case 0:
				r.value = nil
			case 1:
				r.value = bytes.Repeat(data[i+3:i+4], int(big))
			default:
				r.value = data[:i]
			}
			for range data[i+3] % 3 {
				r.h.Append(string(data[i:i+2]), r.key)
			}
			loc := b.Append(r.ms, r.key, r.value, r.h)
			last = max(last, r.ms)
			r.ms = last
			if loc.Offset != base+int64(len(want)) || loc.TimeMs != last {
				t.Fatalf("%+v, want offset %d, time %d", loc, base+int64(len(want)), last)
			}
			if !bytes.Equal(b.Bytes()[loc.Key:loc.KeyEnd], r.key) || !bytes.Equal(b.Bytes()[loc.Value:loc.ValueEnd], r.value) ||
				!bytes.Equal(b.Bytes()[loc.Headers:loc.HeadersEnd], r.h.Raw) || int(loc.HeaderCount) != r.h.Count {
				t.Fatalf("record %d is not where Loc says", len(want))
			}
			want = append(want, r)
		}
		if len(want) == 0 {
			return
		}
		b.seal(99, 12345)
		if err := VerifyChunk(b.Bytes()); err != nil {
			t.Fatal(err)
		}
		pos := 0
		for pos < b.Len() {
			h, err := checkBatch(b.Bytes()[pos:], 99, 12345+int64(pos))
			if err != nil || h.size > BatchBytesMax && h.count != 1 {
				t.Fatalf("%+v, %v", h, err)
			}
			if _, err := checkBatch(b.Bytes()[pos:], 99, 12346+int64(pos)); err == nil {
				t.Fatal("valid in another place")
			}
			pos += h.size
		}
		i := 0
		for r := range Records(b.Bytes()) {
			w := want[i]
			if r.Offset != base+int64(i) || r.TimeMs != w.ms || !bytes.Equal(r.Key, w.key) || !bytes.Equal(r.Value, w.value) ||
				(r.Value == nil) != (w.value == nil) || (r.Key == nil) != (w.key == nil) || !bytes.Equal(r.Headers.Raw, w.h.Raw) {
				t.Fatalf("record %d: %+v, want %+v", i, r, w)
			}
			i++
		}
		if i != len(want) || b.Count() != i || b.Next() != base+int64(i) {
			t.Fatalf("%d records, want %d", i, len(want))
		}
	})
}

// FuzzRecovery damages a segment file as the input says, starts on it, and holds the log to what it promises: every
// batch that is still whole is served, nothing else is, appending goes on, and a second start agrees with the first.
//
// The input is a list of edits, 4 bytes each: position (2), length (1), value (1); length 0 cuts the file there.
func FuzzRecovery(f *testing.F) {
	path := filepath.Join("log", segmentName(0, 0))
	disk := vfstest.NewMem()
	o := Options{FS: disk, Dir: "log", Name: "fuzz/0-0", Salt: testSalt}
	l, _, err := Open(o)
	if err != nil {
		f.Fatal(err)
	}
	fill(f, l, 40, 4, 60)
	original, err := l.view.Load().segs[0].bytes()
	if err != nil {
		f.Fatal(err)
	}
	pos := positions(original)
	f.Add([]byte{0, 0, 1, 0xff})
	f.Add([]byte{0x04, 0, 0, 0})
	f.Add([]byte{0, 20, 200, 0, 2, 0, 255, 2, 3, 0, 0, 0})
	f.Add(append([]byte{byte(pos[9] >> 8), byte(pos[9]), 0, 0}, bytes.Repeat([]byte{1, 1, 1, 1}, 3)...))
	f.Fuzz(func(t *testing.T, edits []byte) {
		file := bytes.Clone(original)
		for ; len(edits) >= 4; edits = edits[4:] {
			at, n := int(binary.BigEndian.Uint16(edits)), int(edits[2])
			at = min(at, len(file))
			if n == 0 {
				file = file[:at]
			}
			for i := at; i < min(at+n, len(file)); i++ {
				file[i] = edits[3]
			}
		}
		whole := make(map[int64]bool) // offsets that must be served, and no others
		for i := 0; i+1 < len(pos); i++ {
			if len(file) >= pos[i+1] && bytes.Equal(file[pos[i]:pos[i+1]], original[pos[i]:pos[i+1]]) {
				for k := range int64(4) {
					whole[int64(i)*4+k] = true
				}
			}
		}
		o := o
		o.FS = memWith(t, path, file)
		checkRecovered(t, o, whole)
	})
}

// checkRecovered opens a log three times, appending in between, and compares what it serves.
func checkRecovered(t *testing.T, o Options, whole map[int64]bool) {
	next := int64(0)
	for round := range 3 {
		l, rec, err := Open(o)
		if err != nil {
			t.Fatal(err)
		}
		if round > 0 && (rec.TornBytes != 0 || len(rec.Quarantined) != 0 || l.Next() != next) {
			t.Fatalf("round %d: %+v, next %d, want %d", round, rec, l.Next(), next)
		}
		offsets := readAll(t, l, 0) // checks the content, too
		if len(offsets) != len(whole) {
			t.Fatalf("round %d: %d records, want %d", round, len(offsets), len(whole))
		}
		for _, offset := range offsets {
			if !whole[offset] {
				t.Fatalf("round %d: offset %d is served", round, offset)
			}
		}
		next = l.Next()
		if round == 1 {
			fill(t, l, 8, 4, 60)
			for k := next; k < next+8; k++ {
				whole[k] = true
			}
			next += 8
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// memWith returns a disk in memory that holds one file.
func memWith(t testing.TB, name string, data []byte) *vfstest.Mem {
	t.Helper()
	m := vfstest.NewMem()
	if err := m.MkdirAll(filepath.Dir(name)); err != nil {
		t.Fatal(err)
	}
	f, err := m.OpenFile(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(data, 0); err != nil {
		t.Fatal(err)
	}
	return m
}

// bytes returns the content of a segment.
func (s *segment) bytes() ([]byte, error) {
	f, err := s.acquire()
	if err != nil {
		return nil, err
	}
	defer s.release()
	b := make([]byte, s.length.Load())
	_, err = f.ReadAt(b, 0)
	return b, err
}

// FuzzIndex starts a log on an index store that returns anything: records and times are found all the same.
//
// The input is entries of 5 bytes: steps of offset (1) and position (2) and time (2) from the entry before; a step of
// position of 0xffff makes the entry true, one of 0xfffe makes it the true end.
func FuzzIndex(f *testing.F) {
	disk := vfstest.NewMem()
	truth := &memIndex{}
	o := Options{FS: disk, Dir: "log", Name: "fuzz/0-0", Salt: testSalt, SegmentBytes: 5000, IndexBytes: 300, Index: truth}
	l, _, err := Open(o)
	if err != nil {
		f.Fatal(err)
	}
	fill(f, l, 150, 4, 60)
	if err := l.Close(); err != nil {
		f.Fatal(err)
	}
	f.Add([]byte{}, byte(0))
	f.Add(bytes.Repeat([]byte{4, 0xff, 0xff, 0, 0}, 4), byte(17))
	f.Add(append(bytes.Repeat([]byte{4, 0xff, 0xff, 0, 0}, 6), 0, 0xff, 0xfe, 0, 1), byte(90))
	f.Add([]byte{1, 0, 200, 0, 200, 8, 1, 0, 0, 10, 9, 0xff, 0xfe, 0, 0}, byte(90))
	f.Fuzz(func(t *testing.T, lies []byte, from byte) {
		o := o
		o.FS = disk.Kill()
		o.Index = liarIndex{truth: truth, lies: lies}
		l, rec, err := Open(o)
		if err != nil || l.Next() != 150 || l.LastTime() != timeOf(149) || rec.TornBytes != 0 || len(rec.Damaged) != 0 {
			t.Fatalf("%v, %+v", err, rec)
		}
		offset := int64(from) % 150
		if n, err := l.SeekTime(timeOf(offset)); n != offset || err != nil {
			t.Fatalf("time of %d: %d, %v", offset, n, err)
		}
		wantDense(t, readAll(t, l, offset), offset, 150)
		wantDense(t, readAll(t, l, 0), 0, 150)
		for i, s := range l.Segments() {
			if i > 0 && s.Base > 0 && s.MaxTimeMs < timeOf(s.Base) {
				t.Fatalf("segment %d seems to end before it begins: %+v", i, s)
			}
		}
		if d := l.Damage(); len(d) != 0 {
			t.Fatal(d)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// liarIndex returns entries made of lies, mixed with true ones.
type liarIndex struct {
	truth *memIndex
	lies  []byte
}

func (x liarIndex) SaveIndex(string, int64, []IndexEntry) error { return nil }
func (x liarIndex) DropIndex(string, int64) error               { return nil }
func (x liarIndex) LoadIndex(log string, base int64) ([]IndexEntry, error) {
	truth, err := x.truth.LoadIndex(log, base)
	var out []IndexEntry
	e := IndexEntry{Offset: base, MaxTimeMs: timeOf(base)}
	for b := x.lies; len(b) >= 5; b = b[5:] {
		step := int64(binary.BigEndian.Uint16(b[1:]))
		switch {
		case step == 0xffff && len(out) < len(truth):
			e = truth[len(out)]
		case step == 0xfffe && len(truth) > 0:
			e = truth[len(truth)-1]
			e.MaxTimeMs -= int64(binary.BigEndian.Uint16(b[3:]))
		default:
			e.Offset += int64(b[0])
			e.Position += step
			e.MaxTimeMs += int64(binary.BigEndian.Uint16(b[3:]))
		}
		out = append(out, e)
	}
	return out, err
}
