package seglog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// noisy is a value that does not compress.
func noisy(offset int64, size int) []byte {
	r := rand.New(rand.NewPCG(uint64(offset), 1))
	v := make([]byte, size)
	for i := range v {
		v[i] = byte(r.Uint32())
	}
	return v
}

// TestCompressed: a compressed log gives what a plain one gives, in less space, whoever reads it and however.
func TestCompressed(t *testing.T) {
	for _, batch := range []int{1, 50, 3000} {
		t.Run(fmt.Sprint(batch), func(t *testing.T) {
			plain, packed := testOptions(t), testOptions(t)
			packed.Codec, packed.SegmentBytes, plain.SegmentBytes = CodecZstd, 40_000, 400_000
			a, _ := mustOpen(t, plain)
			b, _ := mustOpen(t, packed)
			fill(t, a, 6000, batch, 100)
			fill(t, b, 6000, batch, 100)
			if batch > 1 && 2*b.Bytes() > a.Bytes() {
				t.Errorf("%d bytes compressed, %d plain", b.Bytes(), a.Bytes())
			}
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			b, rec := mustOpen(t, packed)
			if rec.TornBytes != 0 || len(rec.Damaged) != 0 || b.Next() != 6000 {
				t.Fatalf("%+v, next %d", rec, b.Next())
			}
			wantDense(t, readAll(t, b, 0), 0, 6000)
			r := rand.New(rand.NewPCG(1, 2))
			for range 200 {
				o := r.Int64N(6000)
				chunk, err := b.Read(o, 1+r.IntN(50_000), nil)
				if err != nil || VerifyChunk(chunk) != nil {
					t.Fatal(err, VerifyChunk(chunk))
				}
				var s Scanner
				s.Reset(chunk)
				s.SkipTo(o)
				if !s.Next() || s.Record().Offset != o || !bytes.Equal(s.Record().Value, value(o, 100)) {
					t.Fatalf("offset %d: %+v, %v", o, s.Record(), s.Err())
				}
				if at, err := b.SeekTime(timeOf(o) - 1); at != o || err != nil {
					t.Fatal(at, o, err)
				}
			}
			got, err := b.Check(context.Background(), func(d Damage) { t.Error(d) })
			if err != nil || got.Records != 6000 || got.Bytes != b.Bytes() {
				t.Fatalf("%+v, %v", got, err)
			}
		})
	}
}

// TestCompressedReadBound: batches that grow when read do not take the reader beyond what it asked for.
func TestCompressedReadBound(t *testing.T) {
	o := testOptions(t)
	o.Codec = CodecZstd
	l, _ := mustOpen(t, o)
	var b Builder
	b.Reset(0)
	for i := range int64(400) { // some 6 batches of 64 KiB, a few hundred bytes each on the disk
		b.Append(timeOf(i), []byte("t"), bytes.Repeat([]byte{'x'}, 1000), Headers{})
	}
	if err := l.Append(&b); err != nil {
		t.Fatal(err)
	}
	if l.Bytes() > 10_000 {
		t.Fatal(l.Bytes())
	}
	for from, reads := int64(0), 0; from < 400; reads++ {
		chunk, err := l.Read(from, 100_000, nil)
		if err != nil || len(chunk) > 100_000+BatchBytesMax || len(chunk) == 0 {
			t.Fatal(len(chunk), err)
		}
		for r := range Records(chunk) {
			if r.Offset == from {
				from++
			}
		}
		if reads > 10 {
			t.Fatal("no progress")
		}
	}
}

