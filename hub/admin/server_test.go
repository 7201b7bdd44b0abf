package admin

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"edgehub/hub/admin/admintest"
	"edgehub/hub/admin/api"
)

// fixture is a server on a real socket and a real port, and a client of it.
type fixture struct {
	t      *testing.T
	hub    *admintest.Hub
	server *Server
	socket string
	client *http.Client
	served chan error
}

func socketPath(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "hubd.sock")
}

func start(t *testing.T, adjust ...func(*Server)) *fixture {
	t.Helper()
	return startHub(t, func(h *admintest.Hub) Hub { return h }, adjust...)
}

// startHub serves what wrap makes of the sample hub.
func startHub(t *testing.T, wrap func(*admintest.Hub) Hub, adjust ...func(*Server)) *fixture {
	t.Helper()
	f := &fixture{t: t, hub: admintest.Sample(), socket: socketPath(t), served: make(chan error, 1)}
	var err error
	if f.server, err = Listen(Options{Socket: f.socket, Address: "127.0.0.1:0", PayloadBytesMax: 1000}); err != nil {
		t.Fatal(err)
	}
	for _, a := range adjust {
		a(f.server)
	}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(NewStatusCollector(f.hub))
	go func() {
		f.served <- f.server.Serve(Backend{Hub: wrap(f.hub), Uplinks: f.hub, Health: f.hub, Metrics: reg})
	}()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", f.socket)
	}}
	f.client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := f.server.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if err := <-f.served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return f
}

