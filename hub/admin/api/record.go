package api

import (
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"
)

// timeLayout is RFC 3339 in UTC with milliseconds, the one time format of the
// admin interface.
const timeLayout = "2006-01-02T15:04:05.000Z"

// Millis is a point in time, milliseconds since 1970. In JSON it is RFC 3339 with
// milliseconds; zero (never) is the empty string.
type Millis int64

// String returns the JSON form without quotes.
func (m Millis) String() string {
	if m == 0 {
		return ""
	}
	return time.UnixMilli(int64(m)).UTC().Format(timeLayout)
}

// MarshalText implements encoding.TextMarshaler.
func (m Millis) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler; it takes any RFC 3339 time.
func (m *Millis) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*m = 0
		return nil
	}
	t, err := time.Parse(time.RFC3339Nano, string(text))
	if err != nil {
		return fmt.Errorf("api: time %q is not RFC 3339", text)
	}
	*m = Millis(t.UnixMilli())
	return nil
}

// Record is one record of a stream as `tail` prints it. In JSON the payload is
// `payload` when it is valid UTF-8 and `payload_base64` otherwise.
type Record struct {
	Stream     string
	Partition  int
	Lane       int
	Offset     int64
	Time       Millis
	Topic      string
	Payload    []byte
	QoS        byte
	Retain     bool
	Properties [][]string // in order, duplicates kept: {"content-type","text/plain"}, {"user","a","b"}
}

// recordJSON is the wire form of Record; the order of its fields is the order in
// which they are printed.
type recordJSON struct {
	Stream        string     `json:"stream"`
	Partition     int        `json:"partition"`
	Lane          int        `json:"lane"`
	Offset        int64      `json:"offset"`
	Time          Millis     `json:"time"`
	Topic         string     `json:"topic"`
	Payload       *string    `json:"payload,omitempty"`
	PayloadBase64 []byte     `json:"payload_base64,omitempty"`
	QoS           byte       `json:"qos"`
	Retain        bool       `json:"retain"`
	Properties    [][]string `json:"properties"`
	Error         *Error     `json:"error,omitempty"` // see StreamLine
}

// MarshalJSON implements json.Marshaler. Payload is copied, not kept.
func (r Record) MarshalJSON() ([]byte, error) {
	w := recordJSON{
		Stream: r.Stream, Partition: r.Partition, Lane: r.Lane, Offset: r.Offset, Time: r.Time,
		Topic: r.Topic, QoS: r.QoS, Retain: r.Retain, Properties: r.Properties,
	}
	w.Payload, w.PayloadBase64 = splitPayload(r.Payload)
	if w.Properties == nil {
		w.Properties = [][]string{}
	}
	return marshalPlain(w)
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *Record) UnmarshalJSON(b []byte) error {
	var w recordJSON
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	*r = w.record()
	return nil
}

func (w *recordJSON) record() Record {
	return Record{
		Stream: w.Stream, Partition: w.Partition, Lane: w.Lane, Offset: w.Offset, Time: w.Time,
		Topic: w.Topic, Payload: joinPayload(w.Payload, w.PayloadBase64), QoS: w.QoS, Retain: w.Retain, Properties: w.Properties,
	}
}

// PubRequest asks the hub to publish one message as if a client had sent it. In
// JSON the payload is `payload` (text) or `payload_base64`.
type PubRequest struct {
	Topic   string
	Payload []byte
	QoS     byte
	Retain  bool
}

type pubJSON struct {
	Topic         string  `json:"topic"`
	Payload       *string `json:"payload,omitempty"`
	PayloadBase64 []byte  `json:"payload_base64,omitempty"`
	QoS           byte    `json:"qos"`
	Retain        bool    `json:"retain"`
}

// MarshalJSON implements json.Marshaler. The payload goes as base64 always: its
// size is then known beforehand, where escaped text may take six times its length.
func (p PubRequest) MarshalJSON() ([]byte, error) {
	return json.Marshal(pubJSON{Topic: p.Topic, PayloadBase64: p.Payload, QoS: p.QoS, Retain: p.Retain})
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *PubRequest) UnmarshalJSON(b []byte) error {
	var w pubJSON
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	if w.Payload != nil && w.PayloadBase64 != nil {
		return Invalid("payload and payload_base64 exclude each other; send one")
	}
	*p = PubRequest{Topic: w.Topic, Payload: joinPayload(w.Payload, w.PayloadBase64), QoS: w.QoS, Retain: w.Retain}
	return nil
}

// splitPayload chooses the JSON form of a payload: text when it is valid UTF-8.
func splitPayload(b []byte) (*string, []byte) {
	if !utf8.Valid(b) {
		return nil, b
	}
	text := string(b)
	return &text, nil
}

func joinPayload(text *string, raw []byte) []byte {
	if text != nil {
		return []byte(*text)
	}
	return raw
}
