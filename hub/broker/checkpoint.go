package broker

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sync/atomic"
	"time"

	"edgehub/hub/session"
	"edgehub/hub/stream"
)

// Positions that survive a kill, without a write per message.
//
// A connected session that keeps up has no position of its own: it is wherever its loop is. So one vector for the whole
// hub says how far every connected session has got in each partition, and is stored once a second where it has moved.
// What the vector does not say of a session is in its own position record: partitions in which it reads from the log,
// and QoS 1 messages below the vector that it has not acknowledged. At each tick a loop stores the records of sessions
// that had something to do since the last one; then the vector of the tick before is stored. It comes last, and the
// metadata keep their order, so a kill between the writes leaves positions that are too low, never too high: messages
// of QoS 1 may come twice, none is left out.
//
// A QoS 2 message must not come twice. It has a record while it is in flight, and in the round that sends it the
// session's position record names the position behind it, until the vector has passed that.

const tickEvery = 250 * time.Millisecond

// checkpointTicks is how many ticks make a checkpoint.
const checkpointTicks = 4

// timeEveryMs is how often hub time is stored while no message moves it: an idle hub leaves the disk alone. What hangs on
// it is no more than how long the hub thinks it was away when it comes back with a clock that was set back.
const timeEveryMs = 60_000

// vector is the hub-wide position, as last stored.
type vector struct {
	stored atomic.Pointer[[]int64]
	timeMs int64 // hub time as last stored; of the tick's goroutine
}

// markActive has a client's positions looked at in the next checkpoint.
func (l *Loop) markActive(c *Client) {
	if a := c.att; !a.active && (c.Persistent() || a.pumping || c.owed != nil && (c.owed.chunk != nil || len(c.owed.starved) > 0)) {
		a.active = true
		l.active = append(l.active, a)
	}
}

// tick drives time: expiry, delayed wills, blocked readers and checkpoints.
func (b *Broker) tick() {
	defer b.wg.Done()
	t := time.NewTimer(b.o.Clock.Until(tickEvery))
	defer t.Stop()
	for n := 1; ; n++ {
		select {
		case <-b.stop:
			return
		case <-t.C:
		}
		t.Reset(b.o.Clock.Until(tickEvery))
		if n%checkpointTicks == 0 {
			if ahead := b.o.Clock.Follow(); ahead >= time.Second {
				b.log.Info("hub time went forward: the machine was suspended, or its clock is synchronised now", "by", ahead)
			}
		}
		now := b.o.Clock.Tick()
		b.expire(now)
		if n%checkpointTicks == 0 {
			b.checkpointAll(now)
			b.sayLost()
		}
	}
}

// checkpointAll runs one checkpoint.
func (b *Broker) checkpointAll(nowMs int64) {
	b.checkpointWith(nowMs, func(l *Loop) []int64 {
		got := make(chan []int64, 1)
		l.Post(func() { got <- l.checkpoint() })
		select {
		case previous := <-got:
			return previous
		case <-b.stop:
			return nil
		}
	})
}

