package mqtt

import (
	"slices"

	"edgehub/adapters/mqtt/packet"
)

// Output that rests on metadata.
//
// What a client is told of its session, its subscriptions and its packet ids of QoS 2 leaves only when that is durable.
// When the disk is late with it, the connection keeps its output, and what is queued behind in the meantime, since
// packets leave in order. Only answers to pings go on: they have no order, and a client that gets none gives up.
// Deliveries stop after the first: the log has them.

// rest is the state of a connection whose output waits.
type rest struct {
	at    uint64 // the commit it was last seen to wait for
	begun uint64 // out[:cut] was queued before this commit began, and rests on no later one
	cut   int
}

// cutAt notes how much was queued before commit number begun, which may have just begun.
func (r *rest) cutAt(queued int, begun uint64) {
	if r.begun != begun {
		r.begun, r.cut = begun, queued
	}
}

// mustRest reports whether what is queued has to wait. A connection that ends says its last words at once and leaves the
// rest unsaid.
func (c *Conn) mustRest() bool {
	if c.client != nil && c.l.b.Rests(c.client) {
		if c.phase == phaseConnected {
			return true
		}
		if c.phase == phaseClosing {
			c.onlyWords()
		}
	}
	if c.rest != nil {
		c.rest = nil
		if c.client != nil { // there is room again
			c.l.b.Pump(c.client)
		}
	}
	return false
}

func (c *Conn) onlyWords() {
	if !c.words {
		c.l.giveBuffer(c)
		return
	}
	at := c.more().wordsAt
	c.l.queued -= at
	c.out = c.out[:copy(c.out, c.out[at:])]
	c.extra.wordsAt = 0
}

// hold writes what may leave and keeps the rest.
func (c *Conn) hold() {
	b := c.l.b
	if c.rest == nil {
		c.rest = &rest{begun: b.Begun()}
		if b.Covered(c.client) {
			c.rest.cut = len(c.out)
		}
	}
	r := c.rest
	if r.at != b.Begun() { // else it is waiting
		r.at = b.Begun()
		b.Wait(c)
	}
	var now []byte
	if r.cut > 0 && r.begun <= b.Done() {
		now = c.out[:r.cut]
	}
	for now = slices.Clip(now); c.pings > 0; c.pings-- {
		c.l.wire.packetsOut++
		now = packet.AppendPingresp(now)
	}
	if len(now) > 0 {
		c.l.wire.bytesOut += int64(len(now))
		if _, err := c.t.Write(now); err != nil || c.phase != phaseConnected {
			return // OnClose has run
		}
		c.account()
	}
	if r.cut > 0 && r.begun <= b.Done() {
		c.l.queued -= r.cut
		c.out = c.out[:copy(c.out, c.out[r.cut:])]
		r.cut = 0
	}
	if len(c.out)+int(c.buffered) > c.l.s.o.OutboundPerClient*2+packetSlack { // answers to a client that sends on and on
		c.l.s.Stats.SlowClosed.Add(1)
		c.phase = phaseClosing
		_ = c.t.Close()
	}
}