func (f *fixture) do(method, path, body string) (int, string) {
	f.t.Helper()
	req, err := http.NewRequest(method, "http://hub"+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	resp, err := f.client.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestAnswers(t *testing.T) {
	f := start(t)
	long := strings.Repeat("x", 1001)
	for _, c := range []struct {
		method, path, body string
		code               int
		want               string
	}{
		{"GET", "/v1/status", "", 200, `"dropped":{"expired":0,"qos0_outbound_full":0,"retention":12}`},
		{"GET", "/v1/status", "", 200, `{"name":"main","configured":true,"durability":"written","partitions":[{"partition":0,"lane":0,"first_offset":0,"next_offset":0,"synced_offset":0,"bytes":0,"segments":0,"damaged_ranges":0}]}`},
		{"GET", "/v1/status", "", 200, `"last_error_s":45,"recovered":false`},
		{"GET", "/v1/status", "", 200, `"last_error_at":"2023-11-14T22:14:10.000Z"`},
		{"GET", "/v1/streams/telemetry", "", 200, `"filters":["devices/+/telemetry"]`},
		{"GET", "/v1/streams/audit-2025", "", 200, `"filters":[]`},
		{"GET", "/v1/streams/telemtry", "", 404, `{"error":{"code":"not_found","message":"no stream \"telemtry\"; did you mean \"telemetry\"?"}}`},
		{"GET", "/v1/streams/zzz", "", 404, `there is telemetry, audit-2025, main`},
		{"GET", "/v1/clients", "", 200, `"client_id":"dev-1"`},
		{"GET", "/v1/config", "", 200, `{"key":"limits.max_packet_bytes","value":"\"1MiB\"","default":true}`},
		{"GET", "/v1/uplinks/cloud", "", 200, `"acked":{"telemetry/0-0":41,"telemetry/1-0":1249999}`},
		{"GET", "/v1/uplinks/clout", "", 404, `did you mean \"cloud\"?`},
		{"POST", "/v1/uplinks/cloud/pause", "", 200, `"state":"paused"`},
		{"POST", "/v1/uplinks/cloud/resume", "", 200, `"state":"probe"`},
		{"POST", "/v1/uplinks/nothing/pause", "", 404, `"not_found"`},
		{"POST", "/v1/uplinks/lab/acknowledge", "", 200, `"lost_unseen":0`},
		{"POST", "/v1/uplinks/cloud/skip", `{"partition":"telemetry/0","offset":-1}`, 200, `"pending":[{"partition":"telemetry/0","action":"skip","offset":-1}]`},
		{"POST", "/v1/uplinks/cloud/rewind", `{"partition":"telemetry/0","offset":3}`, 200, `"action":"rewind","offset":3`},
		{"POST", "/v1/uplinks/cloud/rewind", `{`, 400, `"invalid"`},
		{"POST", "/v1/uplinks/nothing/skip", `{}`, 404, `"not_found"`},
		{"POST", "/v1/publish", `{"topic":"a/b","payload":"21.5","qos":1}`, 200, `{"stream":"main","partition":0,"lane":0,"offset":0}`},
		{"POST", "/v1/publish", `{"topic":"a/b","payload_base64":"/w==","qos":2,"retain":true}`, 200, `"offset":1`},
		{"POST", "/v1/publish", `{"topic":"a/#","payload":"x"}`, 400, `"invalid"`},
		{"POST", "/v1/publish", `{"topic":"","payload":"x"}`, 400, `"invalid"`},
		{"POST", "/v1/publish", `{"topic":"a","payload":"x","qos":3}`, 400, `qos 3: it is 0, 1 or 2`},
		{"POST", "/v1/publish", `{"topic":"a","payload":"x","payload_base64":"eA=="}`, 400, `exclude each other`},
		{"POST", "/v1/publish", `{"topic":`, 400, `not the JSON`},
		{"POST", "/v1/publish", `{"topic":"a","payload":"` + long + `"}`, 413, `the payload has 1001 bytes, limits.max_packet_bytes allows 1000`},
		{"POST", "/v1/publish", strings.Repeat(" ", 1<<20), 413, `limits.max_packet_bytes`},
		{"GET", "/v1/publish", "", 405, ``},
		{"GET", "/v1/nothing", "", 404, ``},
		{"GET", "/v1/streams/zzz/records", "", 404, `no stream`},
		{"GET", "/v1/streams/telemetry/records?from=5", "", 400, `add --partition P`},
		{"GET", "/v1/streams/telemetry/records?from=soon", "", 400, `neither earliest`},
		{"GET", "/v1/streams/telemetry/records?partition=9", "", 404, `its partitions are 0 to 1`},
		{"GET", "/v1/streams/telemetry/records?partition=x", "", 400, `hubctl stream show`},
		{"GET", "/v1/streams/telemetry/records?partition=0&from=43", "", 400, `whose next offset is 42`},
		{"GET", "/v1/streams/telemetry/records?topic=a%23", "", 400, `topic filter`},
		{"GET", "/v1/streams/telemetry/records?n=0", "", 400, `1 or more`},
		{"GET", "/v1/streams/telemetry/records?follow=maybe", "", 400, `neither true nor false`},
		{"GET", "/healthz", "", 200, `{"state":"degraded","reasons":[{"what":"stream telemetry","why":"2 damaged ranges","cure":"hubctl stream verify telemetry"}`},
		{"GET", "/readyz", "", 200, `{"ready":true,"reasons":[]}`},
	} {
		code, body := f.do(c.method, c.path, c.body)
		if code != c.code || !strings.Contains(body, c.want) {
			t.Errorf("%s %s %.60s: got %d %s; want %d with %s", c.method, c.path, c.body, code, body, c.code, c.want)
		}
	}
}

func TestHubErrorsReachTheClient(t *testing.T) {
	f := start(t)
	for _, c := range []struct {
		err  error
		code int
		want string
	}{
		{api.Unavailable("the disk is full; free some space"), 503, `{"error":{"code":"unavailable","message":"the disk is full; free some space"}}`},
		{fmt.Errorf("stream main: %w", api.Conflict("paused")), 409, `{"error":{"code":"conflict","message":"paused"}}`},
		{errors.New("write: input/output error"), 500, `{"error":{"code":"internal","message":"write: input/output error"}}`},
		{context.DeadlineExceeded, 503, `not committed within 30s`},
	} {
		f.hub.Fail(c.err)
		if code, body := f.do("POST", "/v1/publish", `{"topic":"a","payload":""}`); code != c.code || !strings.Contains(body, c.want) {
			t.Errorf("%v: got %d %s; want %d %s", c.err, code, body, c.code, c.want)
		}
	}
}

func TestPublishTimeout(t *testing.T) {
	f := start(t, func(s *Server) { s.publishTimeout = 20 * time.Millisecond })
	f.hub.Block(true)
	if code, body := f.do("POST", "/v1/publish", `{"topic":"a","payload":""}`); code != 503 || !strings.Contains(body, "not committed within 20ms") {
		t.Errorf("got %d %s", code, body)
	}
}

func TestHealthAndReadiness(t *testing.T) {
	f := start(t)
	f.hub.SetNotReady(api.Reason{What: "storage", Why: "recovering", Cure: "wait"})
	f.hub.Update(func(st *api.Status) { st.Health.State = api.HealthFailed })
	for _, base := range []string{"", "http://" + f.server.Addr()} {
		for path, want := range map[string]string{
			"/readyz":  `{"ready":false,"reasons":[{"what":"storage","why":"recovering","cure":"wait"}]}`,
			"/healthz": `{"state":"failed","reasons":[`,
		} {
			var code int
			var body string
			if base == "" {
				code, body = f.do("GET", path, "")
			} else {
				code, body, _ = get(t, base+path)
			}
			if code != 503 || !strings.HasPrefix(body, want) {
				t.Errorf("%s%s: %d %s", base, path, code, body)
			}
		}
	}
}

func get(t *testing.T, url string) (int, string, http.Header) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b), resp.Header
}

