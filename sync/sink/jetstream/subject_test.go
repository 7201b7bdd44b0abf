package jetstream

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func TestTopicToSubject(t *testing.T) {
	for _, c := range []struct{ topic, tokens string }{
		{"devices/17/telemetry", "devices.17.telemetry"},
		{"a", "a"},
		{"/", "%00.%00"},
		{"/a", "%00.a"},
		{"a/", "a.%00"},
		{"a//b", "a.%00.b"},
		{"a.b/c", "a%2Eb.c"},
		{"a b/*/>", "a%20b.%2A.%3E"},
		{"100%", "100%25"},
		{"%00", "%2500"},
		{"tab\there", "tab%09here"},
		{"del\x7f", "del%7F"},
		{"größe/µ", "größe.µ"},
		{"$SYS/x", "$SYS.x"},
		{"a/$b", "a.$b"},
		{"%long/ab", "%25long.ab"},
	} {
		got := string(AppendTopic(nil, []byte(c.topic)))
		if got != c.tokens {
			t.Errorf("AppendTopic(%q) = %q, want %q", c.topic, got, c.tokens)
		}
		if back, err := ParseTopic(got); err != nil || back != c.topic {
			t.Errorf("ParseTopic(%q) = %q, %v, want %q", got, back, err, c.topic)
		}
	}
}

func TestParseTopicRefuses(t *testing.T) {
	for _, s := range []string{"", ".", "a.", ".a", "a..b", "a b", "a*", ">", "%", "%4", "%zz", "%41", "%2e", "%long.00", "a%00", "a/b", "%24"} {
		if got, err := ParseTopic(s); !errors.Is(err, ErrSubject) {
			t.Errorf("ParseTopic(%q) = %q, %v, want ErrSubject", s, got, err)
		}
	}
}

func FuzzTopicSubject(f *testing.F) {
	for _, s := range []string{"a/b", "/", "a//b ", "$x/%/.*>", "ä/\x01", "%00/%2E"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, topic []byte) {
		if len(topic) == 0 || len(topic) > 65535 || bytes.IndexByte(topic, 0) >= 0 {
			t.Skip("not a topic")
		}
		tokens := string(AppendTopic([]byte("p."), topic))[2:]
		if strings.ContainsAny(tokens, " \t\r\n\x00*>/") || tokens[0] == '.' || strings.HasSuffix(tokens, ".") || strings.Contains(tokens, "..") {
			t.Fatalf("%q became %q, which no server takes", topic, tokens)
		}
		if strings.Count(tokens, ".") != bytes.Count(topic, []byte("/")) {
			t.Fatalf("%q became %q: levels are not tokens", topic, tokens)
		}
		back, err := ParseTopic(tokens)
		if err != nil || back != string(topic) {
			t.Fatalf("%q became %q became %q, %v", topic, tokens, back, err)
		}
	})
}

func FuzzParseTopic(f *testing.F) {
	for _, s := range []string{"a.b", "%00.%00", "a%2E.%24", "%24SYS", "%25%2A"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, tokens string) {
		topic, err := ParseTopic(tokens)
		if err != nil {
			return
		}
		if back := string(AppendTopic(nil, []byte(topic))); back != tokens {
			t.Fatalf("%q is the topic %q, whose subject is %q", tokens, topic, back)
		}
	})
}

func TestTemplates(t *testing.T) {
	for _, c := range []struct{ template, hub, all, subject string }{
		{"edge.{hub}.{topic}", "edge-1", "edge.edge-1.>", "edge.edge-1.a.b"},
		{"edge.{hub}.{topic}", "site 1.rack", "edge.site%201%2Erack.>", "edge.site%201%2Erack.a.b"},
		{"x.{stream}.{topic}", "h", "x.*.>", "x.main.a.b"},
		{"{hub}.{stream}.{topic}", "h", "h.*.>", "h.main.a.b"},
	} {
		s, err := NewSubjects(c.template, c.hub)
		if err != nil {
			t.Errorf("%q: %v", c.template, err)
			continue
		}
		if got := string(s.Append(nil, "main", []byte("a/b"))); s.All() != c.all || got != c.subject {
			t.Errorf("%q: all %q, subject %q, want %q and %q", c.template, s.All(), got, c.all, c.subject)
		}
	}
	for _, bad := range []string{"", "edge", "edge.{topic}.x", "edge{topic}", "{topic}{topic}", "{topic}.{topic}", "a..{topic}", "a b.{topic}", "a.*.{topic}", "a.>.{topic}",
		"x{stream}.{topic}", "{nope}.{topic}", "$JS.{topic}", "{topic}", "{stream}.{topic}", "_INBOX.{topic}"} {
		if s, err := NewSubjects(bad, "h"); !errors.Is(err, ErrTemplate) {
			t.Errorf("%q: %+v, %v, want ErrTemplate", bad, s, err)
		}
	}
}

func TestLongTopicIsASubjectOfItsOwn(t *testing.T) {
	s, err := NewSubjects("edge.{hub}.{topic}", "h")
	if err != nil {
		t.Fatal(err)
	}
	long := bytes.Repeat([]byte("level/"), 10000)
	a := string(s.Append(nil, "main", long))
	b := string(s.Append(nil, "main", append(long, 'x')))
	if a == b || len(a) > subjectMax || !strings.HasPrefix(a, "edge.h.%long.") {
		t.Errorf("long topics became %q and %q", a, b)
	}
	if _, err := ParseTopic(strings.TrimPrefix(a, "edge.h.")); err == nil {
		t.Error("a stand-in was taken for a topic")
	}
}
