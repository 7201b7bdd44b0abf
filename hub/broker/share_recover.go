package broker

import (
	"slices"
	"strings"

	"edgehub/hub/session"
)

// shares puts the groups of shared subscriptions together, from the sessions that have them and from their inboxes,
// which were recovered like sessions.
func (r *recovery) shares() {
	inboxes := map[string]*Client{}
	var clients []*Client
	for i := range r.b.reg.shards {
		table := &r.b.reg.shards[i].clients
		for _, c := range slices.Collect(table.all()) {
			if key, ok := strings.CutPrefix(c.ClientID, shareMark); ok {
				inboxes[key] = c
				table.remove(c.ClientID)
			} else {
				clients = append(clients, c)
			}
		}
	}
	for _, c := range clients {
		for _, s := range c.Subs {
			if s.Shared {
				r.share(s.Filter, inboxes).sessions++
			}
		}
	}
	for _, c := range clients {
		r.bindFlights(c)
	}
	for _, e := range r.ended {
		r.endFlight(e)
	}
	for _, c := range inboxes {
		if c.inboxOf() == nil { // no session has it any more
			r.b.wipe(c)
			continue
		}
		r.b.putPositions(c, nil)
	}
	for _, e := range r.ended { // the groups' records know
		r.b.o.Meta.Delete(e.record)
	}
}

// endFlight takes a QoS 2 message out of its group whose member's session has ended.
func (r *recovery) endFlight(e endedFlight) {
	g := r.b.shares.groups[e.share]
	if g == nil {
		return
	}
	f := g.flight(e.key.part, e.key.offset)
	if cur := g.c.Cursor(e.key.part); cur == nil || cur.Next > e.key.offset {
		if f != nil {
			g.c.Flights.Remove(f.ID)
		}
		return
	}
	if f == nil {
		f = g.c.Flights.Add()
		f.Part, f.Offset = e.key.part, e.key.offset
	}
	f.State, f.QoS = session.Finished, 2
	g.c.dontRead(f.Part, f.Offset)
}

// passFinished forgets a message that was done with before the position had come to it.
func (c *Client) passFinished(part uint32, offset int64) {
	g := c.inboxOf()
	if g == nil {
		return
	}
	if f := g.flight(part, offset); f != nil && f.State == session.Finished {
		c.Flights.Remove(f.ID)
	}
}

// skips reports whether the record is not to be delivered once more.
func (c *Client) skips(part uint32, offset int64) bool {
	return c.owed != nil && c.owed.skip[flightKey{part, offset}]
}

// forgetSkips: nothing is read from the log any more.
func (c *Client) forgetSkips() {
	for key := range c.owed.skip {
		c.passFinished(key.part, key.offset)
	}
	c.owed.skip = nil
}

// share returns the group, with the inbox that was recovered for it if there is one.
func (r *recovery) share(key string, inboxes map[string]*Client) *group {
	if g := r.b.shares.groups[key]; g != nil {
		return g
	}
	g := r.b.newGroup(key)
	if c := inboxes[key]; c != nil {
		g.c, c.owe().group = c, g
		for _, id := range c.Flights.Ordered() { // what a member had is given out again, unless a session claims it
			f := c.Flights.Get(id)
			if f.State != session.Finished {
				f.State, f.QoS = session.Sent, 1
			}
			c.dontRead(f.Part, f.Offset)
		}
	}
	return g
}

// dontRead keeps a message that is in flight already from being delivered once more where the position lies before it.
// A second kill finds the message in the group's own record and the position where it was: it holds for those, too.
func (c *Client) dontRead(part uint32, offset int64) {
	o := c.owe()
	if o.skip == nil {
		o.skip = map[flightKey]bool{}
	}
	o.skip[flightKey{part, offset}] = true
}

// bindFlights joins the QoS 2 messages that a session had from groups with the groups' side of them.
func (r *recovery) bindFlights(c *Client) {
	for _, id := range c.Flights.Ordered() {
		f := c.Flights.Get(id)
		m, _ := f.Share.(*member)
		if m == nil {
			continue
		}
		g := r.b.shares.groups[m.key]
		if g == nil { // no session has that subscription any more: the message is the client's own from here on
			old := r.b.flightRecordKey(c.ClientID, f)
			f.Share, f.ShareID, f.Kept = nil, 0, true
			r.b.o.Meta.Put(r.b.flightRecordKey(c.ClientID, f), appendFlight(nil, f))
			r.b.o.Meta.Delete(old)
			continue
		}
		m.g, m.to = g, &attachment{}
		inner := g.flight(f.Part, f.Offset)
		if inner == nil {
			inner = g.c.Flights.Add()
			inner.Part, inner.Offset = f.Part, f.Offset
			g.c.dontRead(f.Part, f.Offset)
		}
		inner.State, inner.QoS = session.Released, 2
		f.ShareID = inner.ID
	}
}

// flight finds the group's flight of a record.
func (g *group) flight(part uint32, offset int64) *session.Flight {
	for _, id := range g.c.Flights.Ordered() {
		if f := g.c.Flights.Get(id); f.Part == part && f.Offset == offset {
			return f
		}
	}
	return nil
}
