package broker

import (
	"slices"

	"edgehub/hub/topic"
)

// Shared subscriptions in the simulation. Each of its groups has one QoS that all its members ask for, so that it is
// clear what the group is promised; "mixed" has members of every QoS and is promised no delivery.
//
// Messages that come through a group are told from others by their subscription identifier, which is the group's.
var simShares = []struct {
	key string
	qos int // -1: any
}{
	{"$share/once/a/#", 1},
	{"$share/once/s/#", 1},
	{"$share/once/b/0", 1},
	{"$share/exact/a/#", 2},
	{"$share/exact/+/0", 2},
	{"$share/mixed/#", -1},
}

// simGroup is what a group owes its members.
type simGroup struct {
	s      *sim
	key    string
	filter string
	id     uint32 // the subscription identifier of its members
	qos    int

	// sure are the sessions that have the subscription without doubt. While there is one, everything from `from` on, by
	// partition, must come to some member.
	sure map[*dev]bool
	from []int64
	// asked are the sessions that may have it: those that asked, and have not ended since.
	asked map[*dev]bool
	// lossy: QoS 2 messages before these offsets may have ended with the session of a member [MQTT-4.8.2-5].
	lossy []int64

	seen  map[string]bool   // payloads that some member has received
	exact map[string]string // payloads received at QoS 2, and by whom
}

func (s *sim) makeGroups() {
	for i, x := range simShares {
		_, filter, _, err := topic.ParseShared(x.key)
		if err != nil {
			s.t.Fatal(err)
		}
		s.groups = append(s.groups, &simGroup{s: s, key: x.key, filter: filter, id: uint32(i + 1), qos: x.qos,
			sure: map[*dev]bool{}, asked: map[*dev]bool{}, lossy: make([]int64, len(s.b.parts)), seen: map[string]bool{}, exact: map[string]string{}})
	}
}

// join: a member's subscription is confirmed.
func (g *simGroup) join(d *dev) {
	if len(g.sure) == 0 {
		g.from = d.committed()
	}
	g.sure[d] = true
}

// leave: a member may be none any more. The group's promise ends with its last sure member.
func (g *simGroup) leave(d *dev) { delete(g.sure, d) }

// lose: the session of a member has ended, or may have, and its QoS 2 messages with it.
func (g *simGroup) lose(d *dev) { g.lossy = d.committed() }

// must reports whether some member has to receive the record.
func (g *simGroup) must(r *simRecord) bool {
	return r.qos > 0 && g.qos > 0 && len(g.sure) > 0 && matching(g.filter, r.topic) && r.offset >= g.from[r.part] &&
		(g.qos < 2 || r.qos < 2 || r.offset >= g.lossy[r.part]) && !g.s.expired(r.payload)
}

// complete checks, at the end, that nothing is missing.
func (g *simGroup) complete() {
	for _, list := range g.s.byTopic {
		for _, r := range list {
			if g.must(r) && !g.seen[r.payload] {
				g.s.failf("%s: %s on %s (%s@%d, QoS %d) came to nobody", g.key, r.payload, r.topic, g.s.b.parts[r.part].Name, r.offset, r.qos)
			}
		}
	}
}

// through is the group that a message has come through, or nil.
func (s *sim) through(p pkt) *simGroup {
	for _, g := range s.groups {
		if slices.Equal(p.subIDs, []uint32{g.id}) {
			return g
		}
	}
	return nil
}

// subscribeShared asks for one of the shared subscriptions.
func (d *dev) subscribeShared() {
	g := d.s.groups[d.s.rng.IntN(len(d.s.groups))]
	qos := g.qos
	if qos < 0 {
		qos = d.s.rng.IntN(3)
	}
	if qos == 2 && !d.persist { // what its session takes with it would excuse too much
		return
	}
	d.asked = append(d.asked, &simSub{filter: g.key, qos: byte(qos), group: g})
	g.asked[d] = true
	d.logf("subscribe %s q%d", g.key, qos)
	d.cn.ask(SubRequest{Filter: g.key, QoS: byte(qos), ID: g.id})
}

// unsubscribeShared gives one of them up.
func (d *dev) unsubscribeShared() {
	g := d.s.groups[d.s.rng.IntN(len(d.s.groups))]
	if d.cn.c == nil || d.cn.closing || !g.sure[d] || slices.ContainsFunc(d.asked, func(x *simSub) bool { return x.group == g }) {
		return
	}
	d.logf("unsubscribe %s", g.key)
	g.leave(d)
	d.cn.l.Unsubscribe(d.cn.c, []string{g.key}, nil)
	d.cn.l.Schedule()
}

// leaveAll: the session ends, now or soon.
func (d *dev) leaveAll() {
	for _, g := range d.s.groups {
		g.leave(d)
		if g.asked[d] {
			g.lose(d)
		}
	}
}

// shared judges a message that has come through a group.
func (d *dev) shared(g *simGroup, p pkt, r *simRecord) {
	d.s.stats.Shared++
	if !matching(g.filter, p.topic) {
		d.failf("%v came through %s", p, g.key)
	}
	if p.retain {
		d.failf("%v: %s has sent a retained message [MQTT-4.8.2]", p, g.key)
	}
	g.seen[p.payload] = true
	if p.qos < 2 {
		return
	}
	d.s.stats.SharedExact++
	if who, ok := g.exact[p.payload]; ok {
		d.failf("%v came through %s twice: to %s before", p, g.key, who)
	}
	g.exact[p.payload] = d.id
}

// expired reports whether the time of a message is over.
func (s *sim) expired(payload string) bool {
	at := s.expires[payload]
	return at > 0 && s.b.o.Clock.NowMs() >= at
}

// onTime checks that a message is not sent for the first time after it has expired [MQTT-3.3.2-5]. What was sent
// before goes on, as DUP.
func (d *dev) onTime(p pkt) {
	if at := d.s.expires[p.payload]; at > 0 && !p.dup && p.sentMs > at {
		d.failf("%v has expired %d ms ago", p, p.sentMs-at)
	}
}

// shareState is what a trace tells of the groups after a recovery.
func (s *sim) shareState() {
	for _, g := range s.groups {
		x := s.b.shares.groups[g.key]
		if x == nil {
			continue
		}
		s.logf("   %s: %d sessions, attached %v, reading %v, owed %+v", g.key, x.sessions, x.c.att != nil, x.c.reading, x.c.owed)
		for _, m := range x.members {
			s.logf("      member %s: connected %v, away %v, %d out, full %v", m.id, m.to.client != nil, m.to.loop != x.home, m.out, m.full)
		}
		for _, id := range x.c.Flights.Ordered() {
			f := x.c.Flights.Get(id)
			s.logf("   %s in flight: id%d q%d state %d %s@%d", g.key, f.ID, f.QoS, f.State, s.b.parts[f.Part].Name, f.Offset)
		}
		for _, cur := range x.c.Cursors {
			s.logf("   %s reads %s from %d", g.key, s.b.parts[cur.Part].Name, cur.Next)
		}
	}
}
