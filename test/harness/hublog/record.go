// Package hublog reads a hub's log from outside: from the segment files, with
// a decoder of its own for Kafka record batches v2, and through `hubctl tail`.
// The two ways check each other, and the first is fast enough for millions of
// records.
package hublog

import (
	"bytes"
	"fmt"
)

// Record is one record of a stream.
type Record struct {
	Partition string // "0-0": partition and lane
	Offset    int64
	TimeMs    int64
	Topic     string
	Payload   []byte
	QoS       byte
	Retain    bool
}

// Same returns "" when both records say the same, else what differs.
func (r *Record) Same(o *Record) string {
	switch {
	case r.Partition != o.Partition || r.Offset != o.Offset:
		return fmt.Sprintf("%s/%d and %s/%d", r.Partition, r.Offset, o.Partition, o.Offset)
	case r.Topic != o.Topic:
		return fmt.Sprintf("topics %q and %q", r.Topic, o.Topic)
	case !bytes.Equal(r.Payload, o.Payload):
		return fmt.Sprintf("payloads %.60q and %.60q", r.Payload, o.Payload)
	case r.QoS != o.QoS || r.Retain != o.Retain:
		return fmt.Sprintf("qos %d retain %t and qos %d retain %t", r.QoS, r.Retain, o.QoS, o.Retain)
	case r.TimeMs != o.TimeMs:
		return fmt.Sprintf("times %d and %d", r.TimeMs, o.TimeMs)
	}
	return ""
}

// Collect gathers records by partition, each list in the order of its calls.
// The payloads are copied.
type Collect map[string][]Record

// Add is a callback for the readers.
func (c Collect) Add(r *Record) error {
	kept := *r
	kept.Payload = bytes.Clone(r.Payload)
	c[r.Partition] = append(c[r.Partition], kept)
	return nil
}

// Len is the number of records in all partitions.
func (c Collect) Len() int {
	n := 0
	for _, rs := range c {
		n += len(rs)
	}
	return n
}
