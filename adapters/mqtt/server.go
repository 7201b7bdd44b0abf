// Package mqtt serves MQTT 3.1, 3.1.1 and 5 on the event loops: it turns bytes into packets, holds the state machine
// of each connection, and encodes what the broker has for its client.
//
// A Conn belongs to its loop. It never writes to its socket while packets are handled: what it has to say gathers in
// its out buffer and leaves in one write at the end of the broker's round, after everything it rests on is in the log
// and in the metadata.
package mqtt

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"edgehub/adapters/eventloop"
	"edgehub/adapters/mqtt/packet"
	"edgehub/hub/auth"
	"edgehub/hub/broker"
	"edgehub/hub/message"
	"edgehub/internal/hubtime"
)

// Listener is what the server knows of one address; its place in the list is eventloop.Listener.Index.
type Listener struct {
	AllowAnonymous bool
}

// Options of a Server. Sizes are bytes.
type Options struct {
	Broker            *broker.Broker
	Auth              *auth.Auth
	Clock             *hubtime.Clock
	Logger            *slog.Logger
	Listeners         []Listener
	MaxConnections    int // 0: no limit
	MaxPacket         int
	TopicLevels       int
	ReceiveMaximum    int // what the hub takes from a client unacknowledged
	SessionExpiryMax  uint32
	KeepAliveMax      int // seconds, 0: what the client asks
	ConnectTimeout    time.Duration
	PublishMessages   int64 // a second and client, 0: no limit
	PublishBytes      int64
	QoSMax            byte   // of publishes
	NoRetain          bool   // retained messages are not taken
	ValidatePayload   bool   // refuse payloads that are said to be UTF-8 and are not
	ResponseInfo      string // told to clients that ask; {client} stands for their id
	OutboundPerClient int
	Outbound          int64 // all connections together
}

// Stats are counters of the protocol layer.
type Stats struct {
	Connects, Refused, Malformed, KeepAlive, SlowClosed, TooMany, Disconnects atomic.Int64
	ConnectTimeouts, RateRefused, PayloadFormat                               atomic.Int64
	// Of everything on the wire, to the last tick.
	PacketsIn, PacketsOut, BytesIn, BytesOut atomic.Int64
}

// Server is the eventloop.Handler.
type Server struct {
	o        Options
	Stats    Stats
	open     atomic.Int64
	buffered atomic.Int64  // bytes that sockets have not taken, as last seen
	slow     atomic.Int64  // connections in the loops' behind
	hurry    chan struct{} // the first of them has come
	draining atomic.Bool
	hide     atomic.Bool // see told

	mu    sync.Mutex
	loops []*loop
	stop  chan struct{}
	wg    sync.WaitGroup
}

// wire counts what a loop's connections receive and send: packets of every kind, and their bytes inside TLS and WebSocket.
// It is the loop's own, and added to the server's counters at its tick.
type wire struct {
	packetsIn, packetsOut, bytesIn, bytesOut int64
}

// count adds the loop's numbers to the server's.
func (s *Stats) count(w *wire) {
	s.PacketsIn.Add(w.packetsIn)
	s.PacketsOut.Add(w.packetsOut)
	s.BytesIn.Add(w.bytesIn)
	s.BytesOut.Add(w.bytesOut)
	*w = wire{}
}

// loop is one event loop's part of the server.
type loop struct {
	s     *Server
	el    *eventloop.Loop
	b     *broker.Loop
	wheel wheel
	bufs  [][]byte // spare out buffers
	spare int      // their capacity
	// spareLow is the least that spare was since the last look: so much was not needed.
	spareLow int
	ticks    uint32
	queued   int     // bytes in the out buffers of the loop's connections
	behind   []*Conn // connections whose socket does not take everything
	nowMs    int64   // hub time of the data in hand
	last     time.Time
	wire     wire
	dirty    bool // a connection has output, or publishes wait for the round

	// handling is the connection whose input is in hand: it goes on with it by itself.
	handling *Conn

	// Scratch of the packet in hand.
	con  packet.Connect
	pub  packet.Publish
	sub  packet.Subscribe
	unsb packet.Unsubscribe
	msg  message.Message
	reqs []broker.SubRequest
	code []byte
}

// New returns a server for an eventloop.Engine.
func New(o Options) *Server {
	return &Server{o: o, stop: make(chan struct{}), hurry: make(chan struct{}, 1)}
}

// HideReasons says whether clients that are refused hear why; see told. It may change at any time.
func (s *Server) HideReasons(hide bool) { s.hide.Store(hide) }

