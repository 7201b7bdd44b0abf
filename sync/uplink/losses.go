package uplink

import (
	"fmt"
	"slices"
	"time"
)

// loss is what the remote will never get of one partition.
type loss struct {
	Retention int64 `json:"retention,omitempty"` // removed by retention before they were sent
	Skipped   int64 `json:"skipped,omitempty"`   // left out by the operator
	Seen      int64 `json:"seen,omitempty"`      // how many of Retention the operator has taken note of
	AtMs      int64 `json:"at_ms,omitempty"`     // when retention was last found to have removed some
	// To is the offset below which what retention removed is counted, or was
	// there before the uplink was.
	To int64 `json:"to,omitempty"`
	// Passed are the ranges that the operator left out, the newest last: a remote
	// that comes back with less must not be sent them after all.
	Passed []span `json:"passed,omitempty"`
}

// passedKept bounds the ranges remembered of one partition.
const passedKept = 32

// span is a range of offsets, To excluded.
type span struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// Loss is what an uplink did not forward of one partition, and why.
type Loss struct {
	Retention int64 // removed by retention before they were sent
	Skipped   int64 // left out by the operator
	Unseen    int64 // of Retention, what the operator has not taken note of
	At        time.Time
}

// loss returns the entry of a partition. The caller holds mu.
func (r *Replicator) loss(lane int) *loss {
	name := r.parts[lane].Name()
	l := r.state.Losses[name]
	if l == nil {
		l = &loss{}
		if r.state.Losses == nil {
			r.state.Losses = map[string]*loss{}
		}
		r.state.Losses[name] = l
	}
	return l
}

// gone returns how many records retention has removed, that nobody has counted,
// between what the remote has acknowledged and the oldest record of the log. The
// caller holds mu.
func (r *Replicator) gone(lane int, first int64) int64 {
	from := r.machine.Acked(lane)
	if l := r.state.Losses[r.parts[lane].Name()]; l != nil {
		from = max(from, l.To)
	}
	return max(0, first-from)
}

// lossOf returns what is lost of a partition by now. Records that are gone and
// that no position has passed are in it: of these, the remote may turn out to
// have stored as many as a window holds. The caller holds mu.
func (r *Replicator) lossOf(lane int) Loss {
	n := r.gone(lane, r.parts[lane].First())
	out := Loss{Retention: n}
	if l := r.state.Losses[r.parts[lane].Name()]; l != nil {
		out.Retention, out.Skipped = l.Retention+n, l.Skipped
		out.Unseen = max(0, out.Retention-l.Seen)
		out.At = time.UnixMilli(l.AtMs)
	} else {
		out.Unseen = n
	}
	if n > 0 {
		out.At = time.UnixMilli(r.o.NowMs())
	}
	return out
}

// Gone returns how many records of a partition retention has removed that the
// remote has not acknowledged and nobody has counted.
func (r *Replicator) Gone(partition string) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	lane, ok := r.index[partition]
	if !ok {
		return 0
	}
	return r.gone(lane, r.parts[lane].First())
}

// lost passes a lane over records that the log no longer has, and counts those
// that are not counted yet: a rewind may meet the same hole again.
func (r *Replicator) lost(lane int, from, to int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.loss(lane)
	n := max(0, to-max(from, l.To))
	r.machine.Skip(lane, to)
	if n == 0 {
		return
	}
	l.Retention, l.To, l.AtMs = l.Retention+n, to, r.o.NowMs()
	r.counters.Skipped += uint64(n)
	r.fault(time.Now(), fmt.Sprintf("%s: %d records were removed by retention before they were sent", r.parts[lane].Name(), n))
	r.log.Error("records were removed by retention before they were sent", "partition", r.parts[lane].Name(), "from", to-n, "to", to)
}

// pass moves a lane over what the operator left out at an offset, and returns
// where to go on.
func (r *Replicator) pass(lane int, offset int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.state.Losses[r.parts[lane].Name()]
	if l == nil {
		return offset
	}
	to := l.behind(offset)
	r.machine.Skip(lane, to)
	return to
}

// behind returns the first offset from one on that was not left out.
func (l *loss) behind(offset int64) int64 {
	for again := true; again; {
		again = false
		for _, s := range l.Passed {
			if offset >= s.From && offset < s.To {
				offset, again = s.To, true
			}
		}
	}
	return offset
}

// leaveOut adds a range to those that are not sent. The caller holds mu.
func (l *loss) leaveOut(s span) {
	l.Skipped += s.To - s.From
	if len(l.Passed) == passedKept {
		l.Passed = slices.Delete(l.Passed, 0, 1)
	}
	l.Passed = append(l.Passed, s)
}

// noteStart remembers from where a partition without a cursor is forwarded at
// all: what retention removed before the uplink was there is nobody's loss.
func (r *Replicator) noteStart(lane int) {
	if name := r.parts[lane].Name(); r.state.Losses[name] == nil {
		r.loss(lane).To = r.parts[lane].First()
	}
}

// Acknowledge takes note, for the operator, of what retention removed before it
// was sent. The counts stay.
func (r *Replicator) Acknowledge() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.parts {
		if n := r.lossOf(i); n.Unseen > 0 {
			r.loss(i).Seen = n.Retention
		}
	}
	return r.saveState(time.Now())
}
