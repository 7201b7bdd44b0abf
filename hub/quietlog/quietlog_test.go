package quietlog

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A message that comes again and again is written a bounded number of times, then counted; others are not concerned.
func TestRepeatsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var out bytes.Buffer
		h := New(slog.NewTextHandler(&locked{mu: &mu, w: &out}, &slog.HandlerOptions{Level: slog.LevelDebug}))
		log := slog.New(h).With("part", "x")
		for i := range 100 {
			log.Warn("again", "client", i)
			log.Debug("detail", "client", i)
			slog.New(h).Warn("again", "client", i) // alike, whatever stands beside it
		}
		log.Info("again")
		log.Warn("other")
		written := func(text string) int {
			mu.Lock()
			defer mu.Unlock()
			return strings.Count(out.String(), text)
		}
		if n := written("level=WARN msg=again"); n != linesMax {
			t.Errorf("%d lines, want %d", n, linesMax)
		}
		if written("msg=detail") != 100 || written("level=INFO msg=again") != 1 || written("msg=other") != 1 {
			t.Error("a line is missing that is not too much")
		}
		time.Sleep(window + time.Second)
		synctest.Wait()
		if left := fmt.Sprintf(`level=WARN msg="more lines like these were left out" like=again lines=%d within=10s`, 200-linesMax); written(left) != 1 || written("left out") != 1 {
			t.Errorf("%s\nwant %s", out.String(), left)
		}
		if n := h.Suppressed(); n != 200-linesMax {
			t.Errorf("%d suppressed", n)
		}
		log.Warn("again") // a new window
		if n := written("level=WARN msg=again"); n != linesMax+1 {
			t.Errorf("%d lines in the end", n)
		}
		time.Sleep(window + time.Second)
		synctest.Wait()
		if len(h.state.seen) != 0 {
			t.Errorf("%d messages are remembered", len(h.state.seen))
		}
	})
}

// What is remembered is bounded, and beyond it nothing is lost.
func TestManyMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New(slog.DiscardHandler)
		log := slog.New(h)
		for i := range messagesMax + 50 {
			log.Warn(fmt.Sprint("message ", i)) //nolint:sloglint // to have many
		}
		if n := len(h.state.seen); n > messagesMax || h.Suppressed() != 0 {
			t.Errorf("%d remembered, %d suppressed", n, h.Suppressed())
		}
	})
}

type locked struct {
	mu *sync.Mutex
	w  *bytes.Buffer
}

func (l *locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}
