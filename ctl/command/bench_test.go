package command_test

import (
	"encoding/json"
	"net"
	"strings"
	"testing"

	"edgehub/ctl/bench"
	"edgehub/ctl/command"
)

func TestBenchWrongCommandLine(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"bench", "bench: give a verb: fan-in, fan-out"},
		{"bench fan", `no verb "fan"`},
		{"bench fan-in x", "one argument too many"},
		{"bench fan-in --mqtt 4", "3.1.1 or 5"},
		{"bench fan-in --size 3", "--size 3; it is 16 to"},
		{"bench fan-in --sub-qos -1", "--sub-qos -1"},
		{"bench fan-in -n 0", "--messages 0"},
		{"bench fan-in --duration -5s", "--duration -5s"},
		{"bench fan-in --hold 5s", "unknown flag: --hold"},
		{"bench fan-in --publisher 5", "did you mean --publishers?"},
		{"bench pairs -s 5", "-s"},
		{"bench idle --qos 1", "unknown flag: --qos"},
		{"bench offline --qos 0", "--qos 1 or 2"},
		{"bench fan-in --broker localhost", "HOST:PORT"},
	} {
		r := hubctl("", strings.Fields(c.args)...)
		if r.code != command.ExitUsage || !strings.Contains(r.errOut, c.want) || strings.Count(r.errOut, "\n") != 1 || r.out != "" {
			t.Errorf("%s: exit %d, stderr %q, stdout %q; want %q", c.args, r.code, r.errOut, r.out, c.want)
		}
	}
}

func TestBenchNobodyListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	r := hubctl("", "bench", "fan-in", "-b", addr, "-n", "10")
	if want := "hubctl: bench fan-in: nobody listens on " + addr + "; start the broker or give its address with --broker\n"; r.code != command.ExitFailed || r.errOut != want {
		t.Errorf("exit %d, stderr %q, want %q", r.code, r.errOut, want)
	}
}

// benchBroker is somebody to connect to: it consents to everything and closes after the goodbye.
func benchBroker(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b := make([]byte, 512)
				if _, err := c.Read(b); err != nil {
					return
				}
				_, _ = c.Write([]byte{0x20, 2, 0, 0})
				_, _ = c.Read(b)
			}()
		}
	}()
	return l.Addr().String()
}

func TestBenchStorm(t *testing.T) {
	addr := benchBroker(t)
	r := hubctl("", "bench", "storm", "-b", addr, "-c", "20", "--label", "mine", "-o", "json", "-q")
	var res bench.Result
	if err := json.Unmarshal([]byte(r.out), &res); r.code != command.ExitDone || err != nil || r.errOut != "" {
		t.Fatalf("exit %d, stderr %q, %v", r.code, r.errOut, err)
	}
	if c := res.Connections; c == nil || c.Connected != 20 || res.Label != "mine" || res.Mode != bench.Storm {
		t.Errorf("%s", r.out)
	}
	r = hubctl("", "bench", "storm", "-b", addr, "-c", "20", "-q")
	for _, want := range []string{"storm, 20 connections", "20 of 20", "DELAY (ms)"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("no %q in:\n%s", want, r.out)
		}
	}
}
