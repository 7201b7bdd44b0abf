package broker

import (
	"slices"
	"time"
)

// Pacing: publishers go at the speed of the connected subscribers, within bounds.
//
// Publishers are acknowledged at the speed of the disk. A connected subscriber that takes its messages a little more
// slowly would then fall behind for ever: its delay grows, and at the stream's byte limit it loses what it has not had,
// although everybody does as well as they can. So acknowledgements of a partition are held back while a connected
// client reads on from there and is more than Limits.LagBytes behind in all. A client may have so many publishes
// unacknowledged and no more, so what comes in slows down to what goes out.
//
// That is a help for subscribers that nearly keep up, never a way for a slow one to stop the others:
//   - an acknowledgement is held for Limits.AckHoldMs at most, and only that is delayed: the record is committed;
//   - a client counts as long as it gains ground: a quarter of its lag within ten times AckHoldMs, since a disk or a
//     network that stutters is no slow client. One that does not is not waited for again until it has kept up in between,
//     and for some seconds at least, up to minutes; and then nothing of the partition is held for ten times as long as
//     was waited, so that many slow clients in turn cost a tenth of the time;
//   - one that is farther behind than lagFar times LagBytes was absent: it reads at its own pace.

// lagFar is how many times LagBytes a client may be behind for publishers to wait for it.
const lagFar = 64

// Bounds of the time for which a client that gained no ground is not waited for, in milliseconds.
const (
	paceBanMin = 10_000
	paceBanMax = 600_000
)

// pacePatience is how many times AckHoldMs a client has to gain ground.
const pacePatience = 10

// pace is what a loop knows of a client that was waited for.
type pace struct {
	far      []uint32 // partitions in which publishers wait for it
	lag      int64    // bytes, about, at sinceMs, in all partitions
	sinceMs  int64    // hub time
	untilMs  int64    // not waited for before
	banMs    int64    // the last time's length
	mustLive bool     // not waited for before it has kept up everywhere
}

// heldAcks are acknowledgements of one partition, held at the same time.
type heldAcks struct {
	p       *partition
	sinceMs int64
	acks    []mailAck
}

// holds reports whether acknowledgements of p are to be held now.
func (b *Broker) holds(p *partition) bool {
	return p.far.Load() > 0 && !b.released.Load() && b.o.Clock.NowMs() >= p.noHoldMs.Load()
}

// ReleaseAcks ends the holding back of acknowledgements for good: the hub stops, and what is committed should be
// acknowledged before the connections close.
func (b *Broker) ReleaseAcks() {
	b.released.Store(true)
	b.wakeHolders()
}

// wakeHolders has every loop that holds acknowledgements look at them again.
//
// No wake-up is lost: a loop marks that it holds some before it looks at the partition for the last time in its round,
// and whoever calls this has changed the partition before.
func (b *Broker) wakeHolders() {
	for _, l := range *b.loops.Load() {
		if l.holding.Load() {
			l.Schedule()
		}
	}
}

// hold keeps acknowledgements back until the round in which nobody is waited for any more, or their time is up.
func (l *Loop) hold(p *partition, acks ...mailAck) {
	now := l.b.o.Clock.NowMs()
	l.holding.Store(true)
	l.b.Stats.AcksHeld.Add(int64(len(acks)))
	if n := len(l.held); n > 0 && l.held[n-1].p == p && l.held[n-1].sinceMs == now {
		l.held[n-1].acks = append(l.held[n-1].acks, acks...)
		return
	}
	var room []mailAck
	if n := len(l.heldSpare); n > 0 {
		room, l.heldSpare = l.heldSpare[n-1], l.heldSpare[:n-1]
	}
	l.held = append(l.held, heldAcks{p, now, append(room, acks...)})
	if len(l.held) == 1 {
		l.armHold()
	}
}

func (l *Loop) armHold() {
	after := time.Duration(l.b.o.Limits.AckHoldMs+1) * time.Millisecond
	if l.holdTimer == nil {
		l.holdTimer = time.AfterFunc(after, l.Schedule)
	} else {
		l.holdTimer.Reset(after)
	}
}

