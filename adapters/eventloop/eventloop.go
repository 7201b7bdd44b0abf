// Package eventloop owns the sockets: it accepts connections and hands their bytes to a Handler on a fixed set of
// event loops, one per core. It is the only package that knows gnet, and the place where gnet's traps are disarmed:
//
//   - an accept that fails for want of descriptors would shut a shared-acceptor engine down, so every loop has a
//     listener of its own (SO_REUSEPORT); since two engines would then share a port in silence, each address is
//     first bound without it;
//   - Discard(0) drops the whole inbound buffer, so it is never called with 0;
//   - a failing Write runs OnClose inside the caller: handlers must only take note there and act at a safe point;
//   - the engine returning is the end of the process: Run reports it as an error unless Stop was called.
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

// ErrAddressInUse is returned by Run when another process listens on one of the addresses.
var ErrAddressInUse = errors.New("eventloop: address in use")

// Conn is a connection as its handler sees it. All methods but Close belong to the connection's loop.
type Conn interface {
	// Write sends b now as far as the socket takes it and keeps the rest; b is not retained.
	// An error means that the connection is gone and that OnClose has already run.
	Write(b []byte) (int, error)
	// OutboundBuffered is the number of bytes that the socket has not taken yet.
	OutboundBuffered() int
	RemoteAddr() net.Addr
	LocalAddr() net.Addr
	// Close closes the connection soon, on its loop; safe from any goroutine.
	Close() error
}

// Handler gets the events. OnOpen, OnData and OnClose run on the connection's loop and must not block.
type Handler interface {
	// OnLoop is called once per loop, on it, before its first connection; its result is Loop.State.
	OnLoop(l *Loop) any
	// OnOpen returns the connection's own state, or nil to refuse the connection.
	OnOpen(c Conn, l *Loop) any
	// Need is how many bytes a connection must have before OnData can make progress: a large packet that arrives
	// in pieces is then gathered once, not copied at each piece. 0 when unknown.
	Need(state any) int
	// OnData gets everything received and not yet consumed; b is valid during the call only. It returns how many
	// bytes it has consumed, and false to close the connection.
	OnData(state any, b []byte) (used int, ok bool)
	// AfterData follows OnData once its bytes are disposed of: the place to write from, since a Write can close the
	// very connection whose data was handled.
	AfterData(state any)
	// OnClose is the last event of a connection. It can run inside a Write.
	OnClose(state any, err error)
}

// Loop is one event loop.
type Loop struct {
	ID    int
	State any // what OnLoop returned
	el    gnet.EventLoop
}

// Wake runs fn on the loop soon, after the sockets that are ready now. Safe from any goroutine. Wakes are not
// ordered against each other beyond 1,024 of them: callers keep a queue of their own and coalesce.
func (l *Loop) Wake(fn func()) error {
	return l.el.Execute(context.Background(), gnet.RunnableFunc(func(context.Context) error { fn(); return nil }))
}

// CloseNow closes c from within its loop, before returning. OnClose runs inside.
func (l *Loop) CloseNow(c Conn) {
	if gc, ok := c.(gnet.Conn); ok {
		_ = l.el.Close(gc)
	}
}

// Nudge makes the loop call OnData again with what is still unconsumed, even if nothing new arrives.
func Nudge(c Conn) {
	if gc, ok := c.(gnet.Conn); ok {
		_ = gc.Wake(nil)
	}
}

// CloseWrite ends the outgoing half of a connection whose last words are on their way, and leaves the other half open:
// a socket that is closed while input is unread is reset, and what was sent may never be seen. It reports false when
// bytes still wait for the socket; nothing is done then.
func CloseWrite(c Conn) bool {
	gc, ok := c.(gnet.Conn)
	return ok && gc.OutboundBuffered() == 0 && closeWrite(gc.Fd()) == nil
}

