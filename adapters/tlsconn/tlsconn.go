// Package tlsconn is TLS as a layer of an event loop's connections: crypto/tls without a goroutine per connection.
//
// crypto/tls wants a blocking connection. It gets one in memory, whose Read returns a temporary error when there is
// nothing to read: the record layer does not latch those, so that a later Read goes on where it stopped. The handshake
// does latch them; it runs in a goroutine of a bounded Pool, which parks in Read, and the loop takes the connection
// over once it is done. A Write never fails: what it produces is gathered and leaves in one piece.
//
// Beware: that temporary errors are not latched is how the library works, not what it promises. The tests that deliver
// byte by byte hold it in every release of Go.
package tlsconn

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"edgehub/adapters/eventloop"
)

// Stats are counters of one listener's TLS.
type Stats struct {
	Handshakes atomic.Int64 // that succeeded
	Resumed    atomic.Int64 // of those
	Failed     atomic.Int64 // handshakes that did not succeed, whatever the reason
	Broken     atomic.Int64 // connections ended by a bad record after their handshake
}

// Options of a Listener.
type Options struct {
	Config func() *tls.Config // for a new connection; cheap, since called for each
	Pool   *Pool
	Logger *slog.Logger
}

// Listener makes the TLS layer of a listener's connections.
type Listener struct {
	o     Options
	Stats Stats
}

// New returns a Listener; its Wrap is a layer for eventloop.Listener.
func New(o Options) *Listener { return &Listener{o: o} }

// Wrap implements eventloop.Wrap.
func (ln *Listener) Wrap(below eventloop.Conn, l *eventloop.Loop) (eventloop.Layer, eventloop.Conn) {
	c := &Conn{below: below, ln: ln, lp: perLoop(l), hs: &handshake{}}
	c.tc = tls.Server((*transport)(c), ln.o.Config())
	return c, c
}

// wouldBlock is a temporary net.Error.
type wouldBlock struct{}

func (wouldBlock) Error() string   { return "tlsconn: nothing to read" }
func (wouldBlock) Timeout() bool   { return false }
func (wouldBlock) Temporary() bool { return true }

var errWouldBlock error = wouldBlock{}

// ErrNotTLS means that the client speaks something else.
var ErrNotTLS = errors.New("tlsconn: the client does not speak TLS")

// Conn is the TLS layer of one connection. Owned by its loop; during the handshake a goroutine of the pool owns tc, and
// both sides meet in hs.
type Conn struct {
	below eventloop.Conn
	up    eventloop.Upper
	ln    *Listener
	lp    *loopState
	tc    *tls.Conn
	hs    *handshake // nil once the loop owns tc; set and cleared by the loop
	carry eventloop.Carry

	closed bool
	failed bool // its handshake; counted
	deaf   bool // an alert was sent, input is dropped
	warm   bool // in lp.warm
	active bool // since the last sweep
}

// earlyMax bounds what may be written before the handshake is done. Protocols whose clients speak first never do.
const earlyMax = 64 << 10

// Attach implements eventloop.Layer.
func (c *Conn) Attach(up eventloop.Upper) { c.up = up }

// Below returns the connection that the ciphertext goes to.
func (c *Conn) Below() eventloop.Conn { return c.below }

// Need implements eventloop.Upper: records are taken as they come.
func (c *Conn) Need() int { return 0 }

// Data implements eventloop.Upper: ciphertext.
func (c *Conn) Data(b []byte) (used int, ok bool) {
	if c.closed || c.deaf {
		return len(b), !c.closed
	}
	if c.hs == nil {
		return len(b), c.pump(b)
	}
	done, ok := c.shake(b)
	if !ok || !done {
		return len(b), ok
	}
	// The handshake has read less than there was: the client's first packets come with its last message.
	early, rest := c.hs.early, c.hs.rest()
	c.hs = nil
	if len(early) > 0 {
		if _, err := c.Write(early); err != nil {
			return len(b), false
		}
	}
	return len(b), c.pump(rest)
}

// pump decrypts ciphertext and delivers what was in it.
func (c *Conn) pump(in []byte) bool {
	c.lp.in = in
	ok := c.drain()
	c.lp.in = nil
	return ok
}

func (c *Conn) drain() bool {
	for first := true; ; first = false {
		n, err := c.read(c.lp.plain)
		// Key updates and alerts are answered before the handler writes anything.
		if c.flush() != nil {
			return false
		}
		if n > 0 || first {
			if !c.carry.Deliver(c.up, c.lp.plain[:n]) || c.closed {
				return false
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, errWouldBlock):
			c.warmUp()
			return true
		case errors.Is(err, io.EOF): // close_notify
			return false
		default:
			c.ln.Stats.Broken.Add(1)
			c.ln.o.Logger.Debug("TLS connection ended", "remote", c.below.RemoteAddr(), "err", err)
			return c.linger()
		}
	}
}

// read fills p as far as there are whole records. It can return bytes together with an error.
func (c *Conn) read(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var m int
		m, err = c.tc.Read(p[n:])
		n += m
	}
	return n, err
}

// flush sends the ciphertext that has gathered. The buffer is shared by the loop's connections, so nothing may stay in
// it when another connection can have its turn.
func (c *Conn) flush() error {
	if len(c.lp.out) == 0 {
		return nil
	}
	out := c.lp.out
	c.lp.out = c.lp.out[:0]
	if c.closed {
		return net.ErrClosed
	}
	_, err := c.below.Write(out)
	if cap(out) > outKeep {
		c.lp.out = nil
	}
	return err
}

// writeChunk is how much plaintext is encrypted at a time.
const writeChunk = 64 << 10

