package broker

import (
	"fmt"

	"edgehub/hub/message"
	"edgehub/storage/seglog"
)

// The internal stream is a log like any other: only its front can be given back to the disk.
//
//   - Runs that every session is past are forgotten. A segment of which no run is left goes, at once.
//   - Above its limit, what is still needed of the oldest segment is appended again if that is the smaller part of it,
//     as when one session stays away long and others come and go. Otherwise it is lost, but for what is in flight, and
//     counted for each session: the oldest goes first.

// TidyOffline gives back what no session needs of the copies.
func (b *Broker) TidyOffline() error { return b.tidyOffline(b.ask) }

func (b *Broker) tidyOffline(ask asker) error {
	o := &b.offline
	if o.to == nil || o.to.Log.First() == o.to.Log.Next() {
		o.snap = nil // nothing is kept of sessions between passes
		return nil
	}
	if err := b.countCopies(ask); err != nil {
		return err
	}
	s, err := b.needed(o.to.ID, 0, ask)
	if err != nil {
		return err
	}
	b.dropRuns(func(part uint32, r run) bool { return s.quiet(part, r.from, r.to) })
	if err := b.o.Meta.Commit(); err != nil {
		return err
	}
	if err := b.dropCopies(); err != nil {
		return err
	}
	return b.fitCopies(s)
}

// fitCopies keeps the internal stream below its limit. What is in flight stays: windows bound that.
func (b *Broker) fitCopies(s *snapshot) error {
	log, limit := b.offline.to.Log, b.o.Limits.OfflineBytes
	for range len(log.Segments()) {
		if limit <= 0 || log.Bytes() <= limit {
			break
		}
		if gone, err := b.makeRoom(s); err != nil || !gone {
			return err
		}
	}
	return nil
}

// dropCopies deletes the segments at the front that no run points into.
func (b *Broker) dropCopies() error {
	o := &b.offline
	for {
		first := int64(-1)
		o.eachRun(func(_ uint32, r run) {
			if first < 0 || r.at < first {
				first = r.at
			}
		})
		segs := o.to.Log.Segments()
		switch {
		case len(segs) == 0 || first >= 0 && segs[0].Next > first || segs[0].Next == segs[0].Base:
			return nil
		case !segs[0].Sealed && first >= 0:
			return nil
		case !segs[0].Sealed: // nothing at all is needed
			if err := b.Roll(o.to.Partition); err != nil {
				return err
			}
			if segs = o.to.Log.Segments(); !segs[0].Sealed {
				return nil // somebody commits: the next time
			}
		}
		if _, err := o.to.Log.DropOldest(); err != nil {
			return err
		}
	}
}

// makeRoom gets rid of the oldest segment. False: there is none that could go.
func (b *Broker) makeRoom(s *snapshot) (bool, error) {
	o := &b.offline
	segs := o.to.Log.Segments()
	if len(segs) == 0 || segs[0].Next == segs[0].Base {
		return false, nil
	}
	if !segs[0].Sealed {
		if err := b.Roll(o.to.Partition); err != nil {
			return false, err
		}
		if segs = o.to.Log.Segments(); !segs[0].Sealed {
			return false, nil
		}
	}
	front := segs[0]
	type old struct {
		part uint32
		run
	}
	var runs []old
	o.eachRun(func(part uint32, r run) {
		if r.at < front.Next {
			runs = append(runs, old{part, r})
		}
	})
	var live int64
	for _, x := range runs {
		err := b.eachCopied(x.run, func(place message.Place, rec *seglog.Record) error {
			if s.judge(b, x.part, place.Offset, rec, func(*need) bool { return true }) {
				live += copySize(rec)
			}
			return nil
		})
		if err != nil {
			return false, fmt.Errorf("broker: make room in %s: %w", OfflineStream, err)
		}
	}
	move := live <= front.Bytes/2
	for _, x := range runs {
		if err := b.moveRun(x.part, x.run, s, move); err != nil {
			return false, fmt.Errorf("broker: make room in %s: %w", OfflineStream, err)
		}
	}
	if err := b.o.Meta.Sync(); err != nil {
		return false, err
	}
	_, err := o.to.Log.DropOldest()
	return err == nil, err
}

// moveRun appends again what is needed of a run; with all false only what is in flight. The rest is lost.
func (b *Broker) moveRun(part uint32, k run, s *snapshot, all bool) error {
	w := &copier{b: b, p: b.parts[part]}
	defer w.abandon()
	err := b.eachCopied(k, func(place message.Place, rec *seglog.Record) error {
		wanted := s.judge(b, part, place.Offset, rec, func(n *need) bool {
			if !all {
				b.lose(n, 1)
				b.Stats.OfflineHubFull.Add(1)
			}
			return all
		})
		if !wanted {
			return nil
		}
		return w.add(rec, place.Offset, rec.Headers)
	})
	if err == nil {
		err = w.finish()
	}
	if err != nil {
		return err
	}
	b.addRuns(part, k.from, k.to, w.runs)
	if !all {
		b.offline.loseUpTo(part, k.to)
	}
	return nil
}

// loseUpTo takes copies that went for all sessions out of their accounts.
func (o *offline) loseUpTo(part uint32, upto int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, u := range o.users {
		for i := 0; i < len(u.buckets); i++ {
			if x := &u.buckets[i]; x.part == part && x.upto <= upto {
				u.n -= x.n
				u.bytes -= x.bytes
				u.buckets = append(u.buckets[:i], u.buckets[i+1:]...)
				i--
			}
		}
	}
}

// eachCopied calls fn with the copies of a run, for retention.
func (b *Broker) eachCopied(k run, fn func(message.Place, *seglog.Record) error) error {
	r := &reader{b: b, buf: b.offline.buf}
	var failed error
	_, _, err := r.eachCopy(k, func(place message.Place, rec *seglog.Record) bool {
		failed = fn(place, rec)
		return failed == nil
	})
	b.offline.buf = r.buf
	if failed != nil {
		return failed
	}
	return err
}

// countCopies enters, once after a start, the copies that are there into the accounts of the sessions.
func (b *Broker) countCopies(ask asker) error {
	o := &b.offline
	if o.counted {
		return nil
	}
	type counted struct {
		part uint32
		run
	}
	var runs []counted
	o.eachRun(func(part uint32, r run) { runs = append(runs, counted{part, r}) })
	if len(runs) > 0 {
		s, err := b.needed(o.to.ID, 0, ask)
		if err != nil {
			return err
		}
		defer s.forget()
		for _, x := range runs {
			p := b.parts[x.part]
			err := b.eachCopied(x.run, func(place message.Place, rec *seglog.Record) error {
				size := copySize(rec)
				s.judge(b, x.part, place.Offset, rec, func(n *need) bool { return n.take(b, p, place.Offset, place.TimeMs, size) })
				return nil
			})
			if err != nil {
				return fmt.Errorf("broker: count the copies for sessions: %w", err)
			}
			b.enterFresh(s, x.part)
		}
	}
	o.counted = true
	return nil
}
