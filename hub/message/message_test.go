package message

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"edgehub/storage/seglog"
)

func pairs(s ...string) (p []Pair) {
	for i := 0; i < len(s); i += 2 {
		p = append(p, Pair{[]byte(s[i]), []byte(s[i+1])})
	}
	return p
}

// record is what a log gives back for m.
func record(m *Message) seglog.Record {
	var h seglog.Headers
	m.AppendHeaders(&h)
	return seglog.Record{Offset: 9, TimeMs: m.TimeMs, Key: m.Topic, Value: m.Payload, Headers: h}
}

func TestRoundTrip(t *testing.T) {
	long := []byte(strings.Repeat("c", 300))
	for _, c := range []struct {
		name    string
		headers int
		in      Message
	}{
		{"default: no headers", 0, Message{QoS: 1}},
		{"QoS 0", 1, Message{}},
		{"QoS 1 retained", 1, Message{QoS: 1, Retain: true}},
		{"QoS 2 retained", 1, Message{QoS: 2, Retain: true}},
		{"expiry", 1, Message{QoS: 1, ExpiresMs: 1<<62 + 5}},
		{"all properties", 7, Message{QoS: 1, Props: Props{UTF8: true, ContentType: []byte("a/b"), ResponseTopic: []byte("r"), Correlation: []byte{0, 255},
			User: pairs("k", "2", "k", "1", "", "")}}},
		{"properties that are there and empty", 3, Message{QoS: 1, Props: Props{ContentType: []byte{}, Correlation: []byte{}, User: pairs("a", "")}}},
		{"order and duplicates of user properties", 4, Message{QoS: 1, Props: Props{User: pairs("z", "1", "a", "2", "z", "3", "z", "1")}}},
		{"QoS 2 identity", 2, Message{QoS: 2, Origin: Origin{Client: []byte("dev-17"), QoS2Seq: 1<<63 + 1, PacketID: 65535, NoLocal: true}}},
		{"QoS 2 identity, long client id", 2, Message{QoS: 2, Origin: Origin{Client: long, QoS2Seq: 0, PacketID: 1, NoLocal: true}}},
		{"publisher for No Local", 1, Message{QoS: 1, Origin: Origin{Client: []byte("dev-17"), NoLocal: true}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.in.Topic, c.in.Payload, c.in.TimeMs = []byte("a/b"), []byte("21.5"), 1234
			r := record(&c.in)
			if r.Headers.Count != c.headers {
				t.Errorf("%d headers, want %d", r.Headers.Count, c.headers)
			}
			// What an earlier message left in a reused struct must not show.
			out := Message{Retain: true, ExpiresMs: 1, Props: Props{UTF8: true, User: pairs("old", "old")}, Origin: Origin{PacketID: 3}}
			if err := out.Decode(r); err != nil {
				t.Fatal(err)
			}
			if qos, retain, origin := Peek(r.Headers); qos != c.in.QoS || retain != c.in.Retain || !reflect.DeepEqual(origin, c.in.Origin) {
				t.Errorf("Peek = %d, %v, %+v", qos, retain, origin)
			}
			if len(out.Props.User) == 0 {
				out.Props.User = nil
			}
			if !reflect.DeepEqual(out, c.in) {
				t.Errorf("decoded\n%+v\nwant\n%+v", out, c.in)
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	header := func(kv ...string) (h seglog.Headers) {
		for i := 0; i < len(kv); i += 2 {
			h.Append(kv[i], []byte(kv[i+1]))
		}
		return h
	}
	short := header("a", "1", "b", "2")
	short.Raw = short.Raw[:len(short.Raw)-1]
	for name, h := range map[string]seglog.Headers{
		"flags without a byte":        header(keyFlags, ""),
		"flags of two bytes":          header(keyFlags, "\x01\x00"),
		"QoS 3":                       header(keyFlags, "\x03"),
		"QoS 3 retained":              header(keyFlags, "\x07"),
		"unknown flag":                header(keyFlags, "\x09"),
		"expiry of four bytes":        header(keyExpiry, "1234"),
		"expiry in the past of time":  header(keyExpiry, "\xff\xff\xff\xff\xff\xff\xff\xff"),
		"expiry 0":                    header(keyExpiry, "\x00\x00\x00\x00\x00\x00\x00\x00"),
		"UTF-8 with a value":          header(keyUTF8, "x"),
		"short QoS 2 identity":        header(keyQoS2, "123456789"),
		"QoS 2 identity, packet id 0": header(keyQoS2, "12345678\x00\x00x"),
		"long content type":           header(keyContentType, strings.Repeat("x", 65536)),
		"long user property":          header("k", strings.Repeat("x", 65546)),
		"long user property name":     header(strings.Repeat("x", 65536), ""),
		"headers cut short":           short,
	} {
		var m Message
		if err := m.Decode(seglog.Record{Key: []byte("a"), Headers: h}); !errors.Is(err, ErrRecord) {
			t.Errorf("%s: %v, want ErrRecord", name, err)
		}
	}
	for name, key := range map[string][]byte{"no topic": nil, "long topic": make([]byte, 65536)} {
		var m Message
		if err := m.Decode(seglog.Record{Key: key}); !errors.Is(err, ErrRecord) {
			t.Errorf("%s: %v, want ErrRecord", name, err)
		}
	}
	var m Message
	if err := m.Decode(seglog.Record{Key: []byte("a"), Headers: header("\x00later", "x", "\x00", "y", "u", "1")}); err != nil || len(m.Props.User) != 1 {
		t.Errorf("own headers of a later version: %v, %d user properties; want them skipped and 1 left", err, len(m.Props.User))
	}
}

func TestRemaining(t *testing.T) {
	for _, c := range []struct {
		expires, now int64
		seconds      uint32
		ok           bool
	}{
		{0, 99, 0, true}, {1000, 0, 1, true}, {1000, 1, 1, true}, {1001, 0, 2, true}, {1000, 999, 1, true},
		{1000, 1000, 0, false}, {1000, 5000, 0, false}, {1 << 62, 0, 1<<32 - 1, true},
	} {
		m := Message{ExpiresMs: c.expires}
		if s, ok := m.Remaining(c.now); s != c.seconds || ok != c.ok {
			t.Errorf("expires %d, now %d: %d, %v; want %d, %v", c.expires, c.now, s, ok, c.seconds, c.ok)
		}
	}
}

func TestProperties(t *testing.T) {
	m := Message{ExpiresMs: 1_700_000_000_123, Props: Props{UTF8: true, ContentType: []byte("text/plain"), ResponseTopic: []byte("r/t"),
		Correlation: []byte{0, 1, 2}, User: pairs("a", "b", "a", "c")}}
	got, _ := json.Marshal(m.Properties())
	want := `[["payload-format","utf-8"],["expires","2023-11-14T22:13:20.123Z"],["content-type","text/plain"],["response-topic","r/t"],` +
		`["correlation-data","AAEC"],["user","a","b"],["user","a","c"]]`
	if string(got) != want {
		t.Errorf("Properties =\n%s\nwant\n%s", got, want)
	}
	if got, _ := json.Marshal((&Message{}).Properties()); string(got) != "[]" {
		t.Errorf("without properties: %s, want []", got)
	}
}

func TestPropsClone(t *testing.T) {
	source := []byte("typeuserdata")
	p := Props{ContentType: source[:4], Correlation: source[:0], User: []Pair{{source[4:8], source[8:]}}}
	c := p.Clone()
	clear(source)
	if string(c.ContentType) != "type" || string(c.User[0].Name) != "user" || string(c.User[0].Value) != "data" {
		t.Errorf("clone changed with its source: %+v", c)
	}
	if c.Correlation == nil || c.ResponseTopic != nil {
		t.Error("clone does not tell empty from absent")
	}
}

func TestPropsReset(t *testing.T) {
	p := Props{User: make([]Pair, 3, 8), UTF8: true}
	if p.Reset(); !p.Empty() || cap(p.User) != 8 {
		t.Errorf("Reset left %+v with room for %d", p, cap(p.User))
	}
	p.User = make([]Pair, 10_000)
	if p.Reset(); cap(p.User) != 0 {
		t.Errorf("Reset keeps room for %d user properties", cap(p.User))
	}
}

func TestNoAllocations(t *testing.T) {
	m := Message{Topic: []byte("devices/17/telemetry"), Payload: []byte("21.5"), QoS: 2, Retain: true, ExpiresMs: 5,
		Props:  Props{UTF8: true, ContentType: []byte("a"), ResponseTopic: []byte("b"), Correlation: []byte("c"), User: pairs("a", "1", "b", "2")},
		Origin: Origin{Client: []byte("device-17"), QoS2Seq: 7, PacketID: 3}}
	var h seglog.Headers
	if n := testing.AllocsPerRun(100, func() { h.Reset(); m.AppendHeaders(&h) }); n != 0 {
		t.Errorf("AppendHeaders allocates %v times", n)
	}
	r := seglog.Record{Key: m.Topic, Value: m.Payload, Headers: h}
	var out Message
	if n := testing.AllocsPerRun(100, func() {
		if err := out.Decode(r); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("Decode allocates %v times", n)
	}
}

// FuzzDecode feeds any bytes as headers. What Decode accepts is encoded again and must come out the same.
func FuzzDecode(f *testing.F) {
	for _, m := range []Message{
		{QoS: 1},
		{QoS: 2, Retain: true, ExpiresMs: 77, Origin: Origin{Client: []byte("c"), QoS2Seq: 1, PacketID: 2}},
		{QoS: 1, Props: Props{UTF8: true, ContentType: []byte("x"), User: pairs("a", "b", "a", "")}, Origin: Origin{Client: []byte("c"), NoLocal: true}},
	} {
		r := record(&m)
		f.Add(r.Headers.Count, r.Headers.Raw)
	}
	f.Fuzz(func(t *testing.T, count int, raw []byte) {
		in := seglog.Record{Key: []byte("a/b"), Value: []byte("x"), Headers: seglog.Headers{Count: count, Raw: raw}}
		var m, again Message
		qos, retain, origin := Peek(in.Headers)
		if m.Decode(in) != nil {
			return
		}
		if qos != m.QoS || retain != m.Retain || !reflect.DeepEqual(origin, m.Origin) {
			t.Fatalf("Peek = %d, %v, %+v of %+v", qos, retain, origin, m)
		}
		out := record(&m)
		if err := again.Decode(out); err != nil {
			t.Fatalf("%+v does not survive its own encoding: %v", m, err)
		}
		if len(m.Props.User) == 0 {
			m.Props.User, again.Props.User = nil, nil
		}
		m.TimeMs, again.TimeMs = 0, 0
		if !reflect.DeepEqual(m, again) {
			t.Fatalf("decoded %+v, after another round %+v", m, again)
		}
		if twice := record(&again); !bytes.Equal(twice.Headers.Raw, out.Headers.Raw) {
			t.Fatalf("encoding is not stable: % x, % x", out.Headers.Raw, twice.Headers.Raw)
		}
	})
}

func BenchmarkHeaders(b *testing.B) {
	plain := Message{Topic: []byte("devices/17/telemetry"), QoS: 1}
	full := plain
	full.QoS, full.Props = 0, Props{ContentType: []byte("text/plain"), User: pairs("a", "1", "b", "2")}
	for name, m := range map[string]*Message{"default": &plain, "properties": &full} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var h seglog.Headers
			var out Message
			for range b.N {
				h.Reset()
				m.AppendHeaders(&h)
				if err := out.Decode(seglog.Record{Key: m.Topic, Headers: h}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
