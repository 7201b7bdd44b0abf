package stream

import (
	"errors"
	"sync"
	"time"

	"edgehub/storage/seglog"
)

const (
	retentionEvery = 5 * time.Second
	// parkAfter is how many passes a partition must have been quiet to give its descriptor back.
	parkAfter = 12
)

// RetentionHooks are asked before segments go.
type RetentionHooks struct {
	// Hold is the offset that retention by age may not pass in p, because an uplink still needs what follows;
	// math.MaxInt64 when nothing is held.
	Hold func(p *Partition) int64
	// BeforeDrop is called with a segment that is about to be deleted; an error keeps it.
	BeforeDrop func(p *Partition, seg seglog.SegmentInfo) error
	// Tidy is called after a pass over all streams; nil: nothing.
	Tidy func() error
	// Roll seals the active segment, if nobody is appending.
	Roll func(p *Partition) error
	// Dropped reports records deleted for bytes although something held them.
	Dropped func(p *Partition, records int64)
}

// retention deletes whole segments from the front of the partitions. It never deletes for a limit that comes from
// the free space, and never at start.
type retention struct {
	set    *Set
	hooks  RetentionHooks
	kick   chan struct{}
	wanted chan struct{}            // a next segment
	quiet  map[*Partition]quietness // owned by the goroutine
	done   chan struct{}
	wg     sync.WaitGroup

	mu    sync.Mutex // one enforcement at a time
	since map[*Partition]segmentAge
}

// segmentAge is since when a segment has been seen to be the active one.
type segmentAge struct {
	base    int64
	sinceMs int64
}

func newRetention(s *Set) *retention {
	return &retention{set: s, kick: make(chan struct{}, 1), wanted: make(chan struct{}, 1),
		quiet: map[*Partition]quietness{}, done: make(chan struct{}),
		since: map[*Partition]segmentAge{}}
}

func (r *retention) start(h RetentionHooks) {
	if h.Roll == nil {
		h.Roll = func(*Partition) error { return nil }
	}
	r.hooks = h
	r.wg.Add(1)
	go r.run()
}

func (r *retention) stop() {
	select {
	case <-r.done:
	default:
		close(r.done)
	}
	r.wg.Wait()
}

// Appended tells retention that n bytes were added to p, so that max_bytes is a hard limit whatever the rate.
func (s *Set) Appended(p *Partition, n int) {
	s.sync.noteUnsynced()
	if p.unsynced.Add(int64(n)) > p.Stream.SegmentBytes {
		s.RequestSync(p)
	}
	if p.Log.NeedsPrepare() {
		poke(s.retention.wanted)
	}
	st, next := p.Stream, p.Log.Next()
	added := next - p.counted.Swap(next)
	records, total := st.records.Add(added), st.bytes.Add(int64(n))
	l := st.Limits()
	full := l.over(total, records)
	if full && l.RejectNew {
		st.full.Store(true)
	}
	share := l.recordShare(len(st.Partitions))
	if full || l.MaxRecords > 0 && records/share != (records-added)/share { // something to seal
		poke(s.retention.kick)
	}
}

func (r *retention) run() {
	defer r.wg.Done()
	every := time.NewTicker(retentionEvery)
	defer every.Stop()
	for {
		select {
		case <-r.done:
			return
		case <-r.wanted:
			r.prepare()
			continue
		case <-every.C:
			r.park()
		case <-r.kick:
		}
		r.set.Enforce()
	}
}

// prepare makes next segments ready here, so that no event loop waits for the creation of a file.
func (r *retention) prepare() {
	for _, p := range r.set.Partitions {
		if p.Log.NeedsPrepare() {
			if err := p.Log.Prepare(); err != nil {
				r.set.o.Logger.Warn("the next segment could not be prepared", "partition", p.Name, "err", err)
			}
		}
	}
}

// quietness is for how many passes a partition has not moved.
type quietness struct {
	next   int64
	passes int
}

// park gives the descriptors of quiet partitions back: a hub may have a thousand.
func (r *retention) park() {
	for _, p := range r.set.Partitions {
		q := r.quiet[p]
		if next := p.Log.Next(); next != q.next {
			q = quietness{next: next}
		} else if q.passes++; q.passes == parkAfter {
			p.Log.Park()
		}
		r.quiet[p] = q
	}
}

// Enforce applies the retention of every stream now.
func (s *Set) Enforce() {
	for _, st := range s.Streams {
		if st.Configured {
			s.retention.enforce(st)
		}
	}
	s.retention.tidy()
}

func (r *retention) tidy() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hooks.Tidy == nil {
		return
	}
	if err := r.hooks.Tidy(); err != nil {
		r.set.o.Logger.Warn("copies for sessions could not be tidied up", "err", err)
	}
}

func (r *retention) enforce(st *Stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := st.Limits()
	if l.MaxAge > 0 {
		r.byAge(st, l.MaxAge)
	}
	var total int64
	for _, p := range st.Partitions {
		total += p.Log.Bytes()
	}
	if l.MaxBytes > 0 && total > l.MaxBytes && !l.RejectNew {
		r.byBytes(st, total, l.MaxBytes)
	}
	records := r.byRecords(st, l)
	// Recomputed from the logs each time, never counted on from an earlier sum.
	total = 0
	for _, p := range st.Partitions {
		total += p.Log.Bytes()
	}
	st.bytes.Store(total)
	st.records.Store(records)
	st.full.Store(l.RejectNew && l.over(total, records))
}

