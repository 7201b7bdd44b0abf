// Package stage plays the demo: it sets up a central server, a hub and
// devices, lets the plot happen, and judges the end.
package stage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"edgehub/test/harness"
	"edgehub/test/harness/jsnode"
	"edgehub/test/harness/load"
)

// DefaultOutage is how long the central server stays away.
const DefaultOutage = 15 * time.Second

// The acts around the outage.
const (
	before   = 10 * time.Second // everything is well
	catchUp  = time.Minute      // the server is back: a back-off ends, and the backlog drains
	calm     = 3 * time.Second  // all is well again
	after    = 12 * time.Second // the hub is back
	drainMax = 3 * time.Minute  // more than the uplink's longest back-off
)

const (
	streamName   = "telemetry"
	uplinkName   = "cloud"
	hubID        = "demo"
	remoteStream = "EDGE-demo"
)

// Options of a run.
type Options struct {
	Devices int
	Rate    float64
	Outage  time.Duration
	Keep    bool
}

// stage is everything that plays a part.
type stage struct {
	out     io.Writer
	o       Options
	dir     string // of the central server
	begin   time.Time
	hub     *harness.Hub
	fleet   *load.Fleet
	jsAddr  string
	outMu   sync.Mutex
	central *central
}

// Run plays the demo and reports whether the promise was kept.
func Run(ctx context.Context, out io.Writer, o Options) (ok bool, err error) {
	s := &stage{out: out, o: o}
	defer func() { err = errors.Join(err, s.clean()) }()
	if err := s.setUp(); err != nil {
		return false, err
	}
	if err := s.play(ctx); err != nil {
		return false, err
	}
	return s.judge(ctx)
}

// setUp builds the programs and starts server, hub and devices.
func (s *stage) setUp() error {
	s.say("building hubd and hubctl")
	if _, err := harness.Build(); err != nil {
		return err
	}
	var err error
	if s.dir, err = os.MkdirTemp("", "hubdemo"); err != nil {
		return err
	}
	if s.jsAddr, err = harness.FreeAddr(); err != nil {
		return err
	}
	s.central = &central{addr: s.jsAddr, dir: filepath.Join(s.dir, "jetstream")}
	if err := s.central.start(); err != nil {
		return err
	}
	s.say("central JetStream server on %s", s.jsAddr)
	s.hub, err = harness.NewHub(func(c *harness.Config) {
		c.HubID = hubID
		c.Streams = []harness.Stream{{Name: streamName, Filters: []string{"devices/+/telemetry"}, Partitions: 4}}
		c.Uplinks = []harness.Uplink{{Name: uplinkName, URL: "nats://" + s.jsAddr, Streams: []string{streamName}}}
	})
	if err != nil {
		return err
	}
	if err := s.hub.Start(); err != nil {
		return err
	}
	s.say("hub on %s, ready after %v, log in %s", s.hub.Addr(), s.hub.StartTook().Round(time.Millisecond), s.hub.Config.DataDir)
	s.fleet = load.New(load.Options{
		Addr: s.hub.Addr(), Name: "device", Publishers: s.o.Devices, Rate: s.o.Rate,
		Topic: func(i int) string { return fmt.Sprintf("devices/%d/telemetry", i) },
	})
	s.say("%d devices publish %.0f messages a second with QoS 1, half of them by MQTT 3.1.1, half by MQTT 5", s.o.Devices, s.o.Rate)
	return nil
}

// clean ends and removes what setUp made.
func (s *stage) clean() error {
	var errs []error
	if s.central != nil {
		s.central.stop()
	}
	if s.hub != nil {
		s.hub.Kill()
		if s.o.Keep {
			s.say("kept: %s and %s", s.hub.Dir, s.dir)
		} else {
			errs = append(errs, s.hub.Remove())
		}
	}
	if !s.o.Keep && s.dir != "" {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	harness.RemoveBuilt()
	return errors.Join(errs...)
}

// say prints one line.
func (s *stage) say(format string, args ...any) {
	s.outMu.Lock()
	defer s.outMu.Unlock()
	_, _ = fmt.Fprintf(s.out, format+"\n", args...) // without an output a demo has nobody to tell
}

// central is the server, which comes and goes in this process.
type central struct {
	addr, dir string

	mu     sync.Mutex
	server *jsnode.Embedded // guarded by mu; nil while away
	reader *jsnode.Remote   // guarded by mu; nil while away
}

func (c *central) start() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	if c.server, err = jsnode.StartEmbedded(c.addr, c.dir); err != nil {
		return err
	}
	c.reader, err = jsnode.Connect(c.server.URL())
	return err
}

func (c *central) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reader != nil {
		c.reader.Close()
		c.reader = nil
	}
	if c.server != nil {
		c.server.Stop()
		c.server = nil
	}
}

// count is the number of messages stored, -1 while the server is away.
func (c *central) count(ctx context.Context) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reader == nil {
		return -1
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	n, err := c.reader.Count(ctx, remoteStream)
	if err != nil {
		return -1
	}
	return int64(n)
}
