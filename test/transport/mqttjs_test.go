package transport

import (
	"context"
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgehub/test/harness/site"
)

// mqttJS is the version that is fetched from npm, into a folder of its own.
const mqttJS = "mqtt@5.14.1"

// e2eEnv allows what needs the network: `make e2e` sets it.
const e2eEnv = "HUB_TEST_E2E"

//go:embed testdata/mqttjs.mjs
var script []byte

// TestMQTTJS: MQTT.js over every transport it has, in every version: both ways, retained messages, wills, sessions,
// properties, reasons.
func TestMQTTJS(t *testing.T) {
	if os.Getenv(e2eEnv) == "" {
		t.Skip("fetches MQTT.js from npm: `make e2e` runs it")
	}
	for _, name := range []string{"node", "npm"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is not installed (Debian: apt install nodejs npm)", name)
		}
	}
	dir := installed(t)
	if err := os.WriteFile(filepath.Join(dir, "mqttjs.mjs"), script, 0o600); err != nil {
		t.Fatal(err)
	}
	s := &suite{site.New(t, site.Options{WSMax: 100})}
	for name, args := range map[string][]string{
		"tcp":         {"mqtt://" + s.Addr()},
		"tls":         {"mqtts://" + s.TLS, s.CAFile},
		"mutual":      {"mqtts://" + s.Mutual, s.CAFile, s.ClientCert, s.ClientKey},
		"ws":          {"ws://" + s.WS + "/mqtt"},
		"ws, no path": {"ws://" + s.WS},
		"wss":         {"wss://" + s.WSS + "/mqtt", s.CAFile},
		"wss, mutual": {"wss://" + s.MutualWS + "/mqtt", s.CAFile, s.ClientCert, s.ClientKey},
	} {
		for _, version := range []string{"3", "4", "5"} {
			t.Run(name+" version "+version, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, "node", append([]string{"mqttjs.mjs", version}, args...)...)
				cmd.Dir, cmd.WaitDelay = dir, time.Second
				out, err := cmd.CombinedOutput()
				if err != nil || !strings.HasSuffix(string(out), "done\n") {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
	}
}

// installed is a folder with MQTT.js; it is kept for the next time.
func installed(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = t.TempDir()
	}
	dir := filepath.Join(cache, "edgehub-e2e", strings.ReplaceAll(mqttJS, "@", "-"))
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "mqtt", "package.json")); err == nil {
		return dir
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", "install", "--no-audit", "--no-fund", "--no-save", mqttJS)
	cmd.Dir, cmd.WaitDelay = dir, time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("npm cannot fetch %s: %v\n%s", mqttJS, err, out)
	}
	return dir
}
