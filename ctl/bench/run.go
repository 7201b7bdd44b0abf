package bench

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// run is one load under way.
type run struct {
	load     *Load
	id       uint16
	name     string // in client ids, so that two runs do not take each other's sessions
	base     time.Time
	buffer   int // bytes of input per connection
	progress func(Progress)
	target   target

	subs   []*subscriber
	pubs   []*publisher
	groups []*group
	delays recorders
	acks   recorders
	late   recorders

	// Times are nanoseconds since base. startNs, measureFrom and endNs are set before the first publish.
	startNs     int64
	measureFrom atomic.Int64
	endNs       atomic.Int64
	publishedNs atomic.Int64 // when the publishers were done
	phase       atomic.Pointer[string]
	connected   atomic.Int64
	ending      atomic.Bool // connections that end now were ended by the run

	mu      sync.Mutex
	notes   []string // guarded by mu
	refused int64    // guarded by mu
}

// Run puts the load on the broker. progress, which may be nil, is called about each second. The load must be complete
// and checked. An error means that there is no result; what went wrong with single messages is in the result.
func Run(ctx context.Context, l *Load, progress func(Progress)) (*Result, error) {
	r, err := newRun(l, progress)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, l.Limit)
	defer cancel()
	switch l.Mode {
	case Idle, Storm:
		return r.connections(ctx)
	case Offline:
		return r.offline(ctx)
	default:
		return r.online(ctx)
	}
}

func newRun(l *Load, progress func(Progress)) (*run, error) {
	var b [4]byte
	if _, err := rand.Read(b[:]); err != nil {
		return nil, err
	}
	r := &run{load: l, id: binary.BigEndian.Uint16(b[:]), name: "bench-" + hex.EncodeToString(b[:]), base: time.Now(), progress: progress}
	r.target.pid = l.PID
	if l.PID != 0 {
		if _, err := processUsage(l.PID); err != nil {
			return nil, err
		}
	}
	r.measureFrom.Store(math.MaxInt64)
	r.endNs.Store(math.MaxInt64)
	conns := l.Connections
	if l.Mode.flows() {
		conns = l.Publishers + l.Subscribers
	}
	if err := checkDescriptors(conns, l.PID); err != nil {
		return nil, err
	}
	r.buffer = bufferBytes(conns)
	return r, nil
}

func (r *run) now() int64 { return int64(time.Since(r.base)) }

// notesMax bounds what is told: a broker that fails fails thousands of times.
const notesMax = 5

func (r *run) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.mu.Lock()
	defer r.mu.Unlock()
	if text != "" && len(r.notes) < notesMax && !slices.Contains(r.notes, text) {
		r.notes = append(r.notes, text)
	}
}

func (r *run) refusal(err error) {
	r.mu.Lock()
	r.refused++
	r.mu.Unlock()
	r.note("%v", err)
}

func (r *run) setPhase(s string) { r.phase.Store(&s) }

// plan makes subscribers and publishers, not yet connected.
func (r *run) plan() {
	l := r.load
	r.delays, r.acks, r.late = newRecorders(l.Subscribers), newRecorders(l.Publishers), newRecorders(l.Publishers)
	for i := range l.Subscribers {
		r.subs = append(r.subs, r.planSubscriber(i))
	}
	for i := range l.Publishers {
		p := &publisher{run: r, id: i, qos: byte(l.QoS), flows: flows{i, l.Publishers, l.flowCount()}, window: l.Window,
			acks: r.acks.of(i), lateness: r.late.of(i)}
		if l.Mode == Mixed {
			p.qos = byte(i % 3)
		}
		r.pubs = append(r.pubs, p)
	}
}

// Mode mixed: publishers send with QoS 0, 1 and 2 in turn, mostly small messages; subscribers are in turn two for one
// topic and one for all.
const (
	mixedSmallBytes = 100
	mixedLargeEvery = 10
	mixedWildEvery  = 3
)

func (r *run) planSubscriber(i int) *subscriber {
	l := r.load
	s := &subscriber{run: r, id: i, filter: l.Filter, qos: byte(l.SubQoS), delays: r.delays.of(i)}
	all := flows{0, 1, l.flowCount()}
	one := flows{i % l.Publishers, l.flowCount(), l.flowCount()}
	switch {
	case l.Mode == Pairs, l.Mode == Mixed && i%mixedWildEvery > 0:
		s.filter = l.topic(one.first)
		s.tally = newTally(one, nil)
	case l.Mode == Shared:
		if len(r.groups) == 0 {
			r.groups = append(r.groups, &group{logs: make([]flowLog, all.count())})
		}
		s.filter = "$share/" + r.name + "/" + l.Filter
		s.tally = newTally(all, r.groups[0])
	default:
		s.tally = newTally(all, nil)
	}
	if l.Mode == Mixed {
		s.qos = byte(i / mixedWildEvery % 3)
	}
	return s
}

