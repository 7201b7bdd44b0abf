package server

import (
	"context"
	"errors"
	"time"

	"edgehub/hub/admin/api"
	"edgehub/hub/broker"
	"edgehub/hub/message"
	"edgehub/hub/stream"
	"edgehub/hub/topic"
	"edgehub/storage/seglog"
)

const (
	tailBytes = 64 << 10
	// tailEvery is how often a following tail looks for more.
	tailEvery = 20 * time.Millisecond
)

// Publish implements admin.Hub.
func (s *Server) Publish(ctx context.Context, req api.PubRequest) (api.PubResult, error) {
	type outcome struct {
		part   *stream.Partition
		offset int64
		code   byte
	}
	got := make(chan outcome, 1)
	m := &message.Message{Topic: []byte(req.Topic), Payload: req.Payload, QoS: req.QoS, Retain: req.Retain, TimeMs: s.clock.NowMs()}
	s.broker.PublishDirect(m, func(part *stream.Partition, offset int64, code byte) { got <- outcome{part, offset, code} })
	select {
	case o := <-got:
		if o.code != broker.CodeOK {
			return api.PubResult{}, refusal(req.Topic, o.code)
		}
		return api.PubResult{Stream: o.part.Stream.Name, Partition: o.part.Index, Offset: o.offset}, nil
	case <-ctx.Done():
		return api.PubResult{}, ctx.Err()
	}
}

func refusal(name string, code byte) error {
	switch code {
	case broker.CodeNotAuthorized:
		return api.Invalid("no stream captures the topic %q: topics that begin with $ need a stream with a filter that names them", name)
	case broker.CodeQuotaExceeded:
		return api.Unavailable("the log cannot take the message: the stream is full, or the disk is; hubctl status says which")
	}
	return api.Unavailable("the message was refused with code %#x; hubctl status says more", code)
}

// cursor reads one partition for a tail.
type cursor struct {
	p     *stream.Partition
	next  int64
	buf   []byte
	queue []seglog.Record // records of buf that were not yielded
}

// Tail implements admin.Hub. The partitions are merged by time.
func (s *Server) Tail(ctx context.Context, req api.TailRequest, emit func(api.Record) error) error {
	x, err := s.find(req.Stream)
	if err != nil {
		return err
	}
	cursors, err := s.tailCursors(x, req)
	if err != nil {
		return err
	}
	ends := make([]int64, len(cursors))
	for i, c := range cursors {
		ends[i] = c.p.Readable()
	}
	for sent := int64(0); ; {
		c, err := earliest(cursors, ends, req.Follow)
		switch {
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case c == nil && !req.Follow:
			return nil
		case c == nil:
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(tailEvery):
			}
			continue
		}
		rec := c.queue[0]
		c.queue = c.queue[1:]
		if req.Filter != "" && !topic.Match(req.Filter, string(rec.Key)) {
			continue
		}
		if err := emit(record(x, c.p, rec)); err != nil {
			return err
		}
		if sent++; req.Limit > 0 && sent >= req.Limit {
			return nil
		}
	}
}

func (s *Server) tailCursors(x *stream.Stream, req api.TailRequest) ([]*cursor, error) {
	if req.From.Kind == api.FromOffset && req.Partition == api.AllPartitions && len(x.Partitions) > 1 {
		return nil, api.Invalid("an offset is one of a partition: add --partition (0 to %d)", len(x.Partitions)-1)
	}
	if req.Partition != api.AllPartitions && (req.Partition < 0 || req.Partition >= len(x.Partitions)) {
		return nil, api.Invalid("stream %s has the partitions 0 to %d", x.Name, len(x.Partitions)-1)
	}
	var list []*cursor
	for i, p := range x.Partitions {
		if req.Partition != api.AllPartitions && req.Partition != i {
			continue
		}
		c := &cursor{p: p}
		switch req.From.Kind {
		case api.FromLatest:
			c.next = p.Committed()
		case api.FromOffset:
			c.next = req.From.Offset
		case api.FromTime:
			at, err := p.Log.SeekTime(int64(req.From.Time))
			if err != nil {
				return nil, err
			}
			c.next = at
		}
		list = append(list, c)
	}
	return list, nil
}

// earliest fills the cursors and returns the one whose next record is the oldest; nil when none has one.
func earliest(cursors []*cursor, ends []int64, follow bool) (*cursor, error) {
	var best *cursor
	for i, c := range cursors {
		if len(c.queue) == 0 {
			end := ends[i]
			if follow {
				end = c.p.Readable()
			}
			if err := c.fill(end); err != nil {
				return nil, err
			}
		}
		if len(c.queue) > 0 && (best == nil || c.queue[0].TimeMs < best.queue[0].TimeMs) {
			best = c
		}
	}
	return best, nil
}

// fill reads on, below end.
func (c *cursor) fill(end int64) error {
	c.next = max(c.next, c.p.Log.First())
	if c.next >= end {
		return nil
	}
	var err error
	c.buf, err = c.p.Log.Read(c.next, tailBytes, c.buf[:0])
	if errors.Is(err, seglog.ErrTrimmed) {
		return nil // retention was faster; the next call goes on behind it
	}
	if err != nil {
		return err
	}
	c.queue = c.queue[:0]
	seen := false
	for rec := range seglog.Records(c.buf) {
		if seen = true; rec.Offset >= end {
			break
		}
		if rec.Offset >= c.next {
			c.queue = append(c.queue, rec)
		}
	}
	if n := len(c.queue); n > 0 {
		c.next = c.queue[n-1].Offset + 1
	} else if !seen {
		c.next = end // damage up to the end
	}
	return nil
}

// record is the record as operators see it.
func record(x *stream.Stream, p *stream.Partition, rec seglog.Record) api.Record {
	r := api.Record{Stream: x.Name, Partition: p.Index, Offset: rec.Offset, Time: api.Millis(rec.TimeMs), Topic: string(rec.Key), Payload: rec.Value}
	var m message.Message
	if err := m.Decode(rec); err == nil {
		r.QoS, r.Retain, r.Properties = m.QoS, m.Retain, m.Properties()
	}
	return r
}
