package storage

import (
	"bufio"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"edgehub/test/harness"
	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/mqttc"
)

// metric reads one sample of /metrics.
func metric(t *testing.T, h *harness.Hub, name string) float64 {
	t.Helper()
	resp, err := http.Get("http://" + h.Config.AdminAddr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }() // read to its end
	for sc := bufio.NewScanner(resp.Body); sc.Scan(); {
		if rest, ok := strings.CutPrefix(sc.Text(), name+" "); ok {
			v, err := strconv.ParseFloat(rest, 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// TestWriteAmplification: telemetry of 100 bytes with QoS 1, in batches, with a session that is away, costs at most two
// bytes on disk for each byte of topic and payload, metadata and their index included.
func TestWriteAmplification(t *testing.T) {
	const n, window = 20_000, 32
	h := hubtest.Start(t, nil)
	away := hubtest.Dial(t, h.Addr(), mqttc.Connect{Version: 5, ClientID: "away", SessionExpiry: 3600})
	away.Sub("devices/#", 1)
	away.Bye()
	p := hubtest.Dial(t, h.Addr(), mqttc.Connect{Version: 5, ClientID: "p", Clean: true})
	payload := []byte(strings.Repeat("x", 100))
	for i := 0; i < n; i += window {
		var batch []byte
		for k := range window {
			m := mqttc.Packet{Kind: mqttc.PUBLISH, Topic: fmt.Sprintf("devices/%d/telemetry", k), Payload: payload, QoS: 1, ID: uint16(k + 1)}
			batch = m.Append(batch, 5)
		}
		if err := p.SendRaw(batch); err != nil {
			t.Fatal(err)
		}
		for range window {
			p.WantPacket(mqttc.PUBACK)
		}
	}
	log, meta, index, os := metric(t, h, `edgehub_written_bytes_total{part="log"}`), metric(t, h, `edgehub_written_bytes_total{part="meta"}`),
		metric(t, h, `edgehub_written_bytes_total{part="index"}`), metric(t, h, `edgehub_written_bytes_total{part="os"}`)
	amplification := metric(t, h, "edgehub_write_amplification")
	if log < n*100 || meta == 0 || amplification < 1 || amplification > 2 {
		t.Errorf("log %.0f, meta %.0f, index %.0f bytes: amplification %.2f", log, meta, index, amplification)
	}
	t.Logf("%d messages: log %.0f, meta %.0f, index %.0f, by the kernel's count %.0f bytes: amplification %.2f", n, log, meta, index, os, amplification)
}
