package broker

import (
	"slices"

	"edgehub/hub/session"
)

// The home's side of a group; see share.go.

// shareWindow bounds what a group has in flight to all members together: packet ids are 16 bits.
const shareWindow = 60_000

// handoffBytesMax bounds what a round gathers for members on other loops.
const handoffBytesMax = 1 << 20

// apply handles an event on the group's home; l is nil while it has none.
func (g *group) apply(l *Loop, e shareEvent) {
	m := e.member
	switch e.what {
	case shareJoin:
		l.shareJoin(m)
	case shareGone:
		g.remove(l, m)
	case shareRoom:
		m.full = false
		g.wake(l)
	case shareDone:
		m.out, m.full = max(m.out-1, 0), false
		g.done(l, &e)
	case shareBack:
		m.full = m.to.loop != l
		if e.id == 0 { // QoS 0 is not kept
			g.b.Stats.DroppedQoS0.Add(1)
			return
		}
		m.out = max(m.out-1, 0)
		g.takeBack(l, e.id)
	case shareEnd:
		g.end(l)
	case shareGive: // goes the other way
	}
}

// shareJoin enters a connected member; the first one brings the group back from the log.
func (l *Loop) shareJoin(m *member) {
	g := m.g
	g.members = append(g.members, m)
	if g.c.att == nil {
		g.attach(l)
	}
	if sub := g.c.FindSub(g.filter); sub == nil || sub.QoS < min(m.qos, 1) {
		l.subscribe(g.c, &SubRequest{Filter: g.filter, QoS: min(m.qos, 1), RetainHandling: 2})
		l.b.version.Add(1)
		l.settle(g.c)
	}
	g.wake(l)
}

// attach makes the group's inbox live.
func (g *group) attach(l *Loop) {
	c := g.c
	c.conn, c.window = (*shareConn)(g), shareWindow
	c.att = &attachment{client: c, loop: l}
	l.clients++
	l.insertSubs(c)
	l.b.putSession(c, true)
	l.markActive(c)
	l.floor(c)
	c.owe().resend = nil
	for _, id := range c.Flights.Ordered() {
		if c.Flights.Get(id).State == session.Sent {
			c.owed.resend = append(c.owed.resend, id)
		}
	}
}

// remove takes a member out; with the last one the group goes offline.
func (g *group) remove(l *Loop, m *member) {
	i := slices.Index(g.members, m)
	if i < 0 {
		return
	}
	g.members = slices.Delete(g.members, i, i+1)
	if g.next > i {
		g.next--
	}
	if len(g.members) > 0 || g.c.att == nil || !l.detach(g.c) {
		return
	}
	if len(g.members) > 0 { // somebody came while detach emptied the mailbox
		g.attach(l)
		l.markUnsaved(g.c, unsavedPositions) // what the attachment that has ended was marked for
		g.wake(l)
		return
	}
	l.b.putSession(g.c, false)
	l.b.putPositions(g.c, nil)
}

// end forgets the group: its last session has left.
func (g *group) end(l *Loop) {
	sh := &g.b.shares
	sh.mu.Lock()
	g.dead = g.sessions == 0
	if g.dead {
		delete(sh.groups, g.key)
	}
	sh.mu.Unlock()
	if !g.dead { // another has come meanwhile
		return
	}
	if g.c.att != nil {
		l.detach(g.c)
	}
	g.members = nil
	g.b.wipe(g.c)
}

// done ends a message's flight. A QoS 2 message's record at the member goes only after the group's own.
func (g *group) done(l *Loop, e *shareEvent) {
	defer g.wake(l)
	qos2 := g.dead
	if f := g.c.Flights.Get(e.id); f != nil && f.Part == e.part.ID && f.Offset == e.offset {
		qos2 = qos2 || f.State == session.Released && f.QoS == 2
		if cur := g.c.Cursor(f.Part); qos2 && cur != nil && cur.Next <= f.Offset && g.c.skips(f.Part, f.Offset) {
			f.State = session.Finished // the log is still to be read there, perhaps after another kill
		} else {
			g.c.Flights.Remove(e.id)
		}
	}
	if !qos2 {
		if g.c.att == nil { // nothing else writes down that it is done with
			g.b.putPositions(g.c, nil)
		}
		return
	}
	key := g.b.flightRecordKey(e.member.id, &session.Flight{ID: e.packet, Part: e.part.ID, Offset: e.offset, Share: e.member})
	if l != nil && g.c.att != nil {
		l.markUnsaved(g.c, unsavedPositions)
		l.unrecord = append(l.unrecord, key)
		l.Schedule()
		return
	}
	if !g.dead {
		g.b.putPositions(g.c, nil)
	}
	g.b.o.Meta.Delete(key)
}

// takeBack makes a message that a member did not take or acknowledge wait for another.
func (g *group) takeBack(l *Loop, id uint16) {
	f := g.c.Flights.Get(id)
	if f == nil || f.State != session.Released {
		return
	}
	f.State, f.QoS = session.Sent, 1
	if g.c.att != nil {
		o := g.c.owe()
		o.resend = append(o.resend, id)
		g.wake(l)
	}
}

