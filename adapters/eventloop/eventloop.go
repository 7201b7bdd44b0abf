// Package eventloop owns the sockets: it accepts connections and hands their bytes to a Handler on a fixed set of
// event loops, one per core. It is the only package that knows gnet, and the place where gnet's traps are disarmed:
//
//   - an accept that fails for want of descriptors would shut a shared-acceptor engine down, so every loop has a
//     listener of its own (SO_REUSEPORT); since two engines would then share a port in silence, each address is
//     first bound without it; a Unix socket among gnet's listeners would turn that off for all, so those are accepted
//     here and handed to a loop;
//   - Discard(0) drops the whole inbound buffer, so it is never called with 0;
//   - a failing Write runs OnClose inside the caller: handlers must only take note there and act at a safe point;
//   - the engine returning is the end of the process: Run reports it as an error unless Stop was called.
//
// Between the socket and the Handler a listener may put layers, TLS and WebSocket: see Layer. The Handler sees the
// same Conn whatever is below.
package eventloop

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/panjf2000/gnet/v2"
	"github.com/panjf2000/gnet/v2/pkg/logging"
)

// Conn is a connection as its handler, or a layer above it, sees it. All methods but Close belong to the connection's
// loop.
type Conn interface {
	// Write sends b now as far as the socket takes it and keeps the rest; b is not retained.
	// An error means that the connection is gone and that OnClose has already run.
	Write(b []byte) (int, error)
	// OutboundBuffered is the number of bytes that wait for the socket: in whatever form the layers keep them.
	OutboundBuffered() int
	RemoteAddr() net.Addr
	LocalAddr() net.Addr
	// Close closes the connection soon, on its loop, after the layers have said goodbye; safe from any goroutine.
	Close() error
}

// Handler gets the events. OnOpen, OnData and OnClose run on the connection's loop and must not block.
type Handler interface {
	// OnLoop is called once per loop, on it, before its first connection; its result is Loop.State.
	OnLoop(l *Loop) any
	// OnOpen returns the connection's own state, or nil to refuse the connection. Layers may still be at their
	// handshakes: a time limit for the first data covers those too.
	OnOpen(c Conn, l *Loop, on *Listener) any
	// Need is how many bytes a connection must have before OnData can make progress: a large packet that arrives
	// in pieces is then gathered once, not copied at each piece. 0 when unknown.
	Need(state any) int
	// OnData gets everything received and not yet consumed; b is valid during the call only. It returns how many
	// bytes it has consumed, and false to close the connection.
	OnData(state any, b []byte) (used int, ok bool)
	// AfterData follows one or several OnData once their bytes are disposed of: the place to write from, since a
	// Write can close the very connection whose data was handled. The connection may have closed in between.
	AfterData(state any)
	// OnClose is the last event of a connection. It can run inside a Write.
	OnClose(state any, err error)
}

// Loop is one event loop.
type Loop struct {
	ID    int
	State any // what OnLoop returned
	el    gnet.EventLoop
	e     *Engine

	// Owned by the loop.
	locals map[any]any
	lanes  map[net.Addr]*lane // by the address object that gnet has for the listening socket
}

// Wake runs fn on the loop soon, after the sockets that are ready now. Safe from any goroutine. Wakes are not
// ordered against each other beyond 1,024 of them: callers keep a queue of their own and coalesce.
func (l *Loop) Wake(fn func()) error {
	return l.el.Execute(context.Background(), gnet.RunnableFunc(func(context.Context) error { fn(); return nil }))
}

// Local returns what key stands for on this loop, made on first use: scratch that all connections of a loop share.
func (l *Loop) Local(key any, create func() any) any {
	v, ok := l.locals[key]
	if !ok {
		if l.locals == nil {
			l.locals = map[any]any{}
		}
		v = create()
		l.locals[key] = v
	}
	return v
}

