package outage

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"edgehub/test/harness"
	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/jsnode"
	"edgehub/test/harness/mqttc"
)

// shown is what `uplink show` tells besides what the harness knows.
type shown struct {
	harness.UplinkStatus
	Lost   map[string]int64 `json:"lost"`
	Unseen int64            `json:"lost_unseen"`
	Stuck  []struct {
		Partition string `json:"partition"`
		Offset    int64  `json:"offset"`
		Cause     string `json:"cause"`
		Cure      string `json:"cure"`
	} `json:"stuck"`
}

// ctl runs hubctl on the uplink and reads its answer.
func (s *site) ctl(args ...string) shown {
	s.t.Helper()
	out, err := s.hub.Ctl(s.t.Context(), append(append([]string{"uplink"}, args...), "-o", "json")...)
	if err != nil {
		s.t.Fatal(err)
	}
	var u shown
	if err := json.Unmarshal(out, &u); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	return u
}

// healthSays reports whether health has a reason with a text.
func (s *site) healthSays(text string) bool {
	out, err := s.hub.Ctl(s.t.Context(), "status", "-o", "json")
	if err != nil {
		s.t.Fatal(err)
	}
	var st struct {
		Health struct {
			State   string
			Reasons []struct{ What, Why, Cure string }
		}
	}
	if err := json.Unmarshal(out, &st); err != nil {
		s.t.Fatal(err)
	}
	for _, r := range st.Health.Reasons {
		if r.What == "uplink "+uplink && strings.Contains(r.Why+"; "+r.Cure, text) {
			return st.Health.State == "degraded"
		}
	}
	return false
}

// TestRecordTooLargeForTheCenter: it stops its own partition, is named with the cure
// everywhere, and the operator can leave it out; that holds through a kill.
func TestRecordTooLargeForTheCenter(t *testing.T) {
	s := newSite(t, func(c *harness.Config) { c.Limits = append(c.Limits, `max_packet_bytes = "2MiB"`) })
	s.start()
	s.fleet.Start()
	s.flows(20 * time.Second)
	c := hubtest.Dial(t, s.hub.Addr(), mqttc.Connect{ClientID: "big"})
	c.Pub("load/large", strings.Repeat("x", 1<<20), 1) // without headers it would just fit
	hubtest.Eventually(t, 20*time.Second, "a partition is stuck", func() bool { return len(s.ctl("show", uplink).Stuck) == 1 })
	u := s.ctl("show", uplink)
	if k := u.Stuck[0]; k.Cause != "too-large" || !strings.Contains(k.Cure, "max_payload") || !strings.Contains(k.Cure, "hubctl uplink skip "+uplink+" "+k.Partition) || u.State != "stream" {
		t.Errorf("%+v", u)
	}
	if !s.healthSays("max_payload of the server is 1048576") || !s.healthSays("uplink skip") {
		t.Error("health does not tell")
	}
	s.flows(20 * time.Second) // the others go on
	hubtest.Restart(t, s.hub)
	hubtest.Eventually(t, 20*time.Second, "it is stuck again", func() bool { return len(s.ctl("show", uplink).Stuck) == 1 })
	if err := s.fleet.Stop(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	s.ctl("skip", uplink, "--yes")
	hubtest.Eventually(t, 20*time.Second, "the rest drains", func() bool { st := s.status(); return st.Drained(uplink, stream) })
	hubtest.Restart(t, s.hub)
	hubtest.Eventually(t, 20*time.Second, "still drained", func() bool {
		st := s.status()
		return st.Drained(uplink, stream) && s.link().State == "stream"
	})
	if u := s.ctl("show", uplink); u.Lost["skipped"] != 1 || u.Lost["retention"] != 0 || len(u.Stuck) != 0 || s.healthSays("too-large") {
		t.Errorf("after a skip and a kill: %+v", u)
	}
}

// TestLostToRetention: what max_bytes takes while the center is away is counted for
// the uplink, shown at once, kept through a kill, and exactly what is missing there.
func TestLostToRetention(t *testing.T) {
	s := newSite(t, func(c *harness.Config) { c.Streams[0].Lines = []string{`retention = { max_bytes = "1MiB" }`} })
	s.start()
	s.fleet.Start()
	s.flows(20 * time.Second)
	s.node.Kill()
	hubtest.Eventually(t, 60*time.Second, "retention takes some", func() bool { return s.ctl("show", uplink).Lost["retention"] > 2000 })
	if !s.healthSays("records were removed by retention before the remote had them") {
		t.Error("health does not tell")
	}
	if err := s.fleet.Stop(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	lost := s.ctl("show", uplink).Lost["retention"]
	hubtest.Restart(t, s.hub)
	if now := s.ctl("show", uplink).Lost["retention"]; now < lost {
		t.Errorf("%d lost before a kill, %d after it", lost, now)
	}
	if err := s.node.Start(); err != nil {
		t.Fatal(err)
	}
	hubtest.Eventually(t, drainMax, "the backlog drains", func() bool { st := s.status(); return st.Drained(uplink, stream) })
	u := s.ctl("show", uplink)
	stored, err := s.storedAtCenter()
	if err != nil {
		t.Fatal(err)
	}
	st := s.status()
	total := int64(0)
	next, _ := st.Next(stream)
	for _, n := range next {
		total += n
	}
	if u.Lost["retention"] != total-stored || u.Unseen != u.Lost["retention"] {
		t.Errorf("%d of %d records are at the center, %d said to be lost, %d unseen", stored, total, u.Lost["retention"], u.Unseen)
	}
	t.Logf("%d published, %d at the center, %d lost", total, stored, u.Lost["retention"])
	if u = s.ctl("acknowledge", uplink); u.Unseen != 0 || s.healthSays("records were removed") {
		t.Errorf("acknowledged: %+v", u)
	}
}

// storedAtCenter is how many records the remote stream has.
func (s *site) storedAtCenter() (int64, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	remote, err := jsnode.Connect(s.node.URL())
	if err != nil {
		return 0, err
	}
	defer remote.Close()
	n, err := remote.Count(ctx, remoteStream)
	return int64(n), err
}
