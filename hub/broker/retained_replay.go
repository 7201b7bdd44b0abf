package broker

import (
	"slices"

	"edgehub/hub/session"
)

// Retained messages for new subscriptions.
//
// A subscription's replay begins with the names of what it matches; the messages are read when their turn comes. A
// client can subscribe faster than it takes what that brings. So only one replay at a time has its names, the others wait
// as the subscription alone, and of those one per filter: whoever subscribes to a filter again before its turn has come
// gets everything once, and that is what the last subscription matches. So what a client can make the hub hold is
// bounded by the retained messages that there are and by limits.subscriptions_per_client.

// replay has the retained messages sent that a new subscription matches.
func (l *Loop) replay(c *Client, s *session.Sub) {
	if c.owed.dropReplay(s.Filter) {
		l.b.Stats.ReplaysJoined.Add(1)
	}
	o := c.owe()
	o.replays = append(o.replays, s)
	l.nextReplay(c)
}

// nextReplay takes the next subscription's names, when those of the one before are used up.
func (l *Loop) nextReplay(c *Client) {
	o := c.owed
	for len(o.retq) == 0 && len(o.replays) > 0 {
		s := o.replays[0]
		o.replays = slices.Delete(o.replays, 0, 1)
		l.b.retained.match(s.Filter, func(name string) {
			if c.rights().MayReceive(name) {
				o.retq = append(o.retq, retItem{name, s})
			}
		})
	}
	if len(o.replays) == 0 {
		o.replays = nil
	}
}

// popRetained is called when the first retained message is done with.
func (l *Loop) popRetained(c *Client) {
	o := c.owed
	o.retq[0] = retItem{} // the array stays until its last one is done with
	o.retq = o.retq[1:]
	if len(o.retq) == 0 {
		o.retq = nil
		l.nextReplay(c)
	}
}

// dropReplay forgets the replay of a filter whose turn has not come.
func (o *owed) dropReplay(filter string) (dropped bool) {
	if o == nil {
		return false
	}
	i := slices.IndexFunc(o.replays, func(s *session.Sub) bool { return s.Filter == filter })
	if i >= 0 {
		o.replays = slices.Delete(o.replays, i, i+1)
	}
	return i >= 0
}