// CloseNow closes c from within its loop, before returning. OnClose runs inside.
func (l *Loop) CloseNow(c Conn) {
	if k := base(c); k != nil {
		k.shut()
	}
}

// Nudge makes the loop call OnData again with what is still unconsumed, even if nothing new arrives. Safe from any
// goroutine.
func Nudge(c Conn) {
	if k := base(c); k != nil && !k.l.e.stopping.Load() {
		_ = k.gc.Wake(nil)
	}
}

// Unread reports that the peer has sent something that the loop has not come to read yet: whoever judges a connection by
// what was heard of it asks first, since a loop that was held up hears late. It belongs to the connection's loop.
func Unread(c Conn) bool {
	k := base(c)
	return k != nil && !k.closed() && unread(k.gc.Fd()) > 0
}

// CloseWrite ends the outgoing half of a connection whose last words are on their way, and leaves the other half open:
// a socket that is closed while input is unread is reset, and what was sent may never be seen. It reports false when
// bytes still wait for the socket; nothing more is done then.
func CloseWrite(c Conn) bool {
	k := base(c)
	if k == nil || k.closed() {
		return false
	}
	k.goodbye()
	return !k.closed() && k.gc.OutboundBuffered() == 0 && closeWrite(k.gc.Fd()) == nil
}

// lingerFor is how long a client may take to close after a layer has told it why the connection ends.
const lingerFor = time.Second

// Linger ends a connection for a layer that has said why: as CloseWrite, and the rest a moment later. It reports false
// when the connection must be closed at once; when it is true, input still comes and is to be dropped.
func Linger(c Conn) bool {
	if !CloseWrite(c) {
		return false
	}
	time.AfterFunc(lingerFor, func() { _ = c.Close() }) // an error means that the engine has stopped
	return true
}

// Options of an engine.
type Options struct {
	Listeners  []*Listener
	Loops      int // number of loops, at least 1
	ReadBytes  int // read buffer per loop, bytes
	PerAddress int // connections from one address, 0: no limit
	// Descriptors is the process's limit of descriptors, 0: unknown. An accept that fails for want of one would end the
	// engine, so a connection whose descriptor comes close to the limit is closed again: the lowest free number is given
	// to each, so a high one means that few are left, whoever holds the others. Each loop accepts one at a time.
	Descriptors int
	UserTimeout time.Duration // how long sent data may stay unacknowledged by the peer's kernel, 0: the kernel's default
	Logf        func(format string, args ...any)
}

// descriptorsSpare is how many descriptors connections leave to the rest of the process.
const descriptorsSpare = 64

// Starved counts connections closed at once because the descriptors were nearly used up.
func (e *Engine) Starved() int64 { return e.starved.Load() }

// Engine runs the loops.
type Engine struct {
	gnet.BuiltinEventEngine
	o        Options
	h        Handler
	eng      gnet.Engine
	starved  atomic.Int64
	booted   chan struct{}
	bootOnce sync.Once
	done     chan struct{}
	stopping atomic.Bool
	loops    sync.Map // gnet.EventLoop → *Loop
	peers    peers
	enroll   sync.Mutex // gnet's choice of the next loop is not safe for several goroutines
	byAddr   map[string]*Listener
	mu       sync.Mutex
	n        int
}

// New returns an engine that is not running yet.
func New(o Options, h Handler) *Engine {
	for i, on := range o.Listeners {
		on.Index = i
	}
	return &Engine{o: o, h: h, booted: make(chan struct{}), done: make(chan struct{}), peers: peers{max: o.PerAddress}}
}

// Booted is closed once all addresses are bound.
func (e *Engine) Booted() <-chan struct{} { return e.booted }

