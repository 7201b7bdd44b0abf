package seglog

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
)

func TestVarint(t *testing.T) {
	for _, x := range []int64{0, 1, -1, 63, 64, -64, -65, 8191, 8192, 1 << 20, -1 << 31, 1<<63 - 1, -1 << 63} {
		b := appendVarint([]byte{9}, x)
		if len(b)-1 != varintLen(x) {
			t.Errorf("%d: %d bytes, varintLen says %d", x, len(b)-1, varintLen(x))
		}
		if got, i := getVarint(b, 1); got != x || i != len(b) {
			t.Errorf("%d: read %d, to %d of %d", x, got, i, len(b))
		}
		if _, i := getVarint(b[:len(b)-1], 1); i != -1 {
			t.Errorf("%d: cut off, and read to %d", x, i)
		}
	}
	if _, i := getVarint(bytes.Repeat([]byte{0xff}, 11), 0); i != -1 {
		t.Error("a varint of 11 bytes was read")
	}
}

func TestBuilder(t *testing.T) {
	var b Builder
	b.Floor(500)
	b.Reset(10)
	for i, tc := range []struct{ ms, want int64 }{{400, 500}, {600, 600}, {599, 600}, {0, 600}, {601, 601}} {
		loc := b.Append(tc.ms, []byte("key"), []byte("value"), Headers{})
		if loc.TimeMs != tc.want || loc.Offset != 10+int64(i) {
			t.Fatalf("%d: %+v, want time %d", i, loc, tc.want)
		}
		if string(b.Bytes()[loc.Key:loc.KeyEnd]) != "key" || string(b.Bytes()[loc.Value:loc.ValueEnd]) != "value" {
			t.Fatalf("%d: %+v", i, loc)
		}
	}
	if b.Base() != 10 || b.Next() != 15 || b.Count() != 5 || b.LastTime() != 601 {
		t.Fatal(b.Base(), b.Next(), b.Count(), b.LastTime())
	}
	b.Reset(100)
	if b.Len() != 0 || b.Count() != 0 || b.Next() != 100 || b.LastTime() != 601 {
		t.Fatal("Reset", b.Len(), b.Count(), b.Next(), b.LastTime())
	}
	b.Append(0, nil, bytes.Repeat([]byte("x"), 2*builderKeep), Headers{})
	b.Reset(101)
	if cap(b.buf) != 0 {
		t.Fatalf("keeps %d bytes", cap(b.buf))
	}
}

// TestBatchCut: a batch is at most BatchBytesMax, but for a record that is larger, which is alone in its batch.
func TestBatchCut(t *testing.T) {
	for _, size := range []int{1, 100, 1000, 30_000, BatchBytesMax - headerSize - 20, BatchBytesMax, 3 * BatchBytesMax} {
		var b Builder
		b.Reset(0)
		for i := range int64(300) {
			b.Append(i, []byte("k"), make([]byte, size), Headers{})
			if i%50 == 0 {
				b.Append(i, []byte("k"), nil, Headers{})
			}
		}
		b.seal(1, 0)
		if err := VerifyChunk(b.Bytes()); err != nil {
			t.Fatal(err)
		}
		count, batches := int32(0), 0
		for rest := b.Bytes(); len(rest) > 0; batches++ {
			h, err := parseHeader(rest)
			if err != nil || h.size > BatchBytesMax && h.count > 1 {
				t.Fatalf("size %d: %+v, %v", size, h, err)
			}
			count += h.count
			rest = rest[h.size:]
		}
		if int(count) != b.Count() || batches < b.Len()/(BatchBytesMax+size) {
			t.Fatalf("size %d: %d records in %d batches, %d bytes", size, count, batches, b.Len())
		}
	}
}