// Write implements eventloop.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	if c.closed {
		return 0, net.ErrClosed
	}
	if c.hs != nil {
		if len(c.hs.early)+len(p) > earlyMax {
			return 0, c.below.Close()
		}
		c.hs.early = append(c.hs.early, p...)
		return len(p), nil
	}
	for n := 0; n < len(p); {
		part := p[n:min(n+writeChunk, len(p))]
		if _, err := c.tc.Write(part); err != nil {
			// The library gives such a connection up for good: after close_notify, or when keys are used up.
			_ = c.below.Close()
			return n, err
		}
		if err := c.flush(); err != nil {
			return n, err
		}
		n += len(part)
	}
	c.warmUp()
	return len(p), nil
}

// OutboundBuffered implements eventloop.Conn: ciphertext that the socket has not taken, and plaintext that waits for
// the handshake.
func (c *Conn) OutboundBuffered() int {
	n := c.below.OutboundBuffered()
	if c.hs != nil {
		n += len(c.hs.early)
	}
	return n
}

// RemoteAddr implements eventloop.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.below.RemoteAddr() }

// LocalAddr implements eventloop.Conn.
func (c *Conn) LocalAddr() net.Addr { return c.below.LocalAddr() }

// Close implements eventloop.Conn.
func (c *Conn) Close() error { return c.below.Close() }

// TLSState returns the negotiated state, false before the handshake is done.
func (c *Conn) TLSState() (tls.ConnectionState, bool) {
	if c.hs != nil {
		return tls.ConnectionState{}, false
	}
	return c.tc.ConnectionState(), true
}

// Shut implements eventloop.Layer: close_notify as goodbye.
func (c *Conn) Shut(goodbye bool) {
	if goodbye {
		if c.hs == nil {
			_ = c.tc.CloseWrite() // gathers in lp.out, and cannot fail there
			_ = c.flush()
		}
		return
	}
	c.closed = true
	c.carry.Drop()
	if c.hs != nil {
		c.fail(errGone)
		c.hs.abort(errGone)
	}
}

// errGone is how a handshake ends whose connection was closed: by the client, or for taking too long.
var errGone = errors.New("tlsconn: closed before the handshake was done")

// transport is the net.Conn that crypto/tls gets.
type transport Conn

// Read implements net.Conn.
func (t *transport) Read(p []byte) (int, error) {
	if t.hs != nil {
		return t.hs.read(p, t.ln.o.Pool)
	}
	if len(t.lp.in) == 0 {
		return 0, errWouldBlock
	}
	n := copy(p, t.lp.in)
	t.lp.in = t.lp.in[n:]
	return n, nil
}

// Write implements net.Conn. It never fails: the library would give the connection up at a temporary error.
func (t *transport) Write(p []byte) (int, error) {
	if t.hs != nil {
		t.hs.write(p)
		eventloop.Nudge(t.below)
		return len(p), nil
	}
	t.lp.out = append(t.lp.out, p...)
	return len(p), nil
}

// Close implements net.Conn.
func (t *transport) Close() error { return nil }

// LocalAddr implements net.Conn.
func (t *transport) LocalAddr() net.Addr { return nil }

// RemoteAddr implements net.Conn.
func (t *transport) RemoteAddr() net.Addr { return nil }

// SetDeadline implements net.Conn.
func (t *transport) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn.
func (t *transport) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn; close_notify sets one.
func (t *transport) SetWriteDeadline(time.Time) error { return nil }

// loopState is what all TLS connections of a loop share. Owned by the loop.
type loopState struct {
	l     *eventloop.Loop
	in    []byte  // ciphertext of the connection in hand
	plain []byte  // decrypted bytes, valid until the next read
	out   []byte  // ciphertext of the connection in hand
	warm  []*Conn // connections that hold buffers
	armed bool    // a sweep is on its way
}

const (
	plainBytes = 64 << 10
	outKeep    = 256 << 10
)

type loopKey struct{}

func perLoop(l *eventloop.Loop) *loopState {
	return l.Local(loopKey{}, func() any { return &loopState{l: l, plain: make([]byte, plainBytes)} }).(*loopState)
}

// sweepEvery is after how much idleness a connection's buffers are given back. Giving them back after every read
// would be an allocation per read for those that are busy.
const sweepEvery = time.Second

// warmUp notes that a connection may hold buffers.
func (c *Conn) warmUp() {
	c.active = true
	if c.warm || !canTrim {
		return
	}
	c.warm = true
	c.lp.warm = append(c.lp.warm, c)
	c.lp.arm()
}

func (lp *loopState) arm() {
	if lp.armed {
		return
	}
	lp.armed = true
	// When the loop is gone nothing needs to be swept.
	time.AfterFunc(sweepEvery, func() { _ = lp.l.Wake(lp.sweep) })
}

// sweep trims the connections that have been idle since the last one.
func (lp *loopState) sweep() {
	lp.armed = false
	keep := lp.warm[:0]
	for _, c := range lp.warm {
		switch {
		case c.closed:
			c.warm = false
		case c.active:
			c.active = false
			keep = append(keep, c)
		default:
			c.warm = false
			trim(c.tc)
		}
	}
	clear(lp.warm[len(keep):])
	lp.warm = keep
	if len(keep) > 0 {
		lp.arm()
	} else {
		lp.warm = nil
	}
}

// fail counts and tells a handshake that did not succeed.
func (c *Conn) fail(err error) {
	if c.failed {
		return
	}
	c.failed = true
	c.ln.Stats.Failed.Add(1)
	c.ln.o.Logger.Debug("TLS handshake failed", "remote", c.below.RemoteAddr(), "err", err)
}

// linger leaves time for the alert that was sent to be read.
func (c *Conn) linger() bool {
	c.deaf = true
	return eventloop.Linger(c.below)
}
