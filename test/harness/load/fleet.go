// Package load publishes numbered messages from many clients that keep what
// they sent and what was acknowledged, survive any loss of their connection,
// and later hold a hub's log against it.
package load

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Options describe a fleet. Version, QoS and Topic are asked once for each
// publisher.
type Options struct {
	Addr       string
	Name       string // begins client ids and payloads; letters only
	Publishers int
	QoS        func(publisher int) byte   // nil: 1
	Version    func(publisher int) byte   // nil: 4 and 5 in turn
	Topic      func(publisher int) string // nil: load/NAME/PUBLISHER
	Window     int                        // unacknowledged messages per publisher; 0: 64
	Size       int                        // payload bytes; 0: 100
	Rate       float64                    // messages a second of the whole fleet; 0: as fast as acknowledged
	Each       uint64                     // messages per publisher; 0: until Stop
}

// Fleet is a set of publishers. Each has one topic and sends its messages in
// the order of their numbers, so that the order can be judged anywhere later.
type Fleet struct {
	o    Options
	pubs []*publisher
	stop chan struct{}
	once sync.Once
	wg   sync.WaitGroup

	published  atomic.Int64 // numbers given out
	acked      atomic.Int64
	refused    atomic.Int64 // acknowledged with an error code
	connects   atomic.Int64
	lost       atomic.Int64 // connections that broke
	lastLost   atomic.Value // string: why the last of them broke
	noSession  atomic.Int64 // reconnects to which the hub had no session
	badConnack atomic.Int64
	protocol   atomic.Int64 // acknowledgements that nothing asked for
}

// New prepares a fleet.
func New(o Options) *Fleet {
	if o.QoS == nil {
		o.QoS = func(int) byte { return 1 }
	}
	if o.Version == nil {
		o.Version = func(p int) byte { return byte(4 + p%2) }
	}
	if o.Topic == nil {
		o.Topic = func(p int) string { return "load/" + o.Name + "/" + strconv.Itoa(p) }
	}
	if o.Window == 0 {
		o.Window = 64
	}
	if o.Size == 0 {
		o.Size = 100
	}
	f := &Fleet{o: o, stop: make(chan struct{})}
	for i := range o.Publishers {
		f.pubs = append(f.pubs, newPublisher(f, i))
	}
	return f
}

// Start lets every publisher connect and send.
func (f *Fleet) Start() {
	for _, p := range f.pubs {
		f.wg.Go(p.run)
	}
}

// Stop lets no publisher begin a new message, waits until everything sent is
// acknowledged, and disconnects. It reports an error when that takes longer
// than the timeout; the publishers then go on trying until the program ends.
func (f *Fleet) Stop(timeout time.Duration) error {
	f.once.Do(func() { close(f.stop) })
	return f.Wait(timeout)
}

// Wait waits until all publishers have finished (see Options.Each).
func (f *Fleet) Wait(timeout time.Duration) error {
	done := make(chan struct{})
	go func() {
		f.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-time.After(timeout):
		return fmt.Errorf("load: after %v: %v", timeout, f.Counters())
	}
}

// Counters are a fleet's numbers so far.
type Counters struct {
	Published, Acked, Refused, Connects, Lost, NoSession, BadConnack, Protocol int64
	LastLost                                                                   string // why the last connection broke
}

// Counters returns the numbers so far.
func (f *Fleet) Counters() Counters {
	last, _ := f.lastLost.Load().(string)
	return Counters{LastLost: last, Published: f.published.Load(), Acked: f.acked.Load(), Refused: f.refused.Load(),
		Connects: f.connects.Load(), Lost: f.lost.Load(), NoSession: f.noSession.Load(),
		BadConnack: f.badConnack.Load(), Protocol: f.protocol.Load()}
}

// String is one line.
func (c Counters) String() string {
	return fmt.Sprintf("published %d, acknowledged %d, refused %d; connects %d, connections lost %d (%s), sessions not found %d, connects refused %d, wrong acknowledgements %d",
		c.Published, c.Acked, c.Refused, c.Connects, c.Lost, c.LastLost, c.NoSession, c.BadConnack, c.Protocol)
}

// appendPayload writes "name-publisher-number-xxxx" of at least size bytes.
func appendPayload(dst []byte, name string, pub int, seq uint64, size int) []byte {
	start := len(dst)
	dst = append(append(dst, name...), '-')
	dst = append(strconv.AppendInt(dst, int64(pub), 10), '-')
	dst = append(strconv.AppendUint(dst, seq, 10), '-')
	for len(dst)-start < size {
		dst = append(dst, 'x')
	}
	return dst
}

// ParsePayload reads what a publisher wrote; ok is false for other payloads.
func ParsePayload(b []byte) (name string, pub int, seq uint64, ok bool) {
	var ends [3]int
	n := 0
	for i := 0; i < len(b) && n < 3; i++ {
		if b[i] == '-' {
			ends[n] = i
			n++
		}
	}
	if n < 3 {
		return "", 0, 0, false
	}
	pub, err1 := strconv.Atoi(string(b[ends[0]+1 : ends[1]]))
	seq, err2 := strconv.ParseUint(string(b[ends[1]+1:ends[2]]), 10, 64)
	return string(b[:ends[0]]), pub, seq, err1 == nil && err2 == nil && pub >= 0
}
