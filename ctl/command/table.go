package command

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// table lays out rows under headings. A heading that begins with > is a column of
// numbers, set to the right. Columns never change their order or name.
type table struct {
	heads []string
	rows  [][]string
}

func newTable(heads ...string) *table { return &table{heads: heads} }

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) write(w io.Writer) {
	right := make([]bool, len(t.heads))
	heads := make([]string, len(t.heads))
	for i, h := range t.heads {
		heads[i] = strings.TrimPrefix(h, ">")
		right[i] = heads[i] != h
	}
	rows := append([][]string{heads}, t.rows...)
	width := make([]int, len(heads))
	for _, row := range rows {
		for i := range row {
			row[i] = clean(row[i])
			if row[i] == "" {
				row[i] = "-"
			}
			width[i] = max(width[i], utf8.RuneCountInString(row[i]))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			if i > 0 {
				line.WriteString("  ")
			}
			if right[i] {
				line.WriteString(pad + cell)
			} else {
				line.WriteString(cell + pad)
			}
		}
		_, _ = fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
	}
}

// facts lays out names and values, one pair a line.
type facts [][2]string

func (f *facts) add(name, format string, args ...any) {
	*f = append(*f, [2]string{name, fmt.Sprintf(format, args...)})
}

func (f *facts) write(w io.Writer) {
	width := 0
	for _, p := range *f {
		width = max(width, len(p[0]))
	}
	for _, p := range *f {
		value := clean(p[1])
		if value == "" {
			value = "-"
		}
		_, _ = fmt.Fprintf(w, "%-*s  %s\n", width, p[0], value)
	}
}

// clean makes what came from clients safe for a terminal: everything that is not
// printable is escaped.
func clean(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }) < 0 {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
		s = s[n:]
	}
	return b.String()
}

// oneLine makes one clean line of a text.
func oneLine(s string) string {
	var parts []string
	for _, l := range strings.Split(s, "\n") {
		if l = strings.TrimSpace(l); l != "" {
			parts = append(parts, clean(l))
		}
	}
	return strings.Join(parts, "; ")
}

// count writes a number with separators: 1,250,000.
func count[N int | int64](n N) string {
	digits := strconv.FormatInt(int64(n), 10)
	sign := ""
	if digits[0] == '-' {
		sign, digits = "-", digits[1:]
	}
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return sign + digits
}

// size writes an amount of bytes: 117.7 MiB.
func size(n int64) string {
	if n < 1024 {
		return strconv.FormatInt(n, 10) + " B"
	}
	v, unit := float64(n), 0
	for v >= 1023.95 && unit < 6 { // what would be shown as 1024.0 belongs to the next unit
		v, unit = v/1024, unit+1
	}
	return strconv.FormatFloat(v, 'f', 1, 64) + " " + []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}[unit]
}

// span writes a number of seconds by its two largest units: 1d 2h.
func span(s int64) string {
	units := []struct {
		name string
		size int64
	}{{"d", 86400}, {"h", 3600}, {"m", 60}, {"s", 1}}
	for i, u := range units {
		if s < u.size && u.size > 1 {
			continue
		}
		text := fmt.Sprintf("%d%s", s/u.size, u.name)
		if u.size > 1 {
			if rest := s % u.size / units[i+1].size; rest > 0 {
				text += fmt.Sprintf(" %d%s", rest, units[i+1].name)
			}
		}
		return text
	}
	return "" // not reached: the last unit takes everything
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func plural(n int64, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return count(n) + " " + one + "s"
}
