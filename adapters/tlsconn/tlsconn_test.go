package tlsconn

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"edgehub/adapters/eventloop"
	"edgehub/internal/certs/certstest"
)

// echo is a handler that sends everything back, and closes at "quit".
type echo struct {
	opened, closed atomic.Int64
	states         sync.Map // client's name → tls.ConnectionState
	data           atomic.Int64
}

type echoConn struct {
	c       eventloop.Conn
	pending []byte
	quit    bool
}

func (*echo) OnLoop(*eventloop.Loop) any { return nil }
func (e *echo) OnOpen(c eventloop.Conn, _ *eventloop.Loop, _ *eventloop.Listener) any {
	e.opened.Add(1)
	return &echoConn{c: c}
}
func (*echo) Need(any) int { return 0 }
func (e *echo) OnData(state any, b []byte) (int, bool) {
	c := state.(*echoConn)
	c.pending = append(c.pending, b...)
	e.data.Add(int64(len(b)))
	if st, ok := eventloop.TLSState(c.c); ok && len(st.PeerCertificates) > 0 {
		e.states.Store(st.PeerCertificates[0].Subject.CommonName, st)
	}
	c.quit = c.quit || bytes.Contains(b, []byte("quit"))
	return len(b), true
}
func (e *echo) AfterData(state any) {
	c := state.(*echoConn)
	if len(c.pending) > 0 {
		p := c.pending
		c.pending = nil
		_, _ = c.c.Write(p)
	}
	if c.quit {
		_ = c.c.Close()
	}
}
func (e *echo) OnClose(any, error) { e.closed.Add(1) }

// dribble is a layer below TLS that delivers size bytes at a time.
type dribble struct {
	eventloop.Conn
	up   eventloop.Upper
	size int
}

func (d *dribble) Below() eventloop.Conn     { return d.Conn }
func (d *dribble) Attach(up eventloop.Upper) { d.up = up }
func (d *dribble) Shut(bool)                 {}
func (d *dribble) Need() int                 { return 0 }
func (d *dribble) Data(b []byte) (int, bool) {
	if len(b) == 0 {
		return d.up.Data(b)
	}
	for i := 0; i < len(b); i += d.size {
		if _, ok := d.up.Data(b[i:min(i+d.size, len(b))]); !ok {
			return len(b), false
		}
	}
	return len(b), true
}

// server is an engine with one TLS listener.
type server struct {
	echo
	addr string
	ln   *Listener
	ca   *certstest.CA
}

type setup struct {
	loops    int
	dribble  int
	slots    int
	server   func(*tls.Config)
	listener func(*eventloop.Listener)
}

func serve(t testing.TB, o setup) *server {
	t.Helper()
	s := &server{ca: certstest.NewCA(t, "ca")}
	cert := s.ca.Issue(t, "edge.test", time.Now().Add(time.Hour))
	cfg := &tls.Config{Certificates: []tls.Certificate{cert}, ClientCAs: s.ca.Pool(), NextProtos: []string{"mqtt"}, MinVersion: tls.VersionTLS12}
	if o.server != nil {
		o.server(cfg)
	}
	s.ln = New(Options{Config: func() *tls.Config { return cfg }, Pool: NewPool(o.slots), Logger: slog.New(slog.DiscardHandler)})
	on := &eventloop.Listener{Address: "127.0.0.1:0", Layers: []eventloop.Wrap{s.ln.Wrap}}
	if o.dribble > 0 {
		on.Layers = append([]eventloop.Wrap{func(below eventloop.Conn, _ *eventloop.Loop) (eventloop.Layer, eventloop.Conn) {
			d := &dribble{Conn: below, size: o.dribble}
			return d, d
		}}, on.Layers...)
	}
	if o.listener != nil {
		o.listener(on)
	}
	s.addr = start(t, s, on, o.loops)
	return s
}

// start runs an engine until the test ends, and returns the listener's address.
func start(t testing.TB, h eventloop.Handler, on *eventloop.Listener, loops int) string {
	t.Helper()
	e := eventloop.New(eventloop.Options{Listeners: []*eventloop.Listener{on}, Loops: max(loops, 1), ReadBytes: 64 << 10}, h)
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
	return on.Addr()
}

// trickle is a client's socket that writes size bytes at a time.
type trickle struct {
	net.Conn
	size int
}

func (t trickle) Write(p []byte) (int, error) {
	n := 0
	for n < len(p) {
		m, err := t.Conn.Write(p[n:min(n+t.size, len(p))])
		if n += m; err != nil {
			return n, err
		}
	}
	return n, nil
}

func (s *server) dial(t testing.TB, cfg *tls.Config, size int) *tls.Conn {
	t.Helper()
	raw, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = raw.Close() })
	if err := raw.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if size > 0 {
		raw = trickle{raw, size}
	}
	return tls.Client(raw, cfg)
}

