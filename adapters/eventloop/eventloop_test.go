package eventloop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// greet tells every client which listener it came by, and echoes.
type greet struct {
	refuse atomic.Bool
	closed atomic.Int64
	opened chan Conn
}

type greetConn struct {
	c   Conn
	out []byte
}

func (*greet) OnLoop(*Loop) any { return nil }
func (g *greet) OnOpen(c Conn, _ *Loop, on *Listener) any {
	if g.refuse.Load() {
		return nil
	}
	if _, err := fmt.Fprintf(c, "%d\n", on.Index); err != nil {
		return nil
	}
	select {
	case g.opened <- c:
	default:
	}
	return &greetConn{c: c}
}
func (*greet) Need(any) int { return 0 }
func (*greet) OnData(state any, b []byte) (int, bool) {
	s := state.(*greetConn)
	s.out = append(s.out, b...)
	return len(b), true
}
func (*greet) AfterData(state any) {
	s := state.(*greetConn)
	out := s.out
	s.out = nil
	if len(out) > 0 {
		_, _ = s.c.Write(out)
	}
}
func (g *greet) OnClose(any, error) { g.closed.Add(1) }

func run(t *testing.T, o Options) *greet {
	t.Helper()
	g := &greet{opened: make(chan Conn, 100)}
	o.ReadBytes = 64 << 10
	e := New(o, g)
	failed := make(chan error, 1)
	go func() { failed <- e.Run() }()
	select {
	case <-e.Booted():
	case err := <-failed:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-failed; err != nil {
			t.Error(err)
		}
	})
	return g
}

// greeting dials and returns what the listener says, "" when it refuses.
func greeting(t *testing.T, network, addr string) (net.Conn, string) {
	t.Helper()
	c, err := net.DialTimeout(network, addr, 5*time.Second)
	if err != nil {
		t.Fatalf("dial %s: %v", addr, err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	b := make([]byte, 2)
	n, err := io.ReadFull(c, b)
	if n == 0 && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)) {
		return c, ""
	}
	if err != nil {
		t.Fatalf("%s: %v", addr, err)
	}
	return c, string(b[:1])
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

func hasIPv6(t *testing.T) bool {
	t.Helper()
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		return false
	}
	_ = l.Close()
	return true
}

// Several listeners have one port on different addresses, and each connection is told by the right one.
func TestListenersByAddress(t *testing.T) {
	for _, c := range []struct {
		name      string
		addresses []string          // %s is the port
		dial      map[string]string // address → index of the listener
	}{
		{"two addresses", []string{"127.0.0.1:%s", "127.0.0.2:%s"}, map[string]string{"127.0.0.1:%s": "0", "127.0.0.2:%s": "1"}},
		{"one address and all", []string{"127.0.0.1:%s", "0.0.0.0:%s"}, map[string]string{"127.0.0.1:%s": "0", "127.0.0.2:%s": "1"}},
		{"all and one address", []string{"0.0.0.0:%s", "127.0.0.1:%s"}, map[string]string{"127.0.0.1:%s": "1", "127.0.0.2:%s": "0"}},
		{"both families", []string{"[::]:%s"}, map[string]string{"127.0.0.1:%s": "0", "[::1]:%s": "0"}},
		{"no host", []string{":%s"}, map[string]string{"127.0.0.1:%s": "0", "[::1]:%s": "0"}},
		{"families apart", []string{"0.0.0.0:%s", "[::]:%s"}, map[string]string{"127.0.0.1:%s": "0", "[::1]:%s": "1"}},
		{"no host and IPv4", []string{":%s", "0.0.0.0:%s"}, map[string]string{"127.0.0.1:%s": "1", "[::1]:%s": "0"}},
		{"no host and one address", []string{":%s", "127.0.0.1:%s"}, map[string]string{"127.0.0.1:%s": "1", "127.0.0.2:%s": "0", "[::1]:%s": "0"}},
		{"by name", []string{"localhost:%s"}, map[string]string{"127.0.0.1:%s": "0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !hasIPv6(t) && c.name != "two addresses" {
				t.Skip("no IPv6 here")
			}
			port := freePort(t)
			var on []*Listener
			for _, a := range c.addresses {
				on = append(on, &Listener{Address: fmt.Sprintf(a, port)})
			}
			run(t, Options{Listeners: on, Loops: 2})
			for addr, want := range c.dial {
				for range 4 { // on whichever loop
					if _, got := greeting(t, "tcp", fmt.Sprintf(addr, port)); got != want {
						t.Errorf("%s: listener %q, want %q", addr, got, want)
					}
				}
			}
		})
	}
}

