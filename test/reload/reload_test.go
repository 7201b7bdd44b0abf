// Package reload changes the configuration of a hub that runs: what `config reload` says is applied must be in force,
// and what goes on must go on.
package reload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgehub/test/harness"
	"edgehub/test/harness/hublog"
	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/jsnode"
	"edgehub/test/harness/load"
	"edgehub/test/harness/mqttc"
)

func TestMain(m *testing.M) {
	jsnode.ServeIfChild()
	hubtest.Main(m)
}

const stream = "telemetry"

func start(t *testing.T) *harness.Hub {
	t.Helper()
	return hubtest.Start(t, func(c *harness.Config) {
		c.Streams = []harness.Stream{{Name: stream, Filters: []string{"load/#"}, Partitions: 2, Lines: kept("64MiB", "24h")}}
	})
}

func kept(bytes, age string) []string {
	return []string{`segment_bytes = "16KiB"`, fmt.Sprintf("retention = { max_bytes = %q, max_age = %q }", bytes, age)}
}

// reload writes the changed configuration and has the hub read it; it returns what hubctl says.
func reload(t *testing.T, h *harness.Hub, change func(*harness.Config)) string {
	t.Helper()
	change(&h.Config)
	if err := h.WriteConfig(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	out, err := h.Ctl(ctx, "config", "reload")
	var failed *harness.CtlError
	if errors.As(err, &failed) {
		return failed.Stderr
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// said finds the line of a key and reports whether it ends as it should.
func said(out, key, effect string) bool {
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) > 0 && f[0] == key {
			return strings.HasSuffix(strings.TrimSpace(line), effect)
		}
	}
	return false
}

// Uplinks come, change and go under load, and the remote still holds exactly the log.
func TestUplinks(t *testing.T) {
	h := start(t)
	node, err := jsnode.NewNode()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Remove() })
	fleet := load.New(load.Options{Addr: h.Addr(), Name: "p", Publishers: 10, Rate: 1000})
	fleet.Start()
	uplink := func(lines ...string) func(*harness.Config) {
		return func(c *harness.Config) {
			c.Uplinks = []harness.Uplink{{Name: "cloud", URL: node.URL(), Streams: []string{stream}, Lines: lines}}
		}
	}
	acked := func() (n int64) {
		st, err := h.Status()
		if err != nil {
			t.Fatal(err)
		}
		u, _ := st.Uplink("cloud")
		for _, last := range u.Acked {
			n += last + 1
		}
		return n
	}
	flows := func() {
		t.Helper()
		before := acked()
		hubtest.Eventually(t, 30*time.Second, "the remote acknowledges", func() bool { return acked() > before+200 })
	}
	if out := reload(t, h, uplink()); !said(out, "uplink.cloud.url", "applied") || strings.Contains(out, "needs a restart") {
		t.Errorf("a new uplink: %s", out)
	}
	flows()
	if out := reload(t, h, uplink("rate.messages_per_s = 100000", "remote_grace = \"1s\"")); !said(out, "uplink.cloud.rate.messages_per_s", "applied") || !said(out, "uplink.cloud.remote_grace", "applied") {
		t.Errorf("a changed uplink: %s", out)
	}
	flows()
	if out := reload(t, h, uplink("user = \"edge\"", "password_env = \"HUB_TEST_NOT_SET\"")); !strings.Contains(out, "nothing was changed") || !strings.Contains(out, "HUB_TEST_NOT_SET") {
		t.Errorf("an uplink without its secret: %s", out)
	}
	flows()
	if out := reload(t, h, uplink()); !strings.Contains(out, "applied") {
		t.Error(out)
	}
	if err := fleet.Stop(30 * time.Second); err != nil {
		t.Fatal(err)
	}
	hubtest.Eventually(t, time.Minute, "the backlog drains", func() bool {
		st, err := h.Status()
		return err == nil && st.Drained("cloud", stream)
	})
	compare(t, h, node)
	out := reload(t, h, func(c *harness.Config) { c.Uplinks = nil })
	if st, err := h.Status(); err != nil || len(st.Uplinks) != 0 || !said(out, "uplink.cloud.name", "applied") {
		t.Errorf("a removed uplink: %v, %v, %s", st.Uplinks, err, out)
	}
}

