package e2e

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgehub/test/harness/site"
)

// TestLibmosquitto: a program in C over libmosquitto, all versions, plain, TLS and with a certificate.
func TestLibmosquitto(t *testing.T) {
	if _, err := os.Stat("/usr/include/mosquitto.h"); err != nil {
		t.Skip("no header of libmosquitto (Debian: apt install gcc libmosquitto-dev)")
	}
	program := filepath.Join(t.TempDir(), "client")
	if out, err := exec.CommandContext(t.Context(), "gcc", "-Wall", "-Wextra", "-o", program, "testdata/client.c", "-lmosquitto").CombinedOutput(); err != nil {
		t.Skipf("testdata/client.c was not compiled (Debian: apt install gcc libc6-dev libmosquitto-dev): %v\n%s", err, out)
	}
	s := site.New(t, site.Options{})
	for name, c := range map[string]struct {
		addr  string
		files []string
	}{
		"tcp":        {s.Addr(), nil},
		"tls":        {s.TLS, []string{s.CAFile}},
		"mutual tls": {s.Mutual, []string{s.CAFile, s.ClientCert, s.ClientKey}},
	} {
		for version, number := range map[string]string{"3.1": "3", "3.1.1": "4", "5": "5"} {
			t.Run(name+" "+version, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				_, port, err := net.SplitHostPort(c.addr)
				must(t, err)
				prefix := strings.ReplaceAll("c "+name+" "+version, " ", "-")
				cmd := exec.CommandContext(ctx, program, append([]string{number, "localhost", port, prefix}, c.files...)...)
				cmd.WaitDelay = time.Second
				if out, err := cmd.CombinedOutput(); err != nil || !strings.HasSuffix(string(out), "done\n") {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
	}
}
