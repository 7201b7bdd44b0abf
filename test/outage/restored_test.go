package outage

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgehub/test/harness"
	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/jsnode"
	"edgehub/test/harness/mqttc"
)

// restored is a hub whose data directory is put back as it was before.
type restored struct {
	t    *testing.T
	hub  *harness.Hub
	node *jsnode.Node
	sent map[string][]string // payloads acknowledged to the publisher, by topic
}

func newRestored(t *testing.T) *restored {
	t.Helper()
	r := &restored{t: t, sent: map[string][]string{}}
	var err error
	if r.node, err = jsnode.NewNode(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.node.Remove() })
	r.hub = r.another(filepath.Join(t.TempDir(), "data"))
	r.start(r.hub)
	return r
}

// another prepares a hub of the same name and uplink on a data directory.
func (r *restored) another(dir string) *harness.Hub {
	r.t.Helper()
	return hubtest.New(r.t, func(c *harness.Config) {
		c.DataDir = dir
		c.Streams = []harness.Stream{{Name: stream, Filters: []string{"load/#"}, Partitions: 2}}
		c.Uplinks = []harness.Uplink{{Name: uplink, URL: r.node.URL(), Streams: []string{stream}}}
	})
}

func (r *restored) start(h *harness.Hub) {
	r.t.Helper()
	if err := h.Start(); err != nil {
		r.t.Fatal(err)
	}
}

func (r *restored) stop(h *harness.Hub) {
	r.t.Helper()
	if code, err := h.Stop(20 * time.Second); err != nil || code != 0 {
		r.t.Fatalf("stop: exit code %d, %v", code, err)
	}
}

// publish sends n messages and has each acknowledged.
func (r *restored) publish(h *harness.Hub, what string, n int) {
	r.t.Helper()
	c := hubtest.Dial(r.t, h.Addr(), mqttc.Connect{ClientID: what, Clean: true})
	for i := range n {
		topic, payload := fmt.Sprintf("load/%d", i%8), fmt.Sprintf("%s %d", what, i)
		c.Pub(topic, payload, 1)
		r.sent[topic] = append(r.sent[topic], payload)
	}
	c.Bye()
}

// copied is cp -r of the data directory, as it is at the moment.
func (r *restored) copied() string {
	r.t.Helper()
	to := filepath.Join(r.t.TempDir(), "copy")
	if out, err := exec.Command("cp", "-r", r.hub.Config.DataDir, to).CombinedOutput(); err != nil {
		r.t.Logf("cp: %v: %s", err, out) // of a running hub, a file may go away meanwhile
	}
	return to
}

// putBack replaces the data directory of a stopped hub.
func (r *restored) putBack(from string) {
	r.t.Helper()
	if err := os.RemoveAll(r.hub.Config.DataDir); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(from, r.hub.Config.DataDir); err != nil {
		r.t.Fatal(err)
	}
}

func (r *restored) uplink(h *harness.Hub) harness.UplinkStatus {
	r.t.Helper()
	st, err := h.Status()
	if err != nil {
		r.t.Fatal(err)
	}
	u, ok := st.Uplink(uplink)
	if !ok {
		r.t.Fatalf("status does not know the uplink: %+v", st.Uplinks)
	}
	return u
}

func (r *restored) drained(h *harness.Hub) {
	r.t.Helper()
	hubtest.Eventually(r.t, time.Minute, "the uplink drains", func() bool {
		st, err := h.Status()
		return err == nil && st.Drained(uplink, stream)
	})
}

// blocked waits until the uplink is blocked, for a reason in plain words, with a cure.
func (r *restored) blocked(h *harness.Hub) {
	r.t.Helper()
	hubtest.Eventually(r.t, time.Minute, "the uplink is blocked", func() bool { return r.uplink(h).State == "blocked" })
	r.isBlocked(h)
}

