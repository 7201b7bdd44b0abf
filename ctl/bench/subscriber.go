package bench

import (
	"context"
	"sync/atomic"
	"time"
)

// subscriber is one receiving connection. Its goroutine owns everything but the atomics, which others read meanwhile.
type subscriber struct {
	run    *run
	id     int
	filter string
	qos    byte
	tally  *tally
	delays *recorder
	c      *conn

	received atomic.Int64 // every PUBLISH
	fresh    atomic.Int64 // those that were the first of their number
	firstNs  atomic.Int64 // when the first one came
	lastNs   atomic.Int64 // when the newest fresh one came
	err      error        // why reading ended early
}

// open connects and, unless the session is resumed, subscribes.
func (s *subscriber) open(ctx context.Context, o *Open, resume bool) error {
	c, e, err := dial(ctx, s.run.load, o, s.run.buffer)
	if err != nil {
		return err
	}
	s.c = c
	if resume {
		if !e.Present {
			s.run.note("the session of a subscriber was gone")
		}
		return nil
	}
	if err := c.subscribe(s.filter, s.qos); err != nil {
		_ = c.net.Close() // the first error is what matters
		return err
	}
	return nil
}

// read takes messages until the connection ends.
func (s *subscriber) read() {
	for {
		err := s.batch(s.run.now()) // at first what came together with the broker's consent
		if err == nil {
			err = s.c.flush()
		}
		if err == nil {
			err = s.c.fill()
		}
		if err != nil {
			if !s.run.ending.Load() {
				s.err = readError(err)
			}
			return
		}
	}
}

// batch handles everything that one read has brought; now is when.
func (s *subscriber) batch(now int64) error {
	from := s.run.measureFrom.Load()
	received, before := int64(0), s.tally.fresh
	var e Event
	s.delays.mu.Lock()
	defer s.delays.mu.Unlock()
	for {
		ok, err := s.c.next(&e)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		switch e.Kind {
		case Received:
			received++
			s.take(&e, now, from)
		case Closed:
			return e.Refused
		default: // Step wants its answer only
		}
		s.c.out = s.c.codec.AppendAnswer(s.c.out, &e)
	}
	s.received.Add(received)
	if n := s.tally.fresh - before; n > 0 {
		s.fresh.Add(n)
		s.lastNs.Store(now)
		if before == 0 {
			s.firstNs.Store(now)
		}
	}
	return nil
}

func (s *subscriber) take(e *Event, now, from int64) {
	st, ok := readStamp(e.Payload)
	if !ok || st.run != s.run.id {
		s.tally.foreign++
		return
	}
	s.tally.take(st.flow, st.seq)
	if st.sentNs >= from {
		s.delays.addLocked(now - st.sentNs)
	}
}

// close ends the connection; its reader returns.
func (s *subscriber) close() {
	if s.c != nil {
		_ = s.c.net.SetDeadline(time.Now()) // wakes the reader; it sees that the run has ended
	}
}
