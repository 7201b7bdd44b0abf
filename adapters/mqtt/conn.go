package mqtt

import (
	"math"

	"edgehub/adapters/eventloop"
	"edgehub/adapters/mqtt/packet"
	"edgehub/hub/broker"
)

type phase uint8

const (
	phaseNew       phase = iota // waits for CONNECT
	phaseWaiting                // waits for its session; input is held
	phaseConnected              // CONNACK is queued or sent
	phaseClosing                // closes when what is queued has been written; input is dropped
	phaseClosed
)

// Conn is one connection. Owned by its loop.
//
// Fields are ordered and sized for the many connections that are idle.
type Conn struct {
	t      eventloop.Conn
	l      *loop
	client *broker.Client // nil before CONNACK and after a takeover
	out    []byte         // queued output; nil when there is none
	extra  *extra         // nil until there is any
	rest   *rest          // while output waits for metadata, see rest.go

	seenMs     int64 // hub time of the last packet, to the tick
	dueMs      int64
	prev, next *Conn  // in the wheel
	in, sent   uint64 // messages from and to the client

	acks      ackQueue
	sinceS    uint32 // hub time of the connection, seconds
	buffered  int32  // bytes the socket had not taken, when last looked at
	need      int32  // bytes that the next packet needs to be complete
	pings     int32  // PINGREQs to be answered
	maxPacket uint32
	on        uint16 // the listener, by its index
	keepAlive uint16 // seconds
	slot      int16
	phase     phase
	version   byte
	inWheel   bool
	queuedIn  bool // in the broker's list of connections to flush
	slow      bool // in the loop's behind list
	words     bool // the last thing said is a reason: the socket is closed in two steps
	clean     bool
	problems  bool // the client wants reason strings [MQTT-3.1.2-29]
	expires   bool // MQTT 5: the session outlives the connection
}

// extra is what only some connections need.
type extra struct {
	topics *aliases // topic aliases of the client, nil until it uses one
	rate   *rate    // nil until the client publishes under a limit
	given  *given   // topic aliases towards the client, nil when it takes none

	wordsAt int // where in out the last words begin
}

// more returns the extra of a connection that is about to need some.
func (c *Conn) more() *extra {
	if c.extra == nil {
		c.extra = &extra{}
	}
	return c.extra
}

// keepAliveMs is one and a half times the keep-alive, 0: none.
func (c *Conn) keepAliveMs() int64 { return int64(c.keepAlive) * 1500 }

// consume handles the complete packets in b and returns how many bytes it is done with.
func (c *Conn) consume(b []byte) int {
	used := 0
	for {
		switch c.phase {
		case phaseNew, phaseConnected:
		case phaseClosing, phaseClosed:
			return len(b) // nothing more is of interest
		case phaseWaiting:
			// The session is on its way from another loop. At most one packet of pipelined input is held.
			if len(b)-used > c.l.s.o.MaxPacket {
				c.fail(packet.CodeProtocolError, "too much input before CONNACK")
				return len(b)
			}
			c.need = 0
			return used
		}
		first, body, size, err := packet.Frame(b[used:], c.l.s.o.MaxPacket)
		if err == nil && size > 0 {
			if err = packet.CheckLength(c.version, size, len(body)); err == nil {
				err = c.handle(first, body)
			}
		}
		if err != nil {
			c.reject(err)
			return len(b)
		}
		if size == 0 {
			c.need = int32(needed(b[used:]))
			return used
		}
		used += size
	}
}

// needed is the size of the incomplete packet at the start of b, 0 while that is unknown.
func needed(b []byte) int {
	n, shift := 0, 0
	for i := 1; i < len(b) && i < 5; i++ {
		n |= int(b[i]&0x7f) << shift
		if shift += 7; b[i] < 0x80 {
			return 1 + i + n
		}
	}
	return 0
}

