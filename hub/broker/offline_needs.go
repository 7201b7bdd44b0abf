package broker

import (
	"errors"
	"math"
	"slices"

	"edgehub/hub/auth"
	"edgehub/hub/message"
	"edgehub/hub/session"
	"edgehub/hub/topic"
	"edgehub/storage/seglog"
)

// errAsk: a session's owner could not be asked in time. The segment stays, and retention comes again.
var errAsk = errors.New("broker: not every session could be asked what it still needs")

// errUnder: records of the segment have not been handed out yet.
var errUnder = errors.New("broker: the segment has records that are not handed out yet")

const (
	// snapshotMs is how long an answer is used: it only says more than is needed when it is older.
	snapshotMs = 1000
	// askRounds bounds how often a session that moves between loops is run after.
	askRounds = 8
	// namesMax bounds the topics that are remembered with who wants them.
	namesMax = 4096
)

// snapshot is what the sessions that are behind still need, as of a moment. Of what was posted to the loops by then,
// they need only ever less: a position moves on only, and whoever subscribes later begins later.
type snapshot struct {
	takenMs int64
	posted  []int64 // by partition id, before anybody was asked
	low     []int64 // by partition id: the lowest offset that a session reads on from
	flights [][]int64
	needs   []*need
	groups  map[string]*wantGroup // by filter
	tree    topic.Tree[int, *wantGroup]
	names   map[string][]*wantGroup // by topic: the groups that match it
	mark    uint64                  // of the record in hand
	msg     message.Message
}

// need is one session that is behind.
type need struct {
	id, user string
	at       []session.Position // where it reads on, where it is behind; above what it has lost
	raw      []session.Position // where it is
	passed   int64              // below it was spared copies in this pass, see offline_ahead.go
	shared   bool               // a group's: its members' rights were judged when they joined
	rights   *auth.Rights
	judged   bool // rights have been made out
	mark     uint64
	account  *queued  // see offline_use.go
	fresh    []bucket // copies of this pass
}

// wantGroup is everybody who subscribes to one filter.
type wantGroup struct{ wants []want }

type want struct {
	n       *need
	noLocal bool
	starts  []session.Position
}

// asker has a loop run a function among its mail, and waits for it; false: the broker stops.
type asker func(l *Loop, fn func()) bool

func (b *Broker) ask(l *Loop, fn func()) bool {
	done := make(chan struct{})
	l.Post(func() { defer close(done); fn() })
	select {
	case <-done:
		return true
	case <-b.stop:
		return false
	}
}

// needed returns a snapshot that holds for everything below next in a partition.
func (b *Broker) needed(part uint32, next int64, ask asker) (*snapshot, error) {
	now := b.o.Clock.NowMs()
	if s := b.offline.snap; s != nil && s.posted[part] >= next && now-s.takenMs < snapshotMs {
		return s, nil
	}
	b.offline.snap = nil
	if b.parts[part].posted.Load() < next {
		return nil, errUnder
	}
	s := &snapshot{takenMs: now, posted: b.positions(), flights: make([][]int64, len(b.parts)), groups: map[string]*wantGroup{},
		names: map[string][]*wantGroup{}}
	for range b.parts {
		s.low = append(s.low, math.MaxInt64)
	}
	// By the time that a loop gets to the question it has handled the mail of all that was posted before: what its
	// sessions have not got then they read from the log.
	if err := b.eachSession(ask, func(c *Client) { s.add(b, c) }); err != nil {
		return nil, err
	}
	for filter, g := range s.groups {
		s.tree.Set(filter, 0, g)
	}
	for part, list := range s.flights {
		slices.Sort(list)
		s.flights[part] = slices.Compact(list)
	}
	b.offline.bind(s)
	b.offline.snap = s
	return s, nil
}

// eachSession calls fn with every session and the inbox of every group, each by its owner and once.
func (b *Broker) eachSession(ask asker, fn func(*Client)) error {
	var owned []*Client
	for i := range b.reg.shards {
		sh := &b.reg.shards[i]
		sh.mu.Lock()
		for c := range sh.clients.all() {
			if c.owner == nil {
				fn(c)
			} else {
				owned = append(owned, c)
			}
		}
		sh.mu.Unlock()
	}
	for round := 0; len(owned) > 0; round++ {
		if round == askRounds {
			return errAsk
		}
		var err error
		if owned, err = b.askOwners(owned, ask, fn); err != nil {
			return err
		}
	}
	return b.eachGroup(ask, fn)
}

// askOwners calls fn with the sessions on their loops, or here if they went offline, and returns those that were
// between two loops.
func (b *Broker) askOwners(clients []*Client, ask asker, fn func(*Client)) (left []*Client, err error) {
	byLoop := map[*Loop][]*Client{}
	for _, c := range clients {
		sh := b.reg.shard(c.ClientID)
		sh.mu.Lock()
		switch {
		case sh.clients.get(c.ClientID) != c: // ended
		case c.owner == nil:
			fn(c)
		default:
			byLoop[c.owner] = append(byLoop[c.owner], c)
		}
		sh.mu.Unlock()
	}
	for l, list := range byLoop {
		ok := ask(l, func() {
			for _, c := range list {
				if l.owns(c) && c.att != nil {
					fn(c)
				} else {
					left = append(left, c)
				}
			}
			l.save() // with the metadata that are committed before a segment goes: its records may be all that says who published them
		})
		if !ok {
			return nil, errAsk
		}
	}
	return left, nil
}