func (r *restored) isBlocked(h *harness.Hub) {
	r.t.Helper()
	u := r.uplink(h)
	if u.State != "blocked" || !strings.Contains(u.LastError, "the data directory is an older copy") {
		r.t.Fatalf("state %s, last error %q: want blocked, and why", u.State, u.LastError)
	}
	out, err := h.Ctl(r.t.Context(), "uplink", "show", uplink)
	if err != nil || !strings.Contains(string(out), "hubctl uplink resume "+uplink) {
		r.t.Fatalf("uplink show does not tell the cure: %v\n%s", err, out)
	}
}

func (r *restored) resume(h *harness.Hub) {
	r.t.Helper()
	if _, err := h.Ctl(r.t.Context(), "uplink", "resume", uplink); err != nil {
		r.t.Fatal(err)
	}
}

// complete checks that the remote has everything that was ever acknowledged,
// in the order of each topic, and no id twice. most is how often a payload may
// be there.
func (r *restored) complete(remote string, want map[string][]string, most int) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	js, err := jsnode.Connect(r.node.URL())
	if err != nil {
		r.t.Fatal(err)
	}
	defer js.Close()
	next, seen, ids := map[string]int{}, map[string]int{}, map[string]bool{}
	err = js.Read(ctx, remote, func(m *jsnode.Message) error {
		if ids[m.MsgID] {
			r.t.Errorf("id %s is there twice", m.MsgID)
		}
		ids[m.MsgID] = true
		seen[string(m.Data)]++
		if i := next[m.Topic]; i < len(want[m.Topic]) && want[m.Topic][i] == string(m.Data) {
			next[m.Topic]++
		}
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
	for topic, list := range want {
		if next[topic] != len(list) {
			r.t.Errorf("remote stream %s: %s has %d of %d messages in order; %q is missing", remote, topic, next[topic], len(list), list[next[topic]])
		}
		for _, p := range list {
			if seen[p] > most {
				r.t.Errorf("remote stream %s: %q is there %d times", remote, p, seen[p])
			}
		}
	}
}

// copies are the ways to come by a copy of the data directory.
var copies = []struct {
	name string
	take func(r *restored) string
}{
	{"clean stop", func(r *restored) string {
		r.stop(r.hub)
		dir := r.copied()
		r.start(r.hub)
		return dir
	}},
	{"kill", func(r *restored) string {
		r.hub.Kill()
		dir := r.copied()
		r.start(r.hub)
		return dir
	}},
	{"running", func(r *restored) string { return r.copied() }},
}

// TestRestoredCopy: an older copy of the data directory is put back. Its log
// gives the offsets that the remote has to other records. The hub serves, the
// uplink waits for the operator, and then nothing of the new is missing.
func TestRestoredCopy(t *testing.T) {
	for i, c := range copies {
		if i > 0 && testing.Short() {
			break
		}
		for _, reachable := range []bool{true, false} {
			for _, ending := range []string{"stopped", "killed"} {
				t.Run(fmt.Sprintf("%s, reachable %t, %s", c.name, reachable, ending), func(t *testing.T) {
					testRestored(t, c.take, reachable, ending == "killed")
				})
			}
		}
	}
}

func testRestored(t *testing.T, take func(*restored) string, reachable, killed bool) {
	r := newRestored(t)
	r.publish(r.hub, "first", 300)
	r.drained(r.hub)
	older := take(r)
	r.publish(r.hub, "lost", 200)
	r.drained(r.hub)
	if killed {
		r.hub.Kill()
		r.start(r.hub)
		r.publish(r.hub, "lost too", 100)
		r.drained(r.hub)
		r.hub.Kill()
	} else {
		r.stop(r.hub)
	}
	r.putBack(older)

	if !reachable {
		r.node.Kill()
	}
	r.start(r.hub)
	r.publish(r.hub, "new", 40) // not yet as many as the remote has
	if reachable {
		r.blocked(r.hub)
	}
	r.publish(r.hub, "more", 400) // and now beyond it
	if !reachable {
		hubtest.Restart(t, r.hub)
		r.publish(r.hub, "yet more", 10)
		if err := r.node.Start(); err != nil {
			t.Fatal(err)
		}
		r.blocked(r.hub)
	}
	r.isBlocked(r.hub)
	hubtest.Restart(t, r.hub)
	r.isBlocked(r.hub)
	r.stop(r.hub)
	r.start(r.hub)
	r.isBlocked(r.hub)

	r.resume(r.hub)
	r.drained(r.hub)
	r.complete(remoteStream, r.sent, 1)
	hubtest.Restart(t, r.hub)
	r.publish(r.hub, "after", 20)
	r.drained(r.hub)
	r.complete(remoteStream, r.sent, 1)
}

// TestRestoredCopyNewName: the other cure is a remote stream of another name.
func TestRestoredCopyNewName(t *testing.T) {
	r := newRestored(t)
	r.publish(r.hub, "first", 100)
	r.drained(r.hub)
	older := copies[0].take(r)
	r.publish(r.hub, "lost", 100)
	r.drained(r.hub)
	r.stop(r.hub)
	r.putBack(older)
	r.start(r.hub)
	r.blocked(r.hub)
	r.sent = map[string][]string{}
	r.publish(r.hub, "new", 300)
	r.isBlocked(r.hub)
	r.stop(r.hub)
	r.hub.Config.Uplinks[0].Lines = []string{`remote_stream = "EDGE-again"`, `subject = "again.{hub}.{topic}"`}
	if err := r.hub.WriteConfig(); err != nil {
		t.Fatal(err)
	}
	r.start(r.hub)
	r.drained(r.hub)
	r.complete("EDGE-again", r.sent, 1)
}

// TestNewestCopyCures: with the newest data directory back, the uplink goes on
// by itself.
func TestNewestCopyCures(t *testing.T) {
	r := newRestored(t)
	r.publish(r.hub, "first", 100)
	r.drained(r.hub)
	older := copies[0].take(r)
	r.publish(r.hub, "second", 100)
	r.drained(r.hub)
	r.stop(r.hub)
	newest := r.copied()
	r.putBack(older)
	r.start(r.hub)
	r.blocked(r.hub)
	r.stop(r.hub)
	r.putBack(newest)
	r.start(r.hub)
	r.publish(r.hub, "third", 20)
	r.drained(r.hub)
	r.complete(remoteStream, r.sent, 1)
}

// TestTwoHubsOfOneCopy: two hubs on copies of one directory write to one remote
// stream. At least one of them is stopped from it, and neither loses anything.
func TestTwoHubsOfOneCopy(t *testing.T) {
	r := newRestored(t)
	r.publish(r.hub, "first", 100)
	r.drained(r.hub)
	r.stop(r.hub)
	second := r.another(r.copied())
	r.start(r.hub)
	r.start(second)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 40 {
			if _, err := second.Ctl(t.Context(), "pub", "load/second", fmt.Sprintf("second %d", i), "--qos", "1"); err != nil {
				t.Error(err)
			}
		}
	}()
	r.publish(r.hub, "one", 400)
	<-done
	for i := range 40 {
		r.sent["load/second"] = append(r.sent["load/second"], fmt.Sprintf("second %d", i))
	}
	var other, waits *harness.Hub
	hubtest.Eventually(t, time.Minute, "one of the two is blocked", func() bool {
		other, waits = r.hub, second
		if r.uplink(r.hub).State == "blocked" {
			other, waits = second, r.hub
		}
		return r.uplink(waits).State == "blocked"
	})
	r.isBlocked(waits)
	r.stop(other)
	r.resume(waits)
	r.drained(waits)
	r.stop(waits)
	// The other one is told apart now, and has its say only if it is asked to.
	r.start(other)
	r.blocked(other)
	r.resume(other)
	r.drained(other)
	r.complete(remoteStream, r.sent, 2)
}
