package config

import (
	"strconv"
	"strings"
)

// lines maps the path of a key ("stream[0].retention.max_age") to the line it
// stands on, from 1.
type lines map[string]int

// locate finds the line of every key of a document. The TOML library keeps the
// positions of keys to itself and has only the last of an array of tables, so
// this walks the text once more. The document must have been parsed before:
// what is not valid TOML gives fewer lines, never an error.
func locate(src string) lines {
	l := &locator{src: src, line: 1, found: lines{}, arrays: map[string]int{}}
	for l.blank(true); l.pos < len(l.src); l.blank(true) {
		start := l.pos
		if l.src[l.pos] == '[' {
			l.header()
		} else {
			l.pair(l.prefix)
		}
		if l.pos == start { // not TOML: give up rather than loop
			break
		}
	}
	return l.found
}

// locator is a cursor over the text.
type locator struct {
	src    string
	pos    int
	line   int
	prefix string
	found  lines
	arrays map[string]int // arrays of tables by path, with their length
}

func (l *locator) peek() byte {
	if l.pos < len(l.src) {
		return l.src[l.pos]
	}
	return 0
}

func (l *locator) accept(c byte) bool {
	if l.peek() != c {
		return false
	}
	l.pos++
	return true
}

// blank skips space and, where newlines may stand, newlines and comments.
func (l *locator) blank(newlines bool) {
	for ; l.pos < len(l.src); l.pos++ {
		switch c := l.src[l.pos]; {
		case c == ' ' || c == '\t' || c == '\r':
		case c == '\n' && newlines:
			l.line++
		case c == '#' && newlines:
			end := strings.IndexByte(l.src[l.pos:], '\n')
			if end < 0 {
				l.pos = len(l.src)
				return
			}
			l.pos += end - 1
		default:
			return
		}
	}
}

func (l *locator) add(path string) {
	if _, ok := l.found[path]; !ok {
		l.found[path] = l.line
	}
}

// join adds one part to a path; the last element stands for an array of tables.
func (l *locator) join(path, part string) string {
	if path != "" {
		path += "."
	}
	path += part
	if n := l.arrays[path]; n > 0 {
		path = element(path, n-1)
	}
	return path
}

func element(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// header reads "[a.b]" or "[[a.b]]".
func (l *locator) header() {
	l.accept('[')
	array := l.accept('[')
	parts := l.parts()
	path := ""
	for i, part := range parts {
		if i == len(parts)-1 && array {
			if path != "" {
				path += "."
			}
			path += part
			l.add(path)
			l.arrays[path]++
			path = element(path, l.arrays[path]-1)
			break
		}
		path = l.join(path, part)
	}
	l.add(path)
	l.prefix = path
	for l.accept(']') {
		continue
	}
}

// pair reads "a.b = value".
func (l *locator) pair(prefix string) {
	path := prefix
	for _, part := range l.parts() {
		path = l.join(path, part)
		l.add(path)
	}
	l.blank(false)
	if l.accept('=') {
		l.blank(false)
		l.value(path)
	}
}

// parts reads a dotted key.
func (l *locator) parts() []string {
	var parts []string
	for {
		l.blank(false)
		start := l.pos
		if c := l.peek(); c == '"' || c == '\'' {
			l.quoted(c)
			parts = append(parts, strings.Trim(l.src[start:l.pos], string(c)))
		} else {
			for isBare(l.peek()) {
				l.pos++
			}
			parts = append(parts, l.src[start:l.pos])
		}
		l.blank(false)
		if !l.accept('.') {
			return parts
		}
	}
}

func isBare(c byte) bool {
	return c == '-' || c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func (l *locator) value(path string) {
	switch c := l.peek(); c {
	case '"', '\'':
		l.quoted(c)
	case '{':
		l.inline(path)
	case '[':
		l.list(path)
	default:
		for l.pos < len(l.src) && !strings.ContainsRune(",]}#\r\n", rune(l.src[l.pos])) {
			l.pos++
		}
	}
}

// inline reads "{ a = 1, b = 2 }".
func (l *locator) inline(path string) {
	for l.pos++; l.pos < len(l.src); {
		l.blank(true)
		if l.accept('}') {
			return
		}
		start := l.pos
		if !l.accept(',') {
			l.pair(path)
		}
		if l.pos == start {
			return
		}
	}
}

// list reads "[1, 2]", also of inline tables.
func (l *locator) list(path string) {
	i := 0
	for l.pos++; l.pos < len(l.src); {
		l.blank(true)
		if l.accept(']') {
			return
		}
		start := l.pos
		if !l.accept(',') {
			l.add(element(path, i))
			l.value(element(path, i))
			i++
		}
		if l.pos == start {
			return
		}
	}
}

// quoted skips a string of one line or several.
func (l *locator) quoted(quote byte) {
	long := strings.Repeat(string(quote), 3)
	end := string(quote)
	if strings.HasPrefix(l.src[l.pos:], long) {
		end = long
	}
	for l.pos += len(end); l.pos < len(l.src); l.pos++ {
		switch c := l.src[l.pos]; {
		case c == '\\' && quote == '"' && l.pos+1 < len(l.src):
			l.pos++
			if l.src[l.pos] == '\n' {
				l.line++
			}
		case c == '\n':
			l.line++
		case strings.HasPrefix(l.src[l.pos:], end):
			l.pos += len(end)
			for len(end) == 3 && l.accept(quote) { // up to two more quotes belong to the text
				continue
			}
			return
		}
	}
}