func compare(t *testing.T, h *harness.Hub, node *jsnode.Node) {
	t.Helper()
	log := hublog.Collect{}
	if err := hublog.ReadFiles(h.Config.DataDir, stream, nil, log.Add); err != nil {
		t.Fatal(err)
	}
	remote, err := jsnode.Connect(node.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer remote.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := jsnode.Compare(ctx, remote, "EDGE-edge-test", stream, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(c)
	if !c.Exact() || c.Stored == 0 {
		t.Error("the remote does not hold exactly the log")
	}
}

// A lower limit takes records away at once, without a restart; one that the running segments cannot keep waits for it.
func TestRetention(t *testing.T) {
	h := start(t)
	c := hubtest.Dial(t, h.Addr(), mqttc.Connect{Version: 5, ClientID: "p", Clean: true})
	for i := range 300 {
		c.Pub(fmt.Sprintf("load/%d", i%7), strings.Repeat("x", 2000), 1)
	}
	bytes := func() (n int64) {
		err := filepath.WalkDir(filepath.Join(h.Config.DataDir, "streams", stream), func(_ string, d os.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				if info, err := d.Info(); err == nil {
					n += info.Size()
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	limits := func(bytes, age string) func(*harness.Config) {
		return func(c *harness.Config) { c.Streams[0].Lines = kept(bytes, age) }
	}
	const lower = 160 << 10
	if n := bytes(); n < 2*lower {
		t.Fatalf("only %d bytes to begin with", n)
	}
	if out := reload(t, h, limits("160KiB", "24h")); !said(out, "stream.telemetry.retention.max_bytes", "applied") {
		t.Errorf("max_bytes: %s", out)
	}
	hubtest.Eventually(t, mqttc.Patience, "max_bytes holds", func() bool { return bytes() <= lower })
	if out := reload(t, h, limits("160KiB", "1s")); !said(out, "stream.telemetry.retention.max_age", "applied") {
		t.Errorf("max_age: %s", out)
	}
	hubtest.Eventually(t, 30*time.Second, "max_age holds", func() bool { return bytes() <= 2*(16<<10) })
	c.Pub("load/1", "y", 1)
	small := func(c *harness.Config) {
		c.Streams[0].Lines = []string{`segment_bytes = "16KiB"`, `retention = { max_bytes = "64KiB", max_age = "24h", full = "reject-new" }`}
	}
	if out := reload(t, h, small); !said(out, "stream.telemetry.retention.full", "applied") {
		t.Errorf("full: %s", out)
	}
	refused := false
	for range 200 {
		p, err := c.Request(mqttc.Packet{Kind: mqttc.PUBLISH, Topic: "load/1", Payload: make([]byte, 2000), QoS: 1, ID: c.NextID()}, mqttc.PUBACK)
		if err != nil {
			t.Fatal(err)
		}
		refused = refused || p.Code == 0x97
	}
	if !refused {
		t.Error("the stream took 400 kB although it may have 64 KiB and is to reject more")
	}
	out := reload(t, h, func(c *harness.Config) {
		c.Streams[0].Lines = []string{`segment_bytes = "32KiB"`, `retention = { max_bytes = "128KiB", max_age = "24h" }`}
	})
	if !said(out, "stream.telemetry.segment_bytes", "needs a restart") || !said(out, "stream.telemetry.retention.max_bytes", "applied") {
		t.Errorf("segment_bytes: %s", out)
	}
	if st, err := h.Ctl(t.Context(), "stream", "show", stream); err != nil || !strings.Contains(string(st), "128.0 KiB") {
		t.Errorf("%s, %v", st, err)
	}
}
