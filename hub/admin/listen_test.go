package admin

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func mustListen(t *testing.T, path string) net.Listener {
	t.Helper()
	l, err := listenSocket(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestSocketModeAndRemoval(t *testing.T) {
	path := socketPath(t)
	l := mustListen(t, path)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o660 || info.Mode()&fs.ModeSocket == 0 {
		t.Fatalf("%v %v", info.Mode(), err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket file is still there: %v", err)
	}
}

// leaveStale makes the socket file of a process that was killed.
func leaveStale(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	path := socketPath(t)
	leaveStale(t, path)
	mustListen(t, path)
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}

func TestLiveSocketIsRefused(t *testing.T) {
	path := socketPath(t)
	mustListen(t, path)
	_, err := Listen(Options{Socket: path})
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "another hubd is running there") {
		t.Fatalf("%v", err)
	}
	if c, err := net.Dial("unix", path); err != nil {
		t.Errorf("the first hub lost its socket: %v", err)
	} else {
		_ = c.Close()
	}
}

// Of many hubs that start at once over a stale socket exactly one gets it, and the
// socket file is its own.
func TestRaceForAStaleSocket(t *testing.T) {
	path := socketPath(t)
	leaveStale(t, path)
	var mu sync.Mutex
	var won []net.Listener
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			l, err := listenSocket(path)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won = append(won, l)
			} else if !errors.Is(err, ErrInUse) {
				t.Errorf("a loser: %v", err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("%d listeners", len(won))
	}
	defer func() { _ = won[0].Close() }()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if err := won[0].(*net.UnixListener).SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if s, err := won[0].Accept(); err != nil {
		t.Errorf("the winner does not own the socket file: %v", err)
	} else {
		_ = s.Close()
	}
}

func TestSocketErrors(t *testing.T) {
	path := socketPath(t)
	dir := filepath.Dir(path)
	file := filepath.Join(dir, "precious")
	if err := os.WriteFile(file, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path, want string
		is         error
	}{
		{filepath.Join(dir, "none", "hubd.sock"), "its directory does not exist; create it", fs.ErrNotExist},
		{filepath.Join(dir, strings.Repeat("x", 120)), "a socket's path may have 107", nil},
		{file, "is not a socket; it is left as it is", nil},
		{filepath.Join(file, "hubd.sock"), "not a directory", syscall.ENOTDIR},
	} {
		_, err := listenSocket(c.path)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v; want %q", c.path, err, c.want)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "data" {
		t.Errorf("the file was touched: %q %v", b, err)
	}
}

func TestAddressErrors(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	path := socketPath(t)
	_, err = Listen(Options{Socket: path, Address: taken.Addr().String()})
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "in use by another program; stop it, or set another address") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the socket was made although the address is taken")
	}
	if _, err := Listen(Options{Socket: path, Address: "nonsense"}); err == nil || !strings.Contains(err.Error(), "HOST:PORT") {
		t.Errorf("%v", err)
	}
}

func TestCloseWithoutServe(t *testing.T) {
	path := socketPath(t)
	s, err := Listen(Options{Socket: path, Address: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(Backend{}); err != nil {
		t.Errorf("Serve after Shutdown: %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket file is still there: %v", err)
	}
}
