package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// openTimeout bounds a connect with its handshake.
const openTimeout = 20 * time.Second

// Buffers of a connection: their sum over all connections is bounded, each within a range.
const (
	buffersTotal = 64 << 20
	bufferMin    = 4 << 10
	bufferMax    = 64 << 10
)

func bufferBytes(conns int) int { return min(max(buffersTotal/max(conns, 1), bufferMin), bufferMax) }

// conn is a connection with buffered input. One goroutine reads it; writes are its user's affair.
type conn struct {
	net   net.Conn
	codec Codec
	in    []byte // in[r:w] is not yet decoded
	r, w  int
	out   []byte
}

// dial connects and opens a session. The caller closes.
func dial(ctx context.Context, l *Load, o *Open, buffer int) (*conn, Event, error) {
	d := net.Dialer{Timeout: openTimeout}
	n, err := d.DialContext(ctx, "tcp", l.Address)
	if err != nil {
		return nil, Event{}, connectError(l, err)
	}
	c := &conn{net: n, codec: l.codec(), in: make([]byte, buffer)}
	if err := n.SetDeadline(time.Now().Add(openTimeout)); err != nil {
		return nil, Event{}, errors.Join(err, n.Close())
	}
	c.out = c.codec.AppendOpen(c.out, o)
	e, err := c.request(Opened)
	if err == nil {
		err = e.Refused
	}
	if err == nil {
		err = n.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = n.Close() // the first error is what matters
		return nil, e, fmt.Errorf("%s: %w", l.Address, err)
	}
	return c, e, nil
}

// connectError names the cure of what usually stands in the way.
func connectError(l *Load, err error) error {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("nobody listens on %s; start the broker or give its address with --broker", l.Address)
	case errors.Is(err, syscall.EMFILE):
		return errors.New("this process has no descriptor left; raise `ulimit -n` or ask for fewer connections")
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return errors.New("no source port is left; give more --sources, or wait a minute until closed connections are forgotten")
	}
	return fmt.Errorf("connect %s: %w", l.Address, err)
}

// request writes what is in out and waits for an event of that kind.
func (c *conn) request(kind Kind) (Event, error) {
	if err := c.flush(); err != nil {
		return Event{}, err
	}
	var e Event
	for {
		ok, err := c.next(&e)
		switch {
		case err != nil:
			return e, err
		case ok && e.Kind == Closed:
			return e, e.Refused
		case ok && e.Kind == kind:
			return e, nil
		case ok:
			return e, errors.New("the broker sent something else than the answer that was due")
		}
		if err := c.fill(); err != nil {
			return e, readError(err)
		}
	}
}

func (c *conn) subscribe(filter string, qos byte) error {
	if err := c.net.SetDeadline(time.Now().Add(openTimeout)); err != nil {
		return err
	}
	c.out = c.codec.AppendSubscribe(c.out, 1, filter, qos)
	e, err := c.request(Subscribed)
	if err == nil {
		err = e.Refused
	}
	if err == nil {
		err = c.net.SetDeadline(time.Time{})
	}
	return err
}

func readError(err error) error {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return errors.New("the broker closed the connection")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("no answer within %v", openTimeout)
	}
	return err
}

// fill reads once. Afterwards next decodes what has come.
func (c *conn) fill() error {
	if c.r > 0 {
		c.w = copy(c.in, c.in[c.r:c.w])
		c.r = 0
	}
	if c.w == len(c.in) { // one packet larger than the buffer
		c.in = append(c.in, make([]byte, len(c.in))...)
	}
	n, err := c.net.Read(c.in[c.w:])
	c.w += n
	if n > 0 {
		return nil
	}
	return err
}

// next decodes one packet of what was read; false: more must be read.
func (c *conn) next(e *Event) (bool, error) {
	n, err := c.codec.Next(c.in[c.r:c.w], e)
	c.r += n
	return n > 0, err
}

func (c *conn) flush() error {
	if len(c.out) == 0 {
		return nil
	}
	_, err := c.net.Write(c.out)
	c.out = c.out[:0]
	return readError(err)
}

// goodbye ends the session properly, as far as the peer still listens.
func (c *conn) goodbye() {
	_ = c.net.SetDeadline(time.Now().Add(time.Second))
	c.out = c.codec.AppendClose(c.out[:0])
	_ = c.flush()
	_ = c.net.Close()
}

// each calls fn for 0..n-1 from a few goroutines and returns the first error, after which no more are begun.
func each(ctx context.Context, n int, fn func(i int) error) error {
	const workers = 32
	var next atomic.Int64
	var once sync.Once
	var first error
	var wg sync.WaitGroup
	stop := make(chan struct{})
	fail := func(err error) {
		once.Do(func() { first = err; close(stop) })
	}
	for range min(workers, n) {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				select {
				case <-stop:
					return
				case <-ctx.Done():
					fail(ctx.Err())
					return
				default:
				}
				if err := fn(i); err != nil {
					fail(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return first
}
