package uplink

import (
	"time"

	"edgehub/storage/seglog"
)

// Counters count since the program started.
type Counters struct {
	Sent       uint64 // records published, repetitions included
	SentBytes  uint64 // on the wire
	Acked      uint64 // records acknowledged
	Connects   uint64 // connections tried
	Failures   uint64 // connections that could not be made or ended in doubt
	ReadBack   uint64 // records of the remote that were read to find where to go on
	Rewound    uint64 // records that the remote had acknowledged and no longer has
	Skipped    uint64 // records that retention removed before they were sent
	Duplicates uint64 // acknowledgements that called a record a duplicate
}

// Status is what an uplink says of itself.
type Status struct {
	Name      string
	State     State
	Since     time.Time
	Connected bool // a connection is up; progress is what State and Lag say

	LagMessages int64
	LagBytes    int64
	LagAge      time.Duration    // of the oldest record that is not acknowledged
	Acked       map[string]int64 // last acknowledged offset of the partitions that have one
	InFlight    int

	LastError   string
	LastErrorAt time.Time
	RecoveredAt time.Time     // since when the last error is a thing of the past; zero: it is not
	Blocked     *BlockedError // nil unless State is Blocked
	Stuck       []Stuck       // partitions that wait while others go on
	Pending     []Move        // the operator's orders that are not carried out yet
	Losses      map[string]Loss
	RecordMax   int64     // the largest record that the remote takes, headers included; 0: not known
	NextProbe   time.Time // zero unless State is Backoff or Blocked
	Counters    Counters
}

// age caches the time of a partition's oldest unacknowledged record.
type age struct {
	offset int64
	ms     int64
	known  bool
}

// Status returns the uplink's state and lag.
func (r *Replicator) Status() Status {
	r.mu.Lock()
	s := Status{Name: r.o.Name, State: r.machine.State(), Since: r.machine.Since(), Connected: r.connected,
		Acked: make(map[string]int64, len(r.parts)), LastError: r.lastErr, LastErrorAt: r.lastErrAt, RecoveredAt: r.recovered,
		Losses: map[string]Loss{}, RecordMax: r.remote.RecordMax, Counters: r.counters}
	s.InFlight, _ = r.machine.InFlight()
	if r.paused {
		s.State, s.Connected = Paused, false
	}
	if s.State == Blocked {
		s.Blocked = r.blocked
	}
	if s.State == Blocked || s.State == Backoff {
		s.NextProbe = r.machine.Deadline()
	}
	r.trouble(&s)
	acked := make([]int64, len(r.parts))
	for i := range r.parts {
		acked[i] = r.machine.Acked(i)
	}
	r.mu.Unlock()

	oldest := int64(0)
	for i, p := range r.parts {
		if acked[i] > 0 {
			s.Acked[p.Name()] = acked[i] - 1
		}
		from := max(acked[i], p.First())
		lag := p.Next() - from
		if lag <= 0 {
			continue
		}
		s.LagMessages += lag
		s.LagBytes += p.BytesFrom(from)
		if ms, ok := r.timeOf(i, from); ok && (oldest == 0 || ms < oldest) {
			oldest = ms
		}
	}
	if oldest > 0 {
		s.LagAge = max(0, time.Duration(r.o.NowMs()-oldest)*time.Millisecond)
	}
	return s
}

// trouble adds what waits and what is lost. The caller holds mu.
func (r *Replicator) trouble(s *Status) {
	for i, p := range r.parts {
		if l := r.lossOf(i); l.Retention > 0 || l.Skipped > 0 {
			s.Losses[p.Name()] = l
		}
		if m, ok := r.state.Moves[p.Name()]; ok {
			s.Pending = append(s.Pending, Move{Partition: p.Name(), Back: m.Back, Offset: m.To})
		}
		if k := r.stuck[i]; k != nil {
			s.Stuck = append(s.Stuck, Stuck{Partition: p.Name(), Offset: k.offset, Since: k.since, Cause: k.why.Cause, Reason: k.why.Reason, Cure: k.why.Cure})
		}
	}
	// An uplink of which no partition can go on is as good as blocked.
	if len(s.Stuck) == len(r.parts) && len(r.parts) > 0 && s.State == Stream {
		s.State, s.Blocked, s.NextProbe = Blocked, r.stuck[0].why, r.lookAt
	}
}

// timeOf returns the time of the first record at or after an offset.
func (r *Replicator) timeOf(lane int, offset int64) (int64, bool) {
	r.ageMu.Lock()
	defer r.ageMu.Unlock()
	a := &r.ages[lane]
	if a.known && a.offset == offset {
		return a.ms, true
	}
	a.known = false
	if cap(r.ageBuf) > readKept {
		r.ageBuf = nil
	}
	buf, err := r.parts[lane].Read(offset, 1, r.ageBuf[:0])
	r.ageBuf = buf[:0]
	if err != nil {
		return 0, false
	}
	var sc seglog.Scanner
	sc.Reset(buf)
	if sc.SkipTo(offset); sc.Next() {
		*a = age{offset: offset, ms: sc.Record().TimeMs, known: true}
	}
	return a.ms, a.known
}