func (s *server) client() *tls.Config {
	return &tls.Config{RootCAs: s.ca.Pool(), ServerName: "edge.test"}
}

func bytesOf(n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(1, uint64(n)))
	for i := range b {
		b[i] = byte('A' + r.UintN(16)) // never "quit"
	}
	return b
}

// TestMatrix: versions, certificates on both sides, how the bytes come; sessions resume; closing is clean on both
// sides.
func TestMatrix(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for _, mutual := range []bool{false, true} {
			for _, dribbled := range []int{0, 1} {
				for _, size := range []int{0, 1, 7} {
					t.Run(fmt.Sprintf("%s mutual=%v loop=%d client=%d", tls.VersionName(version), mutual, dribbled, size), func(t *testing.T) {
						t.Parallel()
						matrix(t, version, mutual, dribbled, size)
					})
				}
			}
		}
	}
}

func matrix(t *testing.T, version uint16, mutual bool, dribbled, size int) {
	s := serve(t, setup{dribble: dribbled, server: func(c *tls.Config) {
		if mutual {
			c.ClientAuth = tls.RequireAndVerifyClientCert
		}
	}})
	cfg := s.client()
	cfg.MinVersion, cfg.MaxVersion = version, version
	cfg.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	if mutual {
		cfg.Certificates = []tls.Certificate{s.ca.Issue(t, "device", time.Now().Add(time.Hour))}
	}
	sizes := []int{0, 1, 100, 16384, 70000}
	if size > 0 {
		sizes = []int{0, 1, 100, 5000}
	}
	for session := range 3 {
		c := s.dial(t, cfg, size)
		for _, n := range sizes {
			roundTrip(t, c, bytesOf(n))
		}
		st := c.ConnectionState()
		if st.Version != version || st.DidResume != (session > 0) {
			t.Errorf("session %d: %s, resumed %v", session, tls.VersionName(st.Version), st.DidResume)
		}
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if rest, err := io.ReadAll(c); err != nil || len(rest) > 0 {
			t.Errorf("end of session %d: %d bytes, %v", session, len(rest), err) // no error: close_notify came
		}
	}
	if h, r, f := s.ln.Stats.Handshakes.Load(), s.ln.Stats.Resumed.Load(), s.ln.Stats.Failed.Load(); h != 3 || r != 2 || f != 0 {
		t.Errorf("handshakes %d, resumed %d, failed %d", h, r, f)
	}
	if mutual {
		st, ok := s.states.Load("device")
		if !ok || len(st.(tls.ConnectionState).VerifiedChains) == 0 {
			t.Error("the handler does not see the client's certificate")
		}
	}
}

func roundTrip(t testing.TB, c net.Conn, want []byte) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := c.Write(want)
		done <- err
	}()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatalf("%d bytes: %v", len(want), err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%d bytes came back different", len(want))
	}
}

func TestServerCloses(t *testing.T) {
	s := serve(t, setup{})
	c := s.dial(t, s.client(), 0)
	if _, err := c.Write([]byte("quit")); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err != nil || string(got) != "quit" {
		t.Errorf("%q %v", got, err)
	}
}

// TestRefused: what a client gets to know, and that nothing of it reaches the handler.
func TestRefused(t *testing.T) {
	stranger := certstest.NewCA(t, "stranger")
	for _, c := range []struct {
		name   string
		server func(*tls.Config)
		client func(*server, *tls.Config)
		want   string
	}{
		{"no certificate", func(c *tls.Config) { c.ClientAuth = tls.RequireAndVerifyClientCert }, func(*server, *tls.Config) {}, "certificate required"},
		{"unknown authority", func(c *tls.Config) { c.ClientAuth = tls.RequireAndVerifyClientCert }, func(_ *server, c *tls.Config) {
			c.Certificates = []tls.Certificate{stranger.Issue(t, "device", time.Now().Add(time.Hour))}
			c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c.Certificates[0], nil }
		}, "unknown certificate authority"},
		{"expired certificate", func(c *tls.Config) { c.ClientAuth = tls.RequireAndVerifyClientCert }, func(s *server, c *tls.Config) {
			c.Certificates = []tls.Certificate{s.ca.Issue(t, "device", time.Now().Add(-time.Minute))}
		}, "expired certificate"},
		{"another ALPN", nil, func(_ *server, c *tls.Config) { c.NextProtos = []string{"h2"} }, "no application protocol"},
		{"TLS 1.1", nil, func(_ *server, c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS11, tls.VersionTLS11 }, "protocol version not supported"},
		{"TLS 1.2 where 1.3 is needed", func(c *tls.Config) { c.MinVersion = tls.VersionTLS13 }, func(_ *server, c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }, "protocol version not supported"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, setup{server: c.server})
			cfg := s.client()
			c.client(s, cfg)
			conn := s.dial(t, cfg, 0)
			// A TLS 1.3 client is done before its certificate is judged, and sends on.
			_, err := conn.Write(bytesOf(50_000))
			if err == nil {
				_, err = io.ReadAll(conn)
			}
			if err == nil || !bytes.Contains([]byte(err.Error()), []byte(c.want)) {
				t.Errorf("client sees %v", err)
			}
			await(t, func() bool { return s.closed.Load() == 1 })
			if s.ln.Stats.Failed.Load() != 1 || s.data.Load() != 0 {
				t.Errorf("failed %d, %d bytes delivered", s.ln.Stats.Failed.Load(), s.data.Load())
			}
		})
	}
}

