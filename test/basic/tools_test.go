package basic

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"edgehub/test/harness"
	"edgehub/test/harness/hubtest"
)

// client finds a program of Debian's mosquitto-clients.
func client(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed (Debian: apt install mosquitto-clients)", name)
	}
	return path
}

// mosquitto prepares a mosquitto client for the server at addr.
func mosquitto(ctx context.Context, t *testing.T, name, addr, version string, args ...string) *exec.Cmd {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, client(t, name), append([]string{"-h", host, "-p", port, "-V", version}, args...)...)
	cmd.WaitDelay = time.Second
	return cmd
}

func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s%s", cmd.Args, err, out, stderr.Bytes())
	}
	return string(out)
}

func TestMosquittoClients(t *testing.T) {
	addr := serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	for _, version := range []string{"mqttv311", "mqttv5"} {
		for qos := range 3 {
			topic := fmt.Sprintf("m/%s/%d", version, qos)
			want := fmt.Sprintf("hello %s %d", version, qos)
			// A retained message needs no subscriber that is there first.
			run(t, mosquitto(ctx, t, "mosquitto_pub", addr, version, "-t", topic, "-q", fmt.Sprint(qos), "-r", "-m", want))
			got := run(t, mosquitto(ctx, t, "mosquitto_sub", addr, version, "-t", topic, "-q", fmt.Sprint(qos), "-C", "1", "-W", "10", "-F", "%t %q %r %p"))
			if line := fmt.Sprintf("%s %d 1 %s\n", topic, qos, want); got != line {
				t.Errorf("%s QoS %d: got %q, want %q", version, qos, got, line)
			}
		}
	}
}

// TestMosquittoSession leaves a session behind and comes back for the rest.
func TestMosquittoSession(t *testing.T) {
	addr := serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	for _, version := range []string{"mqttv311", "mqttv5"} {
		session := []string{"-i", "back-" + version, "-c", "-q", "2", "-t", "ms/#"}
		run(t, mosquitto(ctx, t, "mosquitto_sub", addr, version, append(session, "-E")...))
		for i := range 3 {
			run(t, mosquitto(ctx, t, "mosquitto_pub", addr, version, "-t", "ms/1", "-q", "2", "-m", fmt.Sprint(i)))
		}
		got := run(t, mosquitto(ctx, t, "mosquitto_sub", addr, version, append(session, "-C", "3", "-W", "10")...))
		if got != "0\n1\n2\n" {
			t.Errorf("%s: got %q", version, got)
		}
	}
}

// line is what `hubctl tail` prints.
type line struct {
	Stream  string `json:"stream"`
	Topic   string `json:"topic"`
	Payload string `json:"payload"`
	QoS     int    `json:"qos"`
	Retain  bool   `json:"retain"`
	Offset  *int64 `json:"offset"`
}

func tail(t *testing.T, h *harness.Hub, args ...string) []line {
	t.Helper()
	out, err := h.Ctl(t.Context(), append([]string{"tail", "main", "--from", "earliest", "--no-follow", "-o", "json"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	var lines []line
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var l line
		if err := dec.Decode(&l); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		lines = append(lines, l)
	}
	return lines
}

// TestHubctlPubTail is the two-command promise of the README.
func TestHubctlPubTail(t *testing.T) {
	h := serveHub(t)
	if _, err := h.Ctl(t.Context(), "pub", "devices/1/telemetry", "21.5", "--qos", "1"); err != nil {
		t.Fatal(err)
	}
	got := tail(t, h, "-n", "1")
	if len(got) != 1 || got[0].Offset == nil || *got[0].Offset != 0 {
		t.Fatalf("got %+v", got)
	}
	got[0].Offset = nil
	if want := (line{Stream: "main", Topic: "devices/1/telemetry", Payload: "21.5", QoS: 1}); got[0] != want {
		t.Errorf("got %+v, want %+v", got[0], want)
	}
	if _, err := exec.LookPath("mosquitto_pub"); err == nil {
		host, port, _ := net.SplitHostPort(h.Addr())
		run(t, exec.Command("mosquitto_pub", "-h", host, "-p", port, "-t", "devices/1/telemetry", "-q", "1", "-m", "21.6"))
		if got := tail(t, h); len(got) != 2 || got[1].Payload != "21.6" {
			t.Errorf("after mosquitto_pub: %+v", got)
		}
	}
	// Subscribers see what hubctl publishes.
	sub := hubtest.Dial(t, h.Addr(), clean("sub", 5))
	sub.Sub("devices/#", 1)
	if _, err := h.Ctl(t.Context(), "pub", "devices/2/telemetry", "on", "--qos", "1", "--retain"); err != nil {
		t.Fatal(err)
	}
	sub.Want("devices/2/telemetry", "on", 1)
	late := hubtest.Dial(t, h.Addr(), clean("late", 5))
	late.Sub("devices/2/+", 1)
	if p := late.Want("devices/2/telemetry", "on", 1); !p.Retain {
		t.Error("not retained")
	}
	if got := tail(t, h, "--topic", "devices/2/#"); len(got) != 1 || !got[0].Retain {
		t.Errorf("tail with a filter: %+v", got)
	}
}

func TestHubctlStatus(t *testing.T) {
	h := serveHub(t)
	c := hubtest.Dial(t, h.Addr(), kept("one", 5))
	c.Sub("a/#", 1)
	c.Pub("a/b", "x", 1)
	c.Want("a/b", "x", 1)
	st, err := h.Status()
	if err != nil {
		t.Fatal(err)
	}
	if st.Hub != "edge-test" || len(st.Instance) != 32 || st.Connections != 1 || st.Sessions != 1 || st.Health.State != "ok" {
		t.Errorf("%+v", st)
	}
	if _, n := st.Next("main"); n != 1 {
		t.Errorf("main has %d records: %+v", n, st.Streams)
	}
	out, err := h.Ctl(t.Context(), "client", "ls", "-o", "json")
	if err != nil || !bytes.Contains(out, []byte(`"one"`)) {
		t.Errorf("client ls: %s, %v", out, err)
	}
	for _, args := range [][]string{{"status"}, {"stream", "ls"}, {"stream", "show", "main"}, {"client", "ls"}, {"uplink", "ls"}, {"config", "show"}, {"version"}} {
		if out, err := h.Ctl(t.Context(), args...); err != nil || len(out) == 0 && args[0] != "uplink" {
			t.Errorf("%v: %q, %v", args, out, err)
		}
	}
	for _, tt := range []struct {
		exit int
		args []string
	}{
		{1, []string{"stream", "show", "nowhere"}},
		{1, []string{"uplink", "show", "nowhere"}},
		{2, []string{"pub", "a/#", "x", "--qos", "1"}},
		{2, []string{"stream"}},
		{2, []string{"nonsense"}},
		{2, []string{"status", "--nonsense"}},
	} {
		_, err := h.Ctl(t.Context(), tt.args...)
		var ce *harness.CtlError
		if !errors.As(err, &ce) || ce.Exit != tt.exit || strings.Count(strings.TrimSpace(ce.Stderr), "\n") != 0 {
			t.Errorf("%v: %v, want exit %d and one line", tt.args, err, tt.exit)
		}
	}
}
