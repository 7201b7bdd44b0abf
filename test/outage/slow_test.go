package outage

import (
	"strings"
	"testing"
	"time"

	"edgehub/test/harness"
	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/mqttc"
	"edgehub/test/harness/netfault"
)

// slow is a link of 1 Mbit/s over a satellite or a bad radio.
var slow = netfault.Link{BytesPerS: 125_000, RTT: 200 * time.Millisecond, Loss: 0.05}

// relink has the uplink connect anew, over a link.
func (s *site) relink(l netfault.Link) {
	s.t.Helper()
	s.proxy.Slow(l)
	s.proxy.Cut()
}

// TestSlowLink: more is published than the link carries, with messages among them
// that take it seconds each. The link is used to the full, is never taken for a
// lost one, and the hub's memory does not grow with what waits.
func TestSlowLink(t *testing.T) {
	s := newSite(t)
	s.start()
	s.fleet.Start()
	s.flows(20 * time.Second)
	s.relink(slow)
	hubtest.Eventually(t, 30*time.Second, "it streams over the slow link", func() bool { return s.proxy.Accepted() > 1 && s.link().State == "stream" })
	connections := s.proxy.Accepted()
	big := hubtest.Dial(t, s.hub.Addr(), mqttc.Connect{ClientID: "big"})
	large := strings.Repeat("x", 400<<10) // 3.3 s of the link
	for range 2 {
		big.Pub("load/large", large, 1)
	}
	hubtest.Eventually(t, 60*time.Second, "the link is full", func() bool { return s.link().LagMessages > 20_000 })
	before, err := s.hub.RSS()
	if err != nil {
		t.Fatal(err)
	}
	length := time.Duration(hubtest.Scale(t, "HUB_OUTAGE_SLOW_SECONDS", 120, 12, 6)) * time.Second
	bytes, acked, begin := s.proxy.Forwarded(), s.remoteAcked(), time.Now()
	<-time.After(length) // a rate needs its time to be measured
	took := time.Since(begin).Seconds()
	rate := float64(s.proxy.Forwarded()-bytes) / took
	records := s.remoteAcked() - acked
	after, err := s.hub.RSS()
	if err != nil {
		t.Fatal(err)
	}
	u := s.link()
	t.Logf("%.0f kB/s of %d, %d records acknowledged, %d wait, hub %d MiB, before %d MiB", rate/1000, slow.BytesPerS/1000, records, u.LagMessages, after>>20, before>>20)
	if rate < 0.8*float64(slow.BytesPerS) {
		t.Errorf("%.0f bytes/s over a link of %d", rate, slow.BytesPerS)
	}
	if n := s.proxy.Accepted() - connections; n != 0 {
		t.Errorf("the slow link was taken for a lost one %d times: %+v\n%s", n, u, s.hub.Output(10))
	}
	if after > before+32<<20 {
		t.Errorf("the hub grew from %d to %d MiB", before>>20, after>>20)
	}
	s.relink(netfault.Link{})
	s.finish()
}

// TestLargeRecordOverThinLink: a message of the largest size passes a link that
// needs longer for it than any timeout allows for an answer.
func TestLargeRecordOverThinLink(t *testing.T) {
	if testing.Short() {
		t.Skip("takes as long as the link needs for it; without -short it runs")
	}
	s := newSite(t)
	s.start()
	s.fleet.Start()
	s.flows(20 * time.Second)
	if err := s.fleet.Stop(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	s.relink(netfault.Link{BytesPerS: 50_000, RTT: 200 * time.Millisecond})
	big := hubtest.Dial(t, s.hub.Addr(), mqttc.Connect{ClientID: "big"})
	big.Pub("load/large", strings.Repeat("x", 600<<10), 1) // 12 s of the link
	hubtest.Eventually(t, 90*time.Second, "it arrives", func() bool {
		st := s.status()
		return st.Drained(uplink, stream)
	})
	if n := s.proxy.Accepted(); n > 3 {
		t.Errorf("%d connections were made for it", n)
	}
	// And is read back over that link when the uplink has to ask what is there.
	hubtest.Restart(t, s.hub)
	hubtest.Eventually(t, 90*time.Second, "the uplink streams again", func() bool {
		u := s.link()
		return u.State == "stream" && u.Connected
	})
}

// TestRateOnReturn: an uplink with a rate does not flood the center after an outage.
func TestRateOnReturn(t *testing.T) {
	s := newSite(t, func(c *harness.Config) { c.Uplinks[0].Lines = []string{"rate = { messages_per_s = 1000 }"} })
	s.start()
	s.fleet.Start()
	s.flows(20 * time.Second)
	s.node.Kill()
	hubtest.Eventually(t, 30*time.Second, "a backlog", func() bool { u := s.link(); return u.LagMessages > 10_000 })
	if err := s.fleet.Stop(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	if err := s.node.Start(); err != nil {
		t.Fatal(err)
	}
	s.flows(30 * time.Second)
	first, begin := s.remoteAcked(), time.Now()
	hubtest.Eventually(t, 30*time.Second, "5,000 of it are sent", func() bool { return s.remoteAcked() >= first+5000 })
	n, took := s.remoteAcked()-first, time.Since(begin).Seconds()
	t.Logf("%d records in %.1f s", n, took)
	if rate := float64(n) / took; rate > 1150 || rate < 700 {
		t.Errorf("%.0f records a second, the rate is 1000", rate)
	}
	s.finish()
}
