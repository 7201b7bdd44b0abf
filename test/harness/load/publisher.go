package load

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"edgehub/test/harness/mqttc"
)

// Waits between attempts to connect.
const (
	backoffFirst = 20 * time.Millisecond
	backoffLast  = 320 * time.Millisecond
)

// errFinished ends a connection on purpose.
var errFinished = errors.New("load: finished")

// state of one message.
type state byte

const (
	stateSent     state = iota // PUBLISH is on its way
	stateReceived              // QoS 2: PUBREC came, PUBREL is on its way
	stateAcked
	stateRefused
)

// publisher is one client with a persistent session. Its goroutine sends; one
// more per connection reads acknowledgements.
type publisher struct {
	f       *Fleet
	index   int
	qos     byte
	version byte
	topic   string
	period  time.Duration // between new messages; 0: none
	due     time.Time     // of the next new message
	wake    chan struct{} // something below changed

	mu       sync.Mutex
	states   []state  // guarded by mu; by number
	sends    []uint8  // guarded by mu; how often PUBLISH may have left, by number
	base     uint64   // guarded by mu; every number below is done
	releases []uint64 // guarded by mu; numbers whose PUBREL is due
	broken   error    // guarded by mu; of the present connection
}

func newPublisher(f *Fleet, index int) *publisher {
	p := &publisher{f: f, index: index, qos: f.o.QoS(index), version: f.o.Version(index),
		topic: f.o.Topic(index), wake: make(chan struct{}, 1)}
	if f.o.Rate > 0 {
		p.period = time.Duration(float64(time.Second) * float64(f.o.Publishers) / f.o.Rate)
	}
	return p
}

// run connects again and again until everything is sent and acknowledged.
func (p *publisher) run() {
	wait := backoffFirst
	for first := true; ; first = false {
		err := p.connection(first)
		if errors.Is(err, errFinished) {
			return
		}
		if p.progress() {
			wait = backoffFirst
		}
		time.Sleep(wait)
		wait = min(2*wait, backoffLast)
	}
}

// progress reports whether the connection that just ended was a good one.
func (p *publisher) progress() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	good := p.broken != nil
	p.broken = nil
	return good
}

// connection is the life of one network connection.
func (p *publisher) connection(first bool) error {
	c, ack, err := mqttc.Dial(p.f.o.Addr, mqttc.Connect{
		Version: p.version, ClientID: fmt.Sprintf("%s%d", p.f.o.Name, p.index), KeepAlive: 60, SessionExpiry: 3600,
	})
	if err != nil {
		return err
	}
	defer c.Abort()
	if ack.Code != 0 {
		p.f.badConnack.Add(1)
		return fmt.Errorf("load: %v", ack)
	}
	p.f.connects.Add(1)
	if !first && !ack.SessionPresent && p.began() {
		p.f.noSession.Add(1)
	}
	var readers sync.WaitGroup
	readers.Go(func() { p.read(c) })
	err = p.send(c)
	if errors.Is(err, errFinished) {
		_ = c.Disconnect() // all is acknowledged; nothing can be lost
	} else {
		p.f.lost.Add(1)
		p.f.lastLost.Store(fmt.Sprintf("%s%d: %v", p.f.o.Name, p.index, err))
	}
	c.Abort()
	readers.Wait()
	return err
}

func (p *publisher) began() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.states) > 0
}

// packetID of a number: numbers in flight are closer than 65,535.
func packetID(seq uint64) uint16 { return uint16(seq%65535) + 1 }

// action is what the sender does next.
type action struct {
	kind  byte // PUBLISH, PUBREL, or 0: wait
	seq   uint64
	dup   bool
	until time.Time // of a wait; zero: until woken
}

// sender writes with a deadline of its own each time: the one of an earlier packet would end the connection later.
type sender struct{ c *mqttc.Conn }

