package auth

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/mqttc"
)

const (
	floodMemoryMax = 64 << 20
	// floodFloor is what a 99th percentile may be whatever it was before: on a machine that does other things too, that
	// of a quiet hub is mostly the machine's.
	floodFloor = 25 * time.Millisecond
)

// roundTrips publishes to itself until stop is closed, every 5 ms, and returns how long each took to be delivered.
func roundTrips(t *testing.T, c *hubtest.Client, stop <-chan struct{}) []time.Duration {
	t.Helper()
	var took []time.Duration
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			slices.Sort(took)
			return took
		case <-tick.C:
		}
		start := time.Now()
		c.Send(mqttc.Packet{Kind: mqttc.PUBLISH, Topic: "self", Payload: []byte("x")})
		if p := c.WantPacket(mqttc.PUBLISH); p.Topic != "self" {
			t.Fatal(p)
		}
		took = append(took, time.Since(start))
	}
}

func p99(took []time.Duration) time.Duration { return took[len(took)*99/100] }

// floodPatience is how long a login may take to be refused: a hundred wait for the one or two that are hashed at a time,
// on a machine that does other things too.
const floodPatience = 90 * time.Second

// badLogin reports whether a login is refused with its code.
func badLogin(addr, user string) bool {
	conn, err := mqttc.Open(addr, 5)
	if err != nil {
		return false
	}
	defer conn.Abort()
	connect := mqttc.Connect{Version: 5, ClientID: user, Clean: true, Username: user, Password: "guess"}
	if err := conn.SendRaw(connect.Append(nil)); err != nil {
		return false
	}
	ack, err := conn.Next(floodPatience)
	return err == nil && ack.Kind == mqttc.CONNACK && ack.Code == badCredentials
}

// Bad logins of distinct users, many at a time and no bans: a connected client hardly notices, memory stays bounded,
// and every one is refused with its code.
func TestBadLoginsDoNotHurt(t *testing.T) {
	logins := hubtest.Scale(t, "HUB_TEST_LOGINS", 2000, 150, 100)
	const conns = 100
	h := start(t, openACL, "ban_after = 0\n")
	c := h.dial("self", "anna", 5)
	c.Sub("self", 0)

	quiet := make(chan struct{})
	time.AfterFunc(2*time.Second, func() { close(quiet) })
	before := roundTrips(t, c, quiet)
	rssBefore, err := h.RSS()
	if err != nil {
		t.Fatal(err)
	}

	over := make(chan struct{})
	var peak, wrong atomic.Int64
	var wg sync.WaitGroup
	next := atomic.Int64{}
	start := time.Now()
	for range conns {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for n := next.Add(1); n <= int64(logins); n = next.Add(1) {
				if !badLogin(h.Addr(), fmt.Sprintf("nobody-%d", n)) {
					wrong.Add(1)
				}
				if rss, err := h.RSS(); err == nil {
					peak.Store(max(peak.Load(), rss))
				}
			}
		}()
	}
	go func() { wg.Wait(); close(over) }()
	during := roundTrips(t, c, over)
	t.Logf("%d bad logins in %v: 99th percentile %v before, %v during (%d and %d samples); RSS %d MiB before, %d MiB at most",
		logins, time.Since(start).Round(time.Millisecond), p99(before), p99(during), len(before), len(during), rssBefore>>20, peak.Load()>>20)
	if n := wrong.Load(); n > 0 {
		t.Errorf("%d logins were not refused with %#x", n, badCredentials)
	}
	if most := max(2*p99(before), floodFloor); p99(during) > most {
		t.Errorf("the 99th percentile was %v before and is %v, at most %v", p99(before), p99(during), most)
	}
	if grown := peak.Load() - rssBefore; grown > floodMemoryMax {
		t.Errorf("memory grew by %d MiB, at most %d", grown>>20, floodMemoryMax>>20)
	}
}
