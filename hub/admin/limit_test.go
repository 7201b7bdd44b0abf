package admin

import (
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// accepted dials l and accepts.
func accepted(t *testing.T, l *limitListener) (client, server net.Conn) {
	t.Helper()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return client, server
}

func closedByPeer(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	_, err := c.Read(make([]byte, 1))
	return errors.Is(err, io.EOF) || err != nil && !errors.Is(err, net.ErrClosed) && !isTimeout(err)
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// The quiet one that came first makes room; one with a request does not, and the next waits for it.
func TestLimitListener(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := limit(inner, 2)
	first, _ := accepted(t, l)
	busyClient, busy := accepted(t, l)
	l.busy(busy.(*limitConn))
	_, third := accepted(t, l)
	if !closedByPeer(first) {
		t.Fatal("the quiet connection was not closed for the third")
	}
	l.busy(third.(*limitConn))

	waiting := make(chan net.Conn, 1)
	go func() {
		c, _ := l.Accept()
		waiting <- c
	}()
	fourth, err := net.Dial("tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = fourth.Close() }()
	select {
	case <-waiting:
		t.Fatal("a connection was accepted although two are being answered")
	case <-time.After(20 * time.Millisecond):
	}
	_ = third.Close()
	_ = third.Close() // closing twice gives back one slot
	c := <-waiting
	if c == nil {
		t.Fatal("not accepted after another had gone")
	}
	l.busy(c.(*limitConn))
	l.state(busy, http.StateIdle) // has answered: it makes room for the next
	_, _ = accepted(t, l)
	if !closedByPeer(busyClient) {
		t.Error("the idle connection was not closed")
	}
	if l.open != 2 || l.quiet.Len() != 1 {
		t.Errorf("%d open, %d quiet", l.open, l.quiet.Len())
	}

	ended := make(chan error, 1)
	go func() {
		_, err := l.Accept()
		ended <- err
	}()
	_ = l.Close()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
}

// Hundreds of connections that say nothing, or not all of it, do not keep anybody from asking how the hub is.
func TestSilentConnectionsDelayNobody(t *testing.T) {
	f := start(t)
	for i := range 5 * addressConnsMax {
		c, err := net.Dial("tcp", f.server.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if i%2 == 0 {
			_, _ = c.Write([]byte("GET /healthz HTTP/1.1\r\nHost:")) // it may have been closed already
		}
	}
	asked := time.Now()
	resp, err := http.Get("http://" + f.server.Addr() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if took := time.Since(asked); took > headerTimeout/2 {
		t.Errorf("/healthz took %v behind silent connections", took)
	}
}
