// Package quietlog keeps the hub's log readable and its disk alive when one thing happens again and again: of each
// message a bounded number of lines is written in a while, and then how many were left out.
package quietlog

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// linesMax lines of one message are written in each window.
	linesMax = 30
	window   = 10 * time.Second
	// messagesMax bounds what is remembered: the texts are constants of the program, so it is never reached.
	messagesMax = 1000
)

// Handler is a slog.Handler that hands on to another one what is not too much. Lines at debug level all pass: who turns
// them on wants them.
type Handler struct {
	next  slog.Handler
	state *state
}

var _ slog.Handler = (*Handler)(nil)

// state is shared by a handler and those derived from it with attributes.
type state struct {
	out  slog.Handler // without anybody's attributes, for what was left out
	left atomic.Int64

	mu   sync.Mutex // guards what follows
	seen map[key]*run
}

// key is what makes lines alike: their attributes, which differ from client to client, do not count.
type key struct {
	level   slog.Level
	message string
}

// run is one window of a message.
type run struct {
	lines int
	left  int64
}

// New wraps a handler.
func New(next slog.Handler) *Handler {
	return &Handler{next: next, state: &state{out: next, seen: map[key]*run{}}}
}

// Suppressed is the number of lines left out since the start.
func (h *Handler) Suppressed() int64 { return h.state.left.Load() }

// Enabled implements slog.Handler.
func (h *Handler) Enabled(ctx context.Context, l slog.Level) bool { return h.next.Enabled(ctx, l) }

// WithAttrs implements slog.Handler.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &Handler{next: h.next.WithAttrs(attrs), state: h.state}
}

// WithGroup implements slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler {
	return &Handler{next: h.next.WithGroup(name), state: h.state}
}

// Handle implements slog.Handler.
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level > slog.LevelDebug && !h.state.take(key{r.Level, r.Message}) {
		return nil
	}
	return h.next.Handle(ctx, r)
}

// take reports whether one more line may be written. The first line of a window begins it; its end says what it has
// left out.
func (s *state) take(k key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.seen[k]
	if w == nil {
		if len(s.seen) >= messagesMax {
			return true
		}
		w = &run{}
		s.seen[k] = w
		time.AfterFunc(window, func() { s.end(k) })
	}
	if w.lines < linesMax {
		w.lines++
		return true
	}
	w.left++
	s.left.Add(1)
	return false
}

// end closes a window.
func (s *state) end(k key) {
	s.mu.Lock()
	w := s.seen[k]
	delete(s.seen, k)
	s.mu.Unlock()
	if w.left == 0 {
		return
	}
	r := slog.NewRecord(time.Now(), k.level, "more lines like these were left out", 0)
	r.AddAttrs(slog.String("like", k.message), slog.Int64("lines", w.left), slog.Duration("within", window))
	_ = s.out.Handle(context.Background(), r) // nobody to tell
}