func (c *Conn) handle(first byte, body []byte) error {
	c.l.wire.packetsIn++
	kind := first >> 4
	if c.phase == phaseNew {
		if kind != packet.TypeConnect {
			return errFirstPacket
		}
		return c.onConnect(body)
	}
	switch kind {
	case packet.TypePublish:
		return c.onPublish(first, body)
	case packet.TypePuback, packet.TypePubrec, packet.TypePubrel, packet.TypePubcomp:
		return c.onAck(first, body)
	case packet.TypePingreq:
		if err := packet.DecodePingreq(body); err != nil {
			return err
		}
		c.pings++ // written by Flush, whatever else has to wait
		c.markDirty()
		return nil
	case packet.TypeSubscribe:
		return c.onSubscribe(first, body)
	case packet.TypeUnsubscribe:
		return c.onUnsubscribe(first, body)
	case packet.TypeDisconnect:
		return c.onDisconnect(body)
	case packet.TypeAuth:
		return c.onAuth(body)
	case packet.TypeConnect:
		return errSecondConnect
	}
	return errServerPacket
}

var (
	errFirstPacket   = &packet.Error{Code: packet.CodeProtocolError, Text: "the first packet is not CONNECT [MQTT-3.1.0-1]"}
	errSecondConnect = &packet.Error{Code: packet.CodeProtocolError, Text: "a second CONNECT [MQTT-3.1.0-2]"}
	errServerPacket  = &packet.Error{Code: packet.CodeProtocolError, Text: "a packet that only a server sends"}
	errReceiveMax    = &packet.Error{Code: packet.CodeReceiveMaximumExceeded, Text: "more unacknowledged publishes than the receive maximum allows [MQTT-3.3.4-9]"}
	errBacklog       = &packet.Error{Code: packet.CodeReceiveMaximumExceeded, Text: "more unacknowledged publishes than packet identifiers"}
	errAlias         = &packet.Error{Code: packet.CodeTopicAliasInvalid, Text: "topic alias beyond the maximum [MQTT-3.2.2-17]"}
	errAliasUnset    = &packet.Error{Code: packet.CodeProtocolError, Text: "topic alias that was not set on this connection"}
	errPayload       = &packet.Error{Code: packet.CodePayloadFormatInvalid, Text: "the payload is said to be UTF-8 and is not"}
	errQoS           = &packet.Error{Code: packet.CodeQoSNotSupported, Text: "QoS above limits.qos_max [MQTT-3.2.2-11]"}
	errRetain        = &packet.Error{Code: packet.CodeRetainNotSupported, Text: "RETAIN although limits.retain is false [MQTT-3.2.2-14]"}
	errTopicHub      = &packet.Error{Code: packet.CodeTopicNameInvalid, Text: "$SYS topics are the hub's own"}
	errTopicLevels   = &packet.Error{Code: packet.CodeTopicNameInvalid, Text: "topic has more levels than limits.topic_levels_max allows"}
	errExpiry        = &packet.Error{Code: packet.CodeProtocolError, Text: "session expiry set at DISCONNECT although it was 0 at CONNECT [MQTT-3.14.2-2]"}
	errAuth          = &packet.Error{Code: packet.CodeProtocolError, Text: "AUTH without an authentication method in CONNECT [MQTT-4.12.0-1]"}
)

// reject ends the connection because of what the client sent: with the reason code in MQTT 5, by closing before.
func (c *Conn) reject(err error) {
	c.l.s.Stats.Malformed.Add(1)
	c.l.s.o.Logger.Debug("client refused", "remote", c.t.RemoteAddr(), "err", err)
	code := packet.Code(err)
	if c.phase == phaseNew {
		c.refuse(code, err.Error())
		return
	}
	c.fail(code, err.Error())
}

// fail ends a connection with a DISCONNECT where the version has one for servers.
func (c *Conn) fail(code byte, reason string) {
	if c.phase >= phaseClosing {
		return
	}
	if c.version >= packet.V5 && c.phase == phaseConnected {
		if !c.problems {
			reason = ""
		}
		c.more().wordsAt = len(c.out)
		c.queue(packet.AppendDisconnect(c.buffer(), code, reason))
		c.words = true
	}
	if c.phase == phaseWaiting { // the CONNACK that is prepared promises a session
		c.l.giveBuffer(c)
	}
	c.end(0)
}

// end closes the connection once what is queued has been written.
func (c *Conn) end(byte) {
	if c.phase >= phaseClosing {
		return
	}
	c.phase = phaseClosing
	c.markDirty()
	c.l.b.Schedule()
}

// Close implements broker.Conn.
func (c *Conn) Close(code byte) {
	if code == broker.CodeTakenOver {
		c.client = nil
	}
	c.l.giveBuffer(c)
	c.fail(c.told(code), "")
}

