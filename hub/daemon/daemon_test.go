package daemon

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hub.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Everything that ends before the hub is opened: the exit code, and what is said where.
func TestCommandLine(t *testing.T) {
	good, bad := write(t, "[hub]\nid = \"h1\"\n"), write(t, "[hub]\nidd = \"h1\"\n[log]\nlevle = \"info\"\n")
	for _, c := range []struct {
		name           string
		args           []string
		code           int
		stdout, stderr string // exact, or a part of it
		lines          int    // on stderr; -1: any number
	}{
		{"version", []string{"-version"}, ExitDone, "hubd 1.2.3\n", "", 0},
		{"help", []string{"-h"}, ExitDone, "", "-config FILE", -1},
		{"unknown flag", []string{"-nonsense"}, ExitUsage, "", "-nonsense", -1},
		{"argument", []string{good}, ExitUsage, "", "hubd: unexpected argument", 1},
		{"good file", []string{"-check", "-config", good}, ExitDone, "", "", 0},
		{"two mistakes, two lines", []string{"-check", "-config", bad}, ExitUsage, "", "hubd: " + bad + ":2: ", 2},
		{"bad file, not only checked", []string{"-config", bad}, ExitUsage, "", "hubd: " + bad + ":4: ", 2},
		{"missing file", []string{"-config", good + ".not"}, ExitUsage, "", "hubd: ", 1},
		{"built-in configuration", []string{"-check"}, ExitDone, "", "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := Run(Env{Args: c.args, Stdout: &stdout, Stderr: &stderr, Version: "1.2.3"})
			if code != c.code || stdout.String() != c.stdout || !strings.Contains(stderr.String(), c.stderr) {
				t.Errorf("exit %d, stdout %q, stderr %q", code, stdout.String(), stderr.String())
			}
			if n := strings.Count(stderr.String(), "\n"); c.lines >= 0 && n != c.lines {
				t.Errorf("%d lines on stderr, want %d: %q", n, c.lines, stderr.String())
			}
		})
	}
}

// TestStopIsBounded: a part that never ends does not keep the daemon.
func TestStopIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var errs bytes.Buffer
		env := Env{Stderr: &errs}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began, forever := time.Now(), make(chan struct{})
		code := env.serve(ctx, func(context.Context) error { <-forever; return nil })
		close(forever)
		if code != ExitFailed || time.Since(began) != stopMax || !strings.Contains(errs.String(), "did not finish") {
			t.Fatalf("code %d after %v: %s", code, time.Since(began), errs.String())
		}
	})
}