func TestAnyPort(t *testing.T) {
	on := &Listener{Address: "127.0.0.1:0"}
	run(t, Options{Listeners: []*Listener{on}, Loops: 2})
	for range 8 { // every loop listens on the same port
		if _, got := greeting(t, "tcp", on.Addr()); got != "0" {
			t.Fatalf("%q", got)
		}
	}
}

func TestAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	path := filepath.Join(t.TempDir(), "s")
	u, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	for _, a := range []string{l.Addr().String(), "unix:" + path} {
		if err := Probe(a); !errors.Is(err, ErrAddressInUse) {
			t.Errorf("probe %s: %v", a, err)
		}
		if err := New(Options{Listeners: []*Listener{{Address: a}}}, &greet{}).Run(); !errors.Is(err, ErrAddressInUse) {
			t.Errorf("run on %s: %v", a, err)
		}
	}
}

func TestUnixSocket(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "mqtt.sock")
	// Left behind by a hub that was killed.
	old, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	old.SetUnlinkOnClose(false)
	_ = old.Close()
	for _, with := range []string{"alone", "beside TCP"} {
		t.Run(with, func(t *testing.T) {
			on := []*Listener{{Address: "unix:" + path}}
			if with != "alone" {
				on = append(on, &Listener{Address: "127.0.0.1:0"})
			}
			g := run(t, Options{Listeners: on, Loops: 2, PerAddress: 1})
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != unixMode {
				t.Fatalf("%v %v", info, err)
			}
			var wg sync.WaitGroup
			for i := range 20 {
				wg.Go(func() {
					c, got := greeting(t, "unix", path)
					if got != "0" {
						t.Errorf("listener %q", got)
					}
					want := bytes.Repeat([]byte{byte(i)}, 100_000)
					go func() { _, _ = c.Write(want) }()
					b := make([]byte, len(want))
					if _, err := io.ReadFull(c, b); err != nil || !bytes.Equal(b, want) {
						t.Errorf("echo: %v", err)
					}
				})
			}
			wg.Wait()
			c := <-g.opened
			if c.RemoteAddr().String() != path || c.LocalAddr().String() != path {
				t.Errorf("addresses %v %v", c.RemoteAddr(), c.LocalAddr())
			}
			if with != "alone" {
				if _, got := greeting(t, "tcp", on[1].Addr()); got != "1" {
					t.Errorf("TCP beside it: %q", got)
				}
			}
			if n := on[0].Accepted.Load(); n != 20 {
				t.Errorf("accepted %d", n)
			}
		})
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket stays behind: %v", err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Probe("unix:" + file); err == nil {
		t.Error("a file was taken for a socket")
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "precious" {
		t.Errorf("%q %v", b, err)
	}
}

func TestLimits(t *testing.T) {
	port := freePort(t)
	on := []*Listener{{Address: "127.0.0.1:" + port, MaxConnections: 2}, {Address: "127.0.0.2:" + port}}
	g := run(t, Options{Listeners: on, Loops: 2, PerAddress: 4})
	var open []net.Conn
	for i, want := range []string{"0", "0", ""} {
		c, got := greeting(t, "tcp", "127.0.0.1:"+port)
		if got != want {
			t.Errorf("connection %d: %q", i, got)
		}
		open = append(open, c)
	}
	// Those above count too, since they came from 127.0.0.1.
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}}
	for i, want := range []bool{true, true, false} {
		c, err := from.Dial("tcp", "127.0.0.2:"+port)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := c.Read(make([]byte, 2)); (err == nil) != want {
			t.Errorf("connection %d from one address: %v", i, err)
		}
	}
	if f, a := on[0].RefusedFull.Load(), on[1].RefusedAddress.Load(); f != 1 || a != 1 || on[0].Open() != 2 || on[1].Open() != 2 {
		t.Errorf("refused %d and %d, open %d and %d", f, a, on[0].Open(), on[1].Open())
	}
	// Room comes back.
	for _, c := range open[:2] {
		_ = c.Close()
	}
	await(t, func() bool { return g.closed.Load() == 2 })
	if _, got := greeting(t, "tcp", "127.0.0.1:"+port); got != "0" {
		t.Errorf("after others have gone: %q", got)
	}
	// What the handler refuses is not counted as open.
	g.refuse.Store(true)
	if _, got := greeting(t, "tcp", "127.0.0.1:"+port); got != "" {
		t.Errorf("refused by the handler, but %q", got)
	}
	await(t, func() bool { return on[0].Open() == 1 })
}

