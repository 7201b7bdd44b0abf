package command

import (
	"strings"
	"testing"
)

func TestUnits(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{size(0), "0 B"}, {size(1023), "1023 B"}, {size(1024), "1.0 KiB"}, {size(1536), "1.5 KiB"},
		{size(1<<20 - 1), "1.0 MiB"}, {size(123_456_789), "117.7 MiB"}, {size(1 << 40), "1.0 TiB"}, {size(1<<63 - 1), "8.0 EiB"},
		{count(0), "0"}, {count(999), "999"}, {count(1000), "1,000"}, {count(int64(1_250_000)), "1,250,000"}, {count(-1234), "-1,234"}, {count(-123), "-123"},
		{span(0), "0s"}, {span(59), "59s"}, {span(61), "1m 1s"}, {span(3_600), "1h"}, {span(3_660), "1h 1m"}, {span(86_459), "1d"}, {span(604_800), "7d"}, {span(93_784), "1d 2h"},
		{plural(1, "byte"), "1 byte"}, {plural(2000, "byte"), "2,000 bytes"}, {plural(0, "byte"), "0 bytes"},
		{clean("plain ä€ text"), "plain ä€ text"}, {clean("a\x1b[31m\n\t\x00"), `a\x1b[31m\n\t\x00`}, {clean("\xff\u202e'"), `\xff\u202e'`}, {clean("\u0085"), `\u0085`},
		{oneLine(" a \n\n b\r\n"), "a; b"},
		{payloadText([]byte(strings.Repeat("é", 100))), strings.Repeat("é", 100)},
		{payloadText([]byte("x" + strings.Repeat("é", 100))), "x" + strings.Repeat("é", 99) + " … 2 bytes more"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

func TestTableAligns(t *testing.T) {
	tab := newTable("NAME", ">N", "LAST")
	tab.add("é", "1,000", "")
	tab.add("longer", "7", "x\ny")
	var b strings.Builder
	tab.write(&b)
	want := "NAME        N  LAST\né       1,000  -\nlonger      7  x\\ny\n"
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}
