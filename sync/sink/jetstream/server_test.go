package jetstream

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const childEnv = "HUB_TEST_NATS_SERVER"

// TestMain turns the test binary into a NATS server when it was started as one.
func TestMain(m *testing.M) {
	if spec := os.Getenv(childEnv); spec != "" {
		childServer(spec)
		return
	}
	os.Exit(m.Run())
}

// childServer runs a server until its standard input ends. spec is
// port,dir,index,clusterport0,clusterport1,… (the last ones in a cluster only).
func childServer(spec string) {
	f := strings.Split(spec, ",")
	port, _ := strconv.Atoi(f[0])
	o := &server.Options{Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: f[1], NoSigs: true, NoLog: true}
	if len(f) > 3 {
		i, _ := strconv.Atoi(f[2])
		o.ServerName = "n" + f[2]
		o.Cluster = server.ClusterOpts{Name: "c", Host: "127.0.0.1"}
		for j, p := range f[3:] {
			if j == i {
				o.Cluster.Port, _ = strconv.Atoi(p)
			}
			o.Routes = append(o.Routes, &url.URL{Scheme: "nats", Host: "127.0.0.1:" + p})
		}
	}
	if dir := os.Getenv(childEnv + "_LOGS"); dir != "" {
		o.NoLog, o.LogFile = false, filepath.Join(dir, f[0]+".log")
	}
	s, err := server.NewServer(o)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if o.LogFile != "" {
		s.ConfigureLogger()
	}
	s.Start()
	if !s.ReadyForConnections(20 * time.Second) {
		os.Exit(1)
	}
	fmt.Println("up")
	_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent
}

// child is a server in a process of its own, to be killed and frozen.
type child struct {
	t    testing.TB
	port int
	spec string
	cmd  *exec.Cmd
	in   io.Closer
}

func newChild(t testing.TB, spec ...string) *child {
	port := freePort(t)
	c := &child{t: t, port: port, spec: strings.Join(append([]string{strconv.Itoa(port)}, spec...), ",")}
	t.Cleanup(c.kill)
	return c
}

func (c *child) url() string { return fmt.Sprintf("nats://127.0.0.1:%d", c.port) }

func (c *child) start() {
	c.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+c.spec)
	in, err := cmd.StdinPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.cmd, c.in = cmd, in
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "up\n" {
		c.t.Fatalf("server: %q, %v", line, err)
	}
}

func (c *child) kill() {
	if c.cmd == nil {
		return
	}
	_ = c.cmd.Process.Signal(syscall.SIGCONT)
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
	_ = c.in.Close()
	c.cmd = nil
}

func (c *child) signal(s syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// embedded starts a JetStream server in this process.
func embedded(t testing.TB, change func(*server.Options)) *server.Server {
	t.Helper()
	o := &server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true}
	if change != nil {
		change(o)
	}
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("server does not start")
	}
	return s
}

// proxy forwards TCP until it is told to swallow everything: connections stay
// open, new ones are accepted, nothing passes and nobody is told.
type proxy struct {
	t      testing.TB
	l      net.Listener
	target string

	mu   sync.Mutex
	cond *sync.Cond
	hole bool
	all  map[net.Conn]bool
}

func newProxy(t testing.TB, target string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, l: l, target: strings.TrimPrefix(target, "nats://"), all: map[net.Conn]bool{}}
	p.cond = sync.NewCond(&p.mu)
	go p.accept()
	t.Cleanup(p.close)
	return p
}

func (p *proxy) url() string { return "nats://" + p.l.Addr().String() }

func (p *proxy) blackHole(on bool) {
	p.mu.Lock()
	p.hole = on
	p.mu.Unlock()
	p.cond.Broadcast()
}

func (p *proxy) close() {
	_ = p.l.Close()
	p.mu.Lock()
	for c := range p.all {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.blackHole(false)
}

func (p *proxy) accept() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			return
		}
		go p.serve(c)
	}
}

// pass waits while packets are dropped.
func (p *proxy) pass() {
	p.mu.Lock()
	for p.hole {
		p.cond.Wait()
	}
	p.mu.Unlock()
}

func (p *proxy) serve(a net.Conn) {
	p.track(a)
	p.pass()
	var d net.Dialer
	b, err := d.DialContext(context.Background(), "tcp", p.target)
	if err != nil {
		_ = a.Close()
		return
	}
	p.track(b)
	pipe := func(dst, src net.Conn) {
		defer dst.Close()
		defer src.Close()
		buf := make([]byte, 16<<10)
		for {
			n, err := src.Read(buf)
			p.pass()
			if n > 0 {
				if _, err := dst.Write(buf[:n]); err != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	}
	go pipe(a, b)
	pipe(b, a)
}

func (p *proxy) track(c net.Conn) {
	p.mu.Lock()
	p.all[c] = true
	p.mu.Unlock()
}
