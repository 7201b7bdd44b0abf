// Package netfault is a TCP proxy whose network can go bad: links that are
// cut, and links that swallow everything without a word, as a dead router or
// an expired NAT entry does.
package netfault

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Mode is the state of the network between the two sides.
type Mode int

const (
	// Open forwards.
	Open Mode = iota
	// Stall forwards nothing and loses nothing: packets are dropped for a
	// while, and TCP sends them again once the network is back.
	Stall
	// Swallow takes what is sent and drops it. A connection that lost bytes
	// this way, or that was made meanwhile, stays silent for ever, open on
	// both sides, also after the network is back.
	Swallow
)

// Proxy forwards from its own address to a target.
type Proxy struct {
	target string
	l      net.Listener

	mu      sync.Mutex
	mode    Mode                  // guarded by mu
	link    Link                  // guarded by mu; of connections made from now on
	changed chan struct{}         // guarded by mu; closed when mode changes
	conns   map[net.Conn]struct{} // guarded by mu; nil once closed
	wg      sync.WaitGroup

	accepted  atomic.Int64
	forwarded atomic.Int64
}

// Listen starts a proxy on addr that forwards to target.
func Listen(addr, target string) (*Proxy, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	p := &Proxy{target: target, l: l, changed: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	p.wg.Go(p.accept)
	return p, nil
}

// Addr is where the proxy listens.
func (p *Proxy) Addr() string { return p.l.Addr().String() }

// Set changes the state of the network.
func (p *Proxy) Set(m Mode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = m
	close(p.changed)
	p.changed = make(chan struct{})
}

// Slow gives the network of the connections made from now on a speed, a delay and
// losses. The zero Link takes them away.
func (p *Proxy) Slow(l Link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.link = l
}

// Accepted is how many connections were made.
func (p *Proxy) Accepted() int64 { return p.accepted.Load() }

// Forwarded is how many bytes the target was given.
func (p *Proxy) Forwarded() int64 { return p.forwarded.Load() }

// Cut resets every connection; the listener stays.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		reset(c)
	}
}

// Close ends the listener and every connection.
func (p *Proxy) Close() error {
	err := p.l.Close()
	p.mu.Lock()
	for c := range p.conns {
		reset(c)
	}
	p.conns = nil
	close(p.changed)
	p.changed = make(chan struct{})
	p.mu.Unlock()
	p.wg.Wait()
	return err
}

func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // best effort: Close follows
	}
	_ = c.Close()
}

// track registers c, or refuses it when the proxy is closed.
func (p *Proxy) track(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns == nil {
		reset(c)
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) drop(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c) // a delete from a nil map does nothing
	_ = c.Close()
}

func (p *Proxy) accept() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			return
		}
		p.accepted.Add(1)
		if p.track(c) {
			p.wg.Go(func() { p.serve(c) })
		}
	}
}

// wait blocks while the network stalls. It returns false when bytes must be
// swallowed, or when the proxy has been closed.
func (p *Proxy) wait() bool {
	for {
		p.mu.Lock()
		mode, changed, closed := p.mode, p.changed, p.conns == nil
		p.mu.Unlock()
		if closed || mode == Swallow {
			return false
		}
		if mode == Open {
			return true
		}
		<-changed
	}
}

func (p *Proxy) serve(client net.Conn) {
	defer p.drop(client)
	if !p.wait() {
		swallow(client)
		return
	}
	server, err := net.DialTimeout("tcp", p.target, 5*time.Second)
	if err != nil || !p.track(server) {
		reset(client) // what a refused connection looks like from here
		return
	}
	defer p.drop(server)
	// One direction that lost bytes dooms the other: forwarding a stream with
	// a hole would be a fault that no network makes.
	doomed := make(chan struct{})
	var once sync.Once
	doom := func() { once.Do(func() { close(doomed) }) }
	var wg sync.WaitGroup
	p.mu.Lock()
	link := p.link
	p.mu.Unlock()
	up, down := counted{server, &p.forwarded}, net.Conn(client)
	if link != (Link{}) {
		// The buffers of the kernel here are not those of the link.
		_ = client.(*net.TCPConn).SetReadBuffer(kernelBytes)
		_ = server.(*net.TCPConn).SetReadBuffer(kernelBytes)
		shapedUp, shapedDown := newShaper(up, link, 1), newShaper(down, link, 2)
		defer shapedUp.stop()
		defer shapedDown.stop()
		wg.Go(func() { p.pump(shapedUp, client, doomed, doom) })
		wg.Go(func() { p.pump(shapedDown, server, doomed, doom) })
		wg.Wait()
		return
	}
	wg.Go(func() { p.pump(up, client, doomed, doom) })
	wg.Go(func() { p.pump(down, server, doomed, doom) })
	wg.Wait()
}

// pump forwards from src to dst until either ends.
func (p *Proxy) pump(dst io.WriteCloser, src net.Conn, doomed <-chan struct{}, doom func()) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		if err != nil {
			// Beyond a doomed link the end of the other side is not heard of.
			select {
			case <-doomed:
			default:
				_ = dst.Close()
			}
			return
		}
		alive := p.wait()
		select {
		case <-doomed:
			alive = false
		default:
		}
		if !alive {
			doom()
			swallow(src)
			return
		}
		if _, err := dst.Write(buf[:n]); err != nil {
			reset(src)
			return
		}
	}
}

// swallow reads and forgets until the connection ends.
func swallow(c net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		if _, err := c.Read(buf); err != nil {
			return
		}
	}
}
