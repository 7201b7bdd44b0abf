package command

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	progressAfter = 500 * time.Millisecond // short work shows nothing
	progressEvery = 250 * time.Millisecond
	progressWidth = 24
)

// meter shows on a terminal how far long work has got. Without one it does nothing.
type meter struct {
	what  string
	total int64 // bytes; 0: not known
	moved atomic.Int64
	stop  chan struct{}
	done  chan struct{}
}

// progress begins to show what is done, once it has taken a moment. total is about how many bytes it is.
func (a *app) progress(what string, total int64) *meter {
	m := &meter{what: what, total: total, stop: make(chan struct{}), done: make(chan struct{})}
	f, ok := a.Stderr.(*os.File)
	if ok {
		_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
		ok = err == nil
	}
	if !ok {
		close(m.done)
		return m
	}
	go m.show(f)
	return m
}

// end clears the line.
func (m *meter) end() {
	close(m.stop)
	<-m.done
}

func (m *meter) show(w io.Writer) {
	defer close(m.done)
	start := time.Now()
	t := time.NewTimer(progressAfter)
	defer t.Stop()
	shown := false
	for {
		select {
		case <-m.stop:
			if shown {
				_, _ = fmt.Fprint(w, "\r\x1b[K") // nobody to tell
			}
			return
		case <-t.C:
			_, _ = fmt.Fprint(w, "\r\x1b[K"+m.line(time.Since(start)))
			shown = true
			t.Reset(progressEvery)
		}
	}
}

// line is the state as one line: a bar where the end is known, else what was moved, else the time.
func (m *meter) line(took time.Duration) string {
	n := m.moved.Load()
	perS := int64(float64(n) / max(took.Seconds(), 0.001))
	switch {
	case n == 0 && m.total > 0:
		return fmt.Sprintf("%s, %s: %s", m.what, size(m.total), span(int64(took.Seconds())))
	case n == 0:
		return fmt.Sprintf("%s: %s", m.what, span(int64(took.Seconds())))
	case m.total <= 0:
		return fmt.Sprintf("%s: %s, %s/s", m.what, size(n), size(perS))
	}
	part := min(float64(n)/float64(m.total), 1)
	full := int(part * progressWidth)
	left := int64(0)
	if perS > 0 {
		left = max(m.total-n, 0) / perS
	}
	return fmt.Sprintf("%s [%s%s] %d%% of %s, %s/s, %s left", m.what, strings.Repeat("#", full), strings.Repeat(".", progressWidth-full),
		int(part*100), size(m.total), size(perS), span(left))
}

// writer counts what is written to w.
func (m *meter) writer(w io.Writer) io.Writer { return &counted{m: m, w: w} }

// reader counts what is read from r.
func (m *meter) reader(r io.Reader) io.Reader { return &counted{m: m, r: r} }

type counted struct {
	m *meter
	w io.Writer
	r io.Reader
}

// Write implements io.Writer.
func (c *counted) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.m.moved.Add(int64(n))
	return n, err
}

// Read implements io.Reader.
func (c *counted) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.m.moved.Add(int64(n))
	return n, err
}