func (r *run) openOf(role string, i int) *Open {
	return &Open{ClientID: fmt.Sprintf("%s-%s-%d", r.name, role, i), User: r.load.User, Password: r.load.Password, Fresh: true,
		KeepAliveS: uint16(min(int64(r.load.Limit/time.Second)+120, math.MaxUint16))}
}

func (r *run) connectPublishers(ctx context.Context) error {
	l := r.load
	return each(ctx, len(r.pubs), func(i int) error {
		p := r.pubs[i]
		c, e, err := dial(ctx, l, r.openOf("pub", i), min(r.buffer, bufferMin))
		if err != nil {
			return err
		}
		p.c = c
		r.connected.Add(1)
		if e.Window > 0 && e.Window < p.window {
			p.window = e.Window
			r.note("the broker takes %d unacknowledged messages from a client: the window is that", e.Window)
		}
		quota := int64(unlimited)
		if l.Messages > 0 {
			quota = share(l.Messages, len(r.pubs), i)
		}
		p.init(quota)
		if l.RatePerS > 0 {
			p.try, err = newTryWriter(c)
		}
		return err
	})
}

func (r *run) connectSubscribers(ctx context.Context) error {
	return each(ctx, len(r.subs), func(i int) error {
		err := r.subs[i].open(ctx, r.openOf("sub", i), false)
		if err == nil {
			r.connected.Add(1)
		}
		return err
	})
}

// begin fixes the times of the measured part, relative to now.
func (r *run) begin() {
	r.startNs = r.now()
	from := r.startNs + int64(r.load.WarmUp)
	r.measureFrom.Store(from)
	if r.load.Duration > 0 {
		r.endNs.Store(from + int64(r.load.Duration))
	}
}

// publish runs all publishers until they are done; stop closed ends their connections.
func (r *run) publish(stop <-chan struct{}) {
	var wg sync.WaitGroup
	for _, p := range r.pubs {
		wg.Go(func() {
			if r.load.RatePerS > 0 {
				p.err = p.acknowledged()
			} else {
				p.err = p.closedLoop()
			}
		})
	}
	done := make(chan struct{})
	if r.load.RatePerS > 0 {
		wg.Go(func() { r.pace(stop) })
	}
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-stop:
		r.ending.Store(true)
		for _, p := range r.pubs {
			p.close()
		}
		<-done
	}
	for _, p := range r.pubs {
		if p.err != nil && !r.ending.Load() {
			r.note("a publisher ended early: %v", p.err)
		}
	}
}

func (r *run) pace(stop <-chan struct{}) {
	pause, done := precise()
	defer done()
	p := &pacer{schedule: schedule{r.startNs, r.load.RatePerS}, endNs: r.endNs.Load, now: r.now, pause: pause}
	for _, x := range r.pubs {
		p.turns = append(p.turns, turn{payer: x})
	}
	p.loop(stop)
	for _, x := range r.pubs {
		x.finish()
	}
}

// sums are counters over all connections at one moment.
type sums struct {
	at                                     int64
	sent, acked, received, fresh, lastDone int64
	usage                                  usage
	self                                   time.Duration
}

func (r *run) sums() sums {
	s := sums{at: r.now(), usage: r.target.now(), self: ownCPU()}
	for _, p := range r.pubs {
		s.sent += p.sent.Load()
		s.acked += p.acked.Load()
	}
	for _, x := range r.subs {
		s.received += x.received.Load()
		s.fresh += x.fresh.Load()
		s.lastDone = max(s.lastDone, x.lastNs.Load())
	}
	return s
}

// expected is the deliveries that what was sent so far amounts to.
func (r *run) expected() (n int64) {
	for _, g := range r.groups {
		for i := range g.logs {
			n += int64(r.sentOf(i))
		}
	}
	for _, s := range r.subs {
		if s.tally.group != nil {
			continue
		}
		for i := range s.tally.flows.count() {
			n += int64(r.sentOf(s.tally.flows.at(i)))
		}
	}
	return n
}

// sentOf is how many messages a flow has had. Not while its publisher is at work.
func (r *run) sentOf(flow int) uint32 {
	p := r.pubs[flow%len(r.pubs)]
	i, ok := p.flows.index(uint32(flow))
	if !ok || p.seqs == nil {
		return 0
	}
	return p.seqs[i]
}
