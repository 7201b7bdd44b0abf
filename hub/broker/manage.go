package broker

import (
	"context"
	"slices"
	"strings"

	"edgehub/hub/session"
	"edgehub/hub/stream"
)

// CodeAdministrative ends a connection by an operator's hand.
const CodeAdministrative byte = 0x98

// SessionInfo describes a session, connected or not.
type SessionInfo struct {
	ClientID  string
	User      string
	Connected bool
	Expiry    uint32 // seconds after the connection ends; session.NeverExpires: for ever
	ExpiresMs int64  // of an offline session: when it ends
	Subs      []session.Sub
	InFlight  int
	Inbox     int64 // records of the log that it has not looked at yet
	Will      bool
	Queued    QueuedInfo
}

// describe is called by whoever owns the session.
func (b *Broker) describe(c *Client) SessionInfo {
	q := b.offline.queued(c)
	s := SessionInfo{ClientID: c.ClientID, User: userName(c.user), Connected: c.att != nil, Expiry: c.Expiry, ExpiresMs: c.ExpiresMs,
		InFlight: c.Flights.Len(), Inbox: b.inbox(c) + q.Messages, Will: c.will != nil, Queued: q}
	for _, sub := range c.Subs {
		s.Subs = append(s.Subs, session.Sub{Filter: sub.Filter, QoS: sub.QoS, NoLocal: sub.NoLocal,
			RetainAsPublished: sub.RetainAsPublished, RetainHandling: sub.RetainHandling, ID: sub.ID})
	}
	return s
}

// lookUp finds a session and its owner, nil when it is offline; then fn is called with it, under the shard's lock.
func (b *Broker) lookUp(id string, fn func(*Client)) (c *Client, owner *Loop) {
	sh := b.reg.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if c = sh.clients.get(id); c == nil {
		return nil, nil
	}
	if c.owner == nil {
		fn(c)
	}
	return c, c.owner
}

// onOwner runs fn on the loop that has the session, and reports whether it still had it.
func (b *Broker) onOwner(c *Client, l *Loop, fn func()) bool {
	done := make(chan bool, 1)
	l.Post(func() {
		has := l.owns(c) && c.att != nil
		if has {
			fn()
		}
		done <- has
	})
	select {
	case has := <-done:
		return has
	case <-b.stop:
		return false
	}
}

// Session describes one session. False: there is none.
func (b *Broker) Session(id string) (info SessionInfo, ok bool) {
	for range 8 { // it may come and go in between
		c, owner := b.lookUp(id, func(c *Client) { info = b.describe(c) })
		if c == nil {
			return info, false
		}
		if owner == nil || b.onOwner(c, owner, func() { info = b.describe(c) }) {
			return info, true
		}
	}
	return info, false
}

// Sessions describes every session, by client id. One that moves between connections meanwhile may be left out.
func (b *Broker) Sessions() []SessionInfo {
	var list []SessionInfo
	for i := range b.reg.shards {
		sh := &b.reg.shards[i]
		sh.mu.Lock()
		for c := range sh.clients.all() {
			if c.owner == nil {
				list = append(list, b.describe(c))
			}
		}
		sh.mu.Unlock()
	}
	for _, l := range *b.loops.Load() {
		var clients []*Client
		b.subsSnapshot(l, &clients)
		done := make(chan struct{})
		l.Post(func() {
			defer close(done)
			for _, c := range clients {
				if l.owns(c) && c.att != nil {
					list = append(list, b.describe(c))
				}
			}
		})
		select {
		case <-done:
		case <-b.stop:
			return nil
		}
	}
	slices.SortFunc(list, func(a, b SessionInfo) int { return strings.Compare(a.ClientID, b.ClientID) })
	return list
}

// Kick ends the connection of a client, with a reason code. Its session stays. False: it is not connected.
func (b *Broker) Kick(id string, code byte) bool {
	c, owner := b.lookUp(id, func(*Client) {})
	if owner == nil {
		return false
	}
	kicked := b.onOwner(c, owner, func() { c.conn.Close(code) })
	if kicked {
		b.Stats.Kicked.Add(1)
	}
	return kicked
}

// DeleteSession ends a session and its connection, if it has one. False: there is none.
func (b *Broker) DeleteSession(id string) bool {
	found := false
	for range 8 {
		offline := false
		c, owner := b.lookUp(id, func(*Client) { offline = true })
		switch {
		case c == nil:
			return found
		case offline:
			b.timers.cancel(c)
			b.end(c)
			found = true
		case b.onOwner(c, owner, func() {
			c.Expiry = 0 // it ends with its connection now
			c.conn.Close(CodeAdministrative)
		}):
			b.Stats.Kicked.Add(1)
			return true
		}
	}
	return found
}

// end ends an offline session as if its time were over.
func (b *Broker) end(c *Client) {
	sh := b.reg.shard(c.ClientID)
	sh.mu.Lock()
	if c.owner == nil {
		c.ExpiresMs = 1
	}
	sh.mu.Unlock()
	if w, user := b.expireOne(c, b.o.Clock.NowMs()); w != nil {
		b.publishWill(c.ClientID, user, w, nil)
	}
}

// RetainedAt is where the retained message of a topic is.
func (b *Broker) RetainedAt(name string) (part *stream.Partition, offset int64, ok bool) {
	ref, ok := b.retained.get(name)
	if !ok {
		return nil, 0, false
	}
	return ref.part.Partition, ref.offset, true
}

// EachRetained calls fn for the retained messages of topics that the filter matches, until it returns false. fn must
// not call back.
func (b *Broker) EachRetained(filter string, fn func(name string, part *stream.Partition, offset int64) bool) {
	b.retained.mu.RLock()
	defer b.retained.mu.RUnlock()
	b.retained.names.Match(filter, func(name string, r retRef) bool { return fn(name, r.part.Partition, r.offset) })
}

// Responsive reports that every loop handles its mail before ctx ends.
func (b *Broker) Responsive(ctx context.Context) bool {
	for _, l := range *b.loops.Load() {
		done := make(chan struct{})
		l.Post(func() { close(done) })
		select {
		case <-done:
		case <-b.stop:
			return true
		case <-ctx.Done():
			return false
		}
	}
	return true
}
