package footprint

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"edgehub/test/harness"
	"edgehub/test/harness/hublog"
	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/load"
	"edgehub/test/harness/mqttc"
)

const (
	openFiles = 1000
	burst     = 4000
)

// outcome counts how the connections of a burst ended.
type outcome struct{ in, refused, closed, failed atomic.Int64 }

// attempt connects once; who gets in stays until stop is closed.
func (o *outcome) attempt(addr, id string, stop <-chan struct{}, settled func()) {
	c, ack, err := mqttc.Dial(addr, mqttc.Connect{Version: 5, ClientID: id, Clean: true})
	switch {
	case err == nil && ack.Code == 0:
		o.in.Add(1)
		defer c.Abort()
	case err == nil:
		o.refused.Add(1)
		c.Abort()
	case strings.Contains(err.Error(), "EOF"), strings.Contains(err.Error(), "reset"), strings.Contains(err.Error(), "broken pipe"):
		o.closed.Add(1)
	default:
		o.failed.Add(1)
	}
	settled()
	<-stop
}

// Many more want to connect than there are descriptors: the hub refuses, counts and lives; who is connected loses
// nothing; and once they have gone there is room again.
func TestMoreConnectionsThanDescriptors(t *testing.T) {
	h := hubtest.Start(t, func(c *harness.Config) {
		c.OpenFiles = openFiles
		c.Streams = []harness.Stream{{Name: "load", Filters: []string{"load/#"}, Partitions: 2}}
	})
	fleet := load.New(load.Options{Addr: h.Addr(), Name: "kept", Publishers: 50, Rate: 1000, QoS: func(p int) byte { return byte(1 + p%2) }})
	sub := hubtest.Dial(t, h.Addr(), subscriber)
	sub.Sub("load/#", 1)
	received := receive(sub)
	fleet.Start()
	hubtest.Eventually(t, mqttc.Patience, "the load runs", func() bool { return received.Load() > 500 })

	var o outcome
	stop := make(chan struct{})
	var settled, ended sync.WaitGroup
	for i := range burst {
		settled.Add(1)
		ended.Go(func() { o.attempt(h.Addr(), fmt.Sprintf("burst-%d", i), stop, settled.Done) })
	}
	settled.Wait()
	t.Logf("%d connections: %d let in, %d refused with a code, %d closed, %d failed otherwise", burst, o.in.Load(), o.refused.Load(), o.closed.Load(), o.failed.Load())
	if o.in.Load() == 0 || o.in.Load() > openFiles || o.failed.Load() > 0 {
		t.Error("not refused as it should be")
	}
	counted := metric(t, h, "edgehub_mqtt_connections_refused_total")
	if turned := o.refused.Load() + o.closed.Load(); counted < turned {
		t.Errorf("%d connections were turned away, the hub counts %d", turned, counted)
	}
	if !h.Ready() {
		t.Error("the hub is not ready any more")
	}
	close(stop)
	ended.Wait()
	hubtest.Eventually(t, mqttc.Patience, "there is room again", func() bool {
		c, ack, err := mqttc.Dial(h.Addr(), mqttc.Connect{Version: 5, ClientID: "later", Clean: true})
		if err != nil {
			return false
		}
		c.Abort()
		return ack.Code == 0
	})

	if err := fleet.Stop(30 * time.Second); err != nil {
		t.Fatal(err)
	}
	c := fleet.Counters()
	t.Log(c)
	if c.Lost > 0 || c.Refused > 0 || c.Acked != c.Published {
		t.Error("connected clients were disturbed")
	}
	hubtest.Eventually(t, mqttc.Patience, "the subscriber has it all", func() bool { return received.Load() >= c.Acked })
	check := load.NewChecker(fleet)
	if err := hublog.ReadFiles(h.Config.DataDir, "load", nil, func(r *hublog.Record) error {
		check.Add(r.Partition, r.Offset, r.Topic, r.Payload)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if r := check.Report(); !r.OK() || r.Checked != r.Published {
		t.Error(r)
	}
}

// A second hub on the same port is refused, says so, and touches nothing; the first does not notice.
func TestSecondHubOnOnePort(t *testing.T) {
	h := hubtest.Start(t, nil)
	c := hubtest.Dial(t, h.Addr(), subscriber)
	c.Sub("a", 1)
	second := hubtest.New(t, func(c *harness.Config) { c.MQTTAddr = h.Addr() })
	if err := second.Spawn(); err != nil {
		t.Fatal(err)
	}
	if code, err := second.Process().Wait(mqttc.Patience); code != 2 || err != nil {
		t.Errorf("exit %d, %v; want 2", code, err)
	}
	if out := second.Output(5); !strings.Contains(out, "listener address "+h.Addr()+" is in use") || strings.Contains(out, "\n") {
		t.Errorf("%q is not one line that says which address is in use", out)
	}
	if out, err := exec.CommandContext(t.Context(), "ls", "-A", second.Dir).Output(); err != nil || bytes.Contains(out, []byte("data")) {
		t.Errorf("the second hub made its data directory: %s, %v", out, err)
	}
	c.Pub("a", "still here", 1)
	c.Want("a", "still here", 1)
}