func await(t *testing.T, cond func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline:
			t.Fatal("it does not happen")
		case <-tick.C:
		}
	}
}

func TestPeers(t *testing.T) {
	p := peers{max: 2}
	a := func(s string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(s), Port: 1} }
	for i, c := range []struct {
		addr string
		want bool
	}{
		{"10.0.0.1", true}, {"10.0.0.1", true}, {"10.0.0.1", false}, {"10.0.0.2", true},
		{"::ffff:10.0.0.2", true}, {"10.0.0.2", false}, // the same address in two forms
		{"2001:db8::1", true}, {"2001:db8::2", true}, {"2001:db8::ffff:1", false}, {"2001:db8:0:1::1", true}, // one network
	} {
		if got := p.enter(a(c.addr)); got != c.want {
			t.Errorf("%d: %s: %v", i, c.addr, got)
		}
	}
	for _, s := range []string{"10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2", "2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"} {
		p.leave(a(s))
	}
	if len(p.n) != 0 {
		t.Errorf("left: %v", p.n)
	}
	if !p.enter(&net.UnixAddr{}) || len(p.n) != 0 {
		t.Error("a Unix socket was counted")
	}
}

// The kernel gives up on a peer that does not acknowledge.
func TestUserTimeout(t *testing.T) {
	on := &Listener{Address: "127.0.0.1:0"}
	g := run(t, Options{Listeners: []*Listener{on}, Loops: 1, UserTimeout: 7 * time.Second})
	greeting(t, "tcp", on.Addr())
	k := base(<-g.opened)
	got := make(chan int, 1)
	if err := k.l.Wake(func() {
		ms, err := unix.GetsockoptInt(k.gc.Fd(), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
		if err != nil {
			ms = -1
		}
		got <- ms
	}); err != nil {
		t.Fatal(err)
	}
	if ms := <-got; ms != 7000 {
		t.Errorf("TCP_USER_TIMEOUT is %d", ms)
	}
}

// upper takes bytes in units of unit, and needs a whole one.
type upper struct {
	unit, need int
	got        bytes.Buffer
	calls      int
}

func (u *upper) Need() int { return u.need }
func (u *upper) Data(b []byte) (int, bool) {
	u.calls++
	n := len(b) / u.unit * u.unit
	u.got.Write(b[:n])
	return n, true
}

func TestCarry(t *testing.T) {
	var in []byte
	for i := range 10_000 {
		in = append(in, byte(i), byte(i>>8))
	}
	for _, unit := range []int{1, 3, 1000, 7777} {
		for _, piece := range []int{1, 2, 500, 1000, 9999, len(in)} {
			u := &upper{unit: unit}
			var c Carry
			for i := 0; i < len(in); i += piece {
				u.need = unit
				if !c.Deliver(u, in[i:min(i+piece, len(in))]) {
					t.Fatal("refused")
				}
			}
			whole := len(in) / unit * unit
			if !bytes.Equal(u.got.Bytes(), in[:whole]) || c.Held() != len(in)-whole {
				t.Errorf("unit %d, piece %d: %d bytes, %d held", unit, piece, u.got.Len(), c.Held())
			}
			if most := len(in)/unit + 1; piece < unit && u.calls > most {
				t.Errorf("unit %d, piece %d: called %d times", unit, piece, u.calls)
			}
			calls := u.calls
			c.Drop()
			if !c.Deliver(u, nil) || u.calls != calls {
				t.Error("called for nothing")
			}
		}
	}
}