// releaseHeld gives the acknowledgements that need not wait any longer. The connection puts them in the order of its
// publishes.
func (l *Loop) releaseHeld() {
	if len(l.held) == 0 {
		return
	}
	now := l.b.o.Clock.NowMs()
	late := false
	kept := l.held[:0]
	for _, h := range l.held {
		over := now-h.sinceMs >= l.b.o.Limits.AckHoldMs
		if !over && l.b.holds(h.p) {
			kept = append(kept, h)
			continue
		}
		late = late || over
		for i := range h.acks {
			h.acks[i].conn.Ack(h.acks[i].seq, CodeOK)
		}
		clear(h.acks)
		if cap(h.acks) <= mailKept && len(l.heldSpare) < sparesMax {
			l.heldSpare = append(l.heldSpare, h.acks[:0])
		}
	}
	clear(l.held[len(kept):])
	l.held = kept
	if late {
		l.b.Stats.AckHoldsOver.Add(1)
		l.b.judgePaced()
		if len(l.held) > 0 {
			l.armHold()
		}
	}
	if len(l.held) == 0 {
		l.holding.Store(false)
	}
}

// judgePaced has every loop look at the clients that are waited for: one that takes nothing at all has no other event.
func (b *Broker) judgePaced() {
	for _, l := range *b.loops.Load() {
		l.Post(func() {
			for c := range l.paced {
				l.repace(c)
			}
		})
	}
}

// lag is how many bytes of p lie between offset and what is committed, about.
func (p *partition) lag(offset int64) int64 { return (p.Committed() - offset) * p.recordBytes.Load() }

// noteSize takes the size of a batch into the estimate. Committer only.
func (p *partition) noteSize(bytes, records int) {
	if records > 0 {
		size := int64(bytes / records)
		if was := p.recordBytes.Load(); was > 0 {
			size = was + (size-was+7)/8
		}
		p.recordBytes.Store(size)
	}
}

// paceEvery is after how many records a client that is behind is looked at, in case nothing else happens to it.
const paceEvery = 16

// passes notes that a record passes a client that is behind.
func (l *Loop) passes(c *Client, p *partition, offset int64) {
	if offset%paceEvery == 0 && (c.owed == nil || c.owed.pace == nil || len(c.owed.pace.far) == 0 && !c.owed.pace.mustLive) {
		l.repace(c)
	}
}

// repace decides anew in which partitions publishers wait for the client.
func (l *Loop) repace(c *Client) {
	if (c.owed == nil || c.owed.pace == nil) && !c.IsBehind() || l.b.o.Limits.AckHoldMs <= 0 {
		return
	}
	if o := c.owe(); o.pace == nil {
		o.pace = &pace{}
	}
	w, now, lag := c.owed.pace, l.b.o.Clock.NowMs(), l.lag(c)
	if lag == 0 {
		w.mustLive = false
	}
	switch near := lag <= l.b.o.Limits.LagBytes || lag > lagFar*l.b.o.Limits.LagBytes; {
	case near:
		l.unpace(c)
		return
	case len(w.far) == 0 && (w.mustLive || now < w.untilMs):
		return
	case len(w.far) == 0 || lag <= w.lag-w.lag/4:
		w.lag, w.sinceMs = lag, now
	case now-w.sinceMs >= pacePatience*l.b.o.Limits.AckHoldMs:
		l.giveUp(c, now)
		return
	}
	// In all partitions in which it is behind: it reads them in turn, so one that goes on at full speed would take the
	// time that it needs for the others.
	for i := range c.Cursors {
		if cur := &c.Cursors[i]; cur.Behind && !slices.Contains(w.far, cur.Part) {
			w.far = append(w.far, cur.Part)
			l.b.parts[cur.Part].far.Add(1)
		}
	}
	l.paced[c] = struct{}{}
}

// lag is how many bytes the client is behind in all partitions, about.
func (l *Loop) lag(c *Client) (bytes int64) {
	for i := range c.Cursors {
		if cur := &c.Cursors[i]; cur.Behind {
			bytes += l.b.parts[cur.Part].lag(cur.Next)
		}
	}
	return bytes
}

// giveUp stops waiting for a client that gains no ground.
func (l *Loop) giveUp(c *Client, now int64) {
	w := c.owed.pace
	w.banMs = min(max(2*w.banMs, paceBanMin), paceBanMax)
	w.untilMs, w.mustLive = now+w.banMs, true
	for _, part := range w.far {
		l.b.parts[part].noHoldMs.Store(now + 10*pacePatience*l.b.o.Limits.AckHoldMs)
	}
	l.b.Stats.PaceGivenUp.Add(1)
	l.unpace(c)
}

// unpace ends the waiting for a client.
func (l *Loop) unpace(c *Client) {
	if c.owed == nil || c.owed.pace == nil || len(c.owed.pace.far) == 0 {
		return
	}
	wake, w := false, c.owed.pace
	for _, part := range w.far {
		wake = l.b.parts[part].far.Add(-1) == 0 || wake
	}
	w.far = w.far[:0]
	delete(l.paced, c)
	if wake {
		l.b.wakeHolders()
	}
}
