package broker

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sync"
	"time"
)

// Positions that survive a kill, without a write per message.
//
// A connected session that keeps up has no position of its own: it is wherever its loop is. So one vector for the whole
// hub says how far every connected session has got in each partition, and is stored once a second where it has moved.
// What the vector does not say of a session is in its own position record: partitions in which it reads from the log,
// and QoS 1 messages below the vector that it has not acknowledged. At each tick a loop stores the records of sessions
// that had something to do since the last one; then the vector of the tick before is stored. It comes last, and the
// metadata keep their order, so a kill between the writes leaves positions that are too low, never too high: messages
// of QoS 1 may come twice, none is left out. Those of QoS 2 have a record each until the vector has passed them.

const tickEvery = 100 * time.Millisecond

// checkpointTicks is how many ticks make a checkpoint.
const checkpointTicks = 10

// vector is the hub-wide position, owned by the tick.
type vector struct {
	stored []int64

	mu      sync.Mutex
	inbound [3][][]byte // released QoS 2 packet ids, whose records can go after the third checkpoint
}

// collect has the record of a released packet id deleted once it is certain that no recovery needs it.
func (v *vector) collect(key []byte) {
	v.mu.Lock()
	v.inbound[0] = append(v.inbound[0], key)
	v.mu.Unlock()
}

// markActive has a client's positions looked at in the next checkpoint.
func (l *Loop) markActive(c *Client) {
	if a := c.att; !a.active && (c.Persistent() || a.pumping || c.chunk != nil) {
		a.active = true
		l.active = append(l.active, a)
	}
}

// tick drives time: expiry, delayed wills, blocked readers and checkpoints.
func (b *Broker) tick() {
	defer b.wg.Done()
	t := time.NewTicker(tickEvery)
	defer t.Stop()
	for n := 1; ; n++ {
		select {
		case <-b.stop:
			return
		case <-t.C:
		}
		now := b.o.Clock.Tick()
		b.expire(now)
		if n%checkpointTicks == 0 {
			b.checkpointAll(now)
		}
	}
}

// checkpointAll runs one checkpoint: all loops in turn, then the vector.
func (b *Broker) checkpointAll(nowMs int64) {
	vec := b.positions()
	for _, l := range *b.loops.Load() {
		got := make(chan []int64, 1)
		l.Post(func() { got <- l.checkpoint() })
		select {
		case previous := <-got:
			for i := range vec {
				vec[i] = min(vec[i], previous[i])
			}
		case <-b.stop:
			return
		}
	}
	b.storeVector(vec)
	b.o.Meta.Put([]byte(keyTime), binary.BigEndian.AppendUint64(nil, uint64(nowMs)))
	b.collectInbound()
	if err := b.o.Meta.Commit(); err != nil {
		b.log.Error("checkpoint could not be written", "err", err)
	}
}

// positions is what has been posted so far, by partition id.
func (b *Broker) positions() []int64 {
	at := make([]int64, len(b.parts))
	for i, p := range b.parts {
		at[i] = p.posted.Load()
	}
	return at
}

func (b *Broker) storeVector(vec []int64) {
	for i, p := range b.parts {
		if b.vector.stored == nil || vec[i] != b.vector.stored[i] {
			b.o.Meta.Put(vectorKey(p.Name), binary.BigEndian.AppendUint64(nil, uint64(vec[i])))
		}
	}
	b.vector.stored = vec
}

func (b *Broker) collectInbound() {
	v := &b.vector
	v.mu.Lock()
	old := v.inbound[2]
	v.inbound[2], v.inbound[1], v.inbound[0] = v.inbound[1], v.inbound[0], nil
	v.mu.Unlock()
	for _, key := range old {
		b.o.Meta.Delete(key)
	}
}

