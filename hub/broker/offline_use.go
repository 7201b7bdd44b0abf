package broker

import (
	"slices"

	"edgehub/hub/session"
	"edgehub/hub/stream"
)

// What sessions have among the copies.
//
// A copy is there once, however many sessions it is for; each has an account of how many are for it. The account is a few buckets,
// oldest first, that say up to which offset of a partition how many copies are. At its limit a session loses its oldest bucket:
// it reads on behind it. A bucket holds an eighth of the limit at most, so at most that much is lost too early, and an account
// is small however much is in it. After a start the copies that are there are counted again.

// bucketsMax bounds an account; neighbours are joined beyond it.
const bucketsMax = 32

// bucketShare is the part of the limit that a bucket holds at most.
const bucketShare = 8

type bucket struct {
	part  uint32
	upto  int64 // behind the last copy
	ms    int64 // of the last one
	n     int64
	bytes int64
}

// queued is a session's account. Guarded by offline.mu.
type queued struct {
	n, bytes int64
	buckets  []bucket           // oldest first
	floors   []session.Position // below is lost to the limit
	dropped  int64              // messages lost in all ways, since the start

	// Owned by retention, see offline_ahead.go.
	ahead                     []ahead
	sinceLook, bytesSinceLook int64 // lost since it was looked after
}

// bind gives each session of a snapshot its account, as of where it is.
func (o *offline) bind(s *snapshot) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range s.needs {
		u := o.users[n.id]
		if u == nil {
			u = &queued{}
			o.users[n.id] = u
		}
		n.account = u
		u.settle(n.at)
		u.hasMoved(n)
		n.raw = slices.Clone(n.at)
		for i := range n.at {
			at := &n.at[i]
			if floor, ok := position(u.floors, at.Part); ok {
				at.Offset = max(at.Offset, floor)
			}
			s.low[at.Part] = min(s.low[at.Part], at.Offset)
		}
	}
}

// settle takes what the session is past out of its account; where it has no position it is past everything.
func (u *queued) settle(at []session.Position) {
	u.buckets = slices.DeleteFunc(u.buckets, func(x bucket) bool {
		next, behind := position(at, x.part)
		gone := !behind || next >= x.upto
		if gone {
			u.n -= x.n
			u.bytes -= x.bytes
		}
		return gone
	})
	u.floors = slices.DeleteFunc(u.floors, func(f session.Position) bool {
		next, behind := position(at, f.Part)
		return !behind || next >= f.Offset
	})
}

// sayLost says in the log, once in a while, that sessions have lost messages with their segments. By the tick only.
func (b *Broker) sayLost() {
	s := &b.Stats
	full, hub, late := s.OfflineSessionFull.Load(), s.OfflineHubFull.Load(), s.OfflineLate.Load()
	o := &b.offline
	if full+hub+late == o.said {
		return
	}
	if _, say := b.said.lost.next(b.o.Clock.NowMs()); say {
		b.log.Warn("sessions have lost messages that retention deleted; hubctl session show names them for each",
			"messages", full+hub+late-o.said, "queue_full_total", full, "all_copies_full_total", hub, "too_late_total", late)
		o.said = full + hub + late
	}
}

// lose notes messages that the session will not get.
func (b *Broker) lose(n *need, count int64) {
	b.offline.mu.Lock()
	defer b.offline.mu.Unlock()
	n.account.dropped += count
}

// take notes a copy for a session. False: it has as many as it may, and its oldest are not given up for it.
func (n *need) take(b *Broker, p *partition, offset, ms, size int64) bool {
	lim := &b.o.Limits
	if n.pass(b, p, offset, size) {
		b.lose(n, 1)
		b.Stats.OfflineSessionFull.Add(1)
		return false
	}
	if p.Stream.Offline == stream.OfflineDropNew {
		have, bytes := n.account.n+1, n.account.bytes+size // only this goroutine adds
		for _, x := range n.fresh {
			have, bytes = have+x.n, bytes+x.bytes
		}
		if lim.overQueue(have, bytes, 1) {
			b.lose(n, 1)
			b.Stats.OfflineSessionFull.Add(1)
			return false
		}
	}
	if k := len(n.fresh) - 1; k >= 0 && n.fresh[k].part == p.ID && !lim.overQueue(n.fresh[k].n+1, n.fresh[k].bytes+size, bucketShare) {
		x := &n.fresh[k]
		x.upto, x.ms, x.n, x.bytes = offset+1, ms, x.n+1, x.bytes+size
		return true
	}
	n.fresh = append(n.fresh, bucket{p.ID, offset + 1, ms, 1, size})
	return true
}

