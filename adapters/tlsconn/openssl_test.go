package tlsconn

import (
	"bufio"
	"crypto/tls"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// openssl connects s_client, whose lines K and R are commands.
func openssl(t *testing.T, s *server, args ...string) (in io.WriteCloser, lines chan string) {
	t.Helper()
	path, err := exec.LookPath("openssl")
	if err != nil {
		t.Skip("openssl is not installed")
	}
	cmd := exec.CommandContext(t.Context(), path, append([]string{"s_client", "-connect", s.addr}, args...)...)
	in, err = cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, both := io.Pipe()
	cmd.Stdout, cmd.Stderr = both, both
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = out.Close()
		_ = cmd.Wait()
	})
	lines = make(chan string)
	go func() {
		defer close(lines)
		for sc := bufio.NewScanner(out); sc.Scan(); {
			select {
			case lines <- sc.Text():
			case <-t.Context().Done():
				return
			}
		}
	}()
	return in, lines
}

// say sends a line and waits for one; false when the connection ends. A command has an answer of its own; what is sent
// before it has come would be taken for a part of the command.
func say(t *testing.T, in io.Writer, lines chan string, text, want string) bool {
	t.Helper()
	if _, err := io.WriteString(in, text+"\n"); err != nil {
		return false
	}
	late := time.After(20 * time.Second)
	for {
		select {
		case line, ok := <-lines:
			if !ok || line == want {
				return ok
			}
		case <-late:
			t.Fatalf("no %q within 20 s", want)
		}
	}
}

// Keys are renewed in mid-stream, asked for by the client, with and without the server's own.
func TestKeyUpdate(t *testing.T) {
	s := serve(t, setup{})
	in, lines := openssl(t, s, "-tls1_3")
	if !say(t, in, lines, "before", "before") {
		t.Fatal("no connection")
	}
	for _, command := range []string{"K", "k", "K", "K", "k"} {
		text := "after " + strings.Repeat(command, 3000)
		if !say(t, in, lines, command, "KEYUPDATE") || !say(t, in, lines, text, text) {
			t.Fatalf("the connection ended at %s", command)
		}
	}
	if s.ln.Stats.Broken.Load() != 0 {
		t.Error("a record was taken for broken")
	}
}

// Renegotiation, which TLS 1.2 has, is refused.
func TestRenegotiation(t *testing.T) {
	s := serve(t, setup{server: func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }})
	in, lines := openssl(t, s, "-tls1_2")
	if !say(t, in, lines, "before", "before") {
		t.Fatal("no connection")
	}
	if _, err := io.WriteString(in, "R\n"); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return s.closed.Load() == 1 })
}
