// Package websocket is WebSocket as a layer of an event loop's connections, RFC 6455 on the server's side. What is
// above it sees a stream of bytes: the payloads of binary frames, whose boundaries mean nothing in MQTT
// [MQTT-6.0.0-2], and what it writes leaves in binary frames.
package websocket

import (
	"errors"
	"log/slog"
	"net"
	"sync/atomic"

	"github.com/gobwas/ws"

	"edgehub/adapters/eventloop"
)

// Stats are counters of one listener's WebSocket.
type Stats struct {
	Upgrades atomic.Int64 // requests that became a WebSocket
	Refused  atomic.Int64 // requests that did not
	Broken   atomic.Int64 // connections ended because a frame was against the rules
}

// Options of a Listener.
type Options struct {
	Protocols []string // sub-protocols, one of which the client must offer [MQTT-6.0.0-3]
	Paths     []string // where there is a WebSocket; any other is not found
	// Origins are the pages that may connect, "https://example.com"; "*" stands for all. A client that is no browser
	// names no origin and is not asked for one. With LocalOrigins, pages served by this machine may as well.
	Origins       []string
	LocalOrigins  bool
	FrameBytesMax int64
	Logger        *slog.Logger
}

// Listener makes the WebSocket layer of a listener's connections.
type Listener struct {
	o     Options
	Stats Stats
}

// New returns a Listener; its Wrap is a layer for eventloop.Listener.
func New(o Options) *Listener { return &Listener{o: o} }

// Wrap implements eventloop.Wrap.
func (ln *Listener) Wrap(below eventloop.Conn, l *eventloop.Loop) (eventloop.Layer, eventloop.Conn) {
	c := &Conn{below: below, ln: ln, lp: perLoop(l)}
	return c, c
}

type phase uint8

const (
	phaseRequest phase = iota // waits for the whole HTTP request
	phaseOpen
	phaseClosing // a close frame was sent; input is dropped
	phaseClosed
)

// Conn is the WebSocket layer of one connection. Owned by its loop.
type Conn struct {
	below eventloop.Conn
	up    eventloop.Upper
	ln    *Listener
	lp    *loopState
	carry eventloop.Carry
	early []byte // written before the upgrade

	left     int64 // payload of the data frame in hand that has not arrived
	maskPos  int
	mask     [4]byte
	phase    phase
	fragment bool // within a fragmented message
	begun    bool // a part of the request is there
}

// earlyMax bounds what may be written before the upgrade. Protocols whose clients speak first never do.
const earlyMax = 64 << 10

// loopState is what all WebSocket connections of a loop share. Owned by the loop.
type loopState struct {
	out []byte // a frame on its way down
}

type loopKey struct{}

func perLoop(l *eventloop.Loop) *loopState {
	return l.Local(loopKey{}, func() any { return &loopState{} }).(*loopState)
}

// Attach implements eventloop.Layer.
func (c *Conn) Attach(up eventloop.Upper) { c.up = up }

// Below returns the connection that the frames go to.
func (c *Conn) Below() eventloop.Conn { return c.below }

// Need implements eventloop.Upper: payload is passed on as it comes.
func (c *Conn) Need() int { return 0 }

// Data implements eventloop.Upper: the request, then frames.
func (c *Conn) Data(b []byte) (used int, ok bool) {
	if c.phase == phaseRequest {
		used, ok = c.upgrade(b)
		if !ok || c.phase == phaseRequest {
			return used, ok
		}
	}
	switch c.phase {
	case phaseOpen:
		n, ok := c.frames(b[used:])
		return used + n, ok
	case phaseClosing:
		return len(b), true
	default:
		return len(b), false
	}
}

// frames takes frames as far as they are there. The payloads are unmasked where they lie and moved together, so that
// the layer above gets them in one piece. Answers are sent at the end: a write can close the connection.
func (c *Conn) frames(b []byte) (used int, ok bool) {
	var (
		payload int  // bytes of payload gathered at the start of b
		pong    ping // answered last: the newest is enough
		bye     *closing
	)
	for bye == nil {
		if c.left > 0 {
			n := copy(b[payload:], b[used:used+int(min(c.left, int64(len(b)-used)))])
			ws.Cipher(b[payload:payload+n], c.mask, c.maskPos)
			c.maskPos, c.left = (c.maskPos+n)%4, c.left-int64(n)
			payload, used = payload+n, used+n
		}
		h, size := parseHeader(b[used:])
		if c.left > 0 || size == 0 {
			break
		}
		if bye = c.check(h); bye != nil {
			break
		}
		if !h.OpCode.IsControl() {
			used += size
			c.fragment, c.left, c.mask, c.maskPos = !h.Fin, h.Length, h.Mask, 0
			continue
		}
		if len(b)-used-size < int(h.Length) {
			break
		}
		body := b[used+size : used+size+int(h.Length)]
		ws.Cipher(body, h.Mask, 0)
		used += size + int(h.Length)
		switch h.OpCode {
		case ws.OpPing:
			pong.set(body)
		case ws.OpClose:
			bye = answerClose(body)
		default: // pong
		}
	}
	// Also without payload: what is held may be wanted now.
	if !c.carry.Deliver(c.up, b[:payload]) || c.phase == phaseClosed {
		return used, false
	}
	if pong.asked && c.below.OutboundBuffered() < pongBacklogMax && c.send(ws.OpPong, pong.body[:pong.n]) != nil {
		return used, false
	}
	if bye != nil {
		return len(b), c.sayClose(bye)
	}
	return used, true
}