// checkpointWith runs one checkpoint: all loops in turn, then the vector. ask has a loop do its part and returns what
// that returned, or nil when the broker stops.
func (b *Broker) checkpointWith(nowMs int64, ask func(l *Loop) []int64) {
	vec := b.positions()
	for _, l := range *b.loops.Load() {
		previous := ask(l)
		if previous == nil {
			return
		}
		for i := range vec {
			vec[i] = min(vec[i], previous[i])
		}
	}
	if b.storeVector(vec) || nowMs-b.vector.timeMs >= timeEveryMs {
		b.o.Meta.Put([]byte(keyTime), b.o.Clock.Mark().Bytes())
		b.vector.timeMs = nowMs
	}
	// Synced here, on the tick's goroutine: the most that a power cut takes from the metadata is one checkpoint.
	op := b.o.Streams.Slow.Begin(stream.SlowSync, "$meta", time.Now())
	err := b.o.Meta.Sync()
	b.o.Streams.Slow.End(op)
	if err != nil {
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

// storeVector stores the vector as far as it has moved, and reports whether it has.
func (b *Broker) storeVector(vec []int64) (moved bool) {
	old := b.vector.stored.Load()
	for i, p := range b.parts {
		if old == nil || vec[i] != (*old)[i] {
			b.o.Meta.Put(vectorKey(p.Name), binary.BigEndian.AppendUint64(nil, uint64(vec[i])))
			moved = true
		}
	}
	b.vector.stored.Store(&vec)
	return moved
}

// checkpoint stores the positions of the loop's active sessions. It returns the vector of the loop's previous
// checkpoint: messages above that are younger than one tick, and need no record yet.
func (l *Loop) checkpoint() []int64 {
	at := l.b.positions()
	l.drainAll()
	// While a commit is late records wait to be saved, and a vector that passes what they are about must not be stored
	// before them. The one stored after this is of the checkpoint before, so it passes nothing that is not saved here.
	l.save()
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
	l.unstarve(c)
	for i := 0; i < len(c.Cursors); {
		if cur := &c.Cursors[i]; !cur.Behind && at[cur.Part] >= cur.Next {
			c.DropCursor(cur.Part)
			continue
		}
		i++
	}
	l.settleOwed(c)
	busy := c.IsBehind() || c.owed.toRead()
	if busy {
		l.wantPump(c)
	} else if c.owed != nil {
		c.forgetSkips()
	}
	if c.Persistent() {
		if v := l.b.vector.stored.Load(); v != nil && c.owed != nil {
			c.owed.exact = slices.DeleteFunc(c.owed.exact, func(at session.Position) bool { return (*v)[at.Part] >= at.Offset })
		}
		l.b.putPositions(c, previous)
		busy = busy || c.Flights.Len() > 0 || len(c.Cursors) > 0 || c.owed != nil && len(c.owed.exact) > 0
	}
	if c.owed != nil && c.owed.isBare() {
		c.owed = nil
	}
	return busy
}

// settleOwed takes a chunk away whose client makes no progress while others wait for the memory. Nothing is lost with
// it: positions move only on delivery.
func (l *Loop) settleOwed(c *Client) {
	if c.owed == nil || c.owed.chunk == nil {
		return
	}
	ch := c.owed.chunk
	if ch.pos != ch.seen || !l.b.catchup.contended() {
		ch.seen = ch.pos
		return
	}
	l.b.catchup.free(ch)
	c.owed.chunk = nil
	c.gen++
	c.reading = false
}

// putPositions stores where a session is. below is the vector that covers a connected session; without it everything
// in flight is named.
func (b *Broker) putPositions(c *Client, below []int64) {
	v := b.encodePositions(c, below)
	switch {
	case v != nil:
		b.o.Meta.Put(positionKey(c.ClientID), v)
		c.positioned = true
	case c.positioned:
		b.o.Meta.Delete(positionKey(c.ClientID))
		c.positioned = false
	}
}

// ClientInfo describes an attached client for operators.
type ClientInfo struct {
	ClientID      string
	Conn          Conn
	Expiry        uint32
	Subscriptions int
	InFlight      int
	Dropped       int64 // QoS 0 messages that were too old when the client had room
	Inbox         int64 // records of the log that it has not looked at yet
	User          string
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
				if l.owns(c) && c.att != nil {
					fn(ClientInfo{c.ClientID, c.conn, c.Expiry, len(c.Subs), c.Flights.Len(), c.droppedSlow(), b.inbox(c), userName(c.user)})
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

// droppedSlow is how many QoS 0 messages were too old when the client had room.
func (c *Client) droppedSlow() int64 {
	if c.owed == nil {
		return 0
	}
	return c.owed.dropped
}

func (b *Broker) inbox(c *Client) (n int64) {
	for i := range c.Cursors {
		if cur := &c.Cursors[i]; cur.Behind {
			p := b.parts[cur.Part]
			n += max(p.Committed()-max(cur.Next, p.Log.First()), 0)
		}
	}
	return n
}

// subsSnapshot lists the clients that a loop owns.
func (b *Broker) subsSnapshot(l *Loop, list *[]*Client) {
	for i := range b.reg.shards {
		sh := &b.reg.shards[i]
		sh.mu.Lock()
		for c := range sh.clients.all() {
			if c.owner == l {
				*list = append(*list, c)
			}
		}
		sh.mu.Unlock()
	}
	slices.SortFunc(*list, func(a, b *Client) int { return cmp.Compare(a.ClientID, b.ClientID) })
}
