package jetstream

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	njs "github.com/nats-io/nats.go/jetstream"

	"edgehub/hub/message"
	"edgehub/sync/uplink"
)

// feedLagMax bounds what feed leaves behind: five windows, so that the link is
// never idle for want of records, and a drain afterwards is a matter of seconds
// however slow the machine is.
const feedLagMax = 20_000

// feed appends to all partitions until stopped. It waits while the newest uplink
// is feedLagMax records behind.
func (h *hub) feed(n int, every time.Duration) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	stop = sync.OnceFunc(func() { close(quit); <-done })
	h.t.Cleanup(stop)
	go func() {
		defer close(done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if h.link.Status().LagMessages < feedLagMax {
					h.append(n)
				}
			case <-quit:
				return
			}
		}
	}()
	return stop
}

func (l *link) acked() uint64 { return l.Status().Counters.Acked }

// stallMax is how long an uplink with something to send, and a remote that is up,
// may come no further: neither an acknowledgement, nor a record that a resume
// reads back. How long all of it takes is the machine's matter.
const stallMax = 10 * time.Second

// moves waits until ok, and fails when the uplink stalls.
func (l *link) moves(what string, ok func() bool) {
	l.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	var done uint64
	since := time.Now()
	for !ok() {
		<-tick.C
		if c := l.Status().Counters; c.Acked+c.ReadBack != done {
			done, since = c.Acked+c.ReadBack, time.Now()
		}
		if time.Since(since) > stallMax {
			l.t.Fatalf("%s: nothing has moved for %s: %+v", what, stallMax, l.Status())
		}
	}
}

// progress waits until n more records are acknowledged.
func (l *link) progress(n uint64) {
	l.t.Helper()
	was := l.acked()
	l.moves("progress", func() bool { return l.acked() >= was+n })
}

// drains waits until all is acknowledged.
func (l *link) drains() {
	l.t.Helper()
	l.moves("drained", l.drained)
}

// troubled waits until the link has noticed that something is wrong.
func (l *link) troubled(limit time.Duration) {
	l.t.Helper()
	was := l.Status().Counters.Failures
	until(l.t, limit, "noticed", func() bool { return l.Status().Counters.Failures > was })
}

func TestNeverReachableRemote(t *testing.T) {
	c := newChild(t, t.TempDir())
	h := newHub(t, 2)
	l := h.uplink(c.url(), settings{})
	h.append(100)
	until(t, 5*time.Second, "three tries", func() bool { return l.Status().Counters.Failures >= 3 })
	s := l.Status()
	if s.Connected || s.State == uplink.Stream || s.LagMessages != 200 || s.LagBytes == 0 || !strings.Contains(s.LastError, "connection refused") || s.LastErrorAt.IsZero() {
		t.Errorf("status %+v", s)
	}
	until(t, 5*time.Second, "age", func() bool { return l.Status().LagAge > 0 })
	if f := l.Floor("main/0-0"); f != 0 {
		t.Errorf("Floor = %d, want 0: nothing is at the remote", f)
	}
	c.start()
	l.drains()
	h.compare(c.url())
}

func TestServerKilledUnderLoad(t *testing.T) {
	c := newChild(t, t.TempDir())
	c.start()
	h := newHub(t, 4)
	l := h.uplink(c.url(), settings{})
	stop := h.feed(10, 2*time.Millisecond)
	for range 3 {
		l.progress(5000)
		c.kill()
		l.troubled(5 * time.Second)
		c.start()
	}
	l.progress(5000)
	stop()
	l.drains()
	t.Logf("%d records compared, %+v", h.compare(c.url()), l.Status().Counters)
}

func TestServerFrozenUnderLoad(t *testing.T) {
	c := newChild(t, t.TempDir())
	c.start()
	h := newHub(t, 4)
	l := h.uplink(c.url(), settings{})
	stop := h.feed(10, 2*time.Millisecond)
	l.progress(5000)
	c.signal(syscall.SIGSTOP)
	// The kernel goes on accepting for it: only missing progress tells, first of
	// the acknowledgements, then of the greeting.
	l.troubled(5 * time.Second)
	l.troubled(5 * time.Second)
	if s := l.Status(); s.State == uplink.Stream {
		t.Errorf("streaming to a frozen server: %+v", s)
	}
	c.signal(syscall.SIGCONT)
	l.progress(5000)
	stop()
	l.drains()
	t.Logf("%d records compared, %+v", h.compare(c.url()), l.Status().Counters)
}

