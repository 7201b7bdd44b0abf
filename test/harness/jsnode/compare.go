package jsnode

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"edgehub/test/harness/hublog"
)

// Comparison is what a remote stream holds against the log it came from.
type Comparison struct {
	Logged     int
	Stored     int
	Missing    int // in the log, not stored
	Duplicated int // stored more than once
	OutOfOrder int // stored after a later record of its partition
	Foreign    int // stored, not in the log
	Different  int // stored with another topic, payload or flag
	Examples   []string
}

// Exact reports whether the remote holds exactly the log, record for record
// and in order.
func (c *Comparison) Exact() bool {
	return c.Missing+c.Duplicated+c.OutOfOrder+c.Foreign+c.Different == 0 && c.Stored == c.Logged
}

// String is one line, with examples of what is wrong below it.
func (c *Comparison) String() string {
	s := fmt.Sprintf("logged %d, stored %d, missing %d, duplicated %d, out of order %d, foreign %d, different %d",
		c.Logged, c.Stored, c.Missing, c.Duplicated, c.OutOfOrder, c.Foreign, c.Different)
	return strings.Join(append([]string{s}, c.Examples...), "\n  ")
}

func (c *Comparison) example(format string, args ...any) {
	if len(c.Examples) < 10 {
		c.Examples = append(c.Examples, fmt.Sprintf(format, args...))
	}
}

// Compare reads the remote stream and holds it against the log of one hub
// stream, whose partitions start at offset 0.
func Compare(ctx context.Context, r *Remote, remoteStream, stream string, log hublog.Collect) (*Comparison, error) {
	c := &Comparison{Logged: log.Len()}
	seen := map[string][]bool{}
	last := map[string]int64{}
	for part, records := range log {
		seen[part], last[part] = make([]bool, len(records)), -1
		for i := range records {
			if records[i].Offset != int64(i) {
				return nil, fmt.Errorf("jsnode: log %s has offset %d at place %d", part, records[i].Offset, i)
			}
		}
	}
	err := r.Read(ctx, remoteStream, func(m *Message) error {
		c.Stored++
		if m.Stream != stream || m.Offset < 0 || m.Offset >= int64(len(log[m.Partition])) {
			c.Foreign++
			c.example("sequence %d is %s/%s offset %d, which the log does not have", m.Seq, m.Stream, m.Partition, m.Offset)
			return nil
		}
		c.one(m, &log[m.Partition][m.Offset], seen[m.Partition], last)
		return nil
	})
	for part, flags := range seen {
		for offset, ok := range flags {
			if !ok {
				c.Missing++
				c.example("%s offset %d is not stored", part, offset)
			}
		}
	}
	return c, err
}

// one judges a stored message whose record is known.
func (c *Comparison) one(m *Message, rec *hublog.Record, seen []bool, last map[string]int64) {
	switch {
	case seen[m.Offset]:
		c.Duplicated++
		c.example("sequence %d stores %s offset %d again", m.Seq, m.Partition, m.Offset)
		return
	case m.Offset < last[m.Partition]:
		c.OutOfOrder++
		c.example("sequence %d is %s offset %d after offset %d", m.Seq, m.Partition, m.Offset, last[m.Partition])
	}
	seen[m.Offset] = true
	last[m.Partition] = max(m.Offset, last[m.Partition])
	if m.Topic != rec.Topic || m.QoS != rec.QoS || m.Retain != rec.Retain || !bytes.Equal(m.Data, rec.Payload) ||
		m.Time.UnixMilli() != rec.TimeMs {
		c.Different++
		c.example("sequence %d: topic %q qos %d retain %t time %d payload %.40q; log: topic %q qos %d retain %t time %d payload %.40q",
			m.Seq, m.Topic, m.QoS, m.Retain, m.Time.UnixMilli(), m.Data, rec.Topic, rec.QoS, rec.Retain, rec.TimeMs, rec.Payload)
	}
	id := m.Instance + "/" + m.Stream + "/" + m.Partition + "/"
	if !strings.HasPrefix(m.MsgID, id) || !strings.HasSuffix(m.MsgID, fmt.Sprintf("/%d", m.Offset)) {
		c.Different++
		c.example("sequence %d has id %q, headers say %s…/%d", m.Seq, m.MsgID, id, m.Offset)
	}
}
