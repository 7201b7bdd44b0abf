package jetstream

import (
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
)

const hexDigits = "0123456789ABCDEF"

// subjectMax bounds a subject: a server reads a protocol line of 4 KiB by
// default and closes the connection on a longer one.
const subjectMax = 2048

// longToken begins the token that stands for a topic too long to be a subject.
// No encoded topic has it: there a percent sign is always followed by two hex
// digits.
const longToken = "%long"

// emptyLevel stands for an empty topic level, which a subject cannot have. A
// topic cannot contain U+0000, so it means nothing else.
const emptyLevel = "%00"

// Errors of the mapping between topics and subjects.
var (
	ErrSubject  = errors.New("jetstream: not the subject of a topic")
	ErrTemplate = errors.New("jetstream: subject template")
)

// escaped reports whether a byte of a topic level cannot be in a subject token:
// white space and controls, the separator and wildcards of NATS, and the escape.
func escaped(c byte) bool {
	return c <= ' ' || c == 0x7f || c == '.' || c == '*' || c == '>' || c == '%'
}

func appendEscape(dst []byte, c byte) []byte {
	return append(dst, '%', hexDigits[c>>4], hexDigits[c&15])
}

// AppendTopic appends a topic as subject tokens: each level is a token, what a
// token cannot hold is percent-encoded. The mapping is reversible (ParseTopic).
func AppendTopic(dst, topic []byte) []byte {
	start := 0
	for i := 0; i <= len(topic); i++ {
		if i < len(topic) && topic[i] != '/' {
			if c := topic[i]; escaped(c) {
				dst = append(dst, topic[start:i]...)
				dst = appendEscape(dst, c)
				start = i + 1
			}
			continue
		}
		if i == 0 || topic[i-1] == '/' {
			dst = append(dst, emptyLevel...)
		} else {
			dst = append(dst, topic[start:i]...)
		}
		if start = i + 1; i < len(topic) {
			dst = append(dst, '.')
		}
	}
	return dst
}

// ParseTopic returns the topic that AppendTopic made tokens of. It refuses what
// AppendTopic would not have made, so that no two subjects are one topic.
func ParseTopic(tokens string) (string, error) {
	var b strings.Builder
	b.Grow(len(tokens))
	n := 0
	for token := range strings.SplitSeq(tokens, ".") {
		if n++; n > 1 {
			b.WriteByte('/')
		}
		if token == "" {
			return "", fmt.Errorf("%w: %q has an empty token", ErrSubject, tokens)
		}
		if token == emptyLevel {
			continue
		}
		for i := 0; i < len(token); i++ {
			c := token[i]
			if c == '%' {
				v, ok := unescape(token[i+1:])
				if !ok || !escaped(v) || v == 0 {
					return "", fmt.Errorf("%w: %q has a bad escape", ErrSubject, tokens)
				}
				c = v
				i += 2
			} else if escaped(c) || c == '/' {
				return "", fmt.Errorf("%w: %q has the character %q", ErrSubject, tokens, c)
			}
			b.WriteByte(c)
		}
	}
	return b.String(), nil
}

func unescape(s string) (byte, bool) {
	if len(s) < 2 {
		return 0, false
	}
	hi, lo := strings.IndexByte(hexDigits, s[0]), strings.IndexByte(hexDigits, s[1])
	return byte(hi<<4 | lo&15), hi >= 0 && lo >= 0
}

// escapeToken makes one subject token (or a stream name) of any name.
func escapeToken(s string) string {
	var b []byte
	for i := 0; i < len(s); i++ {
		if c := s[i]; escaped(c) || c == '/' || c == '\\' {
			b = appendEscape(b, c)
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}

// RemoteName fills in the hub's id in the name of a remote stream.
func RemoteName(template, hub string) string {
	return strings.ReplaceAll(template, "{hub}", escapeToken(hub))
}

// Subjects makes subjects of records. It is immutable.
type Subjects struct {
	head   string // before the stream token, or all before the topic
	middle string // between stream and topic, when byStream
	stream bool   // {stream} is used
	all    string // the subject that covers all of them
}

// NewSubjects reads a template such as "edge.{hub}.{topic}". {topic} is its last
// token; {hub} and {stream} may stand before it.
func NewSubjects(template, hub string) (Subjects, error) {
	t, ok := strings.CutSuffix(template, "{topic}")
	if !ok || strings.Contains(t, "{topic}") || (t != "" && !strings.HasSuffix(t, ".")) {
		return Subjects{}, fmt.Errorf("%w %q: {topic} must be its last token, as in edge.{hub}.{topic}", ErrTemplate, template)
	}
	t = strings.ReplaceAll(t, "{hub}", escapeToken(hub))
	var s Subjects
	s.head, s.middle, s.stream = strings.Cut(t, "{stream}")
	if strings.ContainsAny(s.head+s.middle, "{}") || (s.stream && ((s.head != "" && !strings.HasSuffix(s.head, ".")) || !strings.HasPrefix(s.middle, "."))) {
		return Subjects{}, fmt.Errorf("%w %q: only {hub}, {stream} (a token of its own) and {topic} can be filled in", ErrTemplate, template)
	}
	s.all = strings.Replace(t, "{stream}", "*", 1) + ">"
	// No device may reach the server's own subjects by its topic.
	if strings.HasPrefix(s.all, "$") || strings.HasPrefix(s.all, "_INBOX.") || s.all[0] == '>' || s.all[0] == '*' {
		return Subjects{}, fmt.Errorf("%w %q: it must begin with a token of its own, and not with $ or _INBOX", ErrTemplate, template)
	}
	for token := range strings.SplitSeq(strings.TrimSuffix(s.all, ">")+"x", ".") {
		if token == "" || strings.ContainsAny(token, " \t\r\n>") || (token != "*" && strings.Contains(token, "*")) {
			return Subjects{}, fmt.Errorf("%w %q: %q is not a subject token", ErrTemplate, template, token)
		}
	}
	if !s.stream && strings.Contains(s.all, "*") {
		return Subjects{}, fmt.Errorf("%w %q: a wildcard cannot be filled in", ErrTemplate, template)
	}
	return s, nil
}

// All returns the subject that covers every record's, which the remote stream
// has to store.
func (s Subjects) All() string { return s.all }

// Append appends the subject of a record.
func (s Subjects) Append(dst []byte, stream string, topic []byte) []byte {
	dst = append(dst, s.head...)
	if s.stream {
		dst = append(dst, stream...)
		dst = append(dst, s.middle...)
	}
	n := len(dst)
	if dst = AppendTopic(dst, topic); len(dst) > subjectMax {
		h := fnv.New128a()
		_, _ = h.Write(topic)
		dst = append(dst[:n], longToken...)
		dst = append(dst, '.')
		for _, c := range h.Sum(nil) {
			dst = append(dst, hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return dst
}
