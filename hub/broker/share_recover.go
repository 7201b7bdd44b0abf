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
	for _, c := range inboxes {
		if c.group == nil { // no session has it any more
			r.b.wipe(c)
			continue
		}
		r.b.putPositions(c, nil)
	}
}

// share returns the group, with the inbox that was recovered for it if there is one.
func (r *recovery) share(key string, inboxes map[string]*Client) *group {
	if g := r.b.shares.groups[key]; g != nil {
		return g
	}
	g := r.b.newGroup(key)
	if c := inboxes[key]; c != nil {
		g.c, c.group = c, g
		for _, id := range c.Flights.Ordered() { // what a member had is given out again, unless a session claims it
			f := c.Flights.Get(id)
			f.State, f.QoS = session.Sent, 1
		}
	}
	return g
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
		if g == nil { // no session has that subscription any more
			r.b.o.Meta.Delete(r.b.flightRecordKey(c.ClientID, f))
			f.Share = nil
			continue
		}
		m.g, m.to = g, &attachment{}
		inner := g.flight(f.Part, f.Offset)
		if inner == nil {
			inner = g.c.Flights.Add()
			inner.Part, inner.Offset = f.Part, f.Offset
			o := g.c.owe()
			if o.skip == nil {
				o.skip = map[flightKey]bool{}
			}
			o.skip[flightKey{f.Part, f.Offset}] = true
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
