package bench

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// fillBytes is how much a publisher prepares before it writes. A larger burst would be sent no faster.
const fillBytes = 32 << 10

// publisher is one sending connection.
type publisher struct {
	run    *run
	id     int
	qos    byte
	flows  flows    // of this publisher, in turn
	topics []string // of the flows
	c      *conn
	window int       // unacknowledged messages; of QoS 0 two windows, see ask
	acks   *recorder // delay until the acknowledgement

	// With a rate only.
	try      *tryWriter
	lateness *recorder // from due to written: the load and the backpressure of the broker answer for it together

	// mu guards what follows: with a rate, the pacer sends while the reader takes acknowledgements.
	mu       sync.Mutex
	seqs     []uint32 // next number, by flow
	payload  []byte
	nextID   uint16
	flight   []flight // by packet id, modulo its length
	inFlight int
	unasked  int   // QoS 0: messages since the last ping
	asked    []int // QoS 0: messages before each ping that is not answered
	quota    int64 // measured messages still to be sent
	index    int64 // messages sent
	finished bool  // nothing more will be sent

	sent  atomic.Int64
	acked atomic.Int64
	err   error // why it ended early; owned by the reader
}

// flight is an unacknowledged publish.
type flight struct {
	sentNs int64
	id     uint16 // 0: free
}

var errUnexpectedAck = errors.New("the broker acknowledged what was not outstanding")

func (p *publisher) init(quota int64) {
	size := 2
	for size < 2*p.window {
		size *= 2
	}
	p.flight = make([]flight, size)
	p.seqs = make([]uint32, p.flows.count())
	p.topics = make([]string, p.flows.count())
	for i := range p.topics {
		p.topics[i] = p.run.load.topic(p.flows.at(i))
	}
	p.payload = make([]byte, p.run.load.SizeBytes)
	for i := range p.payload {
		p.payload[i] = byte('a' + i%26)
	}
	p.quota = quota
}

// closedLoop publishes as fast as the acknowledgements of the window allow.
func (p *publisher) closedLoop() error {
	for {
		now := p.run.now()
		for len(p.c.out) < fillBytes && p.room() && p.more(now) {
			p.push(now)
			p.ask()
		}
		p.ask()
		if err := p.c.flush(); err != nil {
			return err
		}
		if p.finished && p.inFlight == 0 {
			return nil
		}
		if p.room() && !p.finished {
			continue // the window is larger than one fill
		}
		if err := p.c.fill(); err != nil {
			return readError(err)
		}
		if err := p.replies(); err != nil {
			return err
		}
	}
}

// more decides whether another message, meant for that time, is to be sent.
func (p *publisher) more(at int64) bool {
	if !p.finished && (at >= p.run.endNs.Load() || p.quota <= 0) {
		p.finished = true
	}
	return !p.finished
}

// room reports whether the window takes another message. An id that is still out blocks those behind it.
func (p *publisher) room() bool {
	if p.qos == 0 {
		return p.try != nil || p.inFlight < 2*p.window
	}
	return p.inFlight < p.window && p.flight[int(p.idAfter())%len(p.flight)].id == 0
}

// ask sends a ping behind each window of QoS 0 messages, and behind the last: its answer says that the broker has read
// them. Without, a closed loop would only measure how much the sockets hold.
func (p *publisher) ask() {
	if p.qos > 0 || p.unasked == 0 || p.unasked < p.window && !p.finished {
		return
	}
	p.c.out = p.c.codec.AppendPing(p.c.out)
	p.asked = append(p.asked, p.unasked)
	p.unasked = 0
}

// answered takes the answer of the oldest ping.
func (p *publisher) answered() error {
	if len(p.asked) == 0 {
		return errUnexpectedAck
	}
	p.inFlight -= p.asked[0]
	p.asked = p.asked[:copy(p.asked, p.asked[1:])]
	return nil
}

// idAfter is the next packet id: 0 is none.
func (p *publisher) idAfter() uint16 { return max(p.nextID+1, 1) }

