package broker

import (
	"errors"

	"edgehub/hub/message"
	"edgehub/hub/session"
	"edgehub/storage/seglog"
)

// readKept is readSome below the log's first offset: it reads one run of copies, or steps up to the log when there is
// none any more.
func (r *reader) readKept(ch *chunk, j *job, cur *session.Cursor, p *partition, first int64) (next int64, scanned int) {
	o := &r.b.offline
	from := cur.Next
	if floor := o.floor(j.id, p.ID); floor > from {
		from = floor
	}
	k, ok := o.find(p.ID, from, first)
	if !ok {
		if from = min(from, first); !j.persistent || !o.isKept(p) {
			r.b.Stats.DroppedTrimmed.Add(first - from)
		} else {
			r.b.Stats.DroppedTrimmed.Add(o.lost(p.ID, from, first))
		}
		return max(from, first), 0
	}
	next = max(from, k.from)
	scanned, full, err := r.eachCopy(k, func(place message.Place, rec *seglog.Record) bool {
		if place.Offset < next {
			return true
		}
		if ch.isFull() {
			return false
		}
		next = place.Offset + 1
		rec.Offset, rec.TimeMs = place.Offset, place.TimeMs
		r.keep(ch, j, cur, rec)
		return true
	})
	switch {
	case errors.Is(err, seglog.ErrTrimmed): // nobody needed the rest, or it had to go: see again what there is
		if _, again := o.find(p.ID, next, first); !again {
			return max(next, k.to), scanned
		}
		return max(next, from), scanned
	case err != nil:
		r.b.log.Error("the log could not be read for a session", "partition", o.to.Name, "offset", k.at, "err", err)
		ch.failed = true
		return cur.Next, scanned
	case full:
		return next, scanned
	}
	return max(next, k.to), scanned
}

// findKept reads the copy that stands for the record at it.part, it.offset.
func (r *reader) findKept(ch *chunk, it *chunkItem) (found bool) {
	o := &r.b.offline
	r.end = 0 // what buf holds is of another log
	k, ok := o.find(it.part, it.offset, it.offset+1)
	if !ok {
		return false
	}
	_, _, err := r.eachCopy(k, func(place message.Place, rec *seglog.Record) bool {
		if place.Offset == it.offset && !found {
			found = true
			rec.TimeMs = place.TimeMs
			ch.add(it, rec)
		}
		return !found
	})
	if err != nil && !errors.Is(err, seglog.ErrTrimmed) {
		r.b.log.Error("the log could not be read for a session", "partition", o.to.Name, "offset", k.at, "err", err)
		ch.failed = true
	}
	return found
}

// eachCopy calls fn with the copies of a run until it returns false: stopped. What cannot be read because of damage is passed over.
func (r *reader) eachCopy(k run, fn func(message.Place, *seglog.Record) bool) (scanned int, stopped bool, err error) {
	to := r.b.offline.to
	for at := k.at; at < k.end; {
		if r.buf, err = to.Log.Read(at, runBytes, r.buf[:0]); err != nil {
			return scanned, false, err
		}
		scanned += len(r.buf)
		before := at
		for rec := range seglog.Records(r.buf) {
			if rec.Offset < at || rec.Offset >= k.end {
				continue
			}
			at = rec.Offset + 1
			if place, ok := message.PeekPlace(rec.Headers); ok && !fn(place, &rec) {
				return scanned, true, nil
			}
		}
		if at == before {
			break
		}
	}
	return scanned, false, nil
}
