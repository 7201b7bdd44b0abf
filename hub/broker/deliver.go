package broker

import (
	"edgehub/hub/session"
	"edgehub/storage/seglog"
)

// packetOverhead is what a PUBLISH adds to topic and payload at most, without MQTT 5 properties.
const packetOverhead = 16

// setMessage makes the loop's scratch message from the parts of a record that this hub has just written.
func (l *Loop) setMessage(e *topicEntry, timeMs int64, payload, headers []byte, count int) {
	err := l.msg.Decode(seglog.Record{Key: e.raw, Value: payload, TimeMs: timeMs, Headers: seglog.Headers{Count: count, Raw: headers}})
	if err != nil {
		l.b.log.Error("BUG: a record of this hub cannot be decoded", "topic", e.name, "err", err)
	}
}

// deliverAll gives the scratch message to the clients of one row.
func (l *Loop) deliverAll(p *partition, offset int64, row []granted, from *Client) {
	var shared *Shared
	if len(row) > 1 {
		shared = &l.shared
		shared.reset()
	}
	if m := &l.msg; m.ExpiresMs > 0 && m.ExpiresMs <= l.b.o.Clock.NowMs() {
		l.b.Stats.DroppedExpired.Add(int64(len(row)))
		return
	}
	for i := range row {
		l.deliver(p, offset, &row[i], from, shared)
	}
}

// deliver gives the scratch message to one client, or leaves it in the log for later.
//
// Invariant: a record that concerns the session is either sent here, or lies at or above the Next of a cursor that is
// behind. Nothing of it is kept in memory in the second case.
func (l *Loop) deliver(p *partition, offset int64, g *granted, from *Client, shared *Shared) {
	c := g.to.client
	if c == nil { // detached since the match was made; its position covers the record
		return
	}
	m := &l.msg
	grant := &g.Grant
	if from == c {
		if grant = g.For(true); grant == nil {
			l.b.Stats.NoLocal.Add(1)
			return
		}
	}
	if g.rights != c.rights() && !c.mayReceive(m.Topic) {
		return
	}
	if len(c.Cursors) > 0 {
		if cur := c.Cursor(p.ID); cur != nil && (cur.Behind || offset < cur.Next) {
			if cur.Behind {
				l.passes(c, p, offset)
			}
			return
		}
	}
	qos := min(m.QoS, grant.QoS)
	size := len(m.Topic) + len(m.Payload) + packetOverhead
	if c.owed != nil && len(c.owed.retq) > 0 || qos > 0 && c.isFull() || !c.conn.Room(size) {
		l.fallBehind(c, p, offset)
		return
	}
	if qos == 0 {
		l.send(c, Delivery{Msg: m, Retain: m.Retain && grant.RetainAsPublished, SubIDs: grant.SubIDs, Shared: shared})
		return
	}
	l.markActive(c)
	f := c.Flights.Add()
	f.State, f.QoS, f.Part, f.Offset = session.Sent, qos, p.ID, offset
	f.RetainAsPublished, f.SubIDs = grant.RetainAsPublished, grant.SubIDs
	if qos == 2 {
		c.reached(p.ID, offset+1)
	}
	l.noteFlight(c, f)
	l.send(c, Delivery{Msg: m, QoS: qos, ID: f.ID, Retain: m.Retain && grant.RetainAsPublished, SubIDs: grant.SubIDs, Shared: shared})
}

// send queues a message. The delivery is handed over in the loop's scratch, since one for each would be an allocation;
// a group's connection uses it again for its member, when it is done with its own.
func (l *Loop) send(c *Client, d Delivery) {
	l.delivery = d
	if !c.conn.Send(&l.delivery) {
		l.b.Stats.DroppedTooLarge.Add(1)
		if f := c.Flights.Get(d.ID); f != nil { // as if its delivery had been completed [MQTT-3.1.2-25]
			l.endFlight(c, f)
		}
		return
	}
	if c.inboxOf() != nil { // counted where a member gets it
		return
	}
	l.out++
	l.outBytes += int64(len(d.Msg.Topic) + len(d.Msg.Payload))
}

func (l *Loop) fallBehind(c *Client, p *partition, offset int64) {
	c.FallBehind(p.ID, offset)
	l.wantPump(c)
	l.markActive(c) // its position is none of the hub's vector any more
}

// Acked ends the flight of a QoS 1 message (PUBACK), or of a QoS 2 one that the client refused in its PUBREC.
func (l *Loop) Acked(c *Client, id uint16) bool {
	f := c.Flights.Get(id)
	if f == nil {
		return false
	}
	l.endFlight(c, f)
	return true
}

// Received moves a QoS 2 message to Released (PUBREC); the caller sends the PUBREL. False: the id is not in flight.
func (l *Loop) Received(c *Client, id uint16) bool {
	f := c.Flights.Get(id)
	if f == nil || f.QoS != 2 {
		return false
	}
	if f.State != session.Released {
		f.State = session.Released
		l.noteFlight(c, f)
	}
	return true
}

// Completed ends the flight of a QoS 2 message (PUBCOMP).
func (l *Loop) Completed(c *Client, id uint16) bool {
	f := c.Flights.Get(id)
	if f == nil || f.QoS != 2 {
		return false
	}
	l.endFlight(c, f)
	return true
}

// nowSent notes that a message that was to be sent again has been, or need not be any more.
func (c *Client) nowSent(f *session.Flight) {
	if f.Unsent && c.owed != nil { // the mark of a session that is not attached means nothing
		c.owed.unsent--
	}
	f.Unsent = false
}

func (l *Loop) endFlight(c *Client, f *session.Flight) {
	l.markActive(c)
	l.forgetFlight(c, f)
	c.nowSent(f)
	m, _ := f.Share.(*member)
	if m == nil {
		c.Flights.Remove(f.ID)
	} else {
		done := l.b.eventOf(shareDone, m, f)
		c.Flights.Remove(f.ID)
		l.shareTell(done)
	}
	l.unstarve(c)
	if c.hasMore() {
		l.wantPump(c)
	}
}

// passGap handles a stretch of a partition's records that were not posted to this loop, because its mailbox was full:
// from offset on, every client that may want them reads them from the log.
//
// The mark is taken back first, and the committed offset read then: what is committed later was matched after the mark
// was gone, and is posted again. Until a client has read up to there it may not go live.
func (l *Loop) passGap(p *partition, offset int64) {
	l.mail.mu.Lock()
	l.mail.gap[p.ID] = false
	l.mail.mu.Unlock()
	floor := p.Committed()
	for a := range l.subscribers {
		c := a.client
		if c == nil || !touches(c.Subs, p) {
			continue
		}
		cur := c.Cursor(p.ID)
		if cur == nil || !cur.Behind {
			from := offset
			if cur != nil {
				from = max(from, cur.Next)
			}
			c.FallBehind(p.ID, from)
			cur = c.Cursor(p.ID)
		}
		cur.Floor = max(cur.Floor, floor)
		l.markActive(c)
		l.wantPump(c)
	}
	l.b.Stats.MailGaps.Add(1)
}
