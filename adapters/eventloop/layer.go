package eventloop

import (
	"crypto/tls"
	"net"
	"slices"

	"github.com/panjf2000/gnet/v2"
)

// Upper takes what arrives on a connection: the handler, or a layer.
type Upper interface {
	// Need is how many bytes there must be before Data can make progress; 0 when unknown.
	Need() int
	// Data gets everything that was received and not yet consumed, also when nothing new arrived (see Nudge). It may
	// change b, which is valid during the call only. It returns how many bytes it has consumed, and false to close
	// the connection. It must not run on after the connection has closed under it.
	Data(b []byte) (used int, ok bool)
}

// Layer is a protocol between the socket and the handler, such as TLS. It belongs to one connection and its loop.
type Layer interface {
	Upper
	// Attach tells the layer, once and before any data, what is above it.
	Attach(up Upper)
	// Shut ends the layer. With goodbye the connection is still there and the layer may write its last words, at most
	// once; without, it is gone. Nothing is delivered upwards afterwards.
	Shut(goodbye bool)
}

// Wrap makes the layer for a new connection: what is above it writes to the Conn. Both are usually the same object.
type Wrap func(below Conn, l *Loop) (Layer, Conn)

// link is a connection as the engine knows it: the lowest Conn and the topmost Upper. Owned by the loop, but for what
// Close and Nudge use, which never changes. There is one per connection, idle ones included: 48 bytes.
type link struct {
	gc gnet.Conn
	*lane
	state any    // the handler's; gone once the connection is closed
	stack *stack // nil without layers
}

// lane is what all connections of one listener on one loop share.
type lane struct {
	l  *Loop
	on *Listener
}

// stack is the layers of a connection.
type stack struct {
	layers []Layer // from the socket upwards
	bye    bool    // they have said goodbye
}

// gone stands for the state of a connection that is closed, opening for that of one that is not open yet.
type gone struct{}
type opening struct{}

func (k *link) closed() bool { return k.state == any(gone{}) }

// above returns the layers.
func (k *link) above() []Layer {
	if k.stack == nil {
		return nil
	}
	return k.stack.layers
}

// build makes the listener's layers and returns what the handler writes to.
func (k *link) build() Conn {
	var top Conn = k
	if len(k.on.Layers) == 0 {
		return top
	}
	layers := make([]Layer, len(k.on.Layers))
	k.stack = &stack{layers: layers}
	for i, wrap := range k.on.Layers {
		layers[i], top = wrap(top, k.l)
	}
	for i, layer := range layers {
		if i+1 < len(layers) {
			layer.Attach(layers[i+1])
		} else {
			layer.Attach(k)
		}
	}
	return top
}

// base finds the link below the layers.
func base(c Conn) *link {
	for {
		switch x := c.(type) {
		case *link:
			return x
		case interface{ Below() Conn }:
			c = x.Below()
		default:
			return nil
		}
	}
}

// TLSState returns the TLS state of a connection, and false when it has no TLS or has not finished its handshake.
func TLSState(c Conn) (tls.ConnectionState, bool) {
	for {
		switch x := c.(type) {
		case interface {
			TLSState() (tls.ConnectionState, bool)
		}:
			return x.TLSState()
		case interface{ Below() Conn }:
			c = x.Below()
		default:
			return tls.ConnectionState{}, false
		}
	}
}

// Need implements Upper for the handler.
func (k *link) Need() int { return k.l.e.h.Need(k.state) }

// Data implements Upper for the handler.
func (k *link) Data(b []byte) (used int, ok bool) { return k.l.e.h.OnData(k.state, b) }

// Write implements Conn.
func (k *link) Write(b []byte) (int, error) {
	if k.closed() {
		return 0, net.ErrClosed
	}
	return k.gc.Write(b)
}

// OutboundBuffered implements Conn.
func (k *link) OutboundBuffered() int {
	if k.closed() {
		return 0
	}
	return k.gc.OutboundBuffered()
}

// RemoteAddr implements Conn. Peers on a Unix socket have no name: they get the socket's.
func (k *link) RemoteAddr() net.Addr {
	if k.on.unix != nil {
		return k.on.unix.Addr()
	}
	return k.gc.RemoteAddr()
}

// LocalAddr implements Conn: the address that is listened on.
func (k *link) LocalAddr() net.Addr {
	if k.on.unix != nil {
		return k.on.unix.Addr()
	}
	return k.gc.LocalAddr()
}

// Close implements Conn.
func (k *link) Close() error { return k.l.Wake(k.shut) }

// shut closes the connection, on its loop. OnClose runs inside.
func (k *link) shut() {
	if k.closed() {
		return
	}
	k.goodbye()
	if !k.closed() {
		_ = k.l.el.Close(k.gc)
	}
}

func (k *link) goodbye() {
	if k.stack == nil || k.stack.bye {
		return
	}
	k.stack.bye = true
	for _, layer := range slices.Backward(k.stack.layers) {
		if k.closed() { // its words could not be written
			return
		}
		layer.Shut(true)
	}
}

// drop takes note that the socket is gone, and returns the handler's state.
func (k *link) drop() any {
	state := k.state
	k.state = gone{}
	for _, layer := range k.above() {
		layer.Shut(false)
	}
	return state
}

// Carry holds what the layer above has not consumed yet. The zero value holds nothing; idle connections hold nothing.
type Carry struct{ held []byte }

// carryKeep is how much room is kept for what comes next while something is held.
const carryKeep = 4 << 10

// Deliver gives b, behind what is held, to up and holds what it leaves. It returns what up returns.
func (c *Carry) Deliver(up Upper, b []byte) bool {
	if len(b) == 0 && len(c.held) == 0 {
		return true
	}
	if len(c.held) > 0 {
		c.held = append(c.held, b...)
		if len(c.held) < up.Need() {
			return true
		}
		b = c.held
	} else if len(b) < up.Need() {
		c.hold(b)
		return true
	}
	used, ok := up.Data(b)
	switch rest := b[used:]; {
	case !ok || len(rest) == 0:
		c.held = nil
	case len(c.held) == 0:
		c.hold(rest)
	case cap(c.held) > carryKeep && len(rest) < cap(c.held)/4: // a large packet has passed
		c.hold(rest)
	default:
		c.held = c.held[:copy(c.held, rest)]
	}
	return ok
}

func (c *Carry) hold(b []byte) {
	c.held = append(make([]byte, 0, max(len(b), 64)), b...)
}

// Drop forgets what is held.
func (c *Carry) Drop() { c.held = nil }

// Held is the number of bytes that are held.
func (c *Carry) Held() int { return len(c.held) }
