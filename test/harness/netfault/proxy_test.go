package netfault

import (
	"bufio"
	"errors"
	"net"
	"os"
	"testing"
	"time"
)

// echoServer answers each line with itself.
func echoServer(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for s := bufio.NewScanner(c); s.Scan(); {
					if _, err := c.Write(append(s.Bytes(), '\n')); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

type line struct {
	net.Conn
	br *bufio.Reader
}

func dial(t *testing.T, p *Proxy) *line {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &line{Conn: c, br: bufio.NewReader(c)}
}

func (l *line) ask(t *testing.T, s string, patience time.Duration) (string, error) {
	t.Helper()
	if _, err := l.Write([]byte(s + "\n")); err != nil {
		return "", err
	}
	return l.get(patience)
}

func (l *line) get(patience time.Duration) (string, error) {
	if err := l.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	return l.br.ReadString('\n')
}

func start(t *testing.T) *Proxy {
	t.Helper()
	p, err := Listen("127.0.0.1:0", echoServer(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

const short = 100 * time.Millisecond

func TestProxyForwards(t *testing.T) {
	c := dial(t, start(t))
	if got, err := c.ask(t, "hello", 5*time.Second); err != nil || got != "hello\n" {
		t.Fatalf("got %q, %v", got, err)
	}
}

func TestProxyStallKeepsBytes(t *testing.T) {
	p := start(t)
	c := dial(t, p)
	if _, err := c.ask(t, "before", 5*time.Second); err != nil {
		t.Fatal(err)
	}
	p.Set(Stall)
	if got, err := c.ask(t, "during", short); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a stalled link answered %q, %v", got, err)
	}
	p.Set(Open)
	if got, err := c.get(5 * time.Second); err != nil || got != "during\n" {
		t.Fatalf("after the stall: %q, %v", got, err)
	}
}

func TestProxySwallowDoomsConnectionsForEver(t *testing.T) {
	p := start(t)
	used, idle := dial(t, p), dial(t, p)
	for _, c := range []*line{used, idle} {
		if _, err := c.ask(t, "before", 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	p.Set(Swallow)
	if got, err := used.ask(t, "lost", short); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a black hole answered %q, %v", got, err)
	}
	fresh := dial(t, p)
	if got, err := fresh.ask(t, "lost", short); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a black hole answered %q, %v", got, err)
	}
	p.Set(Open)
	for name, c := range map[string]*line{"used": used, "fresh": fresh} {
		if got, err := c.ask(t, "again", short); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("%s connection came back from the black hole: %q, %v", name, got, err)
		}
	}
	if got, err := idle.ask(t, "again", 5*time.Second); err != nil || got != "again\n" {
		t.Fatalf("a connection that lost nothing: %q, %v", got, err)
	}
}

func TestProxyCutResets(t *testing.T) {
	p := start(t)
	c := dial(t, p)
	if _, err := c.ask(t, "before", 5*time.Second); err != nil {
		t.Fatal(err)
	}
	p.Cut()
	if got, err := c.get(5 * time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a cut connection: %q, %v", got, err)
	}
	if got, err := dial(t, p).ask(t, "new", 5*time.Second); err != nil || got != "new\n" {
		t.Fatalf("after the cut: %q, %v", got, err)
	}
}
