package admin

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"sync"
)

// limitListener serves at most a fixed number of connections at a time. When they are all taken, the one goes that has
// been without a request for longest: who opens connections and says nothing keeps nobody else out. Only when every
// one is being answered does the next wait, in the kernel's backlog.
type limitListener struct {
	net.Listener
	most int

	mu     sync.Mutex // guards what follows
	open   int
	quiet  list.List // of *limitConn without a request, the longest one first
	room   sync.Cond // a connection ended, became quiet, or the listener closed
	closed bool
}

func limit(l net.Listener, n int) *limitListener {
	x := &limitListener{Listener: l, most: n}
	x.room.L = &x.mu
	return x
}

// Accept implements net.Listener.
func (l *limitListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	conn := &limitConn{Conn: c, l: l}
	l.mu.Lock()
	for l.open >= l.most && !l.closed {
		first := l.quiet.Front()
		if first == nil {
			l.room.Wait()
			continue
		}
		victim, _ := first.Value.(*limitConn)
		l.forget(victim)
		l.mu.Unlock()
		_ = victim.Conn.Close() // its server notices, and has no slot to give back
		l.mu.Lock()
	}
	if l.closed {
		l.mu.Unlock()
		_ = c.Close()
		return nil, net.ErrClosed
	}
	l.open++
	conn.place = l.quiet.PushBack(conn)
	l.mu.Unlock()
	return conn, nil
}

// Close implements net.Listener.
func (l *limitListener) Close() error {
	l.mu.Lock()
	l.closed = true
	l.room.Broadcast()
	l.mu.Unlock()
	return l.Listener.Close()
}

// connKey finds the connection of a request in its context.
type connKey struct{}

// context is the http.Server's ConnContext.
func (l *limitListener) context(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// serving marks connections as busy once a request is whole: one that sends its headers byte by byte stays quiet.
func (l *limitListener) serving(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connKey{}).(*limitConn); ok {
			l.busy(c)
		}
		h.ServeHTTP(w, r)
	})
}

func (l *limitListener) busy(c *limitConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !c.gone && c.place != nil {
		l.quiet.Remove(c.place)
		c.place = nil
	}
}

// state is the http.Server's ConnState: it says whose request is answered.
func (l *limitListener) state(c net.Conn, s http.ConnState) {
	conn, ok := c.(*limitConn)
	if !ok || s != http.StateIdle {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !conn.gone && conn.place == nil {
		conn.place = l.quiet.PushBack(conn)
		l.room.Broadcast()
	}
}

// forget gives the slot of a connection back, once; mu is held.
func (l *limitListener) forget(c *limitConn) {
	if c.gone {
		return
	}
	c.gone = true
	if c.place != nil {
		l.quiet.Remove(c.place)
		c.place = nil
	}
	l.open--
	l.room.Broadcast()
}

type limitConn struct {
	net.Conn
	l *limitListener
	// place is where it stands in l.quiet, nil while it has a request; gone: it has no slot any more. Guarded by l.mu.
	place *list.Element
	gone  bool
}

// Close implements net.Conn.
func (c *limitConn) Close() error {
	c.l.mu.Lock()
	c.l.forget(c)
	c.l.mu.Unlock()
	return c.Conn.Close()
}