// push encodes the next message, meant to be sent at that time.
func (p *publisher) push(at int64) {
	i := int(p.index % int64(len(p.seqs)))
	p.index++
	size := len(p.payload)
	if p.run.load.Mode == Mixed && p.index%mixedLargeEvery != 0 {
		size = min(size, mixedSmallBytes)
	}
	stamp{at, p.run.id, uint32(p.flows.at(i)), p.seqs[i]}.put(p.payload)
	p.seqs[i]++
	m := Message{Topic: p.topics[i], Payload: p.payload[:size], QoS: p.qos}
	if p.qos > 0 {
		p.nextID = p.idAfter()
		m.ID = p.nextID
		p.flight[int(m.ID)%len(p.flight)] = flight{at, m.ID}
		p.inFlight++
	} else if p.try == nil {
		p.inFlight++
		p.unasked++
	}
	if at >= p.run.measureFrom.Load() {
		p.quota--
	}
	p.c.out = p.c.codec.AppendMessage(p.c.out, &m)
	p.sent.Add(1)
}

// replies handles what one read has brought.
func (p *publisher) replies() error {
	now, from := p.run.now(), p.run.measureFrom.Load()
	var e Event
	p.acks.mu.Lock()
	defer p.acks.mu.Unlock()
	for {
		ok, err := p.c.next(&e)
		if err != nil || !ok {
			return err
		}
		switch e.Kind {
		case Acked:
			f := &p.flight[int(e.ID)%len(p.flight)]
			if f.id != e.ID || e.ID == 0 {
				return errUnexpectedAck
			}
			if f.sentNs >= from {
				p.acks.addLocked(now - f.sentNs)
			}
			f.id = 0
			p.inFlight--
			if e.Refused != nil {
				p.run.refusal(e.Refused)
			} else {
				p.acked.Add(1)
			}
		case Pong:
			if err := p.answered(); err != nil {
				return err
			}
		case Closed:
			return e.Refused
		default: // Step wants its answer only
		}
		p.c.out = p.c.codec.AppendAnswer(p.c.out, &e)
	}
}

// close ends the connection; its reader returns.
func (p *publisher) close() {
	if p.c != nil {
		_ = p.c.net.SetDeadline(time.Now())
	}
}

// unlimited is the quota of a run that ends by time.
const unlimited = math.MaxInt64

// pay is the pacer's turn of this publisher.
func (p *publisher) pay(owed int64, due func(n int64) int64) (sent int64, over bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	from := p.index
	for p.index < owed && len(p.c.out) < fillBytes && p.room() {
		at := due(p.index)
		if !p.more(at) {
			break
		}
		p.push(at)
	}
	if p.index == owed && p.quota <= 0 {
		p.finished = true
	}
	if err := p.try.flush(p.c); err != nil {
		p.finished, p.c.out = true, p.c.out[:0] // its reader sees the reason
	}
	now := p.run.now()
	for n := from; n < p.index; n++ {
		if at := due(n); at >= p.run.measureFrom.Load() {
			p.lateness.add(now - at)
		}
	}
	sent = p.index
	if len(p.c.out) > 0 {
		sent = min(sent, owed-1) // come again
	}
	return sent, p.finished && len(p.c.out) == 0
}

// finish says that nothing more will be sent. A reader that waits for nothing any more is woken.
func (p *publisher) finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finished = true
	if p.inFlight == 0 {
		p.close()
	}
}

// acknowledged reads until everything sent is acknowledged: the reader's side of a publisher with a rate.
func (p *publisher) acknowledged() error {
	for {
		err := p.c.fill()
		p.mu.Lock()
		if err == nil {
			err = p.replies()
		}
		if err == nil {
			err = p.try.flush(p.c)
		}
		done := p.finished && p.inFlight == 0
		p.mu.Unlock()
		if done {
			return nil
		}
		if err != nil {
			return readError(err)
		}
	}
}
