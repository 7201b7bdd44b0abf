package jetstream

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"edgehub/hub/message"
	"edgehub/sync/uplink"
)

// TestRecordAtTheRemote holds the stored form of records: it is a contract.
func TestRecordAtTheRemote(t *testing.T) {
	s := embedded(t, nil)
	h := newHub(t, 1)
	h.builder.Reset(0)
	h.add(&message.Message{Topic: []byte("devices/17/telemetry"), Payload: []byte("21.5"), QoS: 1, TimeMs: 1795953600000})
	h.add(&message.Message{Topic: []byte(" a b/ü/%\t/"), Payload: nil, QoS: 2, Retain: true, TimeMs: 1795953600001, ExpiresMs: 1795953700000, Props: message.Props{
		UTF8: true, ContentType: []byte("text/plain"), ResponseTopic: []byte("re/ply\r\n"), Correlation: []byte{0, 1, 255},
		User: []message.Pair{{Name: []byte("a"), Value: []byte("1")}, {Name: []byte("b=c"), Value: []byte(" x=y\n")}, {Name: []byte("a"), Value: []byte("")}, {Name: []byte(""), Value: []byte("z")}}}})
	h.add(&message.Message{Topic: []byte("t"), Payload: []byte{0, 255, '\r', '\n'}, QoS: 0, TimeMs: 1795953600002, Props: message.Props{ContentType: []byte{}, Correlation: []byte{}}})
	h.add(&message.Message{Topic: []byte(strings.Repeat("long/", 10000)), Payload: []byte("far"), QoS: 1, TimeMs: 1795953600003})
	h.commit(0)
	l := h.uplink(s.ClientURL(), settings{})
	until(t, 10e9, "drained", l.drained)
	got := remote(t, s.ClientURL())

	id := instance + "/main/0-0/1/"
	want := []struct {
		subject string
		header  nats.Header
		data    string
	}{
		{"edge.h1.devices.17.telemetry", nats.Header{hdrMsgID: {id + "0"}, hdrExpectedSeq: {"0"}, "Hub-Topic": {"devices/17/telemetry"}, "Hub-Id": {"h1"}, "Hub-Instance": {instance},
			"Hub-Stream": {"main"}, "Hub-Partition": {"0-0"}, "Hub-Offset": {"0"}, "Hub-Time": {"2026-11-29T12:00:00.000Z"}, "Hub-QoS": {"1"}, "Hub-Retain": {"false"}, "Hub-Positions": {"0;"}}, "21.5"},
		{"edge.h1.%20a%20b.ü.%25%09.%00", nats.Header{hdrMsgID: {id + "1"}, hdrExpectedID: {id + "0"}, hdrExpectedSeq: {"1"}, "Hub-Topic": {"%20a b/ü/%25%09/"}, "Hub-Id": {"h1"}, "Hub-Instance": {instance},
			"Hub-Stream": {"main"}, "Hub-Partition": {"0-0"}, "Hub-Offset": {"1"}, "Hub-Time": {"2026-11-29T12:00:00.001Z"}, "Hub-QoS": {"2"}, "Hub-Retain": {"true"},
			"Hub-Prop-expires": {"2026-11-29T12:01:40.000Z"}, "Hub-Prop-payload-format": {"utf-8"}, "Hub-Prop-content-type": {"text/plain"}, "Hub-Prop-response-topic": {"re/ply%0D%0A"},
			"Hub-Prop-correlation-data": {"AAH/"}, "Hub-User": {"a=1", "b%3Dc=%20x=y%0A", "a=", "=z"}}, ""},
		{"edge.h1.t", nats.Header{hdrMsgID: {id + "2"}, hdrExpectedID: {id + "1"}, hdrExpectedSeq: {"2"}, "Hub-Topic": {"t"}, "Hub-Id": {"h1"}, "Hub-Instance": {instance},
			"Hub-Stream": {"main"}, "Hub-Partition": {"0-0"}, "Hub-Offset": {"2"}, "Hub-Time": {"2026-11-29T12:00:00.002Z"}, "Hub-QoS": {"0"}, "Hub-Retain": {"false"},
			"Hub-Prop-content-type": {""}, "Hub-Prop-correlation-data": {""}}, "\x00\xff\r\n"},
		{"edge.h1.%long.", nats.Header{hdrMsgID: {id + "3"}, hdrExpectedID: {id + "2"}, hdrExpectedSeq: {"3"}, "Hub-Topic": {strings.Repeat("long/", 10000)}, "Hub-Id": {"h1"}, "Hub-Instance": {instance},
			"Hub-Stream": {"main"}, "Hub-Partition": {"0-0"}, "Hub-Offset": {"3"}, "Hub-Time": {"2026-11-29T12:00:00.003Z"}, "Hub-QoS": {"1"}, "Hub-Retain": {"false"}}, "far"},
	}
	if len(got) != len(want) {
		t.Fatalf("%d records, want %d", len(got), len(want))
	}
	for i, w := range want {
		g := got[i]
		if g.Subject != w.subject && (i != 3 || !strings.HasPrefix(g.Subject, w.subject)) {
			t.Errorf("%d: subject %q, want %q", i, g.Subject, w.subject)
		}
		if string(g.Data) != w.data {
			t.Errorf("%d: data %q, want %q", i, g.Data, w.data)
		}
		for k, v := range w.header {
			if strings.Join(g.Header[k], "|") != strings.Join(v, "|") || len(g.Header[k]) != len(v) {
				t.Errorf("%d: header %s %.80q, want %.80q", i, k, g.Header[k], v)
			}
		}
		for k := range g.Header {
			if _, ok := w.header[k]; !ok {
				t.Errorf("%d: unexpected header %s: %q", i, k, g.Header[k])
			}
		}
	}
}

