package uplink

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"edgehub/storage/seglog"
)

const (
	// readBytes is how much of a partition is read, and sent, in one turn.
	readBytes = 256 << 10
	// readKept bounds the buffer that is kept after a larger batch.
	readKept = 1 << 20
	// readRetry is how long a partition that could not be read is left alone.
	readRetry = time.Second
)

// merge turns the partitions into one sequence of records: round robin, one
// chunk each, so that no partition waits for another's backlog. The order
// depends on nothing but the positions and what is there. It has one buffer, so
// its memory does not grow with the number of partitions.
//
// A partition's turn begins only when nothing of it is in flight (or when it had
// the turn before). The pipeline's safety rests on that rule, see send.
//
// Owned by the Replicator's Run goroutine.
type merge struct {
	parts   []Partition
	at      int // partition of the current chunk
	scanner seglog.Scanner
	buf     []byte
	end     int64  // synced offset when the chunk was read
	current bool   // scanner holds a record that was not taken yet
	last    int    // partition of the record taken last; -1: none since reset
	script  []turn // to be taken first, see follow
	dry     []dry
	idle    func(lane int) bool
	stuck   func(lane int) bool                     // nothing of the lane can be sent
	pass    func(lane int, offset int64) (to int64) // the operator leaves out what is before to; offset: nothing
	skipped func(lane int, from, to int64)
	failed  func(err error)
}

// dry remembers that a partition had nothing to read, so that a damaged tail or
// a failing disk does not become a busy loop.
type dry struct {
	synced int64
	until  time.Time
}

func newMerge(parts []Partition) *merge {
	return &merge{parts: parts, dry: make([]dry, len(parts)), last: -1}
}

// reset forgets the current chunk and the script: positions have moved.
func (m *merge) reset() {
	m.script = nil
	m.current, m.last = false, -1
	m.scanner.Reset(nil)
	clear(m.dry)
}

// follow makes the turns that an earlier connection may still have on its way the
// first ones again, in the same order: a late copy then is the very record that
// belongs where it fits. next are the positions to go on from; what the remote
// has of the turns is left out. When it has less than was acknowledged, the old
// order means nothing any more.
func (m *merge) follow(turns []turn, next []int64) {
	m.script = m.script[:0]
	for _, t := range turns {
		if next[t.lane] < t.from {
			m.script = nil
			return
		}
		if t.from = max(t.from, next[t.lane]); t.from < t.to {
			m.script = append(m.script, t)
		}
	}
}

// rest returns the turns of follow that were not begun or not finished.
func (m *merge) rest(next func(lane int) int64) []turn {
	var out []turn
	for _, t := range m.script {
		if t.from = max(t.from, next(t.lane)); t.from < t.to {
			out = append(out, t)
		}
	}
	return out
}

// fillScript reads on in the turns of follow.
func (m *merge) fillScript(now time.Time, next func(lane int) int64) bool {
	for len(m.script) > 0 {
		t := m.script[0]
		m.at = t.lane
		if m.stuck(t.lane) {
			// A late copy of what follows would have to come behind a record that
			// the remote does not take.
			m.script = m.script[1:]
			continue
		}
		if next(t.lane) < t.to && !now.Before(m.dry[t.lane].until) {
			if m.read(now, m.parts[t.lane], next(t.lane), min(t.to, m.parts[t.lane].Synced())) {
				return true
			}
			if now.Before(m.dry[t.lane].until) {
				return false // it could not be read: later
			}
		} else if next(t.lane) < t.to {
			return false
		}
		m.script = m.script[1:] // done, or the log no longer has it
	}
	return false
}