func TestPublicAddressGivesNothingAway(t *testing.T) {
	f := start(t)
	base := "http://" + f.server.Addr()
	for _, path := range []string{"/v1/status", "/v1/clients", "/v1/config", "/v1/streams/telemetry/records", "/debug/pprof/", "/web/index.html"} {
		if code, body, _ := get(t, base+path); code != 404 {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if resp, err := http.Post(base+"/v1/publish", "application/json", strings.NewReader("{}")); err != nil || resp.StatusCode != 404 {
		t.Errorf("publish by TCP: %v %v", resp, err)
	}
	for path, want := range map[string]string{"/": "text/html", "/status.js": "text/javascript", "/status.css": "text/css"} {
		code, body, header := get(t, base+path)
		if code != 200 || !strings.HasPrefix(header.Get("Content-Type"), want) || !strings.Contains(header.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s: %d %v", path, code, header)
		}
		for _, foreign := range []string{"http://", "https://", "//cdn", "@import", "innerHTML"} {
			if strings.Contains(body, foreign) {
				t.Errorf("%s refers to %q", path, foreign)
			}
		}
	}
}

func TestMetrics(t *testing.T) {
	f := start(t)
	code, body, _ := get(t, "http://"+f.server.Addr()+"/metrics")
	if code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		kind   dto.MetricType
		labels map[string]string
		want   float64
	}{
		{"edgehub_build_info", dto.MetricType_GAUGE, map[string]string{"version": "0.1.0", "hub": "edge-1"}, 1},
		{"edgehub_start_time_seconds", dto.MetricType_GAUGE, nil, 1.7e9},
		{"edgehub_connections", dto.MetricType_GAUGE, nil, 3},
		{"edgehub_health", dto.MetricType_GAUGE, map[string]string{"state": "degraded"}, 1},
		{"edgehub_health", dto.MetricType_GAUGE, map[string]string{"state": "ok"}, 0},
		{"edgehub_messages_received_total", dto.MetricType_COUNTER, nil, 1234567},
		{"edgehub_messages_dropped_total", dto.MetricType_COUNTER, map[string]string{"reason": "retention"}, 12},
		{"edgehub_messages_dropped_total", dto.MetricType_COUNTER, map[string]string{"reason": "expired"}, 0},
		{"edgehub_partition_next_offset", dto.MetricType_GAUGE, map[string]string{"stream": "telemetry", "partition": "1", "lane": "0"}, 1250000},
		{"edgehub_partition_damaged_ranges", dto.MetricType_GAUGE, map[string]string{"stream": "telemetry", "partition": "1"}, 2},
		{"edgehub_uplink_connected", dto.MetricType_GAUGE, map[string]string{"uplink": "lab", "kind": "jetstream"}, 0},
		{"edgehub_uplink_state", dto.MetricType_GAUGE, map[string]string{"uplink": "lab", "state": "backoff"}, 1},
		{"edgehub_uplink_lag_messages", dto.MetricType_GAUGE, map[string]string{"uplink": "lab"}, 1250042},
		{"edgehub_uplink_lost_total", dto.MetricType_COUNTER, map[string]string{"uplink": "lab", "reason": "retention"}, 1200},
		{"edgehub_uplink_lost_total", dto.MetricType_COUNTER, map[string]string{"uplink": "cloud", "reason": "skipped"}, 0},
		{"edgehub_uplink_stuck_partitions", dto.MetricType_GAUGE, map[string]string{"uplink": "lab"}, 1},
		{"edgehub_uplink_delivered_total", dto.MetricType_COUNTER, map[string]string{"uplink": "cloud"}, 50},
	} {
		got, ok := sample(families[c.name], c.labels)
		if !ok || got != c.want || families[c.name].GetType() != c.kind {
			t.Errorf("%s%v: got %v (%v), want %v %v", c.name, c.labels, got, ok, c.kind, c.want)
		}
		if families[c.name].GetHelp() == "" {
			t.Errorf("%s has no help", c.name)
		}
	}
}

func sample(family *dto.MetricFamily, labels map[string]string) (float64, bool) {
	for _, m := range family.GetMetric() {
		have := map[string]string{}
		for _, l := range m.GetLabel() {
			have[l.GetName()] = l.GetValue()
		}
		match := true
		for k, v := range labels {
			match = match && have[k] == v
		}
		if match {
			return m.GetGauge().GetValue() + m.GetCounter().GetValue(), true
		}
	}
	return 0, false
}

// tail opens a tail and returns its lines and the way to end it.
func (f *fixture) tail(query string) (*bufio.Scanner, func()) {
	f.t.Helper()
	resp, err := f.client.Get("http://hub/v1/streams/main/records?" + query)
	if err != nil {
		f.t.Fatal(err)
	}
	if resp.StatusCode != 200 {
		f.t.Fatalf("tail: %s", resp.Status)
	}
	sc := bufio.NewScanner(resp.Body)
	sc.Buffer(nil, 1<<20)
	return sc, func() { _ = resp.Body.Close() }
}

func offsets(n int) []api.Record {
	records := make([]api.Record, n)
	for i := range records {
		records[i] = api.Record{Stream: "main", Offset: int64(i), Topic: fmt.Sprintf("a/%d", i%2), Payload: bytes.Repeat([]byte("p"), 100), Time: api.Millis(1000 + i)}
	}
	return records
}

func TestTailSelects(t *testing.T) {
	f := start(t)
	f.hub.Add("main", offsets(1000)...)
	for query, want := range map[string]struct{ first, count int64 }{
		"from=earliest&follow=false":                                      {0, 1000},
		"from=earliest&n=10":                                              {0, 10},
		"from=earliest&follow=false&topic=a/1":                            {1, 500},
		"from=1970-01-01T00:00:01.500Z&follow=false":                      {500, 500},
		"from=0&partition=0&follow=false&n=3":                             {0, 3},
		"from=latest&follow=false":                                        {-1, 0},
		"from=earliest&follow=false&topic=" + "%23":                       {0, 1000},
		"from=earliest&follow=false&topic=" + "%2B/0" + "&n=" + "1000000": {0, 500},
	} {
		lines, end := f.tail(query)
		first, count := int64(-1), int64(0)
		for lines.Scan() {
			rec, err := api.StreamLine(lines.Bytes())
			if err != nil {
				t.Fatalf("%s: %v", query, err)
			}
			if count == 0 {
				first = rec.Offset
			}
			count++
		}
		end()
		if lines.Err() != nil || first != want.first || count != want.count {
			t.Errorf("%s: first %d, %d records, %v; want %+v", query, first, count, lines.Err(), want)
		}
	}
}

// A tail lives longer than the timeouts of ordinary requests, sends what arrives at
// once, and is told when the hub stops.
func TestTailFollowsUntilTheHubStops(t *testing.T) {
	f := start(t, func(s *Server) { s.requestTimeout = 50 * time.Millisecond })
	lines, end := f.tail("from=latest")
	defer end()
	waitFor(t, func() bool { return f.hub.Tails() == 1 })
	<-time.After(4 * f.server.requestTimeout) // it is the passing of this time that is tested
	for i, rec := range offsets(3) {
		f.hub.Add("main", rec)
		if !lines.Scan() {
			t.Fatalf("record %d: %v", i, lines.Err())
		}
		if got, err := api.StreamLine(lines.Bytes()); err != nil || got.Offset != int64(i) {
			t.Fatalf("record %d: %+v %v", i, got, err)
		}
	}
	stopped := make(chan error, 1)
	go func() { stopped <- f.server.Shutdown(context.Background()) }()
	if !lines.Scan() {
		t.Fatalf("no last line: %v", lines.Err())
	}
	_, err := api.StreamLine(lines.Bytes())
	var e *api.Error
	if !errors.As(err, &e) || e.Code != api.CodeUnavailable {
		t.Errorf("last line: %s", lines.Bytes())
	}
	if lines.Scan() || lines.Err() != nil {
		t.Errorf("the stream did not end properly: %v", lines.Err())
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestTailEndsWithItsReader(t *testing.T) {
	f := start(t)
	_, end := f.tail("from=latest")
	waitFor(t, func() bool { return f.hub.Tails() == 1 })
	end()
	waitFor(t, func() bool { return f.hub.Tails() == 0 })
}

func TestTailFailsWithAnErrorLine(t *testing.T) {
	f := start(t)
	f.hub.Fail(errors.New("partition 0: input/output error"))
	lines, end := f.tail("from=latest")
	defer end()
	if !lines.Scan() {
		t.Fatal(lines.Err())
	}
	if got := lines.Text(); got != `{"error":{"code":"internal","message":"partition 0: input/output error"}}` {
		t.Error(got)
	}
}

// A reader that takes nothing stops the hub's reading after a bounded amount, and
// is let go when it stalls for too long.
func TestTailBackPressureAndStall(t *testing.T) {
	const records, size = 200_000, 1000
	emitted := make(chan int64, 1)
	f := startHub(t, func(h *admintest.Hub) Hub {
		return &firehose{Hub: h, records: records, size: size, emitted: emitted}
	}, func(s *Server) { s.opts.TailStallMax = 300 * time.Millisecond })
	_, end := f.tail("from=earliest")
	defer end()
	n := <-emitted // Tail returned: the stalled writer failed
	if limit := int64(8 << 20); n*size > limit {
		t.Errorf("%d records of %d bytes were read for a reader that takes nothing", n, size)
	}
}

// firehose is a hub whose Tail emits without end.
type firehose struct {
	Hub
	records, size int64
	emitted       chan int64
}

func (h *firehose) Tail(_ context.Context, _ api.TailRequest, emit func(api.Record) error) error {
	rec := api.Record{Stream: "main", Payload: bytes.Repeat([]byte("x"), int(h.size))}
	for rec.Offset < h.records {
		if err := emit(rec); err != nil {
			h.emitted <- rec.Offset
			return err
		}
		rec.Offset++
	}
	h.emitted <- rec.Offset
	return nil
}

func TestTooManyTails(t *testing.T) {
	f := start(t)
	for range tailsMax {
		_, end := f.tail("from=latest")
		defer end()
	}
	if code, body := f.do("GET", "/v1/streams/main/records?from=latest", ""); code != 503 || !strings.Contains(body, "64 tails are running") {
		t.Errorf("%d %s", code, body)
	}
	if code, _ := f.do("GET", "/v1/status", ""); code != 200 {
		t.Errorf("status beside many tails: %d", code)
	}
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("waited for 10 s in vain")
		}
	}
}

func TestStatusJSONIsTheContract(t *testing.T) {
	f := start(t)
	_, body := f.do("GET", "/v1/status", "")
	var got map[string]any
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"hub", "instance", "version", "uptime_s", "connections", "sessions", "subscriptions", "messages_in", "messages_out", "dropped", "health", "streams", "uplinks"} {
		if _, ok := got[key]; !ok {
			t.Errorf("status has no %q", key)
		}
	}
	uplink := got["uplinks"].([]any)[0].(map[string]any)
	for _, key := range []string{"name", "kind", "state", "connected", "lag_messages", "lag_bytes", "lag_age_s", "acked", "last_error", "last_error_at"} {
		if _, ok := uplink[key]; !ok {
			t.Errorf("uplink has no %q", key)
		}
	}
}
