package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestRecordJSON(t *testing.T) {
	for _, c := range []struct {
		rec  Record
		want string
	}{
		{Record{Stream: "telemetry", Offset: 41, Time: 1795953600000, Topic: "devices/1/telemetry", Payload: []byte("21.5"), QoS: 1,
			Properties: [][]string{{"content-type", "text/plain"}, {"user", "a", "b"}}},
			`{"stream":"telemetry","partition":0,"lane":0,"offset":41,"time":"2026-11-29T12:00:00.000Z","topic":"devices/1/telemetry","payload":"21.5","qos":1,"retain":false,"properties":[["content-type","text/plain"],["user","a","b"]]}`},
		{Record{Stream: "s", Partition: 3, Lane: 1, Topic: "t", Payload: []byte{0xff}, QoS: 2, Retain: true},
			`{"stream":"s","partition":3,"lane":1,"offset":0,"time":"","topic":"t","payload_base64":"/w==","qos":2,"retain":true,"properties":[]}`},
		{Record{Stream: "s", Topic: "t"},
			`{"stream":"s","partition":0,"lane":0,"offset":0,"time":"","topic":"t","payload":"","qos":0,"retain":false,"properties":[]}`},
		{Record{Stream: "s", Topic: "t", Payload: []byte("<a&b>")},
			`{"stream":"s","partition":0,"lane":0,"offset":0,"time":"","topic":"t","payload":"<a&b>","qos":0,"retain":false,"properties":[]}`},
	} {
		got, err := c.rec.MarshalJSON()
		if err != nil || string(got) != c.want {
			t.Errorf("got  %s %v\nwant %s", got, err, c.want)
		}
		back, err := StreamLine(got)
		if err != nil || back.Offset != c.rec.Offset || back.Time != c.rec.Time || !bytes.Equal(back.Payload, c.rec.Payload) || back.Retain != c.rec.Retain {
			t.Errorf("%s came back as %+v %v", got, back, err)
		}
		var direct Record
		if err := json.Unmarshal(got, &direct); err != nil || !reflect.DeepEqual(direct, back) {
			t.Errorf("UnmarshalJSON %+v, StreamLine %+v, %v", direct, back, err)
		}
	}
}

func TestStreamLineErrors(t *testing.T) {
	_, err := StreamLine([]byte(`{"error":{"code":"unavailable","message":"stopping"}}`))
	var e *Error
	if !errors.As(err, &e) || e.Code != CodeUnavailable || e.Message != "stopping" {
		t.Errorf("%v", err)
	}
	if line, err := json.Marshal(ErrorBody{Error: e}); err != nil || !IsErrorLine(line) {
		t.Errorf("%s is not known as an error line (%v)", line, err)
	}
	if line, err := (Record{Topic: `{"error":`}).MarshalJSON(); err != nil || IsErrorLine(line) {
		t.Errorf("%s is taken for an error line (%v)", line, err)
	}
	for _, line := range []string{"", "{", "[]", `{"time":"yesterday"}`, `{"offset":"x"}`} {
		if _, err := StreamLine([]byte(line)); err == nil {
			t.Errorf("%q was taken", line)
		}
	}
}

func TestMillis(t *testing.T) {
	for text, want := range map[string]Millis{
		`""`:                              0,
		`"2026-11-29T12:00:00.000Z"`:      1795953600000,
		`"2026-11-29T13:00:00.001+01:00"`: 1795953600001,
		`"1969-12-31T23:59:59Z"`:          -1000,
	} {
		var m Millis
		if err := json.Unmarshal([]byte(text), &m); err != nil || m != want {
			t.Errorf("%s: %d %v", text, m, err)
		}
	}
	var m Millis
	if err := json.Unmarshal([]byte(`"noon"`), &m); err == nil {
		t.Error("noon was taken for a time")
	}
}

func TestTailRequestRoundTrip(t *testing.T) {
	for _, req := range []TailRequest{
		{Stream: "s", From: From{Kind: FromLatest}, Partition: AllPartitions, Follow: true},
		{Stream: "s", From: From{Kind: FromEarliest}, Partition: AllPartitions, Limit: 7},
		{Stream: "s", From: From{Kind: FromOffset, Offset: 0}, Partition: 0, Follow: true},
		{Stream: "s", From: From{Kind: FromOffset, Offset: 1 << 40}, Partition: 3, Filter: "a/+/# &=?"},
		{Stream: "s", From: From{Kind: FromTime, Time: 1795953600123}, Partition: AllPartitions, Filter: "#", Follow: true},
	} {
		got, err := ParseTail("s", req.Query())
		if err != nil || got != req {
			t.Errorf("%+v came back as %+v %v", req, got, err)
		}
	}
	if got, err := ParseTail("s", url.Values{}); err != nil || got.From.Kind != FromLatest || !got.Follow || got.Partition != AllPartitions {
		t.Errorf("defaults: %+v %v", got, err)
	}
}