// Write implements io.Writer.
func (s sender) Write(b []byte) (int, error) {
	if err := s.c.SendRaw(b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// send writes until the connection breaks or everything is done.
func (p *publisher) send(c *mqttc.Conn) error {
	w := bufio.NewWriterSize(sender{c}, 32<<10)
	for _, a := range p.unfinished() {
		if err := p.write(w, a); err != nil {
			return err
		}
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	// What was not sent while away is not caught up. Each publisher finds a
	// phase of its own: devices do not speak in chorus.
	p.due = time.Now().Add(time.Duration(rand.Float64() * float64(p.period)))
	stopping := p.f.stop
	for {
		a, err := p.next()
		if err != nil {
			return errors.Join(err, w.Flush())
		}
		if a.kind != 0 {
			if err := p.write(w, a); err != nil {
				return err
			}
			continue
		}
		if err := w.Flush(); err != nil {
			return err
		}
		wait := time.Hour
		if !a.until.IsZero() {
			wait = time.Until(a.until)
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-p.wake:
		case <-stopping:
			stopping = nil // next sees it; do not spin on it
		}
	}
}

func (p *publisher) write(w *bufio.Writer, a action) error {
	pkt := mqttc.Packet{Kind: a.kind, ID: packetID(a.seq)}
	if a.kind == mqttc.PUBLISH {
		pkt.QoS, pkt.Dup, pkt.Topic = p.qos, a.dup, p.topic
		pkt.Payload = appendPayload(nil, p.f.o.Name, p.index, a.seq, p.f.o.Size)
	}
	_, err := w.Write(pkt.Append(nil, p.version))
	return err
}

// unfinished lists what MQTT wants sent again on a new connection, in order.
func (p *publisher) unfinished() []action {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken, p.releases = nil, nil
	var out []action
	for seq := p.base; seq < uint64(len(p.states)); seq++ {
		switch p.states[seq] {
		case stateSent:
			p.sends[seq]++
			out = append(out, action{kind: mqttc.PUBLISH, seq: seq, dup: true})
		case stateReceived:
			out = append(out, action{kind: mqttc.PUBREL, seq: seq})
		case stateAcked, stateRefused: // done with
		}
	}
	return out
}

// next decides what to do: a release, a new message, a wait, or the end.
func (p *publisher) next() (action, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken != nil {
		return action{}, p.broken
	}
	if len(p.releases) > 0 {
		seq := p.releases[0]
		p.releases = p.releases[1:]
		return action{kind: mqttc.PUBREL, seq: seq}, nil
	}
	seq := uint64(len(p.states))
	if p.f.stopped() || p.f.o.Each > 0 && seq >= p.f.o.Each {
		if p.base == seq {
			return action{}, errFinished
		}
		return action{}, nil
	}
	if seq-p.base >= uint64(p.f.o.Window) {
		return action{}, nil
	}
	if p.period > 0 {
		if time.Until(p.due) > 0 {
			return action{until: p.due}, nil
		}
		p.due = p.due.Add(p.period)
	}
	p.states = append(p.states, stateSent)
	p.sends = append(p.sends, 1)
	p.f.published.Add(1)
	return action{kind: mqttc.PUBLISH, seq: seq}, nil
}

func (f *Fleet) stopped() bool {
	select {
	case <-f.stop:
		return true
	default:
		return false
	}
}

// read takes acknowledgements until the connection breaks.
func (p *publisher) read(c *mqttc.Conn) {
	var err error
	for err == nil {
		var pkt mqttc.Packet
		// Acknowledgements may stay away as long as an outage lasts.
		if pkt, err = c.Next(time.Hour); err == nil {
			err = p.acknowledge(pkt)
		}
		p.mu.Lock()
		p.broken = err
		p.mu.Unlock()
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
}

// forgotten reports whether the hub does not know the packet id of a PUBREL
// that was sent again: it had completed the handshake, and only its PUBCOMP
// was lost. MQTT calls that no error during recovery.
func (p *publisher) forgotten(pkt mqttc.Packet, seq uint64) bool {
	return pkt.Kind == mqttc.PUBCOMP && pkt.Code == 0x92 && p.states[seq] == stateReceived
}

// acknowledge applies one acknowledgement.
func (p *publisher) acknowledge(pkt mqttc.Packet) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	// The number at or above base that has this id.
	seq := p.base + (uint64(pkt.ID)+65534-p.base%65535)%65535
	if pkt.Kind == mqttc.DISCONNECT {
		return fmt.Errorf("load: %v", pkt)
	}
	known := seq < uint64(len(p.states))
	switch {
	case known && pkt.Code >= 0x80 && !p.forgotten(pkt, seq):
		p.states[seq] = stateRefused
		p.f.refused.Add(1)
	case known && p.qos == 1 && pkt.Kind == mqttc.PUBACK && p.states[seq] == stateSent,
		known && p.qos == 2 && pkt.Kind == mqttc.PUBCOMP && p.states[seq] == stateReceived:
		p.states[seq] = stateAcked
		p.f.acked.Add(1)
	case known && p.qos == 2 && pkt.Kind == mqttc.PUBREC && p.states[seq] == stateSent:
		p.states[seq] = stateReceived
		p.releases = append(p.releases, seq)
	default:
		p.f.protocol.Add(1)
		return fmt.Errorf("load: %s%d: %v out of place (number %d of %d)", p.f.o.Name, p.index, pkt, seq, len(p.states))
	}
	for p.base < uint64(len(p.states)) && p.states[p.base] >= stateAcked {
		p.base++
	}
	return nil
}