// Run binds the addresses and serves until Stop. It returns nil only after Stop: an engine that ends by itself is
// an error, after which the process must end, since nobody is served any more.
func (e *Engine) Run() error {
	defer close(e.done)
	addrs, err := e.bind()
	if err != nil {
		return err
	}
	defer e.closeUnix()
	err = gnet.Rotate(e, addrs,
		gnet.WithNumEventLoop(max(e.o.Loops, 1)),
		gnet.WithReusePort(true),
		gnet.WithReuseAddr(true),
		gnet.WithTCPNoDelay(gnet.TCPNoDelay),
		gnet.WithTCPKeepAlive(2*time.Minute),
		gnet.WithReadBufferCap(e.o.ReadBytes),
		gnet.WithTicker(true),
		gnet.WithLogger(logger{e.o.Logf}),
		gnet.WithLogLevel(logging.ErrorLevel))
	switch {
	case err != nil:
		return fmt.Errorf("eventloop: %w", err)
	case !e.stopping.Load():
		return errors.New("eventloop: the engine ended by itself")
	}
	return nil
}

// Stop closes all connections and ends Run.
func (e *Engine) Stop(ctx context.Context) error {
	e.stopping.Store(true)
	return e.eng.Stop(ctx)
}

// OnBoot implements gnet.EventHandler. The loops do not exist yet.
func (e *Engine) OnBoot(eng gnet.Engine) gnet.Action {
	e.eng = eng
	return gnet.None
}

// OnTick implements gnet.EventHandler. Its first call says that every loop runs and every address is bound; the ticks
// have no other use.
func (e *Engine) OnTick() (time.Duration, gnet.Action) {
	e.bootOnce.Do(func() {
		e.acceptUnix()
		close(e.booted)
	})
	return 24 * time.Hour, gnet.None
}

func (e *Engine) loop(el gnet.EventLoop) *Loop {
	if l, ok := e.loops.Load(el); ok {
		return l.(*Loop)
	}
	e.mu.Lock()
	l := &Loop{ID: e.n, el: el, e: e, lanes: map[net.Addr]*lane{}}
	e.n++
	e.mu.Unlock()
	l.State = e.h.OnLoop(l)
	e.loops.Store(el, l)
	return l
}

// OnOpen implements gnet.EventHandler.
func (e *Engine) OnOpen(c gnet.Conn) ([]byte, gnet.Action) {
	l := e.loop(c.EventLoop())
	to := l.lane(c)
	c.SetContext(nil)
	if e.o.Descriptors > 0 && c.Fd() >= e.o.Descriptors-descriptorsSpare {
		e.starved.Add(1)
		return nil, gnet.Close
	}
	if to == nil || !e.admit(to.on, c) {
		return nil, gnet.Close
	}
	k := &link{gc: c, lane: to, state: opening{}}
	c.SetContext(k)
	state := e.h.OnOpen(k.build(), l, to.on)
	if state == nil {
		c.SetContext(nil)
		k.drop()
		e.release(to.on, c)
		return nil, gnet.Close
	}
	k.state = state
	return nil, gnet.None
}

// OnTraffic implements gnet.EventHandler.
func (e *Engine) OnTraffic(c gnet.Conn) gnet.Action {
	k, ok := c.Context().(*link)
	if !ok {
		return gnet.Close
	}
	layers, state := k.above(), k.state
	if len(layers) == 0 && c.InboundBuffered() < e.h.Need(state) {
		return gnet.None
	}
	b, _ := c.Peek(-1)
	var used int
	if len(layers) > 0 {
		used, ok = layers[0].Data(b)
	} else {
		used, ok = e.h.OnData(state, b)
	}
	if used > 0 && !k.closed() { // Discard(0) would drop everything
		_, _ = c.Discard(used)
	}
	e.h.AfterData(state)
	if !ok {
		k.shut()
	}
	return gnet.None
}

// OnClose implements gnet.EventHandler.
func (e *Engine) OnClose(c gnet.Conn, err error) gnet.Action {
	if k, ok := c.Context().(*link); ok && !k.closed() {
		state := k.drop()
		e.release(k.on, c)
		e.h.OnClose(state, err)
	}
	return gnet.None
}