func (r *retention) byAge(st *Stream, most time.Duration) {
	oldest := r.set.o.Clock.NowMs() - most.Milliseconds()
	for _, p := range st.Partitions {
		r.rollByAge(p, most)
		hold := r.hooks.Hold(p)
		for _, seg := range p.Log.Segments() {
			if !seg.Sealed || seg.MaxTimeMs >= oldest || seg.Next > hold {
				break
			}
			if !r.drop(p, seg) {
				break
			}
			st.Expired.Add(seg.Next - seg.Base)
		}
	}
}

// rollsPerAge is into how many segments at least the age limit of a stream divides: whole segments are deleted, so a
// stream with little traffic would keep its records far beyond their age otherwise.
const rollsPerAge = 8

func (r *retention) rollByAge(p *Partition, most time.Duration) {
	segs := p.Log.Segments()
	if len(segs) == 0 {
		return
	}
	active, now := segs[len(segs)-1], r.set.o.Clock.NowMs()
	if a, ok := r.since[p]; !ok || a.base != active.Base || active.Next == active.Base {
		r.since[p] = segmentAge{active.Base, now}
		return
	}
	if active.Sealed || now-r.since[p].sinceMs < max(most.Milliseconds()/rollsPerAge, 1000) {
		return
	}
	r.roll(p, active.Base)
}

// byBytes drops the segment with the oldest newest record of all partitions, until the stream fits. A hold does not
// stop it: max_bytes is the hard limit, and what is lost to it is counted.
func (r *retention) byBytes(st *Stream, total, most int64) {
	for total > most {
		seg, ok := r.dropOldest(st)
		if !ok {
			return
		}
		total -= seg.Bytes
	}
}

// dropOldest drops the segment of the stream whose newest record is the oldest, whatever holds it, and counts what is
// lost to that.
func (r *retention) dropOldest(st *Stream) (seg seglog.SegmentInfo, ok bool) {
	var victim *Partition
	for _, p := range st.Partitions {
		segs := p.Log.Segments()
		if len(segs) > 0 && segs[0].Sealed && (victim == nil || segs[0].MaxTimeMs < seg.MaxTimeMs) {
			victim, seg = p, segs[0]
		}
	}
	if victim == nil {
		return seg, false
	}
	hold := r.hooks.Hold(victim)
	if !r.drop(victim, seg) {
		return seg, false
	}
	st.Dropped.Add(seg.Next - seg.Base)
	if seg.Next > hold {
		r.hooks.Dropped(victim, seg.Next-max(seg.Base, hold))
	}
	return seg, true
}

// byRecords is byBytes for the number of records, and returns it.
func (r *retention) byRecords(st *Stream, l *Limits) (records int64) {
	for _, p := range st.Partitions {
		records += p.Log.Next() - p.Log.First()
	}
	if l.MaxRecords <= 0 || l.RejectNew {
		return records
	}
	for _, p := range st.Partitions {
		if segs := p.Log.Segments(); len(segs) > 0 {
			if active := segs[len(segs)-1]; !active.Sealed && active.Next-active.Base >= l.recordShare(len(st.Partitions)) {
				r.roll(p, active.Base)
			}
		}
	}
	for records > l.MaxRecords {
		seg, ok := r.dropOldest(st)
		if !ok {
			break
		}
		records -= seg.Next - seg.Base
	}
	return records
}

// over reports whether a stream that holds so much takes no more, or has to drop something.
func (l *Limits) over(bytes, records int64) bool {
	return l.MaxBytes > 0 && bytes > l.MaxBytes || l.MaxRecords > 0 && (records > l.MaxRecords || l.RejectNew && records == l.MaxRecords)
}

// recordShare is how many records seal a segment where their number is limited: an eighth of a partition's share, so
// that something can be dropped in time.
func (l *Limits) recordShare(partitions int) int64 {
	return max(l.MaxRecords/int64(partitions)/rollsPerAge, 1)
}

func (r *retention) roll(p *Partition, base int64) {
	if err := r.hooks.Roll(p); err != nil {
		r.set.o.Logger.Warn("segment could not be sealed", "partition", p.Name, "base", base, "err", err)
	}
}

func (r *retention) drop(p *Partition, seg seglog.SegmentInfo) bool {
	if err := r.hooks.BeforeDrop(p, seg); err != nil {
		r.set.o.Logger.Warn("segment kept: what is still needed of it could not be copied", "partition", p.Name, "base", seg.Base, "err", err)
		return false
	}
	got, err := p.Log.DropOldest()
	if err != nil {
		r.set.o.Logger.Warn("segment could not be deleted", "partition", p.Name, "base", seg.Base, "err", err)
		return false
	}
	if got.Base != seg.Base {
		r.set.o.Logger.Error("BUG: another segment was deleted than the one chosen", "partition", p.Name, "want", seg.Base, "got", got.Base)
		return false
	}
	return true
}

// ErrFull is why a publish to a stream at its limit is refused.
var ErrFull = errors.New("stream: full, and its policy is to reject new messages")
