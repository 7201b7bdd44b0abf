// Package outage proves the second promise: whatever happens to the central
// server and to the way there, and to the hub meanwhile, the remote stream
// ends up as exactly the hub's log, in order, and the log has every
// acknowledged message.
package outage

import (
	"context"
	"testing"
	"time"

	"edgehub/test/harness"
	"edgehub/test/harness/hublog"
	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/jsnode"
	"edgehub/test/harness/load"
	"edgehub/test/harness/netfault"
)

func TestMain(m *testing.M) {
	jsnode.ServeIfChild()
	hubtest.Main(m)
}

const (
	stream       = "telemetry"
	remoteStream = "EDGE-edge-test"
	uplink       = "cloud"
	// tellMax is how long the hub may take to say that an uplink with
	// something to send makes no progress.
	tellMax = 60 * time.Second
	// drainMax covers the longest back-off, two minutes, and the catching up.
	drainMax = 4 * time.Minute
)

// site is a hub, a central server, and the network between them.
type site struct {
	t     *testing.T
	hub   *harness.Hub
	node  *jsnode.Node
	proxy *netfault.Proxy
	fleet *load.Fleet
}

// newSite prepares one; changes are made to the hub's configuration.
func newSite(t *testing.T, changes ...func(*harness.Config)) *site {
	t.Helper()
	s := &site{t: t}
	var err error
	if s.node, err = jsnode.NewNode(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.node.Remove() })
	addr, err := harness.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	if s.proxy, err = netfault.Listen(addr, s.node.Addr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.proxy.Close() })
	s.hub = hubtest.New(t, func(c *harness.Config) {
		c.Streams = []harness.Stream{{Name: stream, Filters: []string{"load/#"}, Partitions: 4}}
		c.Uplinks = []harness.Uplink{{Name: uplink, URL: "nats://" + addr, Streams: []string{stream}}}
		for _, change := range changes {
			change(c)
		}
	})
	s.fleet = load.New(load.Options{Addr: s.hub.Addr(), Name: "p", Publishers: 20, Rate: 3000,
		QoS: func(p int) byte { return byte(1 + p/2%2) }})
	return s
}

func (s *site) start() {
	s.t.Helper()
	if err := s.hub.Start(); err != nil {
		s.t.Fatal(err)
	}
}

// status asks until the hub answers: it may be on its way up.
func (s *site) status() harness.Status {
	s.t.Helper()
	st, err := s.hub.Status()
	if err != nil {
		s.t.Fatal(err)
	}
	return st
}

// link is the uplink's status.
func (s *site) link() harness.UplinkStatus {
	s.t.Helper()
	st := s.status()
	u, ok := st.Uplink(uplink)
	if !ok {
		s.t.Fatalf("status does not know the uplink: %+v", st.Uplinks)
	}
	return u
}

// remoteAcked is the number of records that the remote has acknowledged.
func (s *site) remoteAcked() int64 {
	n := int64(0)
	for _, last := range s.link().Acked {
		n += last + 1
	}
	return n
}

// flows waits until the remote acknowledges more than it has so far.
func (s *site) flows(within time.Duration) {
	s.t.Helper()
	before := s.remoteAcked()
	hubtest.Eventually(s.t, within, "the remote acknowledges", func() bool { return s.remoteAcked() > before+100 })
}

// admits waits until the hub says that the uplink is not connected.
func (s *site) admits() {
	s.t.Helper()
	begin := time.Now()
	hubtest.Eventually(s.t, tellMax, "status says that the uplink is down", func() bool {
		st := s.status()
		u, ok := st.Uplink(uplink)
		return ok && !u.Connected && u.State != "stream" && u.LagMessages > 0
	})
	s.t.Logf("the hub said so after %v", time.Since(begin).Round(10*time.Millisecond))
}

