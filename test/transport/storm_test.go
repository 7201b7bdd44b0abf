package transport

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"edgehub/test/harness"
	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/mqttc"
)

const stormEnv = "HUB_TEST_STORM" // the address that this process storms

func storming() bool { return os.Getenv(stormEnv) != "" }

// storm makes full handshakes with an address until its standard input ends. It is a process of its own and a nice one:
// what is measured beside it is the hub, not the struggle for the processors of the test.
func storm() int {
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, 10); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var stop atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop.Store(true)
	}()
	var wg sync.WaitGroup
	var made, failed atomic.Int64
	for range 200 {
		wg.Go(func() {
			for !stop.Load() {
				n, err := tls.Dial("tcp", os.Getenv(stormEnv), &tls.Config{InsecureSkipVerify: true}) // nobody is trusted with anything
				if err != nil {
					failed.Add(1)
					continue
				}
				made.Add(1)
				_ = n.Close()
			}
		})
	}
	wg.Wait()
	fmt.Printf("%d made, %d failed\n", made.Load(), failed.Load())
	return 0
}

// TestHandshakeStorm: a storm of TLS handshakes does not delay PINGRESP of clients that are connected.
func TestHandshakeStorm(t *testing.T) {
	if !hubtest.Full() {
		t.Skip("a measurement: HUB_TEST_FULL=1")
	}
	s := newSite(t)
	var conns []*mqttc.Conn
	for i := range 10 {
		c, _ := s.connect(t, fmt.Sprintf("calm-%d", i), s.Trust())
		conns = append(conns, c)
	}
	plain := hubtest.Dial(t, s.Addr(), mqttc.Connect{Version: 5, ClientID: "plain", Clean: true, KeepAlive: 60})
	conns = append(conns, plain.Conn)
	ping := func(d time.Duration) (took []time.Duration) {
		pace := time.NewTicker(10 * time.Millisecond)
		defer pace.Stop()
		for end := time.After(d); ; {
			for _, c := range conns {
				begin := time.Now()
				if err := c.Ping(); err != nil {
					t.Fatal(err)
				}
				took = append(took, time.Since(begin))
			}
			select {
			case <-end:
				slices.Sort(took)
				return took
			case <-pace.C:
			}
		}
	}
	calm := ping(2 * time.Second)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), stormEnv+"="+s.TLS)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	took := ping(10 * time.Second)
	_ = stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err, out.String())
	}
	var made, failed int
	if _, err := fmt.Sscanf(out.String(), "%d made, %d failed", &made, &failed); err != nil || made < 1000 {
		t.Errorf("there was no storm: %q", out.String())
	}
	worst := took[len(took)-1]
	t.Logf("%d handshakes in 10 s, %d failed; %d pings: median %v, 99%% %v, slowest %v; before the storm: slowest %v",
		made, failed, len(took), took[len(took)/2], took[len(took)*99/100], worst, calm[len(calm)-1])
	switch before := calm[len(calm)-1]; {
	case worst <= 100*time.Millisecond:
	case before > 10*time.Millisecond:
		t.Skip("not judged: the machine is too busy with other things")
	default:
		t.Errorf("PINGRESP took %v", worst)
	}
}

// TestIdleMemory: what idle connections cost the hub.
func TestIdleMemory(t *testing.T) {
	if !hubtest.Full() {
		t.Skip("a measurement: HUB_TEST_FULL=1")
	}
	for _, c := range []struct {
		name   string
		perMax int64
		addr   func(*suite) string
		config func(*suite) *tls.Config
	}{
		{"plain", 1229, (*suite).Addr, nil}, // 1.2 KiB
		{"TLS 1.3", 8 << 10, func(s *suite) string { return s.TLS }, func(s *suite) *tls.Config {
			return &tls.Config{RootCAs: s.CA.Pool(), ServerName: "edge.test", MinVersion: tls.VersionTLS13}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t)
			n := hubtest.Scale(t, "HUB_TEST_IDLE", 15000, 15000, 15000)
			var cfg *tls.Config
			if c.config != nil {
				cfg = c.config(s)
			}
			connectIdle(t, s, c.addr(s), cfg, n/10) // what comes once is not charged to the connections
			before := settledRSS(t, s.Hub)
			conns := connectIdle(t, s, c.addr(s), cfg, n)
			after := settledRSS(t, s.Hub)
			per := (after - before) / int64(n)
			t.Logf("%d connections: %d bytes each; %d MiB before, %d MiB after", n, per, before>>20, after>>20)
			if per > c.perMax {
				t.Errorf("%d bytes for an idle connection", per)
			}
			runtime.KeepAlive(conns)
		})
	}
}

func connectIdle(t *testing.T, s *suite, addr string, cfg *tls.Config, n int) []net.Conn {
	t.Helper()
	conns := make([]net.Conn, n)
	var wg sync.WaitGroup
	var next atomic.Int64
	prefix := fmt.Sprintf("idle-%d-", n)
	for range 8 {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && !t.Failed(); i = int(next.Add(1)) - 1 {
				conn, err := net.Dial("tcp", addr)
				if err == nil && cfg != nil {
					conn = tls.Client(conn, cfg)
				}
				if err == nil {
					_, err = conn.Write((&mqttc.Connect{Version: 5, ClientID: fmt.Sprint(prefix, i), Clean: true, KeepAlive: 3600}).Append(nil))
				}
				if err == nil {
					_, err = conn.Read(make([]byte, 256))
				}
				if err != nil {
					t.Errorf("connection %d: %v", i, err)
					return
				}
				conns[i] = conn
			}
		})
	}
	wg.Wait()
	t.Cleanup(func() {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
	})
	return conns
}

// settledRSS waits until the hub's memory has stopped shrinking.
func settledRSS(t *testing.T, h *harness.Hub) int64 {
	t.Helper()
	last := int64(1 << 62)
	// The collector and the sweep of idle buffers have their own pace.
	for pace := time.NewTicker(3 * time.Second); ; <-pace.C {
		rss, err := h.RSS()
		if err != nil {
			t.Fatal(err)
		}
		if rss >= last-(last>>8) {
			return rss
		}
		last = rss
	}
}
