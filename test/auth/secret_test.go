package auth

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"edgehub/test/harness"
	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/mqttc"
)

// centralServer takes clients that log in as edge with that password only.
func centralServer(t *testing.T, password string) string {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(),
		Username: "edge", Password: password, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("the server does not start")
	}
	return s.ClientURL()
}

// Secrets come from files and from the environment, work, and are seen nowhere: not in the configuration that is shown,
// not in what doctor and status say, not in the log at its most talkative, not in errors.
func TestSecretsAreSeenNowhere(t *testing.T) {
	const good, bad, device = "good-hunter2-password", "bad-hunter2-password", "device-hunter2-password"
	url := centralServer(t, good)
	dir := t.TempDir()
	file := filepath.Join(dir, "password")
	if err := os.WriteFile(file, []byte(good+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	users := filepath.Join(dir, "users")
	h := hubtest.New(t, func(c *harness.Config) {
		c.LogLevel = "debug"
		c.Env = []string{"CLOUD_GOOD=" + good, "CLOUD_BAD=" + bad}
		for name, line := range map[string]string{"env": `password_env = "CLOUD_GOOD"`, "file": fmt.Sprintf("password_file = %q", file), "wrong": `password_env = "CLOUD_BAD"`} {
			c.Uplinks = append(c.Uplinks, harness.Uplink{Name: name, URL: url, Streams: []string{"main"},
				Lines: []string{`user = "edge"`, line, fmt.Sprintf("remote_stream = %q", "EDGE-"+name), fmt.Sprintf("subject = %q", name+".{hub}.{topic}")}})
		}
		c.Additional = fmt.Sprintf("[auth]\nusers_file = %q\n", users)
	})
	cmd := h.CtlCommand(t.Context(), "user", "add", "anna", "--file", users)
	cmd.Stdin = strings.NewReader(device + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	hubtest.Dial(t, h.Addr(), mqttc.Connect{Version: 5, ClientID: "right", Clean: true, Username: "anna", Password: device})
	if c, ack, err := mqttc.Dial(h.Addr(), mqttc.Connect{Version: 5, ClientID: "wrong", Clean: true, Username: "anna", Password: device + "x"}); err != nil || ack.Code != badCredentials {
		t.Errorf("%v, %v", ack, err)
	} else {
		c.Abort()
	}
	hubtest.Eventually(t, 30*time.Second, "two uplinks are connected and the third is refused", func() bool {
		st, err := h.Status()
		if err != nil {
			t.Fatal(err)
		}
		env, _ := st.Uplink("env")
		byFile, _ := st.Uplink("file")
		wrong, _ := st.Uplink("wrong")
		return env.Connected && byFile.Connected && strings.Contains(wrong.LastError, "refuses the user")
	})
	if err := h.Process().Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	seen := everythingSaid(t, h)
	if code, err := h.Stop(30 * time.Second); code != 0 || err != nil {
		t.Errorf("exit %d, %v", code, err)
	}
	// A hub that cannot start without its secret names the variable.
	h.Config.Env = nil
	if err := h.Spawn(); err != nil {
		t.Fatal(err)
	}
	if code, err := h.Process().Wait(mqttc.Patience); code != 2 || err != nil || !strings.Contains(h.Output(3), "CLOUD_GOOD") && !strings.Contains(h.Output(3), "CLOUD_BAD") {
		t.Errorf("exit %d, %v: %s", code, err, h.Output(3))
	}
	for line := range strings.Lines(seen) {
		for _, secret := range []string{good, bad, device, "hunter2", "$2a$"} {
			if strings.Contains(line, secret) {
				t.Errorf("%q is seen in %q", secret, line)
			}
		}
	}
}

// everythingSaid is what a hub and hubctl say of it, in every way that there is.
func everythingSaid(t *testing.T, h *harness.Hub) string {
	t.Helper()
	var seen strings.Builder
	for _, args := range [][]string{{"config", "show"}, {"config", "show", "-o", "json"}, {"config", "show", h.ConfigPath}, {"config", "check", h.ConfigPath}, {"config", "reload"},
		{"status"}, {"status", "-o", "json"}, {"uplink", "ls"}, {"uplink", "show", "wrong"}, {"uplink", "show", "env", "-o", "json"}, {"client", "ls", "-o", "json"},
		{"session", "ls"}, {"user", "ls", "-o", "json"}, {"ban", "ls"}, {"doctor"}, {"doctor", "-o", "json"}} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		out, _ := h.CtlCommand(ctx, args...).CombinedOutput() // some fail, as doctor does for the uplink that is refused
		cancel()
		if len(out) == 0 {
			t.Errorf("hubctl %v says nothing", args)
		}
		fmt.Fprintf(&seen, "hubctl %v: %s\n", args, out)
	}
	for _, page := range []string{"/metrics", "/healthz", "/readyz", "/"} {
		fmt.Fprintf(&seen, "%s: %s\n", page, get(t, "http://"+h.Config.AdminAddr+page))
	}
	log, err := os.ReadFile(h.OutputPath())
	if err != nil || !strings.Contains(string(log), "level=DEBUG") {
		t.Errorf("the log is not at level debug: %v", err)
	}
	seen.Write(log)
	return seen.String()
}