// Start runs the timers.
func (s *Server) Start() {
	s.wg.Add(1)
	go s.tick()
}

// Stop ends the timers.
func (s *Server) Stop() {
	close(s.stop)
	s.wg.Wait()
}

// Drain refuses new connections from now on.
func (s *Server) Drain() { s.draining.Store(true) }

// Shutdown refuses new connections and ends those that are there, with reason 0x8B in MQTT 5. It returns when all are
// closed and their sessions stored, or when ctx ends.
func (s *Server) Shutdown(ctx context.Context) error {
	s.draining.Store(true)
	s.mu.Lock()
	loops := s.loops
	s.mu.Unlock()
	for _, l := range loops {
		l.b.Post(func() {
			l.wheel.each(func(c *Conn) { c.fail(packet.CodeServerShuttingDown, "the hub is stopping") })
			l.b.Schedule()
		})
	}
	t := time.NewTicker(5 * time.Millisecond)
	defer t.Stop()
	for s.open.Load() > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
	for _, l := range loops { // one more round, for what the closing of the last connection left to do
		done := make(chan struct{})
		l.b.Post(func() { l.b.AtSafePoint(func() { close(done) }) })
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Open is the number of open connections.
func (s *Server) Open() int64 { return s.open.Load() }

// Buffered is the number of bytes that sockets have not taken yet, as of the last tick.
func (s *Server) Buffered() int64 { return s.buffered.Load() }

// OnLoop implements eventloop.Handler.
func (s *Server) OnLoop(el *eventloop.Loop) any {
	l := &loop{s: s, el: el, last: time.Now()}
	l.b = s.o.Broker.NewLoop(func(fn func()) {
		// An error means that the engine is stopping: nobody is served any more.
		_ = el.Wake(fn)
	})
	l.wheel.init(s.o.Clock.NowMs())
	s.mu.Lock()
	s.loops = append(s.loops, l)
	s.mu.Unlock()
	return l
}

// OnOpen implements eventloop.Handler.
func (s *Server) OnOpen(t eventloop.Conn, el *eventloop.Loop, on *eventloop.Listener) any {
	if s.draining.Load() {
		return nil
	}
	if n := s.open.Add(1); s.o.MaxConnections > 0 && n > int64(s.o.MaxConnections) {
		s.open.Add(-1)
		s.Stats.TooMany.Add(1)
		return nil
	}
	l := el.State.(*loop)
	now := s.o.Clock.Coarse()
	c := &Conn{t: t, on: uint16(on.Index), l: l, seenMs: now, sinceS: uint32(now / 1000)}
	l.wheel.add(c, c.seenMs+s.o.ConnectTimeout.Milliseconds())
	return c
}

// Need implements eventloop.Handler.
func (s *Server) Need(state any) int { return int(state.(*Conn).need) }

// OnData implements eventloop.Handler.
func (s *Server) OnData(state any, b []byte) (used int, ok bool) {
	c := state.(*Conn)
	c.seenMs = s.o.Clock.NowMs()
	c.l.nowMs, c.l.handling = c.seenMs, c
	used = c.consume(b)
	c.l.wire.bytesIn += int64(used)
	c.l.handling = nil
	return used, true
}

// roundGap: when the last round is longer ago than this, the loop is not busy, and a round now serves the client
// sooner and saves a wake-up. Otherwise the round is scheduled behind the sockets that are ready.
const roundGap = 40 * time.Microsecond

// AfterData implements eventloop.Handler.
func (s *Server) AfterData(state any) {
	l := state.(*Conn).l
	if !l.dirty {
		return
	}
	l.dirty = false
	now := time.Now()
	if now.Sub(l.last) > roundGap {
		l.b.Round()
		l.last = time.Now()
		return
	}
	l.last = now
	l.b.Schedule()
}

// OnClose implements eventloop.Handler. It can run inside a write, in the middle of a fan-out: it only takes note.
func (s *Server) OnClose(state any, _ error) {
	c := state.(*Conn)
	s.open.Add(-1)
	c.phase = phaseClosed
	c.l.wheel.remove(c)
	s.buffered.Add(-int64(c.buffered))
	c.buffered = 0
	c.l.giveBuffer(c)
	c.l.b.AtSafePoint(c.disconnect)
	s.Stats.Disconnects.Add(1)
}

// The loops are woken for their timers once in a step of their wheels, and more often while sockets do not take what
// they are given.
const (
	tickEvery = wheelStepMs * time.Millisecond
	tickSlow  = 100 * time.Millisecond
)

// tick drives the loops' timers.
func (s *Server) tick() {
	defer s.wg.Done()
	t := time.NewTimer(s.untilTick())
	defer t.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-s.hurry:
			t.Reset(s.untilTick())
			continue
		case <-t.C:
		}
		t.Reset(s.untilTick())
		now := s.o.Clock.Tick()
		s.mu.Lock()
		loops := s.loops
		s.mu.Unlock()
		for _, l := range loops {
			l.b.Post(func() { l.tick(now) })
		}
	}
}

