package topic

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestValidateName(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     error
	}{
		{"one character", "a", nil},
		{"a slash alone [MQTT-4.7.3]", "/", nil},
		{"empty levels", "//a//", nil},
		{"space", "a b/c", nil},
		{"eight bytes", "abcdefgh", nil},
		{"umlaut", "gerät/küche/temperatur", nil},
		{"four-byte character", "a/😀", nil},
		{"BOM is kept [MQTT-1.5.4-3]", "\uFEFFa", nil},
		{"control characters are only discouraged", "a\x01\x1f\x7f", nil},
		{"longest", strings.Repeat("x", 65535), nil},
		{"empty [MQTT-4.7.3-1]", "", ErrEmpty},
		{"too long [MQTT-4.7.3-3]", strings.Repeat("x", 65536), ErrLong},
		{"plus [MQTT-4.7.1-1]", "a/+/b", ErrWildcard},
		{"hash [MQTT-4.7.1-1]", "sensors/device/#", ErrWildcard},
		{"hash in a level", "a#", ErrWildcard},
		{"plus behind umlaut", "ä+", ErrWildcard},
		{"NUL [MQTT-4.7.3-2]", "a\x00", ErrNUL},
		{"NUL in a long name", "sensors/dev\x00ice/temperature", ErrNUL},
		{"lone continuation byte [MQTT-1.5.4-1]", "a\x80", ErrUTF8},
		{"truncated character", "abcdefgh\xc3", ErrUTF8},
		{"surrogate [MQTT-1.5.4-1]", "a\xed\xa0\x80", ErrUTF8},
		{"overlong NUL", "a\xc0\x80", ErrUTF8},
		{"overlong slash", "a\xe0\x80\xaf", ErrUTF8},
		{"beyond U+10FFFF", "\xf4\x90\x80\x80", ErrUTF8},
	} {
		if got := ValidateName([]byte(c.in)); !errors.Is(got, c.want) {
			t.Errorf("%s: ValidateName(%.40q) = %v, want %v", c.name, c.in, got, c.want)
		}
	}
}

// Every byte at every position of short and long names: the eight-at-a-time test must not miss or invent one.
func TestValidateNameEveryByte(t *testing.T) {
	for n := 1; n <= 20; n++ {
		for i := range n {
			for c := range 256 {
				b := []byte(strings.Repeat("x", n))
				b[i] = byte(c)
				want := c != 0 && c != '+' && c != '#' && c < utf8.RuneSelf
				if got := ValidateName(b) == nil; got != want {
					t.Fatalf("ValidateName(%q) accepted: %v, want %v", b, got, want)
				}
			}
		}
	}
}

func TestValidateFilter(t *testing.T) {
	for _, c := range []struct {
		in   string
		want error
	}{
		{"#", nil}, {"+", nil}, {"/", nil}, {"+/+", nil}, {"/+", nil}, {"a/#", nil}, {"+/a/#", nil}, {"a/+/b", nil}, {"$SYS/#", nil}, {"ä/+", nil},
		{"", ErrEmpty}, {strings.Repeat("x", 65536), ErrLong}, {"a\x00", ErrNUL}, {"a\xff/#", ErrUTF8},
		{"a#", ErrHash}, {"#/a", ErrHash}, {"a/#/b", ErrHash}, {"##", ErrHash}, {"a/#b", ErrHash}, {"#/", ErrHash}, {"+#", ErrHash},
		{"a+", ErrPlus}, {"+a", ErrPlus}, {"++", ErrPlus}, {"a/b+/c", ErrPlus},
	} {
		if got := ValidateFilter(c.in); !errors.Is(got, c.want) {
			t.Errorf("ValidateFilter(%.40q) = %v, want %v", c.in, got, c.want)
		}
	}
}

func TestParseShared(t *testing.T) {
	for _, c := range []struct {
		in, group, filter string
		shared            bool
		err               error
	}{
		{"a/b", "", "a/b", false, nil},
		{"$share", "", "$share", false, nil},
		{"$shared/g/a", "", "$shared/g/a", false, nil},
		{"$share/g/a/+/#", "g", "a/+/#", true, nil},
		{"$share/g//a", "g", "/a", true, nil},
		{"$share/g/$SYS/#", "g", "$SYS/#", true, nil},
		{"$share/", "", "", true, ErrShare},
		{"$share/g", "", "", true, ErrShare},
		{"$share/g/", "", "", true, ErrShare},
		{"$share//a", "", "", true, ErrShare},
		{"$share/g+/a", "", "", true, ErrShare},
		{"$share/#/a", "", "", true, ErrShare},
		{"$share/g/a/#/b", "", "", true, ErrHash},
		{"$share/g\x00/a", "", "", true, ErrNUL},
		{"$share/" + strings.Repeat("x", 65535) + "/a", "", "", true, ErrLong},
		{"a+", "", "a+", false, ErrPlus},
	} {
		group, filter, shared, err := ParseShared(c.in)
		if group != c.group || filter != c.filter || shared != c.shared || !errors.Is(err, c.err) {
			t.Errorf("ParseShared(%.40q) = %q, %q, %v, %v; want %q, %q, %v, %v",
				c.in, group, filter, shared, err, c.group, c.filter, c.shared, c.err)
		}
	}
}

// The hash decides where records are on disk: these numbers may never change.
func TestHashIsForEver(t *testing.T) {
	for in, want := range map[string]uint64{
		"":                     0xefd01f60ba992926,
		"a":                    0x82a2a958a9bece5b,
		"devices/17/telemetry": 0x8f63ba57f957465c,
		"gerät/küche":          0xf30a5d129ca6c116,
	} {
		if got := Hash([]byte(in)); got != want {
			t.Errorf("Hash(%q) = %#x, want %#x", in, got, want)
		}
	}
}