func TestHeaders(t *testing.T) {
	var h Headers
	for range 2 {
		h.Append("a", []byte("1"))
		h.Append("a", []byte{})
		h.Append("", nil)
		h.Append("\x00q", []byte("2"))
		var got []string
		for k, v := range h.All() {
			got = append(got, fmt.Sprintf("%q=%q,%v", k, v, v == nil))
		}
		if want := `["a"="1",false "a"="",false ""="",true "\x00q"="2",false]`; fmt.Sprint(got) != want || !h.valid() {
			t.Fatalf("%v, want %v", got, want)
		}
		for range h.All() {
			break
		}
		h.Reset()
	}
	for _, bad := range []Headers{
		{Count: 1}, {Raw: []byte{0, 0}}, {Count: 1, Raw: []byte{1, 0}}, {Count: 1, Raw: []byte{2, 'a', 8, 'b'}}, {Count: 1, Raw: []byte{0x80}},
		{Count: 2, Raw: []byte{0, 1}},
	} {
		n := 0
		for range bad.All() {
			n++
		}
		if bad.valid() || n > 1 {
			t.Errorf("%+v is taken for valid, or has %d headers", bad, n)
		}
	}
}

// TestScannerRejects names why a chunk is not decoded.
func TestScannerRejects(t *testing.T) {
	var b Builder
	b.Reset(5)
	b.Append(1, []byte("key"), []byte("value"), Headers{})
	b.Append(2, []byte("key"), []byte("value"), Headers{})
	b.seal(0, 0)
	good := b.Bytes()
	edit := func(at int, v byte) []byte {
		c := bytes.Clone(good)
		c[at] = v
		return c
	}
	for _, tc := range []struct {
		name  string
		chunk []byte
		n     int
		err   error
	}{
		{"good", good, 2, nil},
		{"cut in the header", good[:40], 0, ErrTruncated},
		{"cut in a record", good[:len(good)-1], 0, ErrTruncated},
		{"magic", edit(posMagic, 1), 0, ErrMalformed},
		{"compressed", edit(posAttrs+1, 4), 0, ErrMalformed},
		{"control batch", edit(posAttrs+1, 0x20), 0, ErrMalformed},
		{"no records", edit(posCount+3, 0), 0, ErrMalformed},
		{"fewer records than there are", edit(posCount+3, 1), 0, ErrMalformed},
		{"more records than there are", edit(posCount+3, 3), 0, ErrMalformed},
		{"negative length", edit(posLength, 0xff), 0, ErrMalformed},
		{"record beyond the batch", edit(headerSize, 0x7e), 0, ErrMalformed},
		{"empty record", edit(headerSize, 0), 0, ErrMalformed},
		{"key beyond the record", edit(headerSize+4, 0x7e), 0, ErrMalformed},
		{"offsets that do not rise", edit(len(good)-12, 0), 1, ErrMalformed},
		{"the same batch twice", append(bytes.Clone(good), good...), 2, ErrOrder},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var s Scanner
			n := 0
			for s.Reset(tc.chunk); s.Next(); {
				n++
			}
			if n != tc.n || !errors.Is(s.Err(), tc.err) {
				t.Fatalf("%d records, %v; want %d, %v", n, s.Err(), tc.n, tc.err)
			}
			if s.Next() {
				t.Fatal("goes on after the end")
			}
			if err := VerifyChunk(tc.chunk); (err == nil) != (tc.err == nil) {
				t.Fatal(err)
			}
		})
	}
	for skip, want := range map[int64]int{0: 2, 5: 2, 6: 1, 7: 0, 1000: 0} {
		var s Scanner
		n := 0
		s.Reset(good)
		for s.SkipTo(skip); s.Next(); {
			n++
		}
		if n != want || s.Err() != nil {
			t.Fatalf("SkipTo(%d): %d records, %v", skip, n, s.Err())
		}
	}
}

func TestDamageText(t *testing.T) {
	d := Damage{Segment: "x.log", Position: 7, Bytes: 9, From: 3, To: 5, Err: ErrChecksum}
	if got, want := d.String(), "x.log: offsets 3 to 4 lost (9 bytes at 7): "+ErrChecksum.Error(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	d.To = 3
	if got, want := d.String(), "x.log: no offsets lost (9 bytes at 7): "+ErrChecksum.Error(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
