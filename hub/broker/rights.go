package broker

import (
	"unsafe"

	"edgehub/hub/auth"
	"edgehub/hub/topic"
)

// Rights of connected clients.
//
// They are made out when a client attaches and again when the rules change; each time on its loop. A cached match holds
// the rights that it was made with. Where those are still the client's there is nothing to ask at delivery, and without
// an access list both are nil: the hot path compares two pointers. What is read from the log, sent again or retained is
// asked for one by one.

// access is what a client may do.
type access struct {
	rights  *auth.Rights
	okTopic string // the last topic that it was allowed to publish to
}

// rights of the client; nil: everything.
func (c *Client) rights() *auth.Rights {
	if c.access == nil {
		return nil
	}
	return c.access.rights
}

// makeRights makes out what a client may do now. On its loop, or before it has one.
func (l *Loop) makeRights(c *Client) {
	if l.b.o.Rights == nil {
		return
	}
	rights := l.b.o.Rights(userName(c.user), c.ClientID)
	c.att.rights.Store(rights)
	if c.access = nil; rights == nil {
		return
	}
	c.access = &access{rights: rights}
	for i := 0; i < len(c.Subs); {
		s := c.Subs[i]
		if _, filter, _, _ := topic.ParseShared(s.Filter); s.Shared && !rights.MayReceiveAll(filter) {
			// The group hands a message to one member and not by topic: who may not have all of them cannot be one.
			l.endShare(c, s.Filter)
			continue
		}
		i++
	}
}

// endShare ends a shared subscription of an attached client, whether its subscriptions are in place or not yet.
func (l *Loop) endShare(c *Client, filter string) {
	if _, in := l.subscribers[c.att]; in {
		l.Unsubscribe(c, []string{filter}, nil)
		return
	}
	c.Unsubscribe(filter)
	l.b.dropShare(filter)
	if c.stored {
		l.b.o.Meta.Delete(subKey(c.ClientID, filter))
	}
}

// mayReceive judges a message that no cached match has judged.
func (c *Client) mayReceive(name []byte) bool {
	return c.access == nil || c.access.rights.MayReceive(unsafe.String(unsafe.SliceData(name), len(name)))
}

// mayPublish judges a publish. Devices publish to one topic again and again: the last one allowed is remembered.
func (c *Client) mayPublish(name []byte) bool {
	a := c.access
	return a == nil || string(name) == a.okTopic || a.rights.MayPublish(unsafe.String(unsafe.SliceData(name), len(name)))
}

// maySubscribe judges a filter; with $share/GROUP/ in front it is a shared subscription.
func (c *Client) maySubscribe(filter string, shared bool) bool {
	if shared {
		return c.rights().MayReceiveAll(filter)
	}
	return c.rights().MaySubscribe(filter)
}

// RefreshRights makes out anew what every connected client may do, and returns when it holds for all of them: nothing
// that they may no longer have is sent to them afterwards, and nothing is taken from them that they may not publish.
func (b *Broker) RefreshRights() {
	for _, l := range *b.loops.Load() {
		var list []*Client
		b.subsSnapshot(l, &list)
		done := make(chan struct{})
		l.Post(func() {
			defer close(done)
			for _, c := range list {
				if l.owns(c) && c.att != nil {
					l.makeRights(c)
				}
			}
			b.version.Add(1)
		})
		select {
		case <-done:
		case <-b.stop:
			return
		}
	}
}

// unknownUser had a will whose session is not known any more: it was allowed when it was left.
const unknownUser = "\x00"

// willAllowed judges a will again when it is due: the rules may have changed since it was left.
func (b *Broker) willAllowed(client, user string, w *Will) bool {
	if b.o.Rights == nil || user == unknownUser || b.o.Rights(user, client).MayPublish(string(w.Msg.Topic)) {
		return true
	}
	b.Stats.DeniedPublish.Add(1)
	return false
}

// foreign reports that the session is another user's: a device that was taken over must not throw others out, nor end
// what is kept for them, by using their client ids. A client without a user, which is what all are where there are no
// users any more, may begin anew where nobody is connected. Under the registry shard's lock.
func (c *Client) foreign(user string) bool {
	return c.holder != nil && *c.holder != user && (user != "" || c.owner != nil)
}

// Foreign reports that a client id is another user's, so that Connect would refuse it.
func (b *Broker) Foreign(id, user string) bool {
	sh := b.reg.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	c := sh.clients.get(id)
	if c == nil || !c.foreign(user) {
		return false
	}
	b.Stats.Foreign.Add(1)
	return true
}

// rightsFunc makes out what a client may do; nil rights: everything.
type rightsFunc = func(user, client string) *auth.Rights