// overQueue reports whether so many messages or bytes are more than a part of what a session may have.
func (lim *Limits) overQueue(n, bytes, share int64) bool {
	return lim.QueuedMessages > 0 && n > max(int64(lim.QueuedMessages)/share, 1) || lim.QueuedBytes > 0 && n > 1 && bytes > lim.QueuedBytes/share
}

// enter takes over what a pass has noted for the sessions, and has those above their limit lose their oldest copies.
// part is where they were spared some.
func (b *Broker) enterFresh(s *snapshot, part uint32) {
	o := &b.offline
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range s.needs {
		if n.passed > 0 {
			n.account.raise(part, n.passed)
			n.passed = 0
		}
		if len(n.fresh) == 0 {
			continue
		}
		u := n.account
		for _, x := range n.fresh {
			u.n += x.n
			u.bytes += x.bytes
			u.buckets = append(u.buckets, x)
		}
		n.fresh = n.fresh[:0]
		for len(u.buckets) > 1 && b.o.Limits.overQueue(u.n, u.bytes, 1) {
			before := u.bytes
			lost := u.loseOldest()
			b.Stats.OfflineSessionFull.Add(lost)
			u.sinceLook, u.bytesSinceLook = u.sinceLook+lost, u.bytesSinceLook+before-u.bytes
		}
		u.join()
	}
}

// forget is enterFresh for a pass that has failed.
func (s *snapshot) forget() {
	for _, n := range s.needs {
		n.fresh, n.passed = n.fresh[:0], 0
	}
}

// loseOldest gives up the oldest bucket.
func (u *queued) loseOldest() int64 {
	i := 0
	for k := range u.buckets {
		if u.buckets[k].ms < u.buckets[i].ms {
			i = k
		}
	}
	return u.loseBucket(i)
}

// loseBucket gives up a bucket, and with it what is older in its partition.
func (u *queued) loseBucket(i int) (lost int64) {
	part, upto := u.buckets[i].part, u.buckets[i].upto
	u.buckets = slices.DeleteFunc(u.buckets, func(x bucket) bool {
		gone := x.part == part && x.upto <= upto
		if gone {
			u.n -= x.n
			u.bytes -= x.bytes
			lost += x.n
		}
		return gone
	})
	u.dropped += lost
	u.raise(part, upto)
	return lost
}

// raise notes that what lies below an offset is lost to the limit.
func (u *queued) raise(part uint32, upto int64) {
	for k := range u.floors {
		if u.floors[k].Part == part {
			u.floors[k].Offset = max(u.floors[k].Offset, upto)
			return
		}
	}
	u.floors = append(u.floors, session.Position{Part: part, Offset: upto})
}

// join makes one bucket of the two neighbours in a partition that hold least, until there are few enough.
func (u *queued) join() {
	for len(u.buckets) > bucketsMax {
		first, second, least := -1, -1, int64(-1)
		last := map[uint32]int{}
		for k, x := range u.buckets {
			if prev, ok := last[x.part]; ok {
				if sum := u.buckets[prev].bytes + x.bytes; least < 0 || sum < least {
					first, second, least = prev, k, sum
				}
			}
			last[x.part] = k
		}
		if first < 0 {
			return // one for each partition
		}
		x := &u.buckets[second]
		x.n, x.bytes = x.n+u.buckets[first].n, x.bytes+u.buckets[first].bytes
		u.buckets = slices.Delete(u.buckets, first, first+1)
	}
}

// floor is the offset below which a session has lost its copies.
func (o *offline) floor(id string, part uint32) int64 {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if u := o.users[id]; u != nil {
		at, _ := position(u.floors, part)
		return at
	}
	return 0
}

// end forgets the account of a session that ends.
func (o *offline) end(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.users, id)
}

// QueuedInfo is what a session has among the copies that were made when segments went.
type QueuedInfo struct {
	Messages, Bytes int64
	Dropped         int64 // messages that it has lost since the start, to a limit or because copying was too slow
}

// queued is asked by the session's owner.
func (o *offline) queued(c *Client) QueuedInfo {
	o.mu.Lock()
	defer o.mu.Unlock()
	u := o.users[c.ClientID]
	if u == nil {
		return QueuedInfo{}
	}
	var at []session.Position
	for i := range c.Cursors {
		if cur := &c.Cursors[i]; cur.Behind {
			at = append(at, session.Position{Part: cur.Part, Offset: cur.Next})
		}
	}
	u.settle(at)
	return QueuedInfo{u.n, u.bytes, u.dropped}
}
