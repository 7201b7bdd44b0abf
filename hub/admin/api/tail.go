package api

import (
	"bytes"
	"encoding/json"
	"net/url"
	"strconv"
	"time"
)

// The kinds of From.
const (
	FromEarliest = "earliest"
	FromLatest   = "latest"
	FromOffset   = "offset"
	FromTime     = "time"
)

// From says where reading a stream begins.
type From struct {
	Kind   string
	Offset int64  // with FromOffset: the first offset wanted
	Time   Millis // with FromTime: the first record at or after it
}

// ParseFrom reads the form of `--from`: earliest, latest, an offset, or an RFC
// 3339 time.
func ParseFrom(s string) (From, error) {
	switch s {
	case FromEarliest, FromLatest:
		return From{Kind: s}, nil
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil && n >= 0 {
		return From{Kind: FromOffset, Offset: n}, nil
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return From{Kind: FromTime, Time: Millis(t.UnixMilli())}, nil
	}
	return From{}, Invalid("from %q is neither earliest, latest, an offset (0 or more) nor an RFC 3339 time such as 2026-01-31T08:00:00Z", s)
}

// String is the inverse of ParseFrom.
func (f From) String() string {
	switch f.Kind {
	case FromOffset:
		return strconv.FormatInt(f.Offset, 10)
	case FromTime:
		return f.Time.String()
	default:
		return f.Kind
	}
}

// AllPartitions is TailRequest.Partition for every partition of the stream.
const AllPartitions = -1

// TailRequest asks for records of a stream, in offset order per partition.
type TailRequest struct {
	Stream    string
	From      From
	Partition int    // AllPartitions, or one
	Filter    string // a topic filter; empty: every topic
	Limit     int64  // stop after so many records; 0: no limit
	Follow    bool   // false: stop at what is in the log when the request arrives
}

// Query returns the request without its stream as URL parameters.
func (t TailRequest) Query() url.Values {
	q := url.Values{"from": {t.From.String()}, "follow": {strconv.FormatBool(t.Follow)}}
	if t.Partition != AllPartitions {
		q.Set("partition", strconv.Itoa(t.Partition))
	}
	if t.Filter != "" {
		q.Set("topic", t.Filter)
	}
	if t.Limit > 0 {
		q.Set("n", strconv.FormatInt(t.Limit, 10))
	}
	return q
}

// ParseTail is the inverse of Query. The filter is not judged here.
func ParseTail(stream string, q url.Values) (TailRequest, error) {
	t := TailRequest{Stream: stream, From: From{Kind: FromLatest}, Partition: AllPartitions, Filter: q.Get("topic"), Follow: true}
	var err error
	if s := q.Get("from"); s != "" {
		if t.From, err = ParseFrom(s); err != nil {
			return t, err
		}
	}
	if s := q.Get("partition"); s != "" {
		if t.Partition, err = strconv.Atoi(s); err != nil || t.Partition < 0 {
			return t, Invalid("partition %q is not a number; `hubctl stream show %s` lists the partitions", s, stream)
		}
	}
	if s := q.Get("n"); s != "" {
		if t.Limit, err = strconv.ParseInt(s, 10, 64); err != nil || t.Limit < 1 {
			return t, Invalid("n %q is not a number of records; give 1 or more", s)
		}
	}
	if s := q.Get("follow"); s != "" {
		if t.Follow, err = strconv.ParseBool(s); err != nil {
			return t, Invalid("follow %q is neither true nor false", s)
		}
	}
	if t.From.Kind == FromOffset && t.Partition == AllPartitions {
		return t, Invalid("an offset belongs to one partition; add --partition P")
	}
	return t, nil
}

// StreamLine decodes one line of a tail answer. A tail that fails after its first
// line ends with a line that holds the error instead of a record; it is returned
// as err (an *Error).
func StreamLine(line []byte) (Record, error) {
	var w recordJSON
	if err := json.Unmarshal(line, &w); err != nil {
		return Record{}, &Error{Code: CodeInternal, Message: "the hub sent a line that is not JSON: " + err.Error()}
	}
	if w.Error != nil {
		return Record{}, w.Error
	}
	return w.record(), nil
}

// errorLineStart begins the line that ends a failed tail, and no other.
var errorLineStart = []byte(`{"error":`)

// IsErrorLine reports whether a line of a tail answer is the error that ends it,
// without decoding records.
func IsErrorLine(line []byte) bool { return bytes.HasPrefix(line, errorLineStart) }

// marshalPlain encodes without HTML escapes and without a final newline: `<` in a
// payload stays readable.
func marshalPlain(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}
