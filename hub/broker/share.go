package broker

import (
	"slices"
	"strings"
	"sync"

	"edgehub/hub/session"
	"edgehub/hub/topic"
	"edgehub/storage/seglog"
)

// Shared subscriptions.
//
// Each pair of group and filter is a group with an inbox of its own, and an inbox is what a session has: positions in
// the log, and messages in flight. So a group is a Client without a network: it subscribes to the filter, falls behind,
// catches up and is checkpointed and recovered like any other, and its Conn, a shareConn, hands each message to one of
// the members that are connected. A message stays in flight to the group until the member is done with it:
//
//   - QoS 0 is done with when it is queued;
//   - QoS 1 is done with at its PUBACK; when the member goes before that, the message comes back and another gets it
//     [MQTT-4.8.2-5];
//   - QoS 2 belongs to the member's session from the moment it is handed over, also while that is offline; it comes
//     back to nobody [MQTT-4.8.2-4]. The group's position and the member's record are durable before the PUBLISH
//     leaves, and the member's record goes only after the group's, so that a kill at any step gives it to one member.
//
// A group lives on one loop, that of its first member, and has members on all: messages to those and their answers are
// mail. It begins with its first member's subscription and ends with the last; while all are offline it keeps its
// positions.

// shareMark begins the client id of a group: no MQTT string can hold that byte.
const shareMark = "\xff"

// group is one shared subscription.
type group struct {
	b      *Broker
	key    string // $share/GROUP/FILTER, as subscribed
	filter string

	// sessions counts those that have the subscription, connected or not. Guarded by shares.mu.
	sessions int

	// mu guards home, which is set once. Without a home nobody is connected and what follows is guarded by mu too.
	mu   sync.Mutex
	home *Loop

	// Owned by home.
	c       *Client
	members []*member // connected ones, in order of joining
	next    int       // whose turn it is
	dead    bool      // the last session has left
}

// member is one connected session's part in a group. The first fields are immutable.
type member struct {
	g      *group
	to     *attachment // nil for a message that is in flight to an absent session
	id     string      // client id
	key    string      // the group's
	qos    byte
	retain bool // retain as published
	subIDs []uint32
	window int

	// Owned by the group's home.
	out  int  // handed over to a member on another loop and not done with
	full bool // it had no room; it says when it has
}

// shares are all groups by key.
type shares struct {
	mu     sync.Mutex
	groups map[string]*group
}

// shareMail is what groups and members on different loops tell each other.
type shareMail uint8

const (
	shareGive shareMail = iota // home to member: deliver this
	shareDone                  // member to home: done with it
	shareBack                  // member to home: not delivered, give it to another
	shareRoom                  // member to home: there is room again
	shareJoin                  // a member is connected
	shareGone                  // it is not any more
	shareEnd                   // the last session has left
)

// shareEvent is one piece of that mail; of a message it names the record, the group's id for it and the packet id that
// the member gave it.
type shareEvent struct {
	what       shareMail
	member     *member
	id, packet uint16
	part       *partition
	offset     int64
}

// eventOf is an event about a member's flight.
func (b *Broker) eventOf(what shareMail, m *member, f *session.Flight) shareEvent {
	return shareEvent{what, m, f.ShareID, f.ID, b.parts[f.Part], f.Offset}
}

// groupOf finds or creates the group of a shared subscription. fresh: the session had no such subscription before.
func (b *Broker) groupOf(key string, fresh bool) *group {
	b.shares.mu.Lock()
	defer b.shares.mu.Unlock()
	g := b.shares.groups[key]
	if g == nil {
		g = b.newGroup(key)
	}
	if fresh {
		g.sessions++
	}
	return g
}

// newGroup enters a group. Under shares.mu.
func (b *Broker) newGroup(key string) *group {
	_, filter, _, err := topic.ParseShared(key)
	if err != nil {
		b.log.Error("BUG: not a shared subscription", "filter", key)
	}
	c := &Client{Session: session.Session{ClientID: shareMark + key, Expiry: session.NeverExpires}}
	g := &group{b: b, key: key, filter: filter, c: c}
	c.owe().group = g
	if b.shares.groups == nil {
		b.shares.groups = map[string]*group{}
	}
	b.shares.groups[key] = g
	return g
}

