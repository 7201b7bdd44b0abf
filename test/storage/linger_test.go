package storage

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"edgehub/test/harness"
	"edgehub/test/harness/hublog"
	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/mqttc"
)

// tail reads a stream through hubctl and counts the records of a topic, which must be numbered from 0.
func tail(t *testing.T, h *harness.Hub, stream, topic string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	n := 0
	err := hublog.ReadTail(ctx, h, stream, func(r *hublog.Record) error {
		if r.Topic != topic {
			return nil
		}
		if want := fmt.Sprint(n, " "); !strings.HasPrefix(string(r.Payload), want) {
			return fmt.Errorf("%.20q where %q is due", r.Payload, want)
		}
		n++
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestCompressedAndLingering: a stream that lingers and compresses keeps its promise through kill -9 and takes less
// space; one with durability memory acknowledges at once and loses no more than its linger.
func TestCompressedAndLingering(t *testing.T) {
	const n = 2000
	h := hubtest.Start(t, func(c *harness.Config) {
		c.Streams = []harness.Stream{
			{Name: "packed", Filters: []string{"packed/#"}, Lines: []string{`compression = "zstd"`, `linger = "5ms"`, `segment_bytes = "64KiB"`}},
			{Name: "fast", Filters: []string{"fast/#"}, Durability: "memory", Lines: []string{`compression = "zstd"`}},
		}
	})
	s := hubtest.Dial(t, h.Addr(), mqttc.Connect{Version: 5, ClientID: "s", Clean: true})
	s.Sub("#", 0)
	p := hubtest.Dial(t, h.Addr(), mqttc.Connect{Version: 5, ClientID: "p", Clean: true})
	text := strings.Repeat("temperature 21.5 ", 20)
	for _, topic := range []string{"packed/a", "fast/a"} {
		began := time.Now()
		for i := 0; i < n; i += 100 { // a window of 100
			for k := i; k < i+100; k++ {
				p.Send(mqttc.Packet{Kind: mqttc.PUBLISH, Topic: topic, Payload: fmt.Append(nil, k, " ", text), QoS: 1, ID: uint16(k%100 + 1)})
			}
			for range 100 {
				if ack := p.WantPacket(mqttc.PUBACK); ack.Code != 0 {
					t.Fatal(ack)
				}
			}
		}
		t.Logf("%s: %d messages of %d bytes in %v", topic, n, len(text)+5, time.Since(began))
	}
	for i := range 2 * n {
		topic, k := "packed/a", i
		if i >= n {
			topic, k = "fast/a", i-n
		}
		s.Want(topic, fmt.Sprint(k, " ", text), 0)
	}
	hubtest.Eventually(t, 5*time.Second, "what lingers is written", func() bool {
		return strings.Contains(ctl(t, h, 0, "stream", "show", "fast", "-o", "json"), fmt.Sprintf(`"next_offset": %d`, n))
	})
	p.Pub("packed/b", "0 last", 1)
	hubtest.Restart(t, h)
	for _, stream := range []string{"packed", "fast"} {
		if got := tail(t, h, stream, stream+"/a"); got != n {
			t.Errorf("%s: %d records", stream, got)
		}
		out := ctl(t, h, 0, "stream", "verify", stream)
		if !strings.Contains(out, "good") {
			t.Error(out)
		}
		t.Log(strings.TrimSpace(out))
	}
	if got := tail(t, h, "packed", "packed/b"); got != 1 {
		t.Error("the last acknowledged message is lost")
	}
	size := int64(0)
	for _, name := range segments(t, h, "packed/0") {
		size += fileSize(t, name)
	}
	if plain := int64(n * (len(text) + 20)); size > plain/4 {
		t.Errorf("%d bytes on disk for %d", size, plain)
	}

	// Acknowledged in memory, and an orderly stop writes it.
	p = hubtest.Dial(t, h.Addr(), mqttc.Connect{Version: 5, ClientID: "p", Clean: true})
	for i := range 10 {
		p.Pub("fast/b", fmt.Sprint(i, " "), 1)
	}
	stop(t, h)
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	if got := tail(t, h, "fast", "fast/b"); got != 10 {
		t.Errorf("%d of 10 records after a stop", got)
	}
}
