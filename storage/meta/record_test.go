package meta

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"edgehub/storage/seglog"
)

func TestDecodeRecord(t *testing.T) {
	for _, c := range []struct {
		value string
		want  change
		ok    bool
	}{
		{"\x01", change{value: []byte{}}, true},
		{"\x01abc", change{value: []byte("abc")}, true},
		{"\x02", change{deleted: true}, true},
		{"", change{}, false},
		{"\x02x", change{}, false},
		{"\x00", change{}, false},
		{"\x03x", change{}, false},
	} {
		got, err := decodeRecord([]byte("k"), []byte(c.value))
		if c.ok != (err == nil) || (err != nil && !errors.Is(err, ErrRecord)) {
			t.Errorf("%q: error %v", c.value, err)
		}
		if err == nil && (string(got.key) != "k" || !bytes.Equal(got.value, c.want.value) || got.deleted != c.want.deleted) {
			t.Errorf("%q: %+v", c.value, got)
		}
	}
}

// FuzzRecord feeds the decoder and checks that what it accepts is written the
// same way again.
func FuzzRecord(f *testing.F) {
	f.Add([]byte("key"), []byte("\x01value"))
	f.Add([]byte(""), []byte("\x02"))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		c, err := decodeRecord(key, value)
		if err != nil {
			if !errors.Is(err, ErrRecord) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("error %q", err)
			}
			return
		}
		var p pending
		if op := opPut; c.deleted {
			p.add(c.key, opDelete, nil)
		} else {
			p.add(c.key, op, c.value)
		}
		n := 0
		p.each(func(k, v []byte) {
			n++
			if !bytes.Equal(k, key) || !bytes.Equal(v, value) {
				t.Fatalf("(%q, %q) became (%q, %q)", key, value, k, v)
			}
		})
		if n != 1 {
			t.Fatalf("%d records", n)
		}
		ikey, ivalue := indexKey(nil, spaceDurable, key), indexValue(key, c.value)
		k, v, err := splitEntry(ikey, ivalue)
		if err != nil || !bytes.Equal(k, key) || !bytes.Equal(v, c.value) {
			t.Fatalf("index entry: %q, %q, %v", k, v, err)
		}
	})
}

// FuzzIndexEntry feeds what the index could hold after damage.
func FuzzIndexEntry(f *testing.F) {
	f.Add([]byte("dkey"), []byte("value"))
	f.Add(append([]byte("h"), make([]byte, foldBytes+40)...), []byte("\x03keyvalue"))
	f.Fuzz(func(t *testing.T, ikey, ivalue []byte) {
		if len(ikey) == 0 {
			return
		}
		if k, v, err := splitEntry(ikey, ivalue); err == nil && len(k)+len(v) > len(ikey)+len(ivalue) {
			t.Fatal("more came out than went in")
		}
		if st, err := decodeState(ivalue); err == nil && !bytes.Equal(st.encode(), ivalue) {
			t.Fatalf("%+v", st)
		}
	})
}

// FuzzSegmentIndex feeds the decoder of segment indexes.
func FuzzSegmentIndex(f *testing.F) {
	f.Add(encodeEntries([]seglog.IndexEntry{{Offset: 100, Position: 4096, MaxTimeMs: 1_700_000_000_000}, {Offset: 140, Position: 8200, MaxTimeMs: -1}}))
	f.Add([]byte{1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := decodeEntries(b)
		if err != nil {
			return
		}
		again, err := decodeEntries(encodeEntries(e))
		if err != nil || !slices.Equal(e, again) {
			t.Fatalf("%v became %v (%v)", e, again, err)
		}
	})
}

func TestSegmentIndex(t *testing.T) {
	o := testOptions(t.TempDir())
	s, _ := open_(t, o)
	x := s.SegmentIndex()
	want := []seglog.IndexEntry{{Offset: 1 << 40, Position: 0, MaxTimeMs: 5}, {Offset: 1<<40 + 9, Position: 4100, MaxTimeMs: 3}}
	for _, base := range []int64{0, 77} {
		check(t, x.SaveIndex("telemetry/0-0", base, want[:1]))
		check(t, x.SaveIndex("telemetry/0-0", base, want))
	}
	check(t, s.Close())
	s, _ = open_(t, o)
	x = s.SegmentIndex()
	got, err := x.LoadIndex("telemetry/0-0", 77)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%v, %v", got, err)
	}
	check(t, x.DropIndex("telemetry/0-0", 77))
	for _, none := range []struct {
		log  string
		base int64
	}{{"telemetry/0-0", 77}, {"telemetry/0-0", 78}, {"telemetry/0", 0}} {
		if got, err := x.LoadIndex(none.log, none.base); got != nil || err != nil {
			t.Fatalf("%v: %v, %v", none, got, err)
		}
	}
	s.PutHint(segmentKey("telemetry/0-0", 0), []byte("rubbish"))
	if got, err := x.LoadIndex("telemetry/0-0", 0); got != nil || err != nil {
		t.Fatalf("rubbish: %v, %v", got, err)
	}
}

func TestOverlay(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	older, newer := new(overlay), new(overlay)
	model := map[string]string{}
	for i := range 5000 {
		o := older
		if i >= 3000 {
			o = newer
		}
		k := fmt.Sprintf("%03d", r.IntN(700))
		if r.IntN(4) == 0 {
			o.put([]byte(k), nil, true)
			model[k] = "deleted"
		} else {
			o.put([]byte(k), []byte(fmt.Sprint(i)), false)
			model[k] = fmt.Sprint(i)
		}
	}
	for _, prefix := range []string{"", "1", "12", "123", "1234", "9"} {
		want := maps.Clone(model)
		maps.DeleteFunc(want, func(k, _ string) bool { return !strings.HasPrefix(k, prefix) })
		nodes := merged([]byte(prefix), newer, nil, older)
		if !slices.IsSortedFunc(nodes, func(a, b *node) int { return strings.Compare(a.key, b.key) }) {
			t.Fatalf("prefix %q is not sorted", prefix)
		}
		got := map[string]string{}
		for _, n := range nodes {
			if got[n.key] = string(n.value); n.deleted {
				got[n.key] = "deleted"
			}
		}
		if len(nodes) != len(got) {
			t.Fatalf("prefix %q: keys twice", prefix)
		}
		same(t, "prefix "+prefix, got, want)
	}
	g, later := &generation{durable: *older}, &generation{durable: *newer}
	g.absorb(later)
	if len(merged(nil, &g.durable)) != len(model) || g.durable.count != len(model) {
		t.Fatalf("absorbed: %d keys, want %d", g.durable.count, len(model))
	}
}