func TestALPNAndSNI(t *testing.T) {
	var other tls.Certificate
	s := serve(t, setup{server: func(c *tls.Config) {
		ca := certstest.NewCA(t, "second")
		other = ca.Issue(t, "other.test", time.Now().Add(time.Hour))
		c.Certificates = append(c.Certificates, other)
	}})
	for host, want := range map[string]string{"edge.test": "edge.test", "other.test": "other.test", "unknown.test": "edge.test", "": "edge.test"} {
		c := s.dial(t, &tls.Config{ServerName: host, InsecureSkipVerify: true, NextProtos: []string{"x", "mqtt"}}, 0)
		roundTrip(t, c, []byte("hello"))
		if st := c.ConnectionState(); st.PeerCertificates[0].Subject.CommonName != want || st.NegotiatedProtocol != "mqtt" {
			t.Errorf("%q: certificate of %s, protocol %q", host, st.PeerCertificates[0].Subject.CommonName, st.NegotiatedProtocol)
		}
	}
}

// await waits for what other goroutines do.
func await(t testing.TB, cond func() bool) {
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

func TestNotTLS(t *testing.T) {
	for _, in := range []string{"\x10\x0e\x00\x04MQTT\x04\x02\x00\x00\x00\x02ab", "GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\xff\xff"} {
		s := serve(t, setup{})
		raw, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := raw.Write([]byte(in)); err != nil {
			t.Fatal(err)
		}
		await(t, func() bool { return s.closed.Load() == 1 })
		if s.ln.Stats.Failed.Load() != 1 {
			t.Errorf("%q: failed %d", in, s.ln.Stats.Failed.Load())
		}
		_ = raw.Close()
	}
}

// A bad record after the handshake ends the connection, with an alert.
func TestBrokenRecord(t *testing.T) {
	s := serve(t, setup{})
	raw, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	c := tls.Client(raw, s.client())
	roundTrip(t, c, []byte("hello"))
	if _, err := raw.Write([]byte{23, 3, 3, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
	_, err = io.ReadAll(c)
	var alert tls.AlertError
	if !errors.As(err, &alert) && (err == nil || !bytes.Contains([]byte(err.Error()), []byte("bad record MAC"))) {
		t.Errorf("client sees %v", err)
	}
	await(t, func() bool { return s.closed.Load() == 1 && s.ln.Stats.Broken.Load() == 1 })
}

// Clients that begin a handshake and stop hold no goroutine before their first message is whole, and at most the slots
// after it; when others wait, the silent give way.
func TestSilentClients(t *testing.T) {
	const slots = 4
	s := serve(t, setup{slots: slots})
	hello := clientHello(t)
	part := func(b []byte) {
		raw, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = raw.Close() })
		if _, err := raw.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	for range 50 {
		part(hello[:len(hello)-1])
	}
	roundTrip(t, s.dial(t, s.client(), 0), []byte("beside those that dribble"))
	pool := s.ln.o.Pool
	if n := pool.inUse(); n != 0 {
		t.Errorf("%d slots for clients that have not said hello", n)
	}
	for range slots {
		part(hello)
	}
	await(t, func() bool { return pool.inUse() == slots })
	begin := time.Now()
	roundTrip(t, s.dial(t, s.client(), 0), []byte("beside those that are silent"))
	if took := time.Since(begin); pool.Stats.Waited.Load() != 1 || pool.Stats.Evicted.Load() != 1 {
		t.Errorf("waited %d, evicted %d, took %v", pool.Stats.Waited.Load(), pool.Stats.Evicted.Load(), took)
	}
}

func (p *Pool) inUse() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.active)
}

// clientHello is the first message of a client.
func clientHello(t testing.TB) []byte {
	t.Helper()
	client, server := net.Pipe()
	defer client.Close()
	go func() { _ = tls.Client(client, &tls.Config{ServerName: "edge.test"}).Handshake() }()
	b := make([]byte, 4096)
	n, err := server.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return b[:n]
}

