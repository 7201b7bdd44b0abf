// Package footprint holds a hub to what a small machine has: its memory at rest and under load with the profile of
// 128 MiB, and its descriptors when far more want to connect than it may have.
package footprint

import (
	"testing"
	"time"

	"edgehub/test/harness"
	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/jsnode"
	"edgehub/test/harness/load"
)

func TestMain(m *testing.M) {
	jsnode.ServeIfChild()
	hubtest.Main(m)
}

const (
	idleMax = 40 << 20
	loadMax = 96 << 20
	rate    = 2000 // messages a second
	devices = 50
)

// A hub with the profile of 128 MiB takes 2,000 messages a second and forwards them, and its memory stays bounded for as
// long as it goes.
func TestSmallMachine(t *testing.T) {
	length := time.Duration(hubtest.Scale(t, "HUB_FOOTPRINT_SECONDS", 600, 15, 5)) * time.Second
	node, err := jsnode.NewNode()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Remove() })
	h := hubtest.Start(t, func(c *harness.Config) {
		c.Hub = []string{`profile = "128MiB"`}
		c.Uplinks = []harness.Uplink{{Name: "cloud", URL: node.URL(), Streams: []string{"main"}}}
	})
	idle, err := h.PeakRSS()
	if err != nil {
		t.Fatal(err)
	}
	if idle > idleMax {
		t.Errorf("at rest the hub has %d MiB, at most %d", idle>>20, idleMax>>20)
	}

	fleet := load.New(load.Options{Addr: h.Addr(), Name: "small", Publishers: devices, Rate: rate, QoS: func(int) byte { return 1 }})
	fleet.Start()
	over := time.After(length)
	sub := hubtest.Dial(t, h.Addr(), subscriber)
	sub.Sub("load/small/0", 1)
	report := time.NewTicker(max(length/10, time.Second))
	defer report.Stop()
	received := receive(sub)
	for done := false; !done; {
		select {
		case <-over:
			done = true
		case <-report.C:
			rss, err := h.RSS()
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("RSS %.1f MiB, %v", float64(rss)/(1<<20), fleet.Counters())
		}
	}
	if err := fleet.Stop(time.Minute); err != nil {
		t.Fatal(err)
	}
	hubtest.Eventually(t, time.Minute, "the uplink has it all", func() bool {
		st, err := h.Status()
		return err == nil && st.Drained("cloud", "main")
	})
	peak, err := h.PeakRSS()
	if err != nil {
		t.Fatal(err)
	}
	c := fleet.Counters()
	t.Logf("%d messages in %v; RSS %.1f MiB at rest, %.1f MiB at most", c.Acked, length, float64(idle)/(1<<20), float64(peak)/(1<<20))
	if peak > loadMax {
		t.Errorf("under load the hub had %d MiB, at most %d", peak>>20, loadMax>>20)
	}
	if least := int64(rate * length.Seconds() * 9 / 10); c.Acked < least || c.Acked != c.Published || c.Refused > 0 || c.Lost > 0 {
		t.Errorf("the load was not what it should be: at least %d, got %v", least, c)
	}
	if n := received.Load(); n < c.Acked/devices*9/10 {
		t.Errorf("the subscriber got %d messages of one of %d devices, %d in all", n, devices, c.Acked)
	}
}
