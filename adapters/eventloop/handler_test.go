package eventloop

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

// script is a handler whose parts a test gives.
type script struct {
	need   atomic.Int64
	data   func(c Conn, b []byte) (int, bool)
	after  func(c Conn)
	opened chan scripted
	closes atomic.Int64
}

type scripted struct {
	c Conn
	l *Loop
}

func (*script) OnLoop(*Loop) any { return nil }
func (s *script) OnOpen(c Conn, l *Loop, _ *Listener) any {
	s.opened <- scripted{c, l}
	return c
}
func (s *script) Need(any) int { return int(s.need.Load()) }
func (s *script) OnData(state any, b []byte) (int, bool) {
	if s.data == nil {
		return len(b), true
	}
	return s.data(state.(Conn), b)
}
func (s *script) AfterData(state any) {
	if s.after != nil {
		s.after(state.(Conn))
	}
}
func (s *script) OnClose(any, error) { s.closes.Add(1) }

// play runs an engine of one loop with the script and returns how to dial it and how to stop it.
func play(t *testing.T, s *script) (dial func() *net.TCPConn, stop func() error) {
	t.Helper()
	s.opened = make(chan scripted, 100)
	addr := "127.0.0.1:" + freePort(t)
	e := New(Options{Listeners: []*Listener{{Address: addr}}, Loops: 1, ReadBytes: 64 << 10}, s)
	ended := make(chan error, 1)
	go func() { ended <- e.Run() }()
	select {
	case <-e.Booted():
	case err := <-ended:
		t.Fatal(err)
	}
	stopped := false
	stop = func() error {
		stopped = true
		if err := e.Stop(context.Background()); err != nil {
			return err
		}
		return <-ended
	}
	t.Cleanup(func() {
		if !stopped {
			if err := stop(); err != nil {
				t.Error(err)
			}
		}
	})
	return func() *net.TCPConn {
		c, err := net.DialTimeout("tcp", addr, 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		return c.(*net.TCPConn)
	}, stop
}

func write(t *testing.T, c net.Conn, s string) {
	t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		t.Fatal(err)
	}
}

// A handler that needs more is not bothered with less.
func TestNeedGathersInput(t *testing.T) {
	got := make(chan int, 100)
	s := &script{data: func(_ Conn, b []byte) (int, bool) {
		got <- len(b)
		return len(b), true
	}}
	s.need.Store(3000)
	dial, _ := play(t, s)
	c := dial()
	o := <-s.opened
	for range 3 {
		write(t, c, string(make([]byte, 1000)))
		seen := make(chan struct{})
		if err := o.l.Wake(func() { close(seen) }); err != nil { // the loop comes round
			t.Fatal(err)
		}
		<-seen
	}
	if n := <-got; n != 3000 {
		t.Fatalf("called with %d bytes, needs 3000", n)
	}
}

// What a handler leaves it is offered again: with more input, and when it is nudged; also if it took nothing at all.
func TestUnconsumedInput(t *testing.T) {
	got := make(chan string, 100)
	take := make(chan int, 100)
	s := &script{data: func(_ Conn, b []byte) (int, bool) {
		got <- string(b)
		return <-take, true
	}}
	dial, _ := play(t, s)
	c := dial()
	o := <-s.opened
	step := func(want string, used int) {
		t.Helper()
		if b := <-got; b != want {
			t.Fatalf("offered %q, want %q", b, want)
		}
		take <- used
	}
	write(t, c, "abcde")
	step("abcde", 3)
	Nudge(o.c)
	step("de", 0)
	Nudge(o.c)
	step("de", 0)
	write(t, c, "f")
	step("def", 3)
	write(t, c, "g")
	step("g", 1)
}

// A write to a socket that the peer has reset fails, and the connection has ended by then: once.
func TestCloseInsideAWrite(t *testing.T) {
	s := &script{}
	dial, _ := play(t, s)
	c, other := dial(), dial()
	o := <-s.opened
	<-s.opened
	reset, done := make(chan struct{}), make(chan int64, 1)
	err := o.l.Wake(func() {
		<-reset // the loop is here: it cannot hear of the reset before it writes
		big := make([]byte, 1<<20)
		for {
			if _, err := o.c.Write(big); err != nil {
				done <- s.closes.Load()
				return
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetLinger(0)
	_ = c.Close()
	close(reset)
	if n := <-done; n != 1 {
		t.Fatalf("closed %d times when the write had failed", n)
	}
	s.data = nil
	write(t, other, "x") // the loop goes on
	seen := make(chan struct{})
	if err := o.l.Wake(func() { close(seen) }); err != nil {
		t.Fatal(err)
	}
	<-seen
	if n := s.closes.Load(); n != 1 {
		t.Fatalf("closed %d times", n)
	}
}

// A handler that gives a connection up has it closed.
func TestOnDataCanClose(t *testing.T) {
	s := &script{data: func(_ Conn, b []byte) (int, bool) { return len(b), false }}
	dial, _ := play(t, s)
	c := dial()
	write(t, c, "x")
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Fatal("still open")
	}
}

// CloseNow ends a connection before it returns.
func TestCloseNow(t *testing.T) {
	s := &script{}
	dial, _ := play(t, s)
	c := dial()
	o := <-s.opened
	closed := make(chan int64, 1)
	if err := o.l.Wake(func() {
		o.l.CloseNow(o.c)
		closed <- s.closes.Load()
	}); err != nil {
		t.Fatal(err)
	}
	if n := <-closed; n != 1 {
		t.Fatalf("closed %d times", n)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Fatal("still open")
	}
}

// Stop ends every connection, tells the handler of each, and then Run returns without an error.
func TestStop(t *testing.T) {
	s := &script{}
	dial, stop := play(t, s)
	var clients []net.Conn
	for range 5 {
		clients = append(clients, dial())
		<-s.opened
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for _, c := range clients {
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Fatal("still open")
		}
	}
	if n := s.closes.Load(); n != 5 {
		t.Fatalf("%d of 5 connections were closed", n)
	}
}