// checkpoint stores the positions of the loop's active sessions. It returns the vector of the loop's previous
// checkpoint: messages above that are younger than one tick, and need no record yet.
func (l *Loop) checkpoint() []int64 {
	at := l.b.positions()
	l.drainAll()
	for i := range at {
		at[i] = max(at[i], l.handled[i])
	}
	previous := l.lastTick
	l.lastTick = at

	again := l.active[:0]
	for _, a := range l.active {
		if a.active = a.client != nil && l.settleClient(a.client, at, previous); a.active {
			again = append(again, a)
		}
	}
	clear(l.active[len(again):])
	l.active = again
	l.Schedule() // pumps
	return previous
}

// settleClient tidies one active client and reports whether it stays active.
func (l *Loop) settleClient(c *Client, at, previous []int64) bool {
	for i := 0; i < len(c.Cursors); {
		if cur := &c.Cursors[i]; !cur.Behind && at[cur.Part] >= cur.Next {
			c.DropCursor(cur.Part)
			continue
		}
		i++
	}
	if c.chunk != nil && c.chunk.pos == c.chunk.seen && l.b.catchup.contended() {
		// Others wait for memory that this one does not use. Nothing is lost: positions move only on delivery.
		l.b.catchup.free(c.chunk)
		c.chunk = nil
		c.gen++
		c.reading = false
	} else if c.chunk != nil {
		c.chunk.seen = c.chunk.pos
	}
	busy := c.IsBehind() || len(c.retq) > 0 || len(c.resend) > 0
	if busy {
		l.wantPump(c)
	} else if !c.IsBehind() {
		c.skip = nil
	}
	if !c.Persistent() {
		return busy
	}
	l.b.checkpoint(c, previous)
	for _, k := range c.done[2] {
		l.b.o.Meta.Delete(l.b.flightRecordKey(c.ClientID, k))
	}
	c.done[2], c.done[1], c.done[0] = c.done[1], c.done[0], nil
	return busy || c.Flights.Len() > 0 || len(c.Cursors) > 0 || len(c.done[1]) > 0 || len(c.done[2]) > 0
}

// checkpoint stores where a session is. below is the vector that covers a connected session, nil for an offline one.
func (b *Broker) checkpoint(c *Client, below []int64) {
	v := b.encodePositions(c, below)
	switch {
	case v != nil:
		b.o.Meta.Put(positionKey(c.ClientID), v)
		c.positioned = true
	case c.positioned:
		b.o.Meta.Delete(positionKey(c.ClientID))
		c.positioned = false
	}
	if below == nil { // offline: the positions are exact, what was completed lies below them
		b.deleteDone(c)
	}
}

// ClientInfo describes an attached client for operators.
type ClientInfo struct {
	ClientID      string
	Conn          Conn
	Expiry        uint32
	Subscriptions int
	InFlight      int
	Inbox         int64 // records of the log that it has not looked at yet
}

// Clients calls fn for every attached client, each on its loop, and returns when all have been visited.
func (b *Broker) Clients(fn func(ClientInfo)) {
	for _, l := range *b.loops.Load() {
		done := make(chan struct{})
		var list []*Client
		b.subsSnapshot(l, &list)
		l.Post(func() {
			defer close(done)
			for _, c := range list {
				if c.att != nil && c.att.loop == l {
					fn(ClientInfo{c.ClientID, c.conn, c.Expiry, len(c.Subs), c.Flights.Len(), b.inbox(c)})
				}
			}
		})
		select {
		case <-done:
		case <-b.stop:
			return
		}
	}
}

func (b *Broker) inbox(c *Client) (n int64) {
	for i := range c.Cursors {
		if cur := &c.Cursors[i]; cur.Behind {
			n += max(b.parts[cur.Part].Committed()-cur.Next, 0)
		}
	}
	return n
}

// subsSnapshot lists the clients that a loop owns.
func (b *Broker) subsSnapshot(l *Loop, list *[]*Client) {
	for i := range b.reg.shards {
		sh := &b.reg.shards[i]
		sh.mu.Lock()
		for _, c := range sh.clients {
			if c.owner == l {
				*list = append(*list, c)
			}
		}
		sh.mu.Unlock()
	}
	slices.SortFunc(*list, func(a, b *Client) int { return cmp.Compare(a.ClientID, b.ClientID) })
}
