package storage

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"edgehub/test/harness"
	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/mqttc"
)

// tmpfs mounts a file system of 64 MiB; it needs root.
func tmpfs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64m"); err != nil {
		t.Skipf("a tmpfs cannot be mounted here (it takes root): %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// health is the state and the reasons of `status`.
func health(t *testing.T, h *harness.Hub) string {
	t.Helper()
	var st struct {
		Health  json.RawMessage
		Dropped map[string]int64
	}
	if err := json.Unmarshal([]byte(ctl(t, h, 0, "status", "-o", "json")), &st); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s refused_disk_low=%d qos0_disk_low=%d", st.Health, st.Dropped["refused_disk_low"], st.Dropped["qos0_disk_low"])
}

// TestFullDisk fills a small disk under load: first with what clients publish, then from outside to the last byte. What
// has to be kept is refused, nothing else stops, nothing acknowledged is lost, and it ends by itself within a second.
func TestFullDisk(t *testing.T) {
	disk := tmpfs(t)
	h := hubtest.Start(t, func(c *harness.Config) {
		c.DataDir = filepath.Join(disk, "data")
		c.Streams = []harness.Stream{{Name: "plant", Filters: []string{"plant/#"}, Partitions: 2, Lines: []string{`segment_bytes = "1MiB"`}}}
	})
	reserve := filepath.Join(disk, "reserve")
	if err := os.WriteFile(reserve, make([]byte, 10<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	away := hubtest.Dial(t, h.Addr(), mqttc.Connect{Version: 5, ClientID: "away", SessionExpiry: 3600})
	away.Sub("plant/first", 1)
	away.Bye()
	p := hubtest.Dial(t, h.Addr(), mqttc.Connect{Version: 5, ClientID: "p", Clean: true})
	p.Pub("plant/first", "kept", 1)

	acked := flood(t, h)
	total := 0
	for _, n := range acked {
		total += n
	}
	if total < 100 || t.Failed() {
		t.Fatalf("refused after %d messages: %s", total, health(t, h))
	}
	if s := health(t, h); !strings.Contains(s, "below the low mark") || !strings.Contains(s, "degraded") {
		t.Error(s)
	}

	hog := filepath.Join(disk, "hog")
	toTheLastByte(t, h, p, hog)

	// Space returns.
	if err := errors.Join(os.Remove(hog), os.Remove(reserve)); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	hubtest.Eventually(t, 5*time.Second, "messages are taken again", func() bool { return refusal(t, p) == 0 })
	took := time.Since(began)
	if took > time.Second {
		t.Errorf("taken again after %v", took)
	}
	// A kill on a full disk. It starts when there is a little room, and takes messages when there is more.
	fill(t, hog)
	h.Kill()
	info, err := os.Stat(hog)
	if err == nil {
		err = os.Truncate(hog, info.Size()-6<<20)
	}
	if err := errors.Join(err, h.Start()); err != nil {
		t.Fatal(err)
	}
	p = hubtest.Dial(t, h.Addr(), mqttc.Connect{Version: 5, ClientID: "p", Clean: true})
	if code := refusal(t, p); code != 0x97 {
		t.Errorf("QoS 1 after a start on a full disk: %#x", code)
	}
	if err := os.Remove(hog); err != nil {
		t.Fatal(err)
	}
	hubtest.Eventually(t, 5*time.Second, "messages are taken again", func() bool { return refusal(t, p) == 0 })
	ctl(t, h, 0, "stream", "verify", "$meta")
	got := records(t, h.Config.DataDir, "plant")
	for i, n := range acked {
		if len(got[fmt.Sprint("plant/fill/", i)]) < n {
			t.Errorf("%d of %d acknowledged messages of client %d are there", len(got[fmt.Sprint("plant/fill/", i)]), n, i)
		}
	}
	t.Logf("%d messages of 32 KiB taken, then refused; taken again after %v; start after a kill on a full disk %v", total, took, h.StartTook())
}

// TestStopOnFullDisk stops a hub whose disk has no byte left, or lost its last one just before: the index of the metadata
// is given up, which is said, everything else is on the disk, and the stop is a clean one. When somebody takes even what
// the stop itself gives back, it may be an unclean one, but it ends in order. The next start has it all.
func TestStopOnFullDisk(t *testing.T) {
	for _, c := range []struct {
		name            string
		noticed, taking bool
	}{{"noticed", true, false}, {"unseen", false, false}, {"taken on and on", true, true}} {
		t.Run(c.name, func(t *testing.T) {
			const n = 500
			disk := tmpfs(t)
			h := hubtest.Start(t, func(c *harness.Config) {
				c.DataDir = filepath.Join(disk, "data")
				c.Streams = []harness.Stream{{Name: "plant", Filters: []string{"plant/#"}, Lines: []string{`segment_bytes = "1MiB"`}}}
			})
			away := hubtest.Dial(t, h.Addr(), mqttc.Connect{Version: 5, ClientID: "away", SessionExpiry: 3600})
			away.Sub("plant/first", 1)
			away.Bye()
			p := hubtest.Dial(t, h.Addr(), mqttc.Connect{Version: 5, ClientID: "p", SessionExpiry: 3600})
			for i := range n {
				p.Pub("plant/first", fmt.Sprint(i), 1)
			}
			hogs := []string{filepath.Join(disk, "hog"), filepath.Join(disk, "hog2")}
			fill(t, hogs[0])
			if c.noticed { // the ballast goes, and is taken too
				hubtest.Eventually(t, 5*time.Second, "the ballast is given up", func() bool {
					_, err := os.Stat(filepath.Join(h.Config.DataDir, "ballast"))
					return errors.Is(err, os.ErrNotExist)
				})
				fill(t, hogs[1])
				var s syscall.Statfs_t
				if err := syscall.Statfs(disk, &s); err != nil || s.Bavail != 0 {
					t.Fatalf("%d blocks free, %v", s.Bavail, err)
				}
			}
			give := func() {}
			if c.taking {
				hogs = append(hogs, filepath.Join(disk, "hog3"))
				give = take(t, hogs[2])
			}
			code, err := h.Stop(20 * time.Second)
			give()
			out := h.Output(1000)
			if err != nil || code != 0 && (!c.taking || code != 1) || h.Fault() != "" || strings.Count(out, "the metadata index is left as it is") != 1 {
				t.Fatalf("exit code %d, %v, fault %q:\n%s", code, err, h.Fault(), out)
			}
			t.Logf("exit code %d", code)
			for _, hog := range hogs {
				if err := os.Remove(hog); err != nil && (c.noticed || !errors.Is(err, os.ErrNotExist)) {
					t.Fatal(err)
				}
			}
			if err := h.Start(); err != nil {
				t.Fatal(err)
			}
			if out := h.Output(1000); strings.Contains(out, "did not stop cleanly") != (code != 0) || strings.Contains(out, "quarantined") {
				t.Errorf("after exit code %d:\n%s", code, out)
			}
			back := hubtest.Dial(t, h.Addr(), mqttc.Connect{Version: 5, ClientID: "away", SessionExpiry: 3600})
			for i := range n {
				back.Want("plant/first", fmt.Sprint(i), 1)
			}
			ctl(t, h, 0, "stream", "verify", "$meta")
		})
	}
}

// take takes every byte of the disk that becomes free, until give.
func take(t *testing.T, name string) (give func()) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		page := make([]byte, 4096)
		tick := time.NewTicker(50 * time.Microsecond)
		defer tick.Stop()
		for {
			if _, err := f.Write(page); err == nil {
				continue
			}
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	}()
	return func() {
		close(stop)
		<-done
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// toTheLastByte fills the disk from outside: the hub stays, refuses and serves.
func toTheLastByte(t *testing.T, h *harness.Hub, p *hubtest.Client, hog string) {
	t.Helper()
	fill(t, hog)
	if code := refusal(t, p); code != 0x97 {
		t.Errorf("QoS 1 on a full disk: %#x", code)
	}
	old := hubtest.Dial(t, h.Addr(), mqttc.Connect{Version: 4, ClientID: "old", Clean: true})
	old.Send(mqttc.Packet{Kind: mqttc.PUBLISH, Topic: "plant/x", Payload: []byte("x"), QoS: 1, ID: 1})
	old.WantClose(mqttc.Patience) // MQTT 3.1.1 has no refusal
	p.Send(mqttc.Packet{Kind: mqttc.PUBLISH, Topic: "plant/x", Payload: []byte("x")})
	if err := p.Ping(); err != nil {
		t.Error(err)
	}
	back := hubtest.Dial(t, h.Addr(), mqttc.Connect{Version: 5, ClientID: "away", SessionExpiry: 3600})
	back.Want("plant/first", "kept", 1)
	if s := health(t, h); strings.Contains(s, "refused_disk_low=0") || strings.Contains(s, "qos0_disk_low=0") {
		t.Error(s)
	}
}

// flood publishes from several clients until all are refused, and returns how much of each was acknowledged.
func flood(t *testing.T, h *harness.Hub) []int {
	t.Helper()
	payload := bytes.Repeat([]byte{'x'}, 32<<10)
	acked := make([]int, 4)
	var wg sync.WaitGroup
	for i := range acked {
		wg.Go(func() {
			c, _, err := mqttc.Dial(h.Addr(), mqttc.Connect{Version: 5, ClientID: fmt.Sprint("fill", i), Clean: true})
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Abort()
			for ; acked[i] < 10_000; acked[i]++ {
				ack, err := c.Request(mqttc.Packet{Kind: mqttc.PUBLISH, Topic: fmt.Sprint("plant/fill/", i), Payload: payload, QoS: 1, ID: c.NextID()}, mqttc.PUBACK)
				if err != nil {
					t.Error(err)
					return
				}
				if ack.Code == 0x97 {
					return
				}
				if ack.Code >= 0x80 {
					t.Errorf("refused with %#x", ack.Code)
					return
				}
			}
			t.Error("never refused")
		})
	}
	wg.Wait()
	return acked
}

// refusal publishes and returns the code of the answer.
func refusal(t *testing.T, c *hubtest.Client) byte {
	t.Helper()
	ack, err := c.Request(mqttc.Packet{Kind: mqttc.PUBLISH, Topic: "plant/again", Payload: []byte("x"), QoS: 1, ID: c.NextID()}, mqttc.PUBACK)
	if err != nil {
		t.Fatal(err)
	}
	if ack.Code == 0x10 {
		return 0 // taken; nobody subscribes
	}
	return ack.Code
}

// fill writes a file until the disk takes no more.
func fill(t *testing.T, name string) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for size := 1 << 20; size > 100; size /= 4 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}
