// Package session is the state of an MQTT client as the hub keeps it, connected or not: subscriptions, where it is in
// each partition, and what is in flight to and from it. It does no I/O and reads no clock.
//
// What a session still has to receive is never copied: it is a position per partition of the log (a Cursor), plus the
// messages in flight. A connected session that keeps up has no cursors at all; it is at the end of every partition.
//
// A Session is owned by one goroutine at a time: the loop of its connection, or, while it is offline, whoever holds
// its registry entry.
package session

import (
	"slices"

	"edgehub/hub/topic"
)

// NeverExpires is the session expiry of a session that is kept for ever.
const NeverExpires = ^uint32(0)

// Sub is one subscription.
type Sub struct {
	Filter            string
	QoS               byte
	NoLocal           bool
	RetainAsPublished bool
	RetainHandling    byte
	ID                uint32 // subscription identifier, 0: none
	// Shared: the filter is $share/GROUP/FILTER, and the messages come from the group's inbox, not from this session's.
	Shared bool
	// Member is the broker's handle on the group while the session is connected.
	Member any
	// Starts holds the offset from which the subscription applies, for partitions where the session may still read
	// records older than the subscription.
	Starts []Position
}

// Position is an offset in a partition.
type Position struct {
	Part   uint32 // stream.Partition.ID
	Offset int64
}

// StartIn is the offset in part from which the subscription applies.
func (s *Sub) StartIn(part uint32) int64 {
	for _, p := range s.Starts {
		if p.Part == part {
			return p.Offset
		}
	}
	return 0
}

// Cursor is where a session is in one partition.
//
// Invariant: every record below Next was delivered, is in flight, or does not concern the session. While Behind, the
// session takes nothing of this partition from the live fan-out; it reads the log. Otherwise live records below Next
// are repetitions and are skipped.
type Cursor struct {
	Part   uint32
	Behind bool
	Next   int64
	// Floor is an offset below which records may have been matched without a subscription that the session has by now:
	// the session may not go live before it has read up to here.
	Floor int64
	// Zero is the offset from which QoS 0 records count: they are read for a session that was slow, never for one that
	// was absent.
	Zero int64
}

// Session is the state of one client.
//
// There are as many as clients, most of them idle: what an idle one does not need is behind a pointer.
type Session struct {
	ClientID string
	Subs     []*Sub
	Cursors  []Cursor
	Flights  Flights
	Inbound  Inbound
	// ExpiresMs is the hub time at which an offline session ends, 0 while connected or kept for ever.
	ExpiresMs int64
	matcher   *Matcher
	Expiry    uint32 // seconds after the connection ends; 0: ends with it
}

// Clear forgets everything but the client id, which is immutable: other goroutines read it.
func (s *Session) Clear() {
	s.Expiry, s.ExpiresMs = 0, 0
	s.Subs, s.Cursors, s.matcher = nil, nil, nil
	s.Flights, s.Inbound = Flights{}, Inbound{}
}

// Persistent reports that the session outlives its connection.
func (s *Session) Persistent() bool { return s.Expiry > 0 }

// FindSub returns the subscription with that filter, or nil.
func (s *Session) FindSub(filter string) *Sub {
	for _, sub := range s.Subs {
		if sub.Filter == filter {
			return sub
		}
	}
	return nil
}

// Subscribe adds or replaces a subscription. A replaced one keeps its start: the flow of messages is not interrupted
// [MQTT-3.8.4-3].
func (s *Session) Subscribe(sub *Sub) (replaced bool) {
	s.matcher = nil
	for i, old := range s.Subs {
		if old.Filter == sub.Filter {
			sub.Starts = old.Starts
			s.Subs[i] = sub
			return true
		}
	}
	s.Subs = append(s.Subs, sub)
	return false
}

// Unsubscribe removes a subscription.
func (s *Session) Unsubscribe(filter string) bool {
	i := slices.IndexFunc(s.Subs, func(sub *Sub) bool { return sub.Filter == filter })
	if i < 0 {
		return false
	}
	s.matcher = nil
	s.Subs = slices.Delete(s.Subs, i, i+1)
	return true
}