// Options of an engine.
type Options struct {
	Addresses []string // host:port, TCP
	Loops     int      // number of loops, at least 1
	ReadBytes int      // read buffer per loop, bytes
	Logf      func(format string, args ...any)
}

// Engine runs the loops.
type Engine struct {
	gnet.BuiltinEventEngine
	o        Options
	h        Handler
	eng      gnet.Engine
	booted   chan struct{}
	bootOnce sync.Once
	stopping atomic.Bool
	loops    sync.Map // gnet.EventLoop → *Loop
	mu       sync.Mutex
	n        int
}

// New returns an engine that is not running yet.
func New(o Options, h Handler) *Engine {
	return &Engine{o: o, h: h, booted: make(chan struct{})}
}

// Booted is closed once all addresses are bound.
func (e *Engine) Booted() <-chan struct{} { return e.booted }

// Run binds the addresses and serves until Stop. It returns nil only after Stop: an engine that ends by itself is
// an error, after which the process must end, since nobody is served any more.
func (e *Engine) Run() error {
	addrs := make([]string, 0, len(e.o.Addresses))
	for _, a := range e.o.Addresses {
		if err := Probe(a); err != nil {
			return err
		}
		addrs = append(addrs, "tcp://"+a)
	}
	err := gnet.Rotate(e, addrs,
		gnet.WithNumEventLoop(max(e.o.Loops, 1)),
		gnet.WithReusePort(true),
		gnet.WithReuseAddr(true),
		gnet.WithTCPNoDelay(gnet.TCPNoDelay),
		gnet.WithTCPKeepAlive(2*time.Minute),
		gnet.WithReadBufferCap(e.o.ReadBytes),
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

// Probe binds address alone for a moment and says why it cannot: the engine's own binds share ports and would not
// notice another listener.
func Probe(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		if isAddrInUse(err) {
			return fmt.Errorf("%w: %s", ErrAddressInUse, address)
		}
		return fmt.Errorf("eventloop: listen on %s: %w", address, err)
	}
	return l.Close()
}

// Stop closes all connections and ends Run.
func (e *Engine) Stop(ctx context.Context) error {
	e.stopping.Store(true)
	return e.eng.Stop(ctx)
}

// OnBoot implements gnet.EventHandler.
func (e *Engine) OnBoot(eng gnet.Engine) gnet.Action {
	e.eng = eng
	e.bootOnce.Do(func() { close(e.booted) })
	return gnet.None
}

func (e *Engine) loop(el gnet.EventLoop) *Loop {
	if l, ok := e.loops.Load(el); ok {
		return l.(*Loop)
	}
	e.mu.Lock()
	l := &Loop{ID: e.n, el: el}
	e.n++
	e.mu.Unlock()
	l.State = e.h.OnLoop(l)
	e.loops.Store(el, l)
	return l
}

// OnOpen implements gnet.EventHandler.
func (e *Engine) OnOpen(c gnet.Conn) ([]byte, gnet.Action) {
	st := e.h.OnOpen(c, e.loop(c.EventLoop()))
	if st == nil {
		return nil, gnet.Close
	}
	c.SetContext(st)
	return nil, gnet.None
}

// OnTraffic implements gnet.EventHandler.
func (e *Engine) OnTraffic(c gnet.Conn) gnet.Action {
	st := c.Context()
	if st == nil {
		return gnet.Close
	}
	if c.InboundBuffered() < e.h.Need(st) {
		return gnet.None
	}
	b, _ := c.Peek(-1)
	used, ok := e.h.OnData(st, b)
	if !ok {
		return gnet.Close
	}
	if used > 0 { // Discard(0) would drop everything
		_, _ = c.Discard(used)
	}
	e.h.AfterData(st)
	return gnet.None
}

// OnClose implements gnet.EventHandler.
func (e *Engine) OnClose(c gnet.Conn, err error) gnet.Action {
	if st := c.Context(); st != nil {
		e.h.OnClose(st, err)
	}
	return gnet.None
}