// pongBacklogMax: a client that pings and does not read gets no more pongs.
const pongBacklogMax = 64 << 10

// ping is the newest ping of a batch.
type ping struct {
	asked bool
	n     int
	body  [ws.MaxControlFramePayloadSize]byte
}

func (p *ping) set(body []byte) {
	p.asked, p.n = true, copy(p.body[:], body)
}

// closing is why a WebSocket ends.
type closing struct {
	code   ws.StatusCode // 0: a close frame without a body
	reason string
	fault  bool // of the client
}

// check says how a frame ends the connection, or nothing.
func (c *Conn) check(h ws.Header) *closing {
	state := ws.StateServerSide
	if c.fragment {
		state = state.Set(ws.StateFragmented)
	}
	switch err := ws.CheckHeader(h, state); {
	case err != nil:
		return &closing{ws.StatusProtocolError, err.Error(), true}
	case h.Length > c.ln.o.FrameBytesMax:
		return &closing{ws.StatusMessageTooBig, "frame too large", true}
	case h.OpCode == ws.OpText: // [MQTT-6.0.0-1]
		return &closing{ws.StatusUnsupportedData, "MQTT needs binary frames", true}
	}
	return nil
}

// answerClose is the answer to the client's close frame.
func answerClose(body []byte) *closing {
	if len(body) == 0 {
		return &closing{}
	}
	if len(body) == 1 {
		return &closing{ws.StatusProtocolError, "close frame with half a code", true}
	}
	code, reason := ws.ParseCloseFrameDataUnsafe(body)
	switch err := ws.CheckCloseFrameData(code, reason); {
	case errors.Is(err, ws.ErrProtocolInvalidUTF8):
		return &closing{ws.StatusInvalidFramePayloadData, err.Error(), true}
	case err != nil:
		return &closing{ws.StatusProtocolError, err.Error(), true}
	}
	return &closing{code: code}
}

// sayClose sends a close frame, once. It reports whether the connection stays for a moment: a socket that is closed
// while input is unread is reset, and a client that still sends would not see why.
func (c *Conn) sayClose(bye *closing) bool {
	if bye.fault {
		c.ln.Stats.Broken.Add(1)
		c.ln.o.Logger.Debug("WebSocket ended", "remote", c.below.RemoteAddr(), "code", int(bye.code), "reason", bye.reason)
	}
	if c.phase != phaseOpen {
		return false
	}
	c.phase = phaseClosing
	var body []byte
	if bye.code != 0 {
		body = ws.NewCloseFrameBody(bye.code, bye.reason)
	}
	return c.send(ws.OpClose, body) == nil && bye.fault && eventloop.Linger(c.below)
}

// messageBytesMax is how much leaves in one frame: a browser gathers a whole message before anybody sees it.
const messageBytesMax = 64 << 10

// Write implements eventloop.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	switch c.phase {
	case phaseOpen:
	case phaseRequest:
		if len(c.early)+len(p) > earlyMax {
			return 0, c.below.Close()
		}
		c.early = append(c.early, p...)
		return len(p), nil
	case phaseClosing: // the last word was said
		return len(p), nil
	default:
		return 0, net.ErrClosed
	}
	for n := 0; n < len(p); {
		part := p[n:min(n+messageBytesMax, len(p))]
		if err := c.send(ws.OpBinary, part); err != nil {
			return n, err
		}
		n += len(part)
	}
	return len(p), nil
}

// send writes one whole frame.
func (c *Conn) send(op ws.OpCode, payload []byte) error {
	out := appendHeader(c.lp.out[:0], op, len(payload))
	out = append(out, payload...)
	c.lp.out = out[:0]
	_, err := c.below.Write(out)
	return err
}

// OutboundBuffered implements eventloop.Conn.
func (c *Conn) OutboundBuffered() int { return c.below.OutboundBuffered() + len(c.early) }

// RemoteAddr implements eventloop.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.below.RemoteAddr() }

// LocalAddr implements eventloop.Conn.
func (c *Conn) LocalAddr() net.Addr { return c.below.LocalAddr() }

// Close implements eventloop.Conn.
func (c *Conn) Close() error { return c.below.Close() }

// Shut implements eventloop.Layer: a close frame as goodbye, or the answer to a request that did not come whole.
func (c *Conn) Shut(goodbye bool) {
	switch {
	case !goodbye:
		c.phase = phaseClosed
		c.early = nil
		c.carry.Drop()
	case c.phase == phaseOpen:
		c.sayClose(&closing{code: ws.StatusNormalClosure})
	case c.phase == phaseRequest && c.begun:
		c.refuse(statusTimeout)
	}
}
