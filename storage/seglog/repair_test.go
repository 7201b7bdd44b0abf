package seglog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRepair: after a repair nothing is damaged any more, everything that could be read before can be read still, the
// lost offsets are on record, and the bytes as they were are in quarantine.
func TestRepair(t *testing.T) {
	flip := func(at int64) func(string) error {
		return func(path string) error {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			b[at] ^= 0x10
			return os.WriteFile(path, b, 0o600)
		}
	}
	for _, c := range []struct {
		name    string
		segment int // of those of 60 records each, about
		harm    func(path string) error
		void    bool
	}{
		{"record", 1, flip(100), true},
		{"first header", 1, flip(8), true},
		{"end of a sealed segment", 0, func(p string) error { return os.Truncate(p, 4000) }, true},
		{"missing", 1, os.Remove, true},
		{"emptied", 1, func(p string) error { return os.Truncate(p, 0) }, true},
		{"torn", -1, func(p string) error {
			info, err := os.Stat(p)
			if err != nil {
				return err
			}
			return os.Truncate(p, info.Size()-5)
		}, false},
		{"active, middle", -1, flip(300), true},
	} {
		for _, codec := range []Codec{CodecNone, CodecZstd} {
			t.Run(fmt.Sprint(c.name, " ", codec), func(t *testing.T) {
				o := testOptions(t)
				o.SegmentBytes, o.Codec, o.QuarantineDir = 6000, codec, t.TempDir()
				l, _ := mustOpen(t, o)
				fill(t, l, 520, 5, 100)
				segs := l.Segments()
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
				victim := segs[(c.segment+len(segs))%len(segs)]
				if err := c.harm(filepath.Join(o.Dir, segmentName(victim.Base, 0))); err != nil {
					t.Fatal(err)
				}
				checkRepair(t, o, c.void)
			})
		}
	}
}

// checkRepair repairs a log that nobody has open and compares it with what could be read before.
func checkRepair(t *testing.T, o Options, void bool) {
	t.Helper()
	ro := o
	ro.ReadOnly, ro.Index = true, nil
	before, _ := mustOpen(t, ro)
	want := readAll(t, before, before.First())

	var dry, done []Repaired
	if _, err := Repair(o, true, func(r Repaired) { dry = append(dry, r) }); err != nil {
		t.Fatal(err)
	}
	if _, err := Repair(o, false, func(r Repaired) { done = append(done, r) }); err != nil {
		t.Fatal(err)
	}
	if len(dry) == 0 || len(dry) != len(done) {
		t.Fatalf("announced %v, done %v", dry, done)
	}
	for i := range done {
		if done[i].Damage.String() != dry[i].Damage.String() || done[i].Action != dry[i].Action {
			t.Errorf("announced %v, done %v", dry[i], done[i])
		}
		if done[i].Aside != "" {
			if _, err := os.Stat(done[i].Aside); err != nil {
				t.Error(err)
			}
		}
	}
	after, rec := mustOpen(t, o)
	if rec.TornBytes != 0 || len(rec.Quarantined) != 0 || len(rec.Damaged) != 0 {
		t.Errorf("%+v", rec)
	}
	got, err := after.Check(context.Background(), func(d Damage) { t.Error(d) })
	if err != nil || (got.Void > 0) != void {
		t.Errorf("%+v %v", got, err)
	}
	if fmt.Sprint(readAll(t, after, after.First())) != fmt.Sprint(want) {
		t.Errorf("%d records readable before, %d after", len(want), got.Records)
	}
	if int64(len(want))+got.Void != after.Next()-after.First() {
		t.Errorf("%d records and %d void offsets from %d to %d", len(want), got.Void, after.First(), after.Next())
	}
	fill(t, after, 20, 5, 100)
	if _, err := Repair(ro, true, func(r Repaired) { t.Error("still to be repaired:", r) }); err != nil {
		t.Error(err)
	}
}

// TestDump: every record is told, with or without the salt; damage is told and stepped over.
func TestDump(t *testing.T) {
	o := testOptions(t)
	o.Codec = CodecZstd
	l, _ := mustOpen(t, o)
	fill(t, l, 100, 10, 60)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(o.Dir, segmentName(0, 0))
	raw := must(os.ReadFile(path))
	id := &SegmentID{o.Salt, o.Name}
	dump := func(raw []byte, id *SegmentID) (records int, headers string, bad []string) {
		err := Dump(bytes.NewReader(raw), int64(len(raw)), path, id, func(b BatchInfo, plain []byte, err error) error {
			if err != nil {
				bad = append(bad, fmt.Sprint(b.Position, "+", b.Bytes, ": ", err))
				return nil
			}
			headers = b.HeaderCRC
			n := 0
			for r := range Records(plain) {
				if !bytes.Equal(r.Value, value(r.Offset, 60)) {
					t.Errorf("offset %d: %q", r.Offset, r.Value)
				}
				n++
			}
			if n != b.Records || b.Last != b.Base+int64(n)-1 || b.Codec != CodecZstd {
				t.Errorf("%+v with %d records", b, n)
			}
			records += n
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return records, headers, bad
	}
	if n, h, bad := dump(raw, id); n != 100 || h != HeaderOK || len(bad) > 0 {
		t.Error(n, h, bad)
	}
	if n, h, bad := dump(raw, nil); n != 100 || h != HeaderUnknown || len(bad) > 0 {
		t.Error(n, h, bad)
	}
	if n, h, bad := dump(raw, &SegmentID{o.Salt + 1, o.Name}); n != 100 || h != HeaderWrong || len(bad) > 0 {
		t.Error(n, h, bad)
	}
	harmed := bytes.Clone(raw)
	harmed[must(parseHeader(raw)).size+headerSize+9] ^= 1 // in the second batch
	for _, id := range []*SegmentID{id, nil} {
		if n, _, bad := dump(harmed, id); n != 90 || len(bad) != 1 || !strings.Contains(bad[0], ErrChecksum.Error()) {
			t.Error(n, bad)
		}
		if n, _, bad := dump(raw[:len(raw)-3], id); n != 90 || len(bad) != 1 {
			t.Error(n, bad)
		}
	}
	stop := errors.New("stop")
	if err := Dump(bytes.NewReader(raw), int64(len(raw)), path, id, func(BatchInfo, []byte, error) error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
}

// FuzzDump: whatever a file holds, a dump ends and covers it.
func FuzzDump(f *testing.F) {
	b := Builder{}
	b.Reset(7)
	b.Append(1, []byte("k"), []byte("v"), Headers{})
	b.seal(1, 0)
	f.Add(bytes.Clone(b.buf), 3, byte(0))
	f.Add(packBatch(nil, b.buf), 65, byte(1))
	f.Add(voidBatch(nil, 3, 9, 1), 10, byte(2))
	f.Fuzz(func(t *testing.T, raw []byte, at int, x byte) {
		raw = bytes.Clone(raw)
		if at >= 0 && at < len(raw) {
			raw[at] ^= x
		}
		covered := int64(0)
		err := Dump(bytes.NewReader(raw), int64(len(raw)), segmentName(0, 0), nil, func(b BatchInfo, plain []byte, err error) error {
			if b.Position != covered || b.Bytes < 1 {
				t.Fatalf("%+v after %d bytes", b, covered)
			}
			covered += b.Bytes
			if err == nil {
				for range Records(plain) {
				}
			}
			return nil
		})
		if err != nil || covered != int64(len(raw)) {
			t.Fatal(covered, len(raw), err)
		}
	})
}