// joinShare enters a connected client as a member. fresh: its session had no such subscription before.
//
// On another loop than the home's the join is mail. Nothing is lost meanwhile: a group with members has its inbox open,
// and one without reads on from its position.
func (l *Loop) joinShare(c *Client, s *session.Sub, fresh bool) {
	g := l.b.groupOf(s.Filter, fresh)
	m := &member{g: g, to: c.att, id: c.ClientID, key: g.key, qos: s.QoS, retain: s.RetainAsPublished, window: int(c.window)}
	if s.ID > 0 {
		m.subIDs = []uint32{s.ID}
	}
	s.Member = m
	g.mu.Lock()
	if g.home == nil {
		g.home = l
	}
	home := g.home
	g.mu.Unlock()
	if home == l { // in place when the answer leaves
		home.shareJoin(m)
		return
	}
	home.postShare(g, shareEvent{what: shareJoin, member: m})
}

// leaveShare takes a member out. What it has in flight stays with it: it was begun, counts against the client's receive
// maximum and has its packet id until it is acknowledged [MQTT-3.10.4-3] [MQTT-3.3.4-9]. gone: the session has no such
// subscription any more.
func (l *Loop) leaveShare(c *Client, s *session.Sub, gone bool) {
	m, _ := s.Member.(*member)
	if m == nil {
		return
	}
	s.Member = nil
	m.g.home.postShare(m.g, shareEvent{what: shareGone, member: m})
	if gone {
		l.b.dropShare(s.Filter)
	}
}

// returnShares gives back what a client that goes has not acknowledged, for other members. Where the last session has
// left the group meanwhile, there are none: the message becomes the client's own.
func (l *Loop) returnShares(c *Client) {
	for _, id := range c.Flights.Ordered() {
		f := c.Flights.Get(id)
		m, _ := f.Share.(*member)
		switch {
		case m == nil || f.QoS != 1:
		case l.b.shared(m.g):
			m.g.home.postShare(m.g, l.b.eventOf(shareBack, m, f))
			c.nowSent(f)
			c.Flights.Remove(id)
		default:
			f.Share, f.ShareID, f.Kept = nil, 0, true
		}
	}
}

// shared reports whether some session still has the group's subscription.
func (b *Broker) shared(g *group) bool {
	b.shares.mu.Lock()
	defer b.shares.mu.Unlock()
	return b.shares.groups[g.key] == g && g.sessions > 0
}

// dropShares: a session ends. Its QoS 2 messages go with it [MQTT-4.8.2-5]: what is left of each is a mark in its place,
// until the group's own record knows. Without the mark a kill in between would have the message given to another member,
// or to a new session of that client.
func (b *Broker) dropShares(c *Client) {
	for _, id := range c.Flights.Ordered() {
		f := c.Flights.Get(id)
		m, _ := f.Share.(*member)
		if m == nil {
			continue
		}
		gone := &member{g: m.g, to: m.to, id: shareMark, key: m.key}
		if f.QoS == 2 && c.stored {
			mark := *f
			mark.Share = gone
			b.o.Meta.Put(b.flightRecordKey(gone.id, &mark), appendFlight(nil, f))
			b.o.Meta.Delete(b.flightRecordKey(c.ClientID, f))
		}
		m.g.tell(b.eventOf(shareDone, gone, f))
	}
	for _, s := range c.Subs {
		if s.Shared {
			b.dropShare(s.Filter)
		}
	}
}

// dropShare: one session less has the subscription.
func (b *Broker) dropShare(key string) {
	b.shares.mu.Lock()
	g := b.shares.groups[key]
	last := false
	if g != nil {
		g.sessions--
		last = g.sessions == 0
	}
	b.shares.mu.Unlock()
	if last {
		g.tell(shareEvent{what: shareEnd})
	}
}

// tell brings an event to the group wherever it lives.
func (g *group) tell(e shareEvent) {
	g.mu.Lock()
	home := g.home
	if home == nil {
		defer g.mu.Unlock()
		g.apply(nil, e)
		return
	}
	g.mu.Unlock()
	home.postShare(g, e)
}

// postShare puts an event of a group into the loop's mailbox.
func (l *Loop) postShare(g *group, e shareEvent) {
	l.mail.mu.Lock()
	l.mail.in.items = append(l.mail.in.items, mailItem{kind: mailShare, group: g, share: e.what, member: e.member, id: e.id,
		packet: e.packet, part: e.part, offset: e.offset})
	l.wakeLocked()
}