// TestIncompressible: what does not get smaller stays as it is.
func TestIncompressible(t *testing.T) {
	o := testOptions(t)
	o.Codec = CodecZstd
	l, _ := mustOpen(t, o)
	var b Builder
	b.Reset(0)
	b.Append(1, nil, noisy(1, 3000), Headers{})
	size := b.Len()
	if err := l.Append(&b); err != nil || l.Bytes() != int64(size) {
		t.Fatal(err, l.Bytes(), size)
	}
	for r := range Records(must(l.Read(0, 1, nil))) {
		if !bytes.Equal(r.Value, noisy(1, 3000)) {
			t.Error("another value")
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestCompressedGarbage: checksums that hold over content that does not decompress are damage, told and stepped over.
func TestCompressedGarbage(t *testing.T) {
	for _, codec := range []uint16{1, 4} { // one that is unknown here, one that lies
		o := testOptions(t)
		l, _ := mustOpen(t, o)
		fill(t, l, 30, 10, 50)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(o.Dir, segmentName(0, 0))
		raw := must(os.ReadFile(path))
		h := must(parseHeader(raw))
		second := raw[h.size:]
		h2 := must(parseHeader(second))
		second = second[:h2.size]
		second[posAttrs+1] |= byte(codec)
		setLength(second)
		salt := segmentSalt(logSalt(o.Salt, o.Name), 0, 0)
		crc := headerCRC(salt, int64(h.size), second)
		second[posHeaderCRC], second[posHeaderCRC+1], second[posHeaderCRC+2], second[posHeaderCRC+3] = byte(crc>>24), byte(crc>>16), byte(crc>>8), byte(crc)
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		l, _ = mustOpen(t, o)
		wantGap(t, readAll(t, l, 0), 0, 10, 20, 30)
		var told []Damage
		if _, err := l.Check(context.Background(), func(d Damage) { told = append(told, d) }); err != nil {
			t.Fatal(err)
		}
		if len(told) != 1 || told[0].From != 10 || told[0].To != 20 || !errors.Is(told[0].Err, ErrMalformed) {
			t.Errorf("codec %d: %v", codec, told)
		}
		if at, err := l.SeekTime(timeOf(12)); at != 20 || err != nil {
			t.Error(at, err)
		}
	}
}

// TestExport: what an export hands out opens as the log up to the synced offset, although appends and drops go on.
func TestExport(t *testing.T) {
	o := testOptions(t)
	o.SegmentBytes = 5000
	l, _ := mustOpen(t, o)
	fill(t, l, 300, 7, 100)
	copied := o
	copied.Dir, copied.Index, copied.ReadOnly = t.TempDir(), nil, true
	seen := 0
	next, err := l.Export(func(name string, size int64, r io.Reader) error {
		if seen++; seen == 1 {
			fill(t, l, 100, 3, 100) // beyond the export
		} else if seen == 3 {
			for range 2 {
				if _, err := l.DropOldest(); err != nil {
					return err
				}
			}
		}
		b, err := io.ReadAll(r)
		if err != nil || int64(len(b)) != size {
			return fmt.Errorf("%d bytes, not %d: %w", len(b), size, err)
		}
		return os.WriteFile(filepath.Join(copied.Dir, name), b, 0o600)
	})
	if err != nil || next != 300 || seen < 4 {
		t.Fatal(next, seen, err)
	}
	first := l.First()
	c, rec := mustOpen(t, copied)
	if rec.TornBytes != 0 || c.First() != first {
		t.Fatalf("%+v, first %d, want %d", rec, c.First(), first)
	}
	wantDense(t, readAll(t, c, c.First()), first, 300)
}

// TestVoidBatch: a void batch is passed over in every way of reading, and its offsets count as known to be lost.
func TestVoidBatch(t *testing.T) {
	o := testOptions(t)
	o.Dir = t.TempDir()
	var b Builder
	b.Reset(0)
	for i := range int64(3) {
		b.Append(timeOf(i), []byte("t"), value(i, 50), Headers{})
	}
	salt := segmentSalt(logSalt(o.Salt, o.Name), 0, 0)
	b.seal(salt, 0)
	raw := bytes.Clone(b.buf)
	raw = resealAt(voidBatch(raw, 3, 10, timeOf(2)), len(raw), salt)
	b.Reset(10)
	for i := int64(10); i < 12; i++ {
		b.Append(timeOf(i), []byte("t"), value(i, 50), Headers{})
	}
	b.seal(salt, int64(len(raw)))
	raw = append(raw, b.buf...)
	raw = resealAt(voidBatch(raw, 12, 15, timeOf(11)), len(raw), salt) // the end of the log
	if err := os.WriteFile(filepath.Join(o.Dir, segmentName(0, 0)), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	l, rec := mustOpen(t, o)
	if rec.TornBytes != 0 || l.Next() != 15 {
		t.Fatalf("%+v, next %d", rec, l.Next())
	}
	wantGap(t, readAll(t, l, 0), 0, 3, 10, 12)
	for from := int64(3); from <= 12; from++ {
		chunk, err := l.Read(from, 1, nil)
		want := max(from, 10)
		if err != nil {
			t.Fatal(err)
		}
		var s Scanner
		s.Reset(chunk)
		s.SkipTo(from)
		if got := s.Next(); got != (want < 12) || got && s.Record().Offset != want {
			t.Errorf("from %d: %v %d", from, got, s.Record().Offset)
		}
	}
	got, err := l.Check(context.Background(), func(d Damage) { t.Error(d) })
	if err != nil || got.Void != 10 || got.Records != 5 || got.Batches != 4 {
		t.Fatalf("%+v %v", got, err)
	}
	if at, err := l.SeekTime(timeOf(2) + 1); at != 10 || err != nil {
		t.Error(at, err)
	}
}

// resealAt makes the header CRC right of the batch that begins at pos and ends b.
func resealAt(b []byte, pos int, salt uint32) []byte {
	crc := headerCRC(salt, int64(pos), b[pos:])
	copy(b[pos+posHeaderCRC:], []byte{byte(crc >> 24), byte(crc >> 16), byte(crc >> 8), byte(crc)})
	return b
}