// buffer returns the out buffer to append to.
func (c *Conn) buffer() []byte {
	if c.out == nil {
		c.out = c.l.takeBuffer()
	}
	return c.out
}

// queue takes the out buffer grown by one packet.
func (c *Conn) queue(b []byte) {
	c.l.wire.packetsOut++
	c.grown(b)
}

// grown takes the grown out buffer.
func (c *Conn) grown(b []byte) {
	if c.rest != nil {
		c.rest.cutAt(len(c.out), c.l.b.Begun())
	}
	c.l.queued += len(b) - len(c.out)
	c.out = b
	c.markDirty()
}

func (c *Conn) markDirty() {
	c.l.dirty = true
	if !c.queuedIn {
		c.queuedIn = true
		c.l.b.MarkDirty(c)
	}
}

// Flush implements broker.Conn: one write for everything the round has queued.
func (c *Conn) Flush() {
	c.queuedIn = false
	if c.mustRest() {
		c.hold()
		return
	}
	for ; c.pings > 0 && c.phase == phaseConnected; c.pings-- {
		c.l.wire.packetsOut++
		c.queueQuiet(packet.AppendPingresp(c.buffer()))
	}
	if len(c.out) > 0 && c.phase != phaseClosed {
		// The error needs no handling: OnClose has run by then.
		c.l.wire.bytesOut += int64(len(c.out))
		_, _ = c.t.Write(c.out)
		if c.phase != phaseClosed {
			c.account()
		}
	}
	c.l.giveBuffer(c)
	if c.phase == phaseClosing {
		c.hangUp()
		return
	}
	if int(c.buffered) > c.l.s.o.OutboundPerClient*2+packetSlack && c.phase == phaseConnected {
		// Deliveries stop long before; what grows here are answers to a client that does not read them.
		c.l.s.Stats.SlowClosed.Add(1)
		c.phase = phaseClosing
		_ = c.t.Close()
	}
}

// lingerMs is how long a client may take to close after it was told why the connection ends.
const lingerMs = 1000

// hangUp closes the socket. When the client was told a reason, only the outgoing half is closed at first: input that
// it has sent meanwhile would turn the close into a reset, and the reason would be lost. The session is given back
// at once.
func (c *Conn) hangUp() {
	if !c.words || c.l.s.draining.Load() || !eventloop.CloseWrite(c.t) {
		_ = c.t.Close()
		return
	}
	c.words = false
	c.l.wheel.remove(c)
	c.l.wheel.add(c, c.l.s.o.Clock.Coarse()+lingerMs)
	c.l.b.AtSafePoint(c.disconnect)
}

const packetSlack = 64 << 10

// account refreshes how much the socket has not taken, for this connection and for the hub.
func (c *Conn) account() {
	n := int32(min(c.t.OutboundBuffered(), math.MaxInt32))
	if n == c.buffered {
		return
	}
	c.l.s.buffered.Add(int64(n) - int64(c.buffered))
	c.buffered = n
	if n > 0 && !c.slow {
		c.slow = true
		c.l.behind = append(c.l.behind, c)
		if c.l.s.slow.Add(1) == 1 {
			select {
			case c.l.s.hurry <- struct{}{}:
			default:
			}
		}
	}
}

// Room implements broker.Conn. A connection that has nothing queued always has room for one message, whatever its
// size; beyond that it has a limit of its own, and all connections have one together.
func (c *Conn) Room(n int) bool {
	if c.phase != phaseConnected || c.rest != nil {
		return false
	}
	if c.buffered > 0 {
		c.account()
	}
	have := int(c.buffered) + len(c.out)
	if have == 0 && n < packetSlack {
		return true
	}
	over := c.l.s.buffered.Load() > c.l.s.o.Outbound
	if have == 0 {
		return !over
	}
	return have+n <= c.l.s.o.OutboundPerClient && (!over || c.buffered == 0)
}

// trim gives back what an idle connection does not need.
func (c *Conn) trim() {
	c.acks.trim()
	if c.client != nil {
		c.client.Flights.Trim()
	}
}

// disconnect gives the session back, unless it was taken over or never came.
func (c *Conn) disconnect() {
	if client := c.client; client != nil {
		c.client = nil
		c.l.b.Disconnect(client)
	}
}