func (s *Server) untilTick() time.Duration {
	if s.slow.Load() > 0 {
		return s.o.Clock.Until(tickSlow)
	}
	return s.o.Clock.Until(tickEvery)
}

// tick looks at connections that were slow to take their bytes, and at those whose time is up.
func (l *loop) tick(now int64) {
	l.s.Stats.count(&l.wire)
	keep := l.behind[:0]
	for _, c := range l.behind {
		if c.phase == phaseClosed {
			continue
		}
		if c.account(); c.buffered > 0 {
			keep = append(keep, c)
		} else {
			c.slow = false
			if c.client != nil {
				l.b.Pump(c.client)
			}
		}
	}
	l.s.slow.Add(int64(len(keep) - len(l.behind)))
	clear(l.behind[len(keep):])
	l.behind = keep
	l.wheel.advance(now, l.judge)
	if l.ticks++; l.ticks%trimTicks == 0 {
		l.trimBuffers()
	}
}

// decideMaxMs is how long a client that has said who it is waits at most for the hub to decide: for its password to be
// hashed behind those of all who came before, on a slow machine, or for its session to be handed over.
const decideMaxMs = 120_000

// judge decides on a connection whose deadline in the wheel has come: it may have been heard of since. It returns the
// next deadline, 0 for none.
func (l *loop) judge(c *Conn, now int64) int64 {
	if c.phase == phaseClosing { // it was told why, and has had its time to close
		_ = c.t.Close()
		return 0
	}
	if eventloop.Unread(c.t) { // the loop was held up: what the client has sent is heard first
		return now + wheelStepMs
	}
	if c.phase == phaseWaiting && now < c.seenMs+decideMaxMs {
		return c.seenMs + decideMaxMs
	}
	if c.phase < phaseConnected {
		l.s.Stats.ConnectTimeouts.Add(1)
		c.fail(packet.CodeUnspecified, "")
		return 0
	}
	c.trim()
	if c.keepAlive == 0 { // in the wheel all the same: it is the list of the loop's connections
		return now + wheelSlots*wheelStepMs/2
	}
	if due := c.seenMs + c.keepAliveMs(); due > now {
		return due
	}
	l.s.Stats.KeepAlive.Add(1)
	c.fail(packet.CodeKeepAliveTimeout, "no packet within one and a half times the keep-alive")
	return 0
}

const (
	bufferMin   = 4 << 10
	bufferKeep  = 2 << 20        // larger out buffers are not kept; one of outbound_bytes_per_client fits
	buffersKept = 2 * earlyBytes // bytes of spare out buffers that a busy loop keeps: what it can have queued, grown by doubling
	buffersIdle = 256 << 10      // and one that does not need them
	// trimTicks is in how many ticks a spare buffer must be needed, or it is given up.
	trimTicks = 16
)

func (l *loop) takeBuffer() []byte {
	if n := len(l.bufs); n > 0 {
		b := l.bufs[n-1]
		l.bufs[n-1] = nil
		l.bufs = l.bufs[:n-1]
		l.spare -= cap(b)
		l.spareLow = min(l.spareLow, l.spare)
		return b
	}
	return make([]byte, 0, bufferMin)
}

// trimBuffers gives up spare buffers that nobody has needed for a while.
func (l *loop) trimBuffers() {
	idle := 0
	for idle < len(l.bufs) && l.spareLow-cap(l.bufs[idle]) >= buffersIdle {
		l.spareLow -= cap(l.bufs[idle])
		l.spare -= cap(l.bufs[idle])
		idle++
	}
	l.bufs = slices.Delete(l.bufs, 0, idle)
	if len(l.bufs) < cap(l.bufs)/4 {
		l.bufs = slices.Clone(l.bufs)
	}
	l.spareLow = l.spare
}

// giveBuffer takes a connection's out buffer back: idle connections hold none.
func (l *loop) giveBuffer(c *Conn) {
	l.queued -= len(c.out)
	if b := c.out; b != nil && cap(b) <= bufferKeep && l.spare+cap(b) <= buffersKept {
		l.bufs = append(l.bufs, b[:0])
		l.spare += cap(b)
	}
	c.out = nil
}