func TestParseText(t *testing.T) {
	for _, s := range []string{"", "plain", " lead", "trail ", "%", "a=b\r\n\x7f", "ü"} {
		enc := string(appendText(nil, []byte(s)))
		if got, ok := ParseText(enc); !ok || got != s || strings.TrimSpace(enc) != enc {
			t.Errorf("%q became %q became %q, %v", s, enc, got, ok)
		}
	}
	if got, ok := ParseText("a%2"); ok {
		t.Errorf("took a%%2 for %q", got)
	}
}

func TestBuildDoesNotAllocate(t *testing.T) {
	b := newHeaders()
	m := message.Message{Topic: []byte("devices/17/telemetry"), Payload: []byte("x"), QoS: 1, TimeMs: 1795953600000}
	o := &uplink.Out{ID: []byte("i/s/0-0/1/5"), Prev: []byte("i/s/0-0/1/4"), Instance: "i", Stream: "s", Partition: "0-0", Offset: 5, Message: &m}
	b.build("h", o, false)
	if n := testing.AllocsPerRun(200, func() { b.build("h", o, false) }); n > 0 {
		t.Errorf("%v allocations per record", n)
	}
}

func TestQuickAck(t *testing.T) {
	prefix := []byte(`{"stream":"EDGE-h1",`)
	for _, c := range []struct {
		data string
		seq  uint64
		ok   bool
	}{
		{`{"stream":"EDGE-h1","seq":22}`, 22, true},
		{`{"stream":"EDGE-h1", "seq": 18446744073709551}`, 18446744073709551, true},
		{`{"stream":"EDGE-h1","seq":22,"duplicate":true}`, 0, false},
		{`{"stream":"EDGE-h1","domain":"d","seq":22}`, 0, false},
		{`{"stream":"EDGE-h2","seq":22}`, 0, false},
		{`{"stream":"EDGE-h1","seq":}`, 0, false},
		{`{"stream":"EDGE-h1","seq":99999999999999999999}`, 0, false},
		{`{"stream":"EDGE-h1",}`, 0, false},
		{`{"error":{"code":400}}`, 0, false},
		{``, 0, false},
	} {
		if seq, ok := quickAck([]byte(c.data), prefix); seq != c.seq || ok != c.ok {
			t.Errorf("%s: %d, %v, want %d, %v", c.data, seq, ok, c.seq, c.ok)
		}
	}
}

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"edge.h.>", "edge.h.>", true}, {"edge.>", "edge.h.>", true}, {">", "edge.h.>", true}, {"edge.*.>", "edge.h.>", true}, {"*.*.>", "edge.*.>", true},
		{"edge.h.*", "edge.h.>", false}, {"edge.h", "edge.h.>", false}, {"edge.h.x.>", "edge.h.>", false}, {"edge.g.>", "edge.h.>", false},
		{"edge.h.>", "edge.*.>", false}, {"edge.h.>", "edge.h", false},
	} {
		if got := covers(c.a, c.b); got != c.want {
			t.Errorf("covers(%q, %q) = %v", c.a, c.b, got)
		}
	}
}
