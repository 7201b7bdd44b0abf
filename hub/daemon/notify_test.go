package daemon

import (
	"context"
	"net"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// patient is a hub that serves when it is told to, and may hang.
type patient struct {
	started chan struct{}
	alive   chan bool
}

func (p *patient) Started() <-chan struct{} { return p.started }
func (p *patient) Alive(ctx context.Context) bool {
	select {
	case a := <-p.alive:
		return a
	case <-ctx.Done():
		return false
	}
}

func TestNotify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close() }()
	heard := func() string {
		t.Helper()
		_ = socket.SetReadDeadline(time.Now().Add(30 * time.Second))
		buf := make([]byte, 256)
		n, err := socket.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		return string(buf[:n])
	}
	env := map[string]string{"NOTIFY_SOCKET": path, "WATCHDOG_USEC": strconv.Itoa(200_000)}
	hub := &patient{started: make(chan struct{}), alive: make(chan bool, 2)}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		newNotifier(func(k string) string { return env[k] }).run(ctx, hub)
	}()
	close(hub.started)
	if got := heard(); got != "READY=1\nSTATUS=serving" {
		t.Fatalf("%q", got)
	}
	hub.alive <- false // says nothing
	hub.alive <- true
	if got := heard(); got != "WATCHDOG=1" {
		t.Fatalf("%q", got)
	}
	if len(hub.alive) != 0 {
		t.Error("the watchdog spoke although the hub was not alive")
	}
	stop()
	if got := heard(); got != "STOPPING=1\nSTATUS=syncing" {
		t.Fatalf("%q", got)
	}
	<-done
}

// Without systemd, and with a socket that is not there, nothing happens.
func TestNobodyToNotify(t *testing.T) {
	for _, socket := range []string{"", filepath.Join(t.TempDir(), "none"), "@edgehub-test-none"} {
		n := newNotifier(func(k string) string {
			if k == "NOTIFY_SOCKET" {
				return socket
			}
			return ""
		})
		if n.conn != nil {
			t.Errorf("%q: connected", socket)
		}
		n.run(t.Context(), &patient{})
	}
}