// Closing a connection ends its handshake, wherever it is.
func TestCloseDuringHandshake(t *testing.T) {
	s := serve(t, setup{slots: 1})
	hello := clientHello(t)
	var conns []net.Conn
	for range 3 { // one runs, two wait
		raw, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := raw.Write(hello); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, raw)
	}
	pool := s.ln.o.Pool
	await(t, func() bool { return pool.inUse() == 1 && pool.Stats.Waited.Load() == 2 })
	for _, c := range conns {
		_ = c.Close()
	}
	await(t, func() bool { return pool.inUse() == 0 && s.closed.Load() == 3 })
	roundTrip(t, s.dial(t, s.client(), 0), []byte("free again"))
}

// A write before the handshake is done waits for it.
type greeter struct{ echo }

func (g *greeter) OnOpen(c eventloop.Conn, l *eventloop.Loop, on *eventloop.Listener) any {
	if _, err := c.Write([]byte("welcome")); err != nil || c.OutboundBuffered() != len("welcome") {
		return nil
	}
	return g.echo.OnOpen(c, l, on)
}

func TestEarlyWrite(t *testing.T) {
	ca := certstest.NewCA(t, "ca")
	cfg := &tls.Config{Certificates: []tls.Certificate{ca.Issue(t, "edge.test", time.Now().Add(time.Hour))}}
	ln := New(Options{Config: func() *tls.Config { return cfg }, Pool: NewPool(0), Logger: slog.New(slog.DiscardHandler)})
	g := &greeter{}
	s := &server{ca: ca, ln: ln, addr: start(t, g, &eventloop.Listener{Address: "127.0.0.1:0", Layers: []eventloop.Wrap{ln.Wrap}}, 1)}
	c := s.dial(t, s.client(), 0)
	got := make([]byte, len("welcome"))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "welcome" {
		t.Errorf("%q %v", got, err)
	}
}

// Many connections at once on two loops, each resuming or not, none disturbing another.
func TestConcurrent(t *testing.T) {
	s := serve(t, setup{loops: 2})
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			c := s.dial(t, s.client(), 0)
			for j := range 5 {
				roundTrip(t, c, bytesOf(1000*i+j))
			}
			_ = c.Close()
		})
	}
	wg.Wait()
	await(t, func() bool { return s.closed.Load() == 40 })
}

// The fields that trim looks for are there in this release, and an idle connection keeps no buffers but goes on.
func TestTrim(t *testing.T) {
	if !canTrim {
		t.Fatal("crypto/tls has changed: idle connections would keep their buffers")
	}
	var last atomic.Pointer[Conn]
	s := serve(t, setup{listener: func(on *eventloop.Listener) {
		wrap := on.Layers[0]
		on.Layers[0] = func(below eventloop.Conn, l *eventloop.Loop) (eventloop.Layer, eventloop.Conn) {
			a, b := wrap(below, l)
			last.Store(a.(*Conn))
			return a, b
		}
	}})
	c := s.dial(t, s.client(), 0)
	for range 2 {
		roundTrip(t, c, bytesOf(40_000))
		await(t, func() bool {
			layer, warm := last.Load(), make(chan bool, 1)
			if err := layer.lp.l.Wake(func() { warm <- layer.warm || retained(layer.tc) > 0 }); err != nil {
				t.Fatal(err)
			}
			return !<-warm
		})
	}
}

// retained is how many bytes of buffers a connection keeps.
func retained(tc *tls.Conn) int {
	n := 0
	for _, offset := range [...]uintptr{rawInput, inHand} {
		n += (*bytes.Buffer)(unsafe.Add(unsafe.Pointer(tc), offset)).Cap()
	}
	return n
}

// Handshakes that wait for one another pause after a stretch of work; one that is alone does not.
func TestPauses(t *testing.T) {
	p := NewPool(0)
	p.tokens = make(chan struct{}, 1)
	work := func(h *handshake) {
		h.tookAt = h.tookAt.Add(-stretch)
		p.give(h)
	}
	one, two := &handshake{}, &handshake{}
	p.take(one)
	work(one)
	if n := p.Stats.Pauses.Load(); n != 0 {
		t.Fatalf("%d pauses with nobody waiting", n)
	}
	p.take(one)
	taken := make(chan struct{})
	go func() {
		p.take(two)
		close(taken)
	}()
	for p.crowd.Load() == 0 {
		runtime.Gosched()
	}
	work(one)
	<-taken
	p.give(two)
	if n := p.Stats.Pauses.Load(); n != 1 {
		t.Fatalf("%d pauses, want 1", n)
	}
}
