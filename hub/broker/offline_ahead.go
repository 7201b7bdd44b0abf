package broker

import (
	"slices"

	"edgehub/hub/stream"
	"edgehub/storage/seglog"
)

// A session that wants much of a stream, and stays away, has more waiting in the stream than its limit: with the oldest
// given up, none of the copies would ever be delivered, and each of the stream's messages would be written twice for
// it. So when a session has come to its limit, the log above the segment in hand is looked through for what it has
// there. Where that alone fills its queue, its copies are given up, and no more are made, until as much of it has
// gone that the rest may not fill the queue any more; then it is looked through again.
//
// A session that has come to its limit otherwise, with what waits in the log being little, is looked after again only
// when it has lost half its limit: so what is read is bounded by what is lost.

// aheadBytes bounds what is looked through at one time; aheadQueues is how many queues full are looked for, so that it
// need not be done for every segment, and below aheadLow of them it is done again.
const (
	aheadBytes  = 256 << 20
	aheadQueues = 8
	aheadLow    = 2
)

// ahead is what a session is known to have in the log of a partition, above what has gone. Owned by retention.
type ahead struct {
	part  uint32
	pos   int64 // where the session was: it holds until that moves
	n     int64
	bytes int64
}

// fills reports that it fills a queue so many times.
func (a *ahead) fills(lim *Limits, times int64) bool {
	return lim.QueuedMessages > 0 && a.n >= times*int64(lim.QueuedMessages) || lim.QueuedBytes > 0 && a.bytes >= times*lim.QueuedBytes
}

// aheadIn returns what is known of a partition, nil: nothing.
func (u *queued) aheadIn(part uint32) *ahead {
	for i := range u.ahead {
		if u.ahead[i].part == part {
			return &u.ahead[i]
		}
	}
	return nil
}

// hasMoved forgets what is known of partitions in which the session has moved on. at is where it is.
func (u *queued) hasMoved(n *need) {
	u.ahead = slices.DeleteFunc(u.ahead, func(a ahead) bool {
		pos, behind := position(n.at, a.part)
		return !behind || pos != a.pos
	})
}

// pass reports that a message is one of more than the session's queue holds, so that it need not be copied.
func (n *need) pass(b *Broker, p *partition, offset, size int64) bool {
	a := n.account.aheadIn(p.ID)
	if a == nil || !a.fills(&b.o.Limits, 1) {
		return false
	}
	a.n, a.bytes, n.passed = a.n-1, a.bytes-size, offset+1
	return true
}

// lookAhead finds out what the sessions that have come to their limits have in the log from an offset on.
func (b *Broker) lookAhead(p *partition, from int64, s *snapshot) error {
	lim := &b.o.Limits
	if p.Stream.Offline != stream.OfflineDropOldest {
		return nil
	}
	looking := map[*need]*ahead{}
	for _, n := range s.needs {
		u := n.account
		known := u.aheadIn(p.ID)
		lost := ahead{n: u.sinceLook, bytes: u.bytesSinceLook}
		if pos, behind := position(n.raw, p.ID); behind && (known != nil && !known.fills(lim, aheadLow) || lost.fills(&Limits{
			QueuedMessages: lim.QueuedMessages / 2, QueuedBytes: lim.QueuedBytes / 2}, 1)) {
			looking[n] = &ahead{part: p.ID, pos: pos}
		}
	}
	if len(looking) == 0 {
		return nil
	}
	if err := b.countAhead(p, from, s, looking); err != nil {
		return err
	}
	o := &b.offline
	o.mu.Lock()
	defer o.mu.Unlock()
	for n, a := range looking {
		u := n.account
		u.sinceLook, u.bytesSinceLook = 0, 0
		u.ahead = slices.DeleteFunc(u.ahead, func(x ahead) bool { return x.part == p.ID })
		if a.fills(lim, 1) {
			u.ahead = append(u.ahead, *a)
			b.Stats.OfflineSessionFull.Add(u.loseBelow(p.ID, from))
		}
	}
	return nil
}

// countAhead reads until every session has its queues full, or there is no more, or it has been enough.
func (b *Broker) countAhead(p *partition, from int64, s *snapshot, looking map[*need]*ahead) error {
	o, lim := &b.offline, &b.o.Limits
	end, scanned, open := min(p.Readable(), s.posted[p.ID]), 0, len(looking)
	for at := from; at < end && scanned < aheadBytes && open > 0; {
		var err error
		if o.buf, err = p.Log.Read(at, readBytes, o.buf[:0]); err != nil {
			return err
		}
		scanned += len(o.buf)
		before := at
		for rec := range seglog.Records(o.buf) {
			if rec.Offset < at || rec.Offset >= end {
				continue
			}
			at = rec.Offset + 1
			size := copySize(&rec)
			s.judge(b, p.ID, rec.Offset, &rec, func(n *need) bool {
				if a := looking[n]; a != nil && !a.fills(lim, aheadQueues) {
					if a.n, a.bytes = a.n+1, a.bytes+size; a.fills(lim, aheadQueues) {
						open--
					}
				}
				return false
			})
		}
		if at == before {
			break
		}
	}
	return nil
}

// loseBelow gives up all copies of a partition and notes how far. Under offline.mu.
func (u *queued) loseBelow(part uint32, upto int64) (lost int64) {
	for i := len(u.buckets) - 1; i >= 0; i-- {
		if u.buckets[i].part == part {
			lost = u.loseBucket(i) // and all before it
			break
		}
	}
	u.raise(part, upto)
	return lost
}
