package broker

import (
	"slices"
	"strings"
)

// GroupInfo describes a shared subscription.
type GroupInfo struct {
	Key      string // $share/GROUP/FILTER
	Sessions int    // that have the subscription, connected or not
	Members  []GroupMember
	InFlight int   // handed to a member and not done with
	Inbox    int64 // records of the log that the group has not looked at yet
}

// GroupMember is a connected member.
type GroupMember struct {
	ClientID string
	QoS      byte
}

// SharedSubscriptions describes the shared subscriptions, by key.
func (b *Broker) SharedSubscriptions() []GroupInfo {
	var list []GroupInfo
	var groups []*group
	b.shares.mu.Lock()
	for _, g := range b.shares.groups {
		groups = append(groups, g)
		list = append(list, GroupInfo{Key: g.key, Sessions: g.sessions})
	}
	b.shares.mu.Unlock()
	for i, g := range groups {
		if !g.describe(&list[i]) {
			return nil
		}
	}
	slices.SortFunc(list, func(a, b GroupInfo) int { return strings.Compare(a.Key, b.Key) })
	return list
}

// describe fills in what belongs to the group's home; false when the hub stops meanwhile.
func (g *group) describe(info *GroupInfo) bool {
	fill := func() {
		info.InFlight, info.Inbox = g.c.Flights.Len(), g.b.inbox(g.c)
		for _, m := range g.members {
			info.Members = append(info.Members, GroupMember{m.id, m.qos})
		}
	}
	g.mu.Lock()
	home := g.home
	if home == nil {
		fill()
	}
	g.mu.Unlock()
	if home == nil {
		return true
	}
	done := make(chan struct{})
	home.Post(func() { fill(); close(done) })
	select {
	case <-done:
		return true
	case <-g.b.stop:
		return false
	}
}
