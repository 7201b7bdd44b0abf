package uplink

import (
	"math"
	"slices"
	"testing"
)

func TestIdent(t *testing.T) {
	for _, id := range []ident{{"i", "main/0-0", 1, 0}, {"00ff", "telemetry/12-3", math.MaxUint32, math.MaxInt64}, {"i", "a/b/c", 7, 9}} {
		s := string(appendIdent(nil, id.Instance, id.Partition, id.Epoch, id.Offset))
		if got, ok := parseIdent(s); !ok || got != id {
			t.Errorf("%+v became %q became %+v, %v", id, s, got, ok)
		}
	}
	for _, s := range []string{"", "i", "/main/0-0/1/2", "i/main/1/2", "i//0-0/1/2", "i/main//1/2", "i/main/0-0/1/", "i/main/0-0//2", "i/main/0-0/1/-2", "i/main/0-0/01/2", "i/main/0-0/1/02",
		"i/main/0-0/4294967296/2", "i/main/0-0/1/9223372036854775808", "i/ma in/0-0/1/2", "i/m=n/0-0/1/2", "i/main/0-0/1/2/", "42"} {
		if id, ok := parseIdent(s); ok {
			t.Errorf("%q was taken for %+v", s, id)
		}
	}
}

func TestPositions(t *testing.T) {
	for _, p := range []positions{{}, {Seq: math.MaxUint64}, {Seq: 7, List: []position{{"main/0-0", 1, 5, 0}}},
		{Seq: 7, List: []position{{"main/0-0", 1, 5, DigestOf(1, []byte("t"), nil)}, {"b/11-2", 9, math.MaxInt64, digestKnown}, {"c/0-0", 1, 1, 0}, {"d/0-0", 1, 1, digestOther}}}} {
		s := string(p.append(nil))
		if got, err := parsePositions(s); err != nil || got.Seq != p.Seq || !slices.Equal(got.List, p.List) {
			t.Errorf("%+v became %q became %+v, %v", p, s, got, err)
		}
	}
	for _, s := range []string{"", "7", ";", "-1;", "7;x", "7;main/0-0=1", "7;main/0-0=1:2,", "7;main=1:2", "7;main/0-0=a:2", "7;main/0-0=1:-2", "7,main/0-0=1:2", "7;main/0-0=1:2:", "7;main/0-0=1:2:1234567", "7;main/0-0=1:2:123456789", "7;main/0-0=1:2:1234567A", "7;main/0-0=1:2:12345678:9", "7;main/0-0=1:2:--"} {
		if p, err := parsePositions(s); err == nil {
			t.Errorf("%q was taken for %+v", s, p)
		}
	}
}

func FuzzIdent(f *testing.F) {
	f.Add("0123456789abcdef0123456789abcdef/main/0-0/1/42")
	f.Add("i/a/b/c/0/0")
	f.Add("//0/0")
	f.Fuzz(func(t *testing.T, s string) {
		id, ok := parseIdent(s)
		if !ok {
			return
		}
		if back := string(appendIdent(nil, id.Instance, id.Partition, id.Epoch, id.Offset)); back != s {
			t.Fatalf("%q became %+v became %q", s, id, back)
		}
	})
}

func FuzzPositions(f *testing.F) {
	f.Add("12;main/0-0=1:42,main/1-0=2:7")
	f.Add("0;")
	f.Add("1;a/b=0:0")
	f.Add("1;a/b=1:9:00ff12ab,c/d=1:2,e/f=1:2:-")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := parsePositions(s)
		if err != nil {
			return
		}
		if back := string(p.append(nil)); back != s {
			t.Fatalf("%q became %+v became %q", s, p, back)
		}
	})
}