// wake has the group's inbox looked at: a member may have room.
func (g *group) wake(l *Loop) {
	if c := g.c; c.att != nil && c.hasMore() {
		l.wantPump(c)
		l.Schedule()
	}
}

// shareConn is a group as the connection of its inbox.
type shareConn group

// Attached implements Conn.
func (s *shareConn) Attached(*Client, bool) {}

// SendRelease implements Conn: a group's inbox has no QoS 2.
func (s *shareConn) SendRelease(uint16) {}

// Ack implements Conn: a group publishes nothing.
func (s *shareConn) Ack(uint32, byte) {}

// Close implements Conn.
func (s *shareConn) Close(byte) {}

// Flush implements Conn.
func (s *shareConn) Flush() {}

// Room implements Conn: some member can take the message.
func (s *shareConn) Room(n int) bool { return s.pick(n) >= 0 }

// pick returns the index of the member whose turn it is among those with room, or -1.
func (s *shareConn) pick(n int) int {
	l := s.home
	for len(l.handoff) < len(*l.b.loops.Load()) {
		l.handoff = append(l.handoff, mail{})
	}
	for i := range s.members {
		at := (s.next + i) % len(s.members)
		m := s.members[at]
		switch {
		case m.to.loop != l:
			if !m.full && m.out < m.window && len(l.handoff[m.to.loop.ID].buf) < handoffBytesMax {
				return at
			}
		case m.to.client == nil: // gone; its leaving is in the mail
		case l.hasRoom(m.to.client, n, m.qos):
			return at
		default:
			l.starve(m.to.client, m)
		}
	}
	return -1
}

// Send implements Conn.
func (s *shareConn) Send(d *Delivery) bool {
	l, c := s.home, s.c
	at := s.pick(len(d.Msg.Topic) + len(d.Msg.Payload) + packetOverhead)
	if at < 0 {
		(*group)(s).unsent(d.ID)
		return true
	}
	m := s.members[at]
	s.next = (at + 1) % len(s.members)
	var p *partition
	var offset int64
	if f := c.Flights.Get(d.ID); f != nil {
		p, offset = l.b.parts[f.Part], f.Offset
		f.State = session.Released
		if min(d.Msg.QoS, m.qos) == 2 {
			f.QoS = 2
			c.reached(f.Part, offset+1)
			l.markUnsaved(c, unsavedPositions)
		}
	}
	if m.to.loop == l {
		l.give(m, d.ID, p, offset, d.Shared) // d is the member's from here on
		return true
	}
	if d.ID > 0 { // what is in flight comes back as done; QoS 0 does not
		m.out++
	}
	l.handOff(m, d, p, offset)
	return true
}

// unsent keeps a message for which no member had room after all; QoS 0 is dropped.
func (g *group) unsent(id uint16) {
	if g.c.Flights.Get(id) == nil {
		g.b.Stats.DroppedQoS0.Add(1)
		return
	}
	o := g.c.owe()
	o.resend = append(o.resend, id)
}

// handOff gathers a message for a member on another loop. It is posted at the end of the round, after the metadata
// that it rests on.
func (l *Loop) handOff(m *member, d *Delivery, p *partition, offset int64) {
	out := &l.handoff[m.to.loop.ID]
	if min(d.Msg.QoS, m.qos) == 2 { // on the group's positions
		l.handoffRests, l.handoffNew = true, true
	}
	l.headers.Reset()
	d.Msg.AppendHeaders(&l.headers)
	t := len(out.buf)
	out.buf = append(append(append(out.buf, d.Msg.Topic...), d.Msg.Payload...), l.headers.Raw...)
	a := t + len(d.Msg.Topic)
	b := a + len(d.Msg.Payload)
	out.items = append(out.items, mailItem{kind: mailShare, group: m.g, share: shareGive, member: m, id: d.ID, part: p, offset: offset,
		timeMs: d.Msg.TimeMs, t: t, a: a, b: b, c: len(out.buf), headerCount: l.headers.Count})
	l.Schedule()
}

// postHandoffs posts what the round has gathered for members on other loops.
func (l *Loop) postHandoffs() {
	l.handoffRests, l.handoffNew = false, false
	loops := *l.b.loops.Load()
	for i := range l.handoff {
		out := &l.handoff[i]
		if len(out.items) == 0 {
			continue
		}
		to := loops[i]
		to.mail.mu.Lock()
		in := &to.mail.in
		at := len(in.buf)
		in.buf = append(in.buf, out.buf...)
		for _, it := range out.items {
			it.t, it.a, it.b, it.c = it.t+at, it.a+at, it.b+at, it.c+at
			in.items = append(in.items, it)
		}
		to.wakeLocked()
		clear(out.items)
		out.items, out.buf = out.items[:0], out.buf[:0]
	}
}
