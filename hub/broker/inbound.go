package broker

import (
	"slices"
	"sync"

	"edgehub/hub/session"
)

// QoS 2 publishes of a client.
//
// The outcome of a publish, committed or refused, goes to the connection that it came on, and from there to the
// session. A connection can be gone by then while the session lives on, even on another loop, and the client repeats
// the publish there. So the outcome takes two more ways. Who fails to write notes the refusal at the session before
// anybody can wait for the batch in vain: a barrier that finds nothing to wait for finds the note. And a session that
// leaves a loop with publishes under way is told of their end wherever it is then: a record whose publisher has gone
// must be known as committed before the positions of the hub pass it, or a kill would have it taken twice.

// Take notes a new QoS 2 publish and returns its number. With the packet id and the client id it identifies the record
// of a persistent session in the log.
func (l *Loop) Take(c *Client, id uint16) uint64 {
	c.lastStored = false
	return c.Inbound.Take(id)
}

// Taken notes that the record of a QoS 2 publish is committed: its PUBREC may leave after the round. It is called at
// once, although the PUBREC may have to wait for publishes before it: positions of the hub go on meanwhile.
func (l *Loop) Taken(c *Client, id uint16) {
	c.Inbound.Commit(id)
	l.markUnsaved(c, unsavedInbound)
}

// Forget takes back a Take whose publish was refused.
func (l *Loop) Forget(c *Client, id uint16) {
	c.excuse(c.Inbound.Seq(id))
	c.Inbound.Release(id)
}

// Release ends an inbound QoS 2 packet id (PUBREL). It is durable before the PUBCOMP leaves: a release that a kill
// took back would make the hub swallow the next message with that id.
func (l *Loop) Release(c *Client, id uint16) bool {
	ok := c.Inbound.Release(id)
	if ok {
		l.markUnsaved(c, unsavedInbound)
	}
	return ok
}

// refusals are the numbers of QoS 2 publishes that were refused and are still in Inbound.
type refusals struct {
	sync.Mutex
	seqs []uint64
}

// refuse notes that a publish could not be written; 0 is none.
func (c *Client) refuse(seq uint64) {
	if seq == 0 {
		return
	}
	r := c.refusals.Load()
	for r == nil {
		c.refusals.CompareAndSwap(nil, &refusals{})
		r = c.refusals.Load()
	}
	r.Lock()
	defer r.Unlock()
	r.seqs = append(r.seqs, seq)
}

// refused reports whether a publish was noted as refused.
func (c *Client) refused(seq uint64) bool {
	r := c.refusals.Load()
	if r == nil {
		return false
	}
	r.Lock()
	defer r.Unlock()
	return slices.Contains(r.seqs, seq)
}

// excuse forgets the note: the session knows.
func (c *Client) excuse(seq uint64) {
	r := c.refusals.Load()
	if r == nil {
		return
	}
	r.Lock()
	defer r.Unlock()
	r.seqs = slices.DeleteFunc(r.seqs, func(s uint64) bool { return s == seq })
}

// settleInbound sees to it that a session that leaves the loop hears of its publishes that are neither committed nor
// refused yet. Each waits for its own partition only: the hub's positions in it may go on as soon as it is committed.
func (l *Loop) settleInbound(c *Client) {
	for id, e := range c.Inbound.All() {
		if !e.Committed {
			l.afterPublish(c, id, e.Seq, func() {
				l.b.withOwner(c, func() { l.b.resolveInbound(c, id, e.Seq) })
			})
		}
	}
}

// placeOf is where the record of a publish may be: in its partition, or anywhere when that is not known.
func (b *Broker) placeOf(c *Client, id uint16) []*partition {
	if part := c.Inbound.Entry(id).Part; part >= 0 {
		return b.parts[part : part+1]
	}
	return b.parts
}

// withOwner runs fn where the session is: on the loop that has it, or here while it is offline.
func (b *Broker) withOwner(c *Client, fn func()) {
	sh := b.reg.shard(c.ClientID)
	sh.mu.Lock()
	owner := c.owner
	if owner == nil {
		fn()
	}
	sh.mu.Unlock()
	if owner != nil {
		owner.Post(func() {
			if owner.owns(c) && c.att != nil {
				fn()
				return
			}
			b.withOwner(c, fn)
		})
	}
}

// resolveInbound takes over the outcome of a publish. By its owner.
func (b *Broker) resolveInbound(c *Client, id uint16, seq uint64) {
	if c.Inbound.Seq(id) != seq {
		return
	}
	if c.refused(seq) {
		c.Inbound.Release(id)
		c.excuse(seq)
	} else {
		c.Inbound.Commit(id)
	}
	if c.Persistent() {
		b.putInbound(c)
	}
}

// startInbound makes the numbers of a new session higher than those of every earlier session of the same client, whose
// records may still be read after a kill. Hub time never goes back, no client publishes 65,536 messages in a
// millisecond, and inboundTop has the last number of sessions that ended in the millisecond in hand.
func (b *Broker) startInbound(in *session.Inbound) {
	in.SkipTo(max(uint64(b.o.Clock.NowMs())<<16, b.inboundTop.Load()))
}

// endInbound notes the numbers of a session that ends.
func (b *Broker) endInbound(in *session.Inbound) {
	for top := b.inboundTop.Load(); in.Last() > top; top = b.inboundTop.Load() {
		if b.inboundTop.CompareAndSwap(top, in.Last()) {
			return
		}
	}
}
