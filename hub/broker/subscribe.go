package broker

import (
	"edgehub/hub/session"
	"edgehub/hub/topic"
)

// SubRequest is one filter of a subscribe request.
type SubRequest struct {
	Filter            string
	QoS               byte
	NoLocal           bool
	RetainAsPublished bool
	RetainHandling    byte
	ID                uint32
}

// Subscribe adds subscriptions and appends one reason code for each to codes: the granted QoS, or why not. They are
// durable before the answer leaves, since that is flushed after the round has committed the metadata.
func (l *Loop) Subscribe(c *Client, reqs []SubRequest, codes []byte) []byte {
	added := false
	for i := range reqs {
		code, ok := l.b.checkSub(c, &reqs[i])
		if ok && c.Persistent() && l.metaFull() {
			l.b.Stats.RefusedBusy.Add(1)
			code, ok = CodeQuotaExceeded, false
		}
		if ok {
			l.subscribe(c, &reqs[i])
			added = true
		}
		codes = append(codes, code)
	}
	if added {
		l.b.version.Add(1)
		l.settle(c)
		if c.owed.toRead() {
			l.wantPump(c)
		}
	}
	return codes
}

func (b *Broker) checkSub(c *Client, r *SubRequest) (code byte, ok bool) {
	_, filter, shared, err := topic.ParseShared(r.Filter)
	switch {
	case err != nil || topic.ValidateFilter(filter) != nil || topic.Levels([]byte(filter)) > b.o.Limits.TopicLevels:
		return CodeFilterInvalid, false
	case !c.maySubscribe(filter, shared):
		b.Stats.DeniedSubscribe.Add(1)
		return CodeNotAuthorized, false
	case c.FindSub(r.Filter) == nil && len(c.Subs) >= b.o.Limits.SubsPerClient:
		return CodeQuotaExceeded, false
	}
	return r.QoS, true
}

func (l *Loop) subscribe(c *Client, r *SubRequest) {
	s := &session.Sub{Filter: r.Filter, QoS: r.QoS, NoLocal: r.NoLocal, RetainAsPublished: r.RetainAsPublished,
		RetainHandling: r.RetainHandling, ID: r.ID, Shared: c.inboxOf() == nil && isShared(r.Filter)}
	if s.Shared {
		l.subscribeShared(c, s)
		return
	}
	replaced := c.Subscribe(s)
	l.subscribers[c.att] = struct{}{}
	l.b.subs.Lock()
	l.b.subs.tree.Set(s.Filter, c.att, target{c.att, s})
	l.b.subs.Unlock()
	if !replaced && c.inboxOf() == nil {
		l.b.subTotal.Add(1)
	}
	if !replaced { // mail from before the subscription may still send the session to read what is older
		for _, p := range l.b.parts {
			if subConcerns(s, p) {
				s.Starts = append(s.Starts, session.Position{Part: p.ID, Offset: p.Committed()})
			}
		}
	}
	if c.Persistent() {
		l.b.putSub(c, s)
		l.rest(c)
	}
	// Retain handling: 0 always, 1 only for a new subscription, 2 never [MQTT-3.3.1-9 .. -11].
	if r.RetainHandling == 0 || r.RetainHandling == 1 && !replaced {
		l.replay(c, s)
		l.retainedSys(c, s)
	}
}

// subscribeShared: the messages come from the group's inbox; retained ones are not sent [MQTT-4.8.2].
func (l *Loop) subscribeShared(c *Client, s *session.Sub) {
	if old := c.FindSub(s.Filter); old != nil {
		l.leaveShare(c, old, false)
	}
	fresh := !c.Subscribe(s)
	if fresh {
		l.b.subTotal.Add(1)
	}
	l.joinShare(c, s, fresh)
	if c.Persistent() {
		l.b.putSub(c, s)
		l.rest(c)
	}
}

// settle: cursors that are behind may go live only after everything that was matched without the new subscriptions, and
// a read that is under way, which knows nothing of them, may not move the cursors. It runs after the version has risen.
func (l *Loop) settle(c *Client) {
	if c.reading {
		c.gen++
		c.reading = false
		l.wantPump(c)
	}
	for i := range c.Cursors {
		c.Cursors[i].Floor = max(c.Cursors[i].Floor, l.b.parts[c.Cursors[i].Part].Committed())
	}
}

// Unsubscribe removes subscriptions and appends one reason code for each to codes.
func (l *Loop) Unsubscribe(c *Client, filters []string, codes []byte) []byte {
	for _, f := range filters {
		sub := c.FindSub(f)
		if sub == nil {
			codes = append(codes, CodeNoSubscription)
			continue
		}
		c.Unsubscribe(f)
		if sub.Shared {
			l.leaveShare(c, sub, true)
		}
		c.owed.dropReplay(f)
		l.b.subs.Lock()
		l.b.subs.tree.Delete(f, c.att)
		l.b.subs.Unlock()
		if c.inboxOf() == nil {
			l.b.subTotal.Add(-1)
		}
		l.b.version.Add(1)
		if c.stored {
			l.b.o.Meta.Delete(subKey(c.ClientID, f))
			l.rest(c)
		}
		codes = append(codes, CodeOK)
	}
	return codes
}

func (l *Loop) insertSubs(c *Client) {
	if len(c.Subs) == 0 {
		return
	}
	b := l.b
	l.subscribers[c.att] = struct{}{}
	b.subs.Lock()
	for _, s := range c.Subs {
		if !s.Shared {
			b.subs.tree.Set(s.Filter, c.att, target{c.att, s})
		}
	}
	b.subs.Unlock()
	b.version.Add(1)
	for _, s := range c.Subs {
		if s.Shared {
			l.joinShare(c, s, false)
		}
	}
}

func (l *Loop) removeSubs(c *Client) {
	delete(l.subscribers, c.att)
	l.returnShares(c)
	if len(c.Subs) == 0 {
		return
	}
	b := l.b
	b.subs.Lock()
	for _, s := range c.Subs {
		if !s.Shared {
			b.subs.tree.Delete(s.Filter, c.att)
		}
	}
	b.subs.Unlock()
	b.version.Add(1)
	for _, s := range c.Subs {
		if s.Shared {
			l.leaveShare(c, s, false)
		}
	}
}