func TestHashSpreads(t *testing.T) {
	const names, parts = 40_000, 4
	var count [parts]int
	for i := range names {
		count[Hash([]byte("devices/"+itoa(i)+"/telemetry"))%parts]++
	}
	for p, n := range count {
		if n < names/parts*95/100 || n > names/parts*105/100 {
			t.Errorf("partition %d of %d got %d of %d names", p, parts, n, names)
		}
	}
}

func TestLevels(t *testing.T) {
	for in, want := range map[string]int{"a": 1, "/": 2, "a/b/c": 3, "a//": 3} {
		if got := Levels([]byte(in)); got != want {
			t.Errorf("Levels(%q) = %d, want %d", in, got, want)
		}
	}
}

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		filter, name string
		want         bool
	}{
		{"a/b", "a/b", true}, {"a/b", "a/B", false}, {"a", "a/", false}, {"/a", "a", false},
		{"sport/tennis/player1/#", "sport/tennis/player1", true},
		{"sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", true},
		{"sport/#", "sport", true}, {"sport/#", "sportx", false},
		{"#", "a", true}, {"#", "/", true}, {"#", "a/b/c", true},
		{"sport/+", "sport", false}, {"sport/+", "sport/", true}, {"sport/tennis/+", "sport/tennis/player1/ranking", false},
		{"+/+", "/finance", true}, {"/+", "/finance", true}, {"+", "/finance", false},
		{"a/+/#", "a/b", true}, {"+/#", "a", true}, {"a/+/#", "a", false},
		{"#", "$SYS/x", false}, {"+/x", "$SYS/x", false}, {"+/#", "$SYS", false}, {"$SYS/#", "$SYS/x", true}, {"$SYS/+", "$SYS/x", true},
		{"a/+", "a/$x", true}, {"a/#", "a/$x", true},
	} {
		if got := Match(c.filter, c.name); got != c.want {
			t.Errorf("Match(%q, %q) = %v", c.filter, c.name, got)
		}
		if got := naiveMatch(c.filter, c.name); got != c.want {
			t.Errorf("the naive matcher is wrong: (%q, %q) = %v", c.filter, c.name, got)
		}
	}
}

func TestOverlap(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"a/b", "a/b", true}, {"a/b", "a/c", false}, {"#", "a/b", true}, {"a/#", "a", true}, {"a/#", "b/#", false},
		{"+/b", "a/+", true}, {"+/b", "a/c", false}, {"+", "a/b", false}, {"a/+/#", "a", false}, {"a/+/#", "a/b", true},
		{"#", "$SYS/a", false}, {"+/a", "$SYS/#", false}, {"$SYS/#", "$SYS/+", true}, {"+", "+", true}, {"#", "+/#", true},
		{"a/+", "a", false}, {"+", "/#", false}, {"+/#", "/#", true}, {"a/b/#", "a/+", true}, {"devices/+/telemetry", "devices/17/#", true},
	} {
		if Overlap(c.a, c.b) != c.want || Overlap(c.b, c.a) != c.want {
			t.Errorf("Overlap(%q, %q) is not %v both ways", c.a, c.b, c.want)
		}
	}
}

// Overlap against the truth: a name of the vocabulary, or of one fresh level per wildcard, that both filters match.
func FuzzOverlap(f *testing.F) {
	f.Add([]byte{0, 6, 7}, []byte{0, 1})
	f.Add([]byte{7}, []byte{3, 1})
	f.Add([]byte{0, 7}, []byte{0})
	f.Fuzz(func(t *testing.T, x, y []byte) {
		a, b := filterOf(x[:min(len(x), 4)]), filterOf(y[:min(len(y), 4)])
		want := false
		var try func(levels []string, left int)
		try = func(levels []string, left int) {
			if n := strings.Join(levels, "/"); len(levels) > 0 && n != "" && naiveMatch(a, n) && naiveMatch(b, n) {
				want = true
			}
			if left == 0 || want {
				return
			}
			for _, l := range append([]string{"fresh"}, vocabulary...) {
				try(append(levels[:len(levels):len(levels)], l), left-1)
			}
		}
		try(nil, 4)
		if got := Overlap(a, b); got != want {
			t.Fatalf("Overlap(%q, %q) = %v", a, b, got)
		}
	})
}

// Filters as they come from the wire: validation never lets through what the standard forbids, and says no to nothing else.
func FuzzFilter(f *testing.F) {
	for _, s := range []string{"a/+/#", "$share/g/a", "$share//a", "a#", "\xed\xa0\x80", "$share/g/\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		levels := strings.Split(s, "/")
		want := s != "" && len(s) <= LengthMax && utf8.ValidString(s) && !strings.Contains(s, "\x00")
		for i, l := range levels {
			if strings.Contains(l, "#") && (l != "#" || i != len(levels)-1) || strings.Contains(l, "+") && l != "+" {
				want = false
			}
		}
		if got := ValidateFilter(s) == nil; got != want {
			t.Fatalf("ValidateFilter(%q) accepted: %v, want %v", s, got, want)
		}
		name := want && !strings.ContainsAny(s, "+#")
		if got := ValidateName([]byte(s)) == nil; got != name {
			t.Fatalf("ValidateName(%q) accepted: %v, want %v", s, got, name)
		}
		group, filter, shared, err := ParseShared(s)
		if err != nil {
			return
		}
		if shared && SharePrefix+group+"/"+filter != s || !shared && filter != s || ValidateFilter(filter) != nil {
			t.Fatalf("ParseShared(%q) = %q, %q, %v", s, group, filter, shared)
		}
	})
}