func TestBlackHoleUnderLoad(t *testing.T) {
	c := newChild(t, t.TempDir())
	c.start()
	p := newProxy(t, c.url())
	h := newHub(t, 4)
	l := h.uplink(p.url(), settings{})
	stop := h.feed(10, 2*time.Millisecond)
	for range 2 {
		l.progress(5000)
		p.blackHole(true)
		l.troubled(5 * time.Second)
		l.troubled(5 * time.Second)
		// What the hole had swallowed arrives late, on the old connections.
		p.blackHole(false)
	}
	l.progress(5000)
	stop()
	l.drains()
	t.Logf("%d records compared, %+v", h.compare(c.url()), l.Status().Counters)
}

// TestIdleLinkIsTested: without records in flight the watchdog has nothing to
// judge by, so pings do.
func TestIdleLinkIsTested(t *testing.T) {
	s := embedded(t, nil)
	p := newProxy(t, s.ClientURL())
	h := newHub(t, 1)
	h.append(10)
	l := h.uplink(p.url(), settings{sink: func(o *Options) { o.PingInterval = 100 * time.Millisecond }})
	l.drains()
	p.blackHole(true)
	until(t, 5*time.Second, "idle link found dead", func() bool { return !l.Status().Connected })
	p.blackHole(false)
	until(t, 10*time.Second, "connected", l.connectedIs(true))
}

// connectedIs reports whether the link is connected or not.
func (l *link) connectedIs(up bool) func() bool {
	return func() bool { s := l.Status(); return s.Connected == up && s.State == uplink.Stream }
}

func TestHubAndServerKilled(t *testing.T) {
	rounds := 8
	if testing.Short() {
		rounds = 3
	}
	c := newChild(t, t.TempDir())
	c.start()
	h := newHub(t, 4)
	rng := rand.New(rand.NewPCG(1, 2))
	for range rounds {
		l := h.uplink(c.url(), settings{up: func(o *uplink.Options) { o.SaveEvery = time.Duration(1+rng.IntN(300)) * time.Millisecond }})
		stop := h.feed(5+rng.IntN(30), 2*time.Millisecond)
		l.progress(uint64(500 + rng.IntN(3000)))
		if rng.IntN(2) == 0 {
			c.kill()
			if rng.IntN(2) == 0 {
				l.troubled(5 * time.Second)
			}
			stop()
			h.kill(l)
			c.start()
			continue
		}
		stop()
		h.kill(l)
	}
	l := h.uplink(c.url(), settings{})
	h.append(10)
	l.drains()
	t.Logf("%d records compared", h.compare(c.url()))
}

func TestCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("three servers")
	}
	var ports []string
	for range 3 {
		ports = append(ports, fmt.Sprint(freePort(t)))
	}
	var nodes []*child
	var urls []string
	for i := range 3 {
		c := newChild(t, append([]string{t.TempDir(), fmt.Sprint(i)}, ports...)...)
		nodes, urls = append(nodes, c), append(urls, c.url())
	}
	for _, c := range nodes {
		c.start()
	}
	all := strings.Join(urls, ",")
	h := newHub(t, 4)
	l := h.uplink(all, settings{up: func(o *uplink.Options) { o.Timing.AckTimeout = 5 * time.Second }, sink: func(o *Options) { o.RequestTimeout = 5 * time.Second }})
	until(t, 60*time.Second, "connected", l.connectedIs(true))
	stop := h.feed(2, 4*time.Millisecond)
	js := client(t, all)
	for range 2 {
		l.progress(1000)
		leader := clusterLeader(t, js) // of a cluster that is whole: it bears the loss of one
		nodes[leader].kill()
		l.troubled(20 * time.Second)
		until(t, 2*time.Minute, "streams again", l.connectedIs(true))
		l.progress(1000)
		nodes[leader].start()
	}
	stop()
	h.kill(l)
	l = h.uplink(all, settings{up: func(o *uplink.Options) { o.Timing.AckTimeout = 5 * time.Second }, sink: func(o *Options) { o.RequestTimeout = 5 * time.Second }})
	until(t, 2*time.Minute, "drained", l.drained)
	t.Logf("%d records compared, %+v", h.compare(all), l.Status().Counters)
}

