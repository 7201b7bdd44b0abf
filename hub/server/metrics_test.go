package server

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"edgehub/internal/certs/certstest"
	"edgehub/test/harness"
	"edgehub/test/harness/hubtest"
)

func TestMain(m *testing.M) { hubtest.Main(m) }

// The reference is what the tables give now.
func TestMetricsReferenceIsFresh(t *testing.T) {
	got, err := os.ReadFile("../../docs/METRICS.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != MetricsReference() {
		t.Error("docs/METRICS.md is stale: run `make generate`")
	}
}

// What a hub says at /metrics keeps Prometheus' conventions, and is what the reference lists: every name with its type,
// and no other.
func TestMetricsOfAHub(t *testing.T) {
	ca, dir, until := certstest.NewCA(t, "plant"), t.TempDir(), time.Now().Add(time.Hour)
	cert := ca.Issue(t, "localhost", until)
	certFile, keyFile := certstest.Write(t, &cert, dir, "server")
	h := hubtest.Start(t, func(c *harness.Config) {
		c.Uplinks = []harness.Uplink{{Name: "nowhere", URL: "nats://127.0.0.1:1", Streams: []string{"main"}}}
		for _, extra := range []string{"protocol = \"websocket\"", fmt.Sprintf("tls = { cert_file = %q, key_file = %q }", certFile, keyFile)} {
			addr, err := harness.FreeAddr()
			if err != nil {
				t.Fatal(err)
			}
			c.Additional += fmt.Sprintf("[[listener]]\naddress = %q\n%s\n", addr, extra)
		}
	})
	resp, err := http.Get("http://" + h.Config.AdminAddr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.New(bytes.NewReader(text)).Lint() // reads it as Prometheus does, and applies promtool's rules
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "edgehub_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	said := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (edgehub_\w+) (\w+)$`).FindAllStringSubmatch(string(text), -1) {
		said[m[1]] = m[2]
	}
	listed := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(edgehub_\\w+)` \\| (\\w+) \\| (\\w*) \\|").FindAllStringSubmatch(MetricsReference(), -1) {
		listed[m[1]] = m[2]
		if unit := m[3]; unit != "" && !strings.Contains(m[1], "_"+unit) {
			t.Errorf("%s does not name its unit, %s", m[1], unit)
		}
		if (m[2] == "counter") != strings.HasSuffix(m[1], "_total") {
			t.Errorf("%s is a %s", m[1], m[2])
		}
	}
	if !maps.Equal(said, listed) || len(said) < 50 {
		t.Errorf("/metrics has %v\nthe reference lists %v", said, listed)
	}
}
