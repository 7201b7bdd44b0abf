package broker

import (
	"maps"
	"slices"
	"strings"

	"edgehub/hub/message"
	"edgehub/hub/session"
	"edgehub/hub/topic"
)

// SysPrefix is how the hub's own topics begin. Clients cannot publish to them.
const SysPrefix = "$SYS/"

// Reserved reports whether a topic is none that can be published to: the hub's own, or one that looks like a shared
// subscription.
func Reserved(name string) bool {
	return strings.HasPrefix(name, SysPrefix) || name == "$SYS" || strings.HasPrefix(name, topic.SharePrefix)
}

// PublishSys sets the values of the hub's own topics. They are in no stream and no log: who is subscribed gets those
// that have changed, at QoS 0, and who subscribes gets all that match, as if they were retained.
func (b *Broker) PublishSys(values map[string]string) {
	old := b.sys.Load()
	var changed []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if old == nil || (*old)[name] != values[name] {
			changed = append(changed, name)
		}
	}
	b.sys.Store(&values)
	if len(changed) == 0 {
		return
	}
	for _, l := range *b.loops.Load() {
		l.Post(func() {
			for _, name := range changed {
				l.deliverSys(name, values[name])
			}
			l.Schedule()
		})
	}
}

// deliverSys gives a changed value to the loop's subscribers.
func (l *Loop) deliverSys(name, value string) {
	l.b.subs.RLock()
	targets := l.b.subs.tree.Match(name, nil)
	l.b.subs.RUnlock()
	mine := map[*attachment][]*session.Sub{}
	for _, t := range targets {
		if t.to.loop == l && t.to.client != nil {
			mine[t.to] = append(mine[t.to], t.sub)
		}
	}
	for a, subs := range mine {
		l.sendSys(a, name, value, session.Merge(subs).SubIDs, false)
	}
}

// retainedSys sends a new subscriber the values that its filter matches, behind the answer to its request.
func (l *Loop) retainedSys(c *Client, s *session.Sub) {
	values := l.b.sys.Load()
	if values == nil || !strings.HasPrefix(s.Filter, "$SYS") {
		return
	}
	a := c.att
	l.Post(func() {
		for _, name := range slices.Sorted(maps.Keys(*values)) {
			if topic.Match(s.Filter, name) {
				l.sendSys(a, name, (*values)[name], session.Merge([]*session.Sub{s}).SubIDs, true)
			}
		}
	})
}

func (l *Loop) sendSys(a *attachment, name, value string, ids []uint32, retain bool) {
	if a.client == nil || !a.client.mayReceive([]byte(name)) { // gone meanwhile, or not allowed
		return
	}
	m := message.Message{Topic: []byte(name), Payload: []byte(value), TimeMs: l.b.o.Clock.NowMs()}
	if !a.client.conn.Room(len(name) + len(value) + packetOverhead) {
		l.b.Stats.DroppedQoS0.Add(1)
		return
	}
	l.send(a.client, Delivery{Msg: &m, Retain: retain, SubIDs: ids})
}