// clusterLeader returns the index of the node that leads the remote stream, once
// the other two have all that it has, and checks that the stream was made with
// three replicas.
func clusterLeader(t *testing.T, js njs.JetStream) int {
	t.Helper()
	leader := ""
	until(t, 2*time.Minute, "a leader and two replicas that have it all", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		s, err := js.Stream(ctx, remoteName)
		if err != nil {
			return false
		}
		info := s.CachedInfo()
		if info.Config.Replicas != 3 {
			t.Fatalf("the stream has %d replicas, want 3", info.Config.Replicas)
		}
		if info.Cluster == nil || info.Cluster.Leader == "" || len(info.Cluster.Replicas) != 2 {
			return false
		}
		leader = info.Cluster.Leader
		for _, r := range info.Cluster.Replicas {
			if r.Offline || !r.Current {
				return false
			}
		}
		return true
	})
	return int(leader[1] - '0')
}

// TestConnectionsLeaveNothingBehind: a flapping link must not cost memory.
func TestConnectionsLeaveNothingBehind(t *testing.T) {
	s := embedded(t, nil)
	h := newHub(t, 1)
	sink := h.sink(s.ClientURL(), nil)
	cycle := func() {
		n, err := sink.Connect(ctxFor(t))
		must(t, err)
		n.Close()
		n.Close() // more than once is fine
		if _, err := n.Acks(nil); err == nil {
			// nats.go reports the end from a goroutine of its own
			until(t, 5*time.Second, "a closed session says so", func() bool { _, err := n.Acks(nil); return err != nil })
		}
	}
	cycle()
	before := runtime.NumGoroutine()
	for range 30 {
		cycle()
	}
	until(t, 10*time.Second, fmt.Sprintf("goroutines back at %d", before), func() bool { return runtime.NumGoroutine() <= before+5 })
}

// TestSwallowedWriteEnds: a peer that reads nothing fills the socket, and the
// write ends by its deadline, or at once when the session is closed.
func TestSwallowedWriteEnds(t *testing.T) {
	c := newChild(t, t.TempDir())
	c.start()
	h := newHub(t, 1)
	payload := bytes.Repeat([]byte("x"), 64<<10)
	for range 20 {
		h.builder.Reset(h.logs[0].Next())
		for range 50 {
			h.add(&message.Message{Topic: []byte("big"), Payload: payload, QoS: 1, TimeMs: 1})
		}
		h.commit(0)
	}
	wide := settings{up: func(o *uplink.Options) {
		o.Window = uplink.Window{Messages: 4096, Bytes: 1 << 30}
		o.Timing.AckTimeout = time.Minute
	}, sink: func(o *Options) { o.RequestTimeout = time.Minute }}
	l := h.uplink(c.url(), wide)
	l.progress(10)
	c.signal(syscall.SIGSTOP)
	stuck := func() func() bool {
		sent, since := uint64(0), time.Now()
		return func() bool {
			if n := l.Status().Counters.Sent; n != sent {
				sent, since = n, time.Now()
			}
			return time.Since(since) > 300*time.Millisecond
		}
	}
	until(t, 20*time.Second, "the write is stuck", stuck())
	start := time.Now()
	must(t, l.Pause())
	until(t, 5*time.Second, "paused", func() bool { return l.Status().InFlight == 0 })
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("Pause took %s", d)
	}
	c.signal(syscall.SIGCONT)
	must(t, l.Resume())
	until(t, 30*time.Second, "drained", l.drained)
	h.compare(c.url())
}
