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