// Cursor returns the cursor of a partition, or nil: the session is then live there.
func (s *Session) Cursor(part uint32) *Cursor {
	for i := range s.Cursors {
		if s.Cursors[i].Part == part {
			return &s.Cursors[i]
		}
	}
	return nil
}

// FallBehind makes the session read part from the log, beginning with offset.
func (s *Session) FallBehind(part uint32, offset int64) {
	if c := s.Cursor(part); c != nil {
		c.Next, c.Behind, c.Zero = offset, true, offset
		return
	}
	s.Cursors = append(s.Cursors, Cursor{Part: part, Behind: true, Next: offset, Zero: offset})
}

// DropCursor makes the session live in part, with nothing to skip.
func (s *Session) DropCursor(part uint32) {
	for i := range s.Cursors {
		if s.Cursors[i].Part == part {
			s.Cursors = slices.Delete(s.Cursors, i, i+1)
			if len(s.Cursors) == 0 {
				s.Cursors = nil // an idle session holds no array
			}
			break
		}
	}
	for _, sub := range s.Subs {
		sub.Starts = slices.DeleteFunc(sub.Starts, func(p Position) bool { return p.Part == part })
	}
}

// IsBehind reports whether the session reads any partition from the log.
func (s *Session) IsBehind() bool {
	for i := range s.Cursors {
		if s.Cursors[i].Behind {
			return true
		}
	}
	return false
}

// Matcher decides which records concern a session. It is immutable and may be used by other goroutines.
type Matcher struct {
	tree topic.Tree[int, *Sub]
	subs []*Sub
}

// Matcher returns the matcher for the current subscriptions.
func (s *Session) Matcher() *Matcher {
	if s.matcher == nil {
		m := &Matcher{}
		for i, sub := range s.Subs {
			if sub.Shared {
				continue
			}
			c := *sub
			c.Starts = slices.Clone(sub.Starts)
			m.subs = append(m.subs, &c)
			m.tree.Set(c.Filter, i, &c)
		}
		s.matcher = m
	}
	return s.matcher
}

// InvalidateMatcher is called after the starts of subscriptions have changed.
func (s *Session) InvalidateMatcher() { s.matcher = nil }

// Match appends the subscriptions that match name to dst.
func (m *Matcher) Match(name string, dst []*Sub) []*Sub { return m.tree.Match(name, dst) }

// Grant is what overlapping subscriptions of one client amount to for one message: one delivery, at the highest QoS
// of the subscriptions that match, with all their identifiers [MQTT-3.3.4-2 .. -4].
type Grant struct {
	QoS               byte
	RetainAsPublished bool
	NoLocal           bool // every matching subscription is No Local
	SubIDs            []uint32
	// Own is what the others amount to where only some are No Local: messages of the client itself come by them alone.
	Own *Grant
}

// For is the grant for a message of the client itself, or of another; nil: it gets none [MQTT-3.8.3-3].
func (g *Grant) For(own bool) *Grant {
	switch {
	case own && g.NoLocal:
		return nil
	case own && g.Own != nil:
		return g.Own
	}
	return g
}

// Merge folds subscriptions that match the same message into one grant.
func Merge(subs []*Sub) Grant {
	g := Grant{NoLocal: true}
	quiet := 0
	for _, s := range subs {
		if s.NoLocal {
			quiet++
		}
		g.QoS = max(g.QoS, s.QoS)
		g.RetainAsPublished = g.RetainAsPublished || s.RetainAsPublished
		g.NoLocal = g.NoLocal && s.NoLocal
		if s.ID > 0 {
			g.SubIDs = append(g.SubIDs, s.ID)
		}
	}
	if quiet > 0 && !g.NoLocal {
		own := Merge(slices.DeleteFunc(slices.Clone(subs), func(s *Sub) bool { return s.NoLocal }))
		g.Own = &own
	}
	return g
}