// finish ends the load, waits for the drain, and compares everything.
func (s *site) finish() {
	s.t.Helper()
	if err := s.fleet.Stop(60 * time.Second); err != nil {
		s.t.Fatal(err)
	}
	begin := time.Now()
	hubtest.Eventually(s.t, drainMax, "the backlog drains", func() bool {
		st := s.status()
		return st.Drained(uplink, stream)
	})
	s.t.Logf("drained %v after the load's end", time.Since(begin).Round(10*time.Millisecond))

	log, check := hublog.Collect{}, load.NewChecker(s.fleet)
	err := hublog.ReadFiles(s.hub.Config.DataDir, stream, nil, func(r *hublog.Record) error {
		check.Add(r.Partition, r.Offset, r.Topic, r.Payload)
		return log.Add(r)
	})
	if err != nil {
		s.t.Fatal(err)
	}
	report := check.Report()
	s.t.Log(report.String())
	if !report.OK() || report.Checked == 0 || report.Checked != report.Published {
		s.t.Error("the log does not have what was acknowledged")
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	remote, err := jsnode.Connect(s.node.URL())
	if err != nil {
		s.t.Fatal(err)
	}
	defer remote.Close()
	c, err := jsnode.Compare(ctx, remote, remoteStream, stream, log)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Log(c)
	if !c.Exact() {
		s.t.Error("the remote does not hold exactly the log")
	}
}

// outage is one way to lose the central server.
type outage struct {
	name  string
	begin func(*site) error
	end   func(*site) error
}

var outages = []outage{
	{"server killed", func(s *site) error { s.node.Kill(); return nil }, func(s *site) error { return s.node.Start() }},
	{"server frozen", func(s *site) error { return s.node.Freeze() }, func(s *site) error { return s.node.Thaw() }},
	{"black hole", func(s *site) error { s.proxy.Set(netfault.Swallow); return nil },
		func(s *site) error { s.proxy.Set(netfault.Open); return nil }},
	{"packets held back", func(s *site) error { s.proxy.Set(netfault.Stall); return nil },
		func(s *site) error { s.proxy.Set(netfault.Open); return nil }},
}

func TestRemoteIsTheLog(t *testing.T) {
	length := time.Duration(hubtest.Scale(t, "HUB_OUTAGE_SECONDS", 60, 4, 2)) * time.Second
	for _, o := range outages {
		t.Run(o.name, func(t *testing.T) {
			s := newSite(t)
			s.start()
			s.fleet.Start()
			s.flows(20 * time.Second)
			if err := o.begin(s); err != nil {
				t.Fatal(err)
			}
			over := time.After(length)
			s.admits()
			hubtest.Restart(t, s.hub) // kill -9 in the middle of the outage
			<-over
			if err := o.end(s); err != nil {
				t.Fatal(err)
			}
			s.flows(drainMax)
			hubtest.Restart(t, s.hub) // and in the middle of the catching up
			s.flows(drainMax)
			s.finish()
		})
	}
}

// TestNeverReachable starts a hub whose remote has never been there.
func TestNeverReachable(t *testing.T) {
	s := newSite(t)
	s.node.Kill()
	s.start()
	s.fleet.Start()
	hubtest.Eventually(t, 20*time.Second, "the hub accepts data", func() bool { return s.fleet.Counters().Acked > 2000 })
	s.admits()
	hubtest.Restart(t, s.hub)
	if err := s.node.Start(); err != nil {
		t.Fatal(err)
	}
	s.flows(drainMax)
	s.finish()
}

// TestShortCuts resets the link again and again, with the hub killed once.
func TestShortCuts(t *testing.T) {
	s := newSite(t)
	s.start()
	s.fleet.Start()
	for i := range hubtest.Scale(t, "HUB_OUTAGE_CUTS", 20, 4, 2) {
		s.flows(30 * time.Second)
		s.proxy.Cut()
		if i == 1 {
			hubtest.Restart(t, s.hub)
		}
	}
	s.finish()
}

// TestPauseResume holds an uplink back by hand.
func TestPauseResume(t *testing.T) {
	s := newSite(t)
	s.start()
	s.fleet.Start()
	s.flows(20 * time.Second)
	if _, err := s.hub.Ctl(t.Context(), "uplink", "pause", uplink); err != nil {
		t.Fatal(err)
	}
	hubtest.Eventually(t, 10*time.Second, "the uplink is paused and lags", func() bool {
		st := s.status()
		u, _ := st.Uplink(uplink)
		return u.State == "paused" && u.LagMessages > 2000
	})
	held := s.remoteAcked()
	hubtest.Restart(t, s.hub)
	st := s.status()
	if u, _ := st.Uplink(uplink); u.State != "paused" {
		t.Errorf("state %q after a restart, want paused", u.State)
	}
	if now := s.remoteAcked(); now > held {
		t.Errorf("acknowledged %d records before and %d after the restart, paused", held, now)
	}
	if _, err := s.hub.Ctl(t.Context(), "uplink", "resume", uplink); err != nil {
		t.Fatal(err)
	}
	s.flows(30 * time.Second)
	s.finish()
}
