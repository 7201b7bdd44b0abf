package uplink

import (
	"errors"
	"fmt"
	"time"
)

// State says what an uplink is doing.
type State uint8

// The states of an uplink, as status and metrics name them.
const (
	Probe   State = iota // connecting and asking the remote where to go on
	Stream               // sending and being acknowledged
	Backoff              // waiting after a failure
	Paused               // stopped by the operator, across restarts
	Blocked              // going on would be a guess: the operator decides
)

// String returns the word that status shows.
func (s State) String() string {
	switch s {
	case Probe:
		return "probe"
	case Stream:
		return "stream"
	case Backoff:
		return "backoff"
	case Paused:
		return "paused"
	case Blocked:
		return "blocked"
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// ErrNoProgress is the watchdog's verdict: records are in flight and none was
// acknowledged within the acknowledgement timeout. An open socket proves nothing.
var ErrNoProgress = errors.New("uplink: no acknowledgement in time")

// slowLink is the rate, in bytes a second, of the slowest link that the watchdog
// takes for alive. A record that is itself larger than the link carries within
// the acknowledgement timeout would else be given up and begun anew for ever.
const slowLink = 8 << 10

// errUnknownToken is an acknowledgement for a record that is not in flight.
var errUnknownToken = errors.New("uplink: acknowledgement of a record that is not in flight")

// Timing holds the machine's durations.
type Timing struct {
	BackoffMin time.Duration // first wait after a failure
	BackoffMax time.Duration // longest wait; also how often a blocked uplink looks again
	RefusedMax time.Duration // longest wait while connections are refused, which costs next to nothing; zero: BackoffMax
	AckTimeout time.Duration // longest time without progress while records are in flight
}

// Window bounds what is in flight, and with it the uplink's memory at the sink.
type Window struct {
	Messages int
	Bytes    int64
}

// lane is the machine's view of one partition.
type lane struct {
	// Invariant: acked <= next. Every record below acked is at the remote, as
	// far as the last probe and the acknowledgements since then say.
	acked    int64
	next     int64 // next offset to send
	inFlight int
	digest   Digest // of the record before acked
}

// flight is one record that was sent and not yet settled.
type flight struct {
	offset int64
	size   int64
	seq    uint64 // the remote's, once acknowledged
	digest Digest
	lane   int32
	acked  bool
}

// Machine is the uplink's step machine. Its verbs are called by one driver,
// which does the I/O and passes the time; the machine only decides.
//
// Invariant: tail-head records are in flight, in the order they were sent;
// outside Stream none are, and next equals acked in every lane.
type Machine struct {
	timing Timing
	window Window
	jitter func() float64 // in [0, 1)

	state   State
	since   time.Time // when state was entered
	until   time.Time // Backoff, Blocked: when the next probe is due
	attempt int       // failures in a row without progress between them
	refused bool      // the last failure was a refused connection

	lanes   []lane
	flights []flight // ring, its length a power of two
	head    uint64   // oldest unsettled token
	tail    uint64   // next token to give out
	bytes   int64    // in flight
	// Invariant: what the remote holds up to seq is, of each lane, what is below
	// acked; in every state.
	seq      uint64
	top      *flight // the record at seq; nil: not of this connection
	topBuf   flight
	progress time.Time
}

// NewMachine returns a machine in Probe. cursors holds the acknowledged position
// per lane as last persisted, seq the remote's sequence that they are of; jitter
// spreads the waits and may be nil.
func NewMachine(t Timing, w Window, cursors []int64, seq uint64, jitter func() float64) *Machine {
	if jitter == nil {
		jitter = func() float64 { return 0.5 }
	}
	ring := 1
	for ring < w.Messages {
		ring <<= 1
	}
	m := &Machine{timing: t, window: w, jitter: jitter, seq: seq, lanes: make([]lane, len(cursors)), flights: make([]flight, ring)}
	for i, c := range cursors {
		m.lanes[i] = lane{acked: c, next: c}
	}
	return m
}

// State returns the current state.
func (m *Machine) State() State { return m.state }

// Since returns when the current state was entered.
func (m *Machine) Since() time.Time { return m.since }

// InFlight returns how many records and bytes are sent and unsettled.
func (m *Machine) InFlight() (messages int, bytes int64) { return int(m.tail - m.head), m.bytes }

// Acked returns the lane's cursor: every record below it is at the remote.
func (m *Machine) Acked(lane int) int64 { return m.lanes[lane].acked }

// Digest returns the digest of the record before the lane's cursor; zero when it
// is not known.
func (m *Machine) Digest(lane int) Digest { return m.lanes[lane].digest }

// Seq returns the remote's sequence of the newest record that the cursors cover.
func (m *Machine) Seq() uint64 { return m.seq }

// Top returns the record at Seq, if this connection's acknowledgements tell.
func (m *Machine) Top() (lane int, offset int64, digest Digest, ok bool) {
	if m.top == nil {
		return 0, 0, 0, false
	}
	return int(m.top.lane), m.top.offset, m.top.digest, true
}

// Next returns the lane's next offset to send.
func (m *Machine) Next(lane int) int64 { return m.lanes[lane].next }

func (m *Machine) become(now time.Time, s State) {
	if m.state == Stream && s != Stream {
		m.rewind()
	}
	m.state, m.since = s, now
}

// rewind forgets what is in flight: all of it is in doubt and is sent again,
// from wherever the next probe says.
func (m *Machine) rewind() {
	m.head, m.bytes = m.tail, 0
	for i := range m.lanes {
		m.lanes[i].next, m.lanes[i].inFlight = m.lanes[i].acked, 0
	}
}

// BecomeProbe asks for a new connection at once.
func (m *Machine) BecomeProbe(now time.Time) { m.become(now, Probe) }

// BecomeStream starts sending at the positions that the remote was found to
// hold up to its sequence seq. They replace the cursors, also when the remote
// has less than was acknowledged: it may have lost power. digests are those of
// the records before them; nil: not known.
func (m *Machine) BecomeStream(now time.Time, positions []int64, digests []Digest, seq uint64) {
	if len(positions) != len(m.lanes) || digests != nil && len(digests) != len(m.lanes) {
		panic(fmt.Sprintf("BUG: uplink: %d positions, %d digests for %d lanes", len(positions), len(digests), len(m.lanes)))
	}
	m.become(now, Stream)
	m.seq, m.top = seq, nil
	for i, p := range positions {
		m.lanes[i] = lane{acked: p, next: p}
		if digests != nil {
			m.lanes[i].digest = digests[i]
		}
	}
}

// BecomeBackoff is the answer to every doubt: everything unacknowledged is
// rewound and the next probe waits, longer after each failure without progress.
// Paused stays paused and Blocked stays blocked (and looks again later). refused
// says that a connection was refused. When it no longer is, something has come
// up: then the waits begin anew.
func (m *Machine) BecomeBackoff(now time.Time, refused bool) {
	switch m.state {
	case Paused:
		return
	case Blocked:
		m.until = now.Add(m.timing.BackoffMax)
		return
	case Stream:
		if now.Sub(m.since) >= m.timing.BackoffMax {
			m.attempt = 0 // a link that held is not a flapping one
		}
	case Probe, Backoff:
	}
	if m.refused && !refused {
		m.attempt = 0
	}
	m.refused = refused
	m.become(now, Backoff)
	m.until = now.Add(m.wait())
	m.attempt++
}

// wait returns the next back-off: doubled per attempt, capped, and spread over
// its upper half so that a fleet does not return in step.
func (m *Machine) wait() time.Duration {
	d := m.timing.BackoffMax
	if m.refused && m.timing.RefusedMax > 0 {
		d = min(d, m.timing.RefusedMax)
	}
	if m.attempt < 32 {
		if e := m.timing.BackoffMin << m.attempt; e > 0 && e < d {
			d = e
		}
	}
	return d/2 + time.Duration(m.jitter()*float64(d-d/2))
}

// BecomeBlocked stops until the operator resumes; the remote is looked at again
// every BackoffMax, in case the cause was removed there.
func (m *Machine) BecomeBlocked(now time.Time) {
	if m.state == Paused {
		return
	}
	if m.state != Blocked {
		m.become(now, Blocked)
	}
	m.until = now.Add(m.timing.BackoffMax)
}

// Look has a blocked uplink look at the remote at once.
func (m *Machine) Look(now time.Time) {
	if m.state == Blocked {
		m.until = now
	}
}

// Pause stops the uplink. What is in flight is rewound.
func (m *Machine) Pause(now time.Time) {
	if m.state != Paused {
		m.become(now, Paused)
	}
}

// Resume leaves Paused, Blocked and Backoff with a probe at once. Elsewhere it
// does nothing.
func (m *Machine) Resume(now time.Time) {
	if m.state == Paused || m.state == Blocked || m.state == Backoff {
		m.attempt = 0
		m.become(now, Probe)
	}
}

// ProbeDue reports whether the driver should connect and probe now.
func (m *Machine) ProbeDue(now time.Time) bool {
	switch m.state {
	case Probe:
		return true
	case Backoff:
		if !now.Before(m.until) {
			m.become(now, Probe)
			return true
		}
	case Blocked:
		return !now.Before(m.until)
	case Stream, Paused:
	}
	return false
}

// CanSend reports whether the window has room for a record of size bytes. One
// record always fits in an empty window.
func (m *Machine) CanSend(size int64) bool {
	n, b := m.InFlight()
	return m.state == Stream && n < m.window.Messages && (n == 0 || b+size <= m.window.Bytes)
}

// Token returns what Send will return next.
func (m *Machine) Token() uint64 { return m.tail }

// Send takes a record into the window and returns the token that its
// acknowledgement will carry.
func (m *Machine) Send(now time.Time, ln int, offset, size int64, digest Digest) uint64 {
	l := &m.lanes[ln]
	if m.state != Stream || offset < l.next || int(m.tail-m.head) >= len(m.flights) {
		panic(fmt.Sprintf("BUG: uplink: sent offset %d of lane %d in state %s, next %d", offset, ln, m.state, l.next))
	}
	if m.head == m.tail {
		m.progress = now
	}
	t := m.tail
	m.flights[t&uint64(len(m.flights)-1)] = flight{offset: offset, size: size, digest: digest, lane: int32(ln)}
	m.tail++
	m.bytes += size
	l.next = offset + 1
	l.inFlight++
	return t
}

// Skip moves a lane's next offset over records that the log no longer holds.
func (m *Machine) Skip(ln int, to int64) {
	l := &m.lanes[ln]
	if to <= l.next {
		return
	}
	l.next = to
	if l.inFlight == 0 {
		l.acked, l.digest = to, 0
	}
}

// Ack settles one record. Cursors move only over a contiguous run of settled
// records in the order of sending; it returns how many records that settled.
func (m *Machine) Ack(now time.Time, token, seq uint64) (int, error) {
	if m.state != Stream || token < m.head || token >= m.tail {
		return 0, fmt.Errorf("%w: token %d", errUnknownToken, token)
	}
	mask := uint64(len(m.flights) - 1)
	f := &m.flights[token&mask]
	if f.acked {
		return 0, fmt.Errorf("%w: token %d twice", errUnknownToken, token)
	}
	f.acked, f.seq = true, seq
	n := 0
	for m.head < m.tail {
		f := &m.flights[m.head&mask]
		if !f.acked {
			break
		}
		l := &m.lanes[f.lane]
		l.acked, l.digest = f.offset+1, f.digest
		l.inFlight--
		if l.inFlight == 0 && l.acked < l.next {
			l.acked, l.digest = l.next, 0 // records skipped behind it are settled with it
		}
		m.bytes -= f.size
		m.seq, m.topBuf = f.seq, *f
		m.top = &m.topBuf
		m.head++
		n++
	}
	if n > 0 {
		m.progress, m.attempt = now, 0
	}
	return n, nil
}

// Idle reports whether nothing of a lane is in flight: all that was sent of it is
// known to be at the remote.
func (m *Machine) Idle(lane int) bool { return m.lanes[lane].inFlight == 0 }

// Flight returns what a token in flight stands for.
func (m *Machine) Flight(token uint64) (lane int, offset int64, ok bool) {
	if token < m.head || token >= m.tail {
		return 0, 0, false
	}
	f := &m.flights[token&uint64(len(m.flights)-1)]
	return int(f.lane), f.offset, true
}

// turn is a run of records of one lane in the order of sending, to excluded.
type turn struct {
	lane     int
	from, to int64
}

// turns returns what is in flight as the turns that it was sent in.
func (m *Machine) turns() []turn {
	var out []turn
	for t := m.head; t < m.tail; t++ {
		f := &m.flights[t&uint64(len(m.flights)-1)]
		if n := len(out); n > 0 && out[n-1].lane == int(f.lane) {
			out[n-1].to = f.offset + 1
			continue
		}
		out = append(out, turn{lane: int(f.lane), from: f.offset, to: f.offset + 1})
	}
	return out
}

// patience is how long the next acknowledgement may take: the timeout, and what
// the oldest record in flight takes on a slow link. All before it have been
// acknowledged, so the link carries nothing else first.
func (m *Machine) patience() time.Duration {
	size := m.flights[m.head&uint64(len(m.flights)-1)].size
	return m.timing.AckTimeout + time.Duration(size/slowLink)*time.Second
}

// Check returns ErrNoProgress when the watchdog's time is up.
func (m *Machine) Check(now time.Time) error {
	if m.state == Stream && m.head != m.tail && now.Sub(m.progress) >= m.patience() {
		return fmt.Errorf("%w: %d in flight, none acknowledged for %s", ErrNoProgress, m.tail-m.head, now.Sub(m.progress).Round(time.Millisecond))
	}
	return nil
}

// Deadline returns when the driver must look again though nothing happened; zero
// means never.
func (m *Machine) Deadline() time.Time {
	switch m.state {
	case Backoff, Blocked:
		return m.until
	case Stream:
		if m.head != m.tail {
			return m.progress.Add(m.patience())
		}
	case Probe, Paused:
	}
	return time.Time{}
}
