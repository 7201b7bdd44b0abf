package footprint

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"edgehub/test/harness"
	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/mqttc"
)

var subscriber = mqttc.Connect{Version: 5, ClientID: "subscriber", Clean: true}

// receive acknowledges and counts what comes, until the connection ends.
func receive(c *hubtest.Client) *atomic.Int64 {
	n := &atomic.Int64{}
	go func() {
		for {
			if _, err := c.Receive(time.Hour); err != nil {
				return
			}
			n.Add(1)
		}
	}()
	return n
}

// metric reads one value of /metrics.
func metric(t *testing.T, h *harness.Hub, name string) int64 {
	t.Helper()
	resp, err := http.Get("http://" + h.Config.AdminAddr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, name+" "); ok {
			f, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
			if err != nil {
				t.Fatal(err)
			}
			return int64(f)
		}
	}
	t.Fatalf("/metrics has no %s", name)
	return 0
}
