package command_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"edgehub/ctl/command"
	"edgehub/hub/admin/admintest"
)

// terminal opens a pseudo terminal; what is written to keys was typed.
func terminal(t *testing.T) (keys, screen *os.File) {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no pseudo terminals here: ", err)
	}
	t.Cleanup(func() { _ = keys.Close() })
	if err := unix.IoctlSetPointerInt(int(keys.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(keys.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	screen, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = screen.Close() })
	return keys, screen
}

// A person is asked before anything is destroyed, and only y does it; with --yes, and in scripts, nobody is asked.
func TestConfirmation(t *testing.T) {
	socket, _ := serve(t, admintest.Sample())
	users := filepath.Join(t.TempDir(), "users")
	verbs := map[string]string{
		"user rm anna --file " + users: "user \"anna\"", // what is said once it is not there
		"stream delete gone":           "not ready",     // the hub in memory has no such parts
		"session delete dev-1":         "not ready",
		"retained delete a/b":          "not ready",
	}
	for verb, done := range verbs {
		for _, c := range []struct {
			typed, flag string
			asks, acts  bool
		}{{"n\n", "", true, false}, {"\n", "", true, false}, {"y\n", "", true, true}, {"yes\n", "", true, true}, {"", "--yes", false, true}} {
			if err := os.WriteFile(users, []byte("# users\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			keys, screen := terminal(t)
			if _, err := keys.WriteString(c.typed); err != nil {
				t.Fatal(err)
			}
			var out, errOut bytes.Buffer
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			code := command.Run(ctx, command.Env{Args: append(strings.Fields(verb+" "+c.flag), "--socket", socket), Stdin: screen, Stdout: &out, Stderr: &errOut,
				Getenv: func(string) string { return "" }})
			cancel()
			said := errOut.String()
			if code != command.ExitFailed || strings.Contains(said, "[y/N]") != c.asks || strings.Contains(said, "nothing was done") == c.acts ||
				strings.Contains(said, done) != c.acts {
				t.Errorf("%s %s, typed %q: exit %d, %q", verb, c.flag, c.typed, code, said)
			}
		}
	}
}