// handleShare takes an event from the mailbox.
func (l *Loop) handleShare(it *mailItem, buf []byte) {
	if it.share != shareGive {
		it.group.apply(l, shareEvent{it.share, it.member, it.id, it.packet, it.part, it.offset})
		return
	}
	c := it.member.to.client
	rec := seglog.Record{Key: buf[it.t:it.a], Value: buf[it.a:it.b], TimeMs: it.timeMs,
		Headers: seglog.Headers{Count: it.headerCount, Raw: buf[it.b:it.c]}}
	if err := l.msg.Decode(rec); err != nil {
		l.b.log.Error("BUG: a record of this hub cannot be decoded", "topic", string(rec.Key), "err", err)
	}
	if m := &l.msg; m.ExpiresMs > 0 && m.ExpiresMs <= l.b.o.Clock.NowMs() { // on its way here
		l.b.Stats.DroppedExpired.Add(1)
		if it.id > 0 {
			it.group.home.postShare(it.group, shareEvent{what: shareDone, member: it.member, id: it.id, part: it.part, offset: it.offset})
		}
		return
	}
	if c == nil || !l.hasRoom(c, it.c-it.t+packetOverhead, min(l.msg.QoS, it.member.qos)) {
		if c != nil {
			l.starve(c, it.member)
		}
		it.group.home.postShare(it.group, shareEvent{what: shareBack, member: it.member, id: it.id, part: it.part, offset: it.offset})
		return
	}
	l.give(it.member, it.id, it.part, it.offset, nil)
}

// hasRoom reports whether the client can take a message of that size and QoS now.
func (l *Loop) hasRoom(c *Client, size int, qos byte) bool {
	return c.conn.Room(size) && (qos == 0 || !c.isFull())
}

// starve notes that a member has turned a message away: the group hears of it when there is room.
func (l *Loop) starve(c *Client, m *member) {
	if o := c.owe(); !slices.Contains(o.starved, m) {
		o.starved = append(o.starved, m)
		l.markActive(c)
	}
}

// unstarve tells the groups whose messages a client turned away that it has room again.
func (l *Loop) unstarve(c *Client) {
	o := c.owed
	if o == nil || len(o.starved) == 0 {
		return
	}
	for i, m := range o.starved {
		o.starved[i] = nil
		l.shareTell(shareEvent{what: shareRoom, member: m})
	}
	o.starved = o.starved[:0]
}

// give delivers the scratch message to a member of this loop that has room. Without an id it is not in flight to the
// group, which had only members of QoS 0 when it was matched: QoS 0 is what it comes at, whatever this member asked for.
func (l *Loop) give(m *member, id uint16, p *partition, offset int64, shared *Shared) {
	c := m.to.client
	msg := &l.msg
	d := Delivery{Msg: msg, QoS: min(msg.QoS, m.qos), Retain: msg.Retain && m.retain, SubIDs: m.subIDs, Shared: shared}
	if id == 0 {
		d.QoS = 0
	}
	if d.QoS == 0 {
		l.send(c, d)
		if id > 0 {
			l.shareTell(shareEvent{what: shareDone, member: m, id: id, part: p, offset: offset})
		}
		return
	}
	l.markActive(c)
	f := c.Flights.Add()
	f.State, f.QoS, f.Part, f.Offset = session.Sent, d.QoS, p.ID, offset
	f.RetainAsPublished, f.SubIDs, f.Share, f.ShareID = m.retain, m.subIDs, m, id
	d.ID = f.ID
	l.noteFlight(c, f)
	if d.QoS == 2 { // on the group's positions, whether the member's session is durable or not
		l.rest(c)
	}
	l.send(c, d)
}

// shareTell is tell from a member's loop: without mail when the group lives there.
func (l *Loop) shareTell(e shareEvent) {
	if g := e.member.g; g.home == l {
		g.apply(l, e)
		return
	}
	e.member.g.tell(e)
}

// Groups is the number of shared subscriptions.
func (b *Broker) Groups() int {
	b.shares.mu.Lock()
	defer b.shares.mu.Unlock()
	return len(b.shares.groups)
}

func isShared(filter string) bool { return strings.HasPrefix(filter, topic.SharePrefix) }