// peek returns the next record to send and its lane, reading on when the
// current chunk is used up. The record is valid until the next call of peek
// that follows a take.
func (m *merge) peek(now time.Time, next func(lane int) int64) (int, seglog.Record, bool) {
	if m.current {
		return m.at, m.scanner.Record(), true
	}
	for {
		for m.scanner.Next() {
			rec := m.scanner.Record()
			if rec.Offset >= m.end {
				m.beyond(next)
				break // appended, but a power cut could still take it back
			}
			if rec.Offset < next(m.at) {
				continue
			}
			if m.pass(m.at, rec.Offset) > rec.Offset {
				m.scanner.Reset(nil) // read on behind it
				break
			}
			m.current = true
			return m.at, rec, true
		}
		if err := m.scanner.Err(); err != nil {
			m.fail(m.at, now, err)
		}
		if !m.fill(now, next) {
			return 0, seglog.Record{}, false
		}
	}
}

// beyond is told that the log has nothing between a partition's position and the
// end of the chunk's turn: damage took it. So that it is not looked for again and
// again, the turn of follow is over, or the partition waits until more is synced.
func (m *merge) beyond(next func(lane int) int64) {
	switch {
	case next(m.at) >= m.end:
	case len(m.script) > 0:
		m.script = m.script[1:]
	default:
		m.dry[m.at].synced = m.end
	}
}

// drop forgets the current chunk: its partition is stuck.
func (m *merge) drop() {
	m.current = false
	m.scanner.Reset(nil)
}

// take marks the record that peek returned as sent.
func (m *merge) take() { m.current, m.last = false, m.at }

// fill reads the next partition, in turn, that has something below its synced
// offset.
func (m *merge) fill(now time.Time, next func(lane int) int64) bool {
	m.scanner.Reset(nil)
	if len(m.script) > 0 {
		if m.fillScript(now, next) {
			return true
		}
		if len(m.script) > 0 {
			return false
		}
	}
	for range m.parts {
		m.at++
		if m.at >= len(m.parts) {
			m.at = 0
		}
		p, from, synced := m.parts[m.at], next(m.at), m.parts[m.at].Synced()
		if m.stuck(m.at) {
			continue
		}
		if m.at != m.last && !m.idle(m.at) {
			continue // its acknowledgements will wake us
		}
		if d := &m.dry[m.at]; synced <= from || d.synced == synced || now.Before(d.until) {
			continue
		}
		if m.read(now, p, from, synced) {
			return true
		}
	}
	return false
}

func (m *merge) read(now time.Time, p Partition, from, synced int64) bool {
	if cap(m.buf) > readKept {
		m.buf = nil
	}
	buf, err := p.Read(from, readBytes, m.buf[:0])
	m.buf = buf[:0]
	switch {
	case errors.Is(err, seglog.ErrTrimmed):
		if first := p.First(); first > from {
			m.skipped(m.at, from, first)
			return m.read(now, p, first, synced)
		}
		m.fail(m.at, now, err)
		return false
	case err != nil:
		m.fail(m.at, now, err)
		return false
	case len(buf) == 0:
		m.dry[m.at] = dry{synced: synced}
		return false
	}
	m.dry[m.at].until = time.Time{}
	m.end = synced
	m.scanner.Reset(buf)
	m.scanner.SkipTo(from)
	return true
}

// fail leaves a partition alone for a while; the others go on.
func (m *merge) fail(lane int, now time.Time, err error) {
	m.dry[lane].until = now.Add(readRetry)
	m.failed(fmt.Errorf("reading %s: %w", m.parts[lane].Name(), err))
}

// failing reports whether some partition could not be read the last time.
func (m *merge) failing() bool {
	return slices.ContainsFunc(m.dry, func(d dry) bool { return !d.until.IsZero() })
}

// retryAt returns when a partition that could not be read is due again; zero
// when there is none. One that is due by now was tried, or waits for what will
// wake us anyway.
func (m *merge) retryAt(now time.Time) time.Time {
	var t time.Time
	for i := range m.dry {
		if u := m.dry[i].until; u.After(now) && (t.IsZero() || u.Before(t)) {
			t = u
		}
	}
	return t
}
