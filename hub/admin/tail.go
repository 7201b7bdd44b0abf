package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"time"

	"edgehub/hub/admin/api"
	"edgehub/hub/topic"
)

// tailChunkBytes is how much of a tail is gathered before it is written whatever
// happens; a quiet tail is written record by record.
const tailChunkBytes = 32 << 10

// getRecords streams records as JSON lines until the request is complete, its
// reader goes, or the hub stops. What can be refused is refused before the first
// line, with a status code; what fails later ends the stream with an error line.
func (s *Server) getRecords(w http.ResponseWriter, r *http.Request) {
	req, err := s.checkTail(r)
	if err != nil {
		writeError(w, err)
		return
	}
	select {
	case s.tails <- struct{}{}:
		defer func() { <-s.tails }()
	default:
		writeError(w, api.Unavailable("%d tails are running already; end one of them", tailsMax))
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go func() {
		select {
		case <-s.stopping:
			cancel()
		case <-ctx.Done():
		}
	}()

	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Time{}) // the server's deadline would end a long tail: the request has been read
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)

	t := newTailWriter(w, rc, s.opts.TailStallMax)
	err = s.backend.Hub.Tail(ctx, req, t.emit)
	select {
	case <-s.stopping:
		err = api.Unavailable("the hub is stopping; run the command again when it is back")
	default:
	}
	t.close(err)
}

// checkTail reads the request and judges it against the stream as it is now.
func (s *Server) checkTail(r *http.Request) (api.TailRequest, error) {
	req, err := api.ParseTail(r.PathValue("name"), r.URL.Query())
	if err != nil {
		return req, err
	}
	if req.Filter != "" {
		if err := topic.ValidateFilter(req.Filter); err != nil {
			return req, api.Invalid("topic filter %.100q: %v", req.Filter, err)
		}
	}
	detail, err := s.backend.Hub.Stream(req.Stream)
	if err != nil || req.Partition == api.AllPartitions {
		return req, err
	}
	last, next := -1, int64(-1)
	for _, p := range detail.Partitions {
		last = max(last, p.Partition)
		if p.Partition == req.Partition {
			next = max(next, p.NextOffset)
		}
	}
	if !slices.ContainsFunc(detail.Partitions, func(p api.PartitionStatus) bool { return p.Partition == req.Partition }) {
		return req, &api.Error{Code: api.CodeNotFound, Message: api.Invalid("stream %q has no partition %d; its partitions are 0 to %d", req.Stream, req.Partition, last).Message}
	}
	if req.From.Kind == api.FromOffset && req.From.Offset > next {
		return req, api.Invalid("offset %d is beyond the end of partition %d of %q, whose next offset is %d; use --from latest", req.From.Offset, req.Partition, req.Stream, next)
	}
	return req, nil
}

// tailWriter gathers lines and writes them when there is a chunk of them or when
// its flusher gets to it, so that a burst costs few writes and a single record no
// delay. A reader that is slow blocks the flusher, then emit: that is the
// back-pressure, and the buffer never holds more than a chunk and one record.
type tailWriter struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	stall time.Duration
	kick  chan struct{} // capacity 1: something waits to be flushed
	done  chan struct{} // closed when the flusher has ended

	mu  sync.Mutex // guards buf, err and writing to w
	buf []byte
	err error // the first failed write; nothing is written after it
}

func newTailWriter(w http.ResponseWriter, rc *http.ResponseController, stall time.Duration) *tailWriter {
	t := &tailWriter{w: w, rc: rc, stall: stall, kick: make(chan struct{}, 1), done: make(chan struct{})}
	t.kick <- struct{}{} // the headers go at once: the reader learns that it is connected
	go func() {
		defer close(t.done)
		for range t.kick {
			t.mu.Lock()
			t.flush()
			t.mu.Unlock()
		}
	}()
	return t
}

// emit is the callback of Hub.Tail.
func (t *tailWriter) emit(rec api.Record) error {
	line, err := rec.MarshalJSON()
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(append(t.buf, line...), '\n')
	if len(t.buf) >= tailChunkBytes {
		t.flush()
		return t.err
	}
	select {
	case t.kick <- struct{}{}:
	default:
	}
	return t.err
}

// flush writes what is gathered; mu is held.
func (t *tailWriter) flush() {
	if t.err != nil {
		return
	}
	_ = t.rc.SetWriteDeadline(time.Now().Add(t.stall))
	if len(t.buf) > 0 {
		_, t.err = t.w.Write(t.buf)
		t.buf = t.buf[:0]
	}
	if err := t.rc.Flush(); t.err == nil {
		t.err = err
	}
}

// close writes the rest and, when the tail has failed, the error line. The flusher
// has ended when it returns.
func (t *tailWriter) close(err error) {
	close(t.kick)
	<-t.done
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := api.AsError(err); e != nil {
		line, _ := json.Marshal(api.ErrorBody{Error: e}) // two strings: cannot fail
		t.buf = append(append(t.buf, line...), '\n')
	}
	t.flush()
}