func TestParseFromRefuses(t *testing.T) {
	for _, s := range []string{"", "-1", "1.5", "first", "2026-11-29", "99999999999999999999", "Earliest"} {
		if f, err := ParseFrom(s); err == nil {
			t.Errorf("%q was taken as %+v", s, f)
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"telemetry", "audit-2025", "main", "alarms"}
	for name, want := range map[string]string{
		"telemtry": "telemetry", "Telemetry": "telemetry", "tleemetry": "telemetry", "telemetry": "telemetry",
		"tele": "telemetry", "audit": "audit-2025", "maim": "main", "mian": "main", "mn": "", "xyz": "", "": "", "a": "",
		strings.Repeat("x", 10_000): "",
	} {
		if got := Nearest(name, known); got != want {
			t.Errorf("Nearest(%.20q) = %q, want %q", name, got, want)
		}
	}
}

func TestNotFound(t *testing.T) {
	many := make([]string, 20)
	for i := range many {
		many[i] = fmt.Sprintf("stream-number-%02d", i)
	}
	for _, c := range []struct {
		name  string
		known []string
		want  string
	}{
		{"maim", []string{"main"}, `no stream "maim"; did you mean "main"?`},
		{"x", nil, `no stream "x"; the hub has no streams`},
		{"zzz", many, "stream-number-07 and 12 more"},
		{"a\nb", []string{"main"}, `no stream "a\nb"; there is main`},
	} {
		if e := NotFound("stream", c.name, c.known); e.Code != CodeNotFound || !strings.Contains(e.Message, c.want) || strings.Contains(e.Message, "\n") {
			t.Errorf("%+v", e)
		}
	}
}

func TestAsError(t *testing.T) {
	if AsError(nil) != nil {
		t.Error("nil became an error")
	}
	if e := AsError(fmt.Errorf("about it: %w", Conflict("no"))); e.Code != CodeConflict || e.Message != "no" {
		t.Errorf("%+v", e)
	}
	if e := AsError(io.ErrUnexpectedEOF); e.Code != CodeInternal || e.Message != "unexpected EOF" {
		t.Errorf("%+v", e)
	}
}

func TestNormalizeKeepsSharedMaps(t *testing.T) {
	shared := map[string]int64{"odd": 3}
	st := Status{Dropped: shared, Streams: []StreamStatus{{}}, Uplinks: []UplinkStatus{{}}}
	st.Normalize()
	if len(shared) != 1 || len(st.Dropped) != 4 || st.Dropped["odd"] != 3 {
		t.Errorf("shared %v, normalized %v", shared, st.Dropped)
	}
	if st.Streams[0].Partitions == nil || st.Uplinks[0].Acked == nil || st.Uplinks[0].Streams == nil || st.Health.Reasons == nil || st.Health.State != HealthOK {
		t.Errorf("%+v", st)
	}
}

// What is published comes out as it went in, whatever its bytes; so does a record.
func FuzzPayload(f *testing.F) {
	f.Add("a/b", []byte("21.5"), byte(1), true)
	f.Add("a", []byte{}, byte(0), false)
	f.Add("ä/\u2028", []byte{0xff, 0xfe, 0}, byte(2), false)
	f.Fuzz(func(t *testing.T, topic string, payload []byte, qos byte, retain bool) {
		if !utf8.ValidString(topic) {
			t.Skip("no topic")
		}
		req := PubRequest{Topic: topic, Payload: payload, QoS: qos, Retain: retain}
		b, err := json.Marshal(req)
		if err != nil {
			t.Fatal(err)
		}
		var back PubRequest
		if err := json.Unmarshal(b, &back); err != nil || back.Topic != topic || !bytes.Equal(back.Payload, payload) || back.QoS != qos || back.Retain != retain {
			t.Fatalf("%+v came back as %+v (%v) by %s", req, back, err, b)
		}
		rec := Record{Stream: "s", Topic: topic, Payload: payload, QoS: qos, Retain: retain, Properties: [][]string{{"user", topic, topic}}}
		line, err := rec.MarshalJSON()
		if err != nil || bytes.ContainsAny(line, "\n\r") {
			t.Fatalf("%q %v", line, err)
		}
		got, err := StreamLine(line)
		if err != nil || got.Topic != topic || !bytes.Equal(got.Payload, payload) || got.Properties[0][2] != topic {
			t.Fatalf("%+v came back as %+v (%v) by %s", rec, got, err, line)
		}
	})
}

// Nothing that a hub or a client sends makes the decoders fall over, and what they
// take can be written again.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"stream":"s","offset":1,"payload":"x","properties":[["user","a","b"]]}`))
	f.Add([]byte(`{"error":{"code":"internal","message":"x"}}`))
	f.Add([]byte(`{"topic":"a","payload":"x","payload_base64":"eA=="}`))
	f.Add([]byte(`{"topic":"a","payload_base64":"?"}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if rec, err := StreamLine(b); err == nil {
			if _, err := rec.MarshalJSON(); err != nil {
				t.Fatal(err)
			}
		}
		var req PubRequest
		if err := json.Unmarshal(b, &req); err == nil {
			if _, err := json.Marshal(req); err != nil {
				t.Fatal(err)
			}
		}
		q, err := url.ParseQuery(string(b))
		if err != nil {
			return
		}
		if req, err := ParseTail("s", q); err == nil {
			if again, err := ParseTail("s", req.Query()); err != nil || again != req {
				t.Fatalf("%+v came back as %+v (%v)", req, again, err)
			}
		}
	})
}

func BenchmarkRecordJSON(b *testing.B) {
	rec := Record{Stream: "telemetry", Offset: 41, Time: 1795953600000, Topic: "devices/1/telemetry", Payload: []byte(strings.Repeat("x", 100)), QoS: 1}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := rec.MarshalJSON(); err != nil {
			b.Fatal(err)
		}
	}
}