func (b *Broker) eachGroup(ask asker, fn func(*Client)) error {
	b.shares.mu.Lock()
	var groups []*group
	for _, g := range b.shares.groups {
		groups = append(groups, g)
	}
	b.shares.mu.Unlock()
	byLoop := map[*Loop][]*group{}
	for _, g := range groups {
		g.mu.Lock()
		if g.home == nil {
			fn(g.c)
		} else {
			byLoop[g.home] = append(byLoop[g.home], g)
		}
		g.mu.Unlock()
	}
	for l, list := range byLoop {
		ok := ask(l, func() {
			for _, g := range list {
				if !g.dead {
					fn(g.c)
				}
			}
		})
		if !ok {
			return errAsk
		}
	}
	return nil
}

// add notes what a session needs. By its owner.
func (s *snapshot) add(b *Broker, c *Client) {
	if !c.Persistent() || c.ExpiresMs > 0 && c.ExpiresMs <= s.takenMs {
		return
	}
	if c.Flights.Len() > 0 {
		for _, id := range c.Flights.Ordered() {
			if f := c.Flights.Get(id); f.State == session.Sent || c.inboxOf() != nil && f.QoS == 1 {
				s.flights[f.Part] = append(s.flights[f.Part], f.Offset)
			}
		}
	}
	n := &need{id: c.ClientID, user: userName(c.user), shared: c.inboxOf() != nil}
	for i := range c.Cursors {
		if cur := &c.Cursors[i]; cur.Behind && cur.Next < s.posted[cur.Part] && b.offline.isKept(b.parts[cur.Part]) {
			n.at = append(n.at, session.Position{Part: cur.Part, Offset: cur.Next})
		}
	}
	if len(n.at) == 0 {
		return
	}
	s.needs = append(s.needs, n)
	for _, sub := range c.Subs {
		if sub.QoS == 0 || sub.Shared {
			continue
		}
		g := s.groups[sub.Filter]
		if g == nil {
			g = &wantGroup{}
			s.groups[sub.Filter] = g
		}
		g.wants = append(g.wants, want{n, sub.NoLocal, slices.Clone(sub.Starts)})
	}
}

// matching returns who subscribes to a topic.
func (s *snapshot) matching(key []byte) []*wantGroup {
	groups, ok := s.names[string(key)]
	if !ok {
		if len(s.names) >= namesMax {
			clear(s.names)
		}
		name := string(key)
		groups = s.tree.Match(name, nil)
		s.names[name] = groups
	}
	return groups
}

// quiet reports that nobody needs anything between two offsets of a partition.
func (s *snapshot) quiet(part uint32, from, to int64) bool {
	return s.low[part] >= to && !s.inFlight(part, from, to)
}

func (s *snapshot) inFlight(part uint32, from, to int64) bool {
	i, _ := slices.BinarySearch(s.flights[part], from)
	return i < len(s.flights[part]) && s.flights[part][i] < to
}

// judge calls tell once with each session that has the record still to come, and reports whether anybody needs it: one
// of them that takes it, or somebody who has been sent it and has not answered.
func (s *snapshot) judge(b *Broker, part uint32, offset int64, rec *seglog.Record, tell func(*need) bool) bool {
	wanted := s.inFlight(part, offset, offset+1)
	if offset < s.low[part] {
		return wanted
	}
	groups := s.matching(rec.Key)
	if len(groups) == 0 {
		return wanted
	}
	qos, _, from := message.Peek(rec.Headers)
	if qos == 0 || s.msg.Decode(*rec) != nil || s.msg.ExpiresMs > 0 && s.msg.ExpiresMs <= b.o.Clock.Coarse() {
		return wanted
	}
	s.mark++
	for _, g := range groups {
		for i := range g.wants {
			w := &g.wants[i]
			n := w.n
			if n.mark == s.mark || w.noLocal && string(from.Client) == n.id {
				continue
			}
			if at, behind := position(n.at, part); !behind || offset < at {
				continue
			}
			if start, ok := position(w.starts, part); ok && offset < start || !n.mayReceive(b, s.msg.Topic) {
				continue
			}
			n.mark = s.mark
			wanted = tell(n) || wanted
		}
	}
	return wanted
}

// mayReceive judges by the rights of now: those of an absent client are made out for it.
func (n *need) mayReceive(b *Broker, name []byte) bool {
	if b.o.Rights == nil || n.shared {
		return true
	}
	if !n.judged {
		n.rights, n.judged = b.o.Rights(n.user, n.id), true
	}
	return n.rights.MayReceive(string(name))
}

// firstFlight is the first record at or above from that somebody has been sent and has not answered.
func (s *snapshot) firstFlight(part uint32, from int64) int64 {
	i, _ := slices.BinarySearch(s.flights[part], from)
	if i == len(s.flights[part]) {
		return math.MaxInt64
	}
	return s.flights[part][i]
}
