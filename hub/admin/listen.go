package admin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// ErrInUse marks an address or socket that another program, mostly another hubd,
// is serving.
var ErrInUse = errors.New("in use")

const (
	socketMode    = 0o660
	socketPathMax = 107 // sun_path less its final NUL on Linux; 103 on macOS, where bind says so itself
	probeTimeout  = time.Second
	dirLockWait   = 2 * time.Second
)

// listenTCP binds the admin address.
func listenTCP(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("admin.address %s is %w by another program; stop it, or set another address (\"\" turns it off)", address, ErrInUse)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("admin.address %s: permission denied; take a port of 1024 or more: %w", address, syscall.EACCES)
	default:
		return nil, fmt.Errorf("admin.address %q: %w; give HOST:PORT of this machine", address, err)
	}
}

// listenSocket binds the Unix socket at path for owner and group only. The socket
// file of a hub that is no more is replaced; a live one is ErrInUse; a file that is
// not a socket is never touched.
func listenSocket(path string) (net.Listener, error) {
	if len(path) > socketPathMax {
		return nil, pathTooLong(path)
	}
	unlock, err := lockDir(filepath.Dir(path))
	if err != nil {
		return nil, socketError(path, err)
	}
	defer unlock()
	if err := removeStale(path); err != nil {
		return nil, socketError(path, err)
	}
	// The mode set before bind is the mode the file is born with (less the umask),
	// so there is no moment in which others could connect. Where a system refuses
	// this, the Chmod below is what counts.
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = syscall.Fchmod(int(fd), socketMode) })
	}}
	l, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, socketError(path, err)
	}
	if err := os.Chmod(path, socketMode); err != nil {
		_ = l.Close()
		return nil, socketError(path, err)
	}
	return l, nil
}

// ProbeSocket finds what would keep the socket from being bound, and touches nothing.
func ProbeSocket(path string) error {
	if len(path) > socketPathMax {
		return pathTooLong(path)
	}
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return socketError(path, err)
	}
	if _, err := stale(path); err != nil {
		return socketError(path, err)
	}
	return nil
}

func pathTooLong(path string) error {
	return fmt.Errorf("admin.socket %s: %d bytes long, a socket's path may have %d; choose a shorter one such as /run/hubd/hubd.sock", path, len(path), socketPathMax)
}

// socketError says what to do about err, in one line.
func socketError(path string, err error) error {
	switch {
	case errors.Is(err, ErrInUse):
		return fmt.Errorf("admin.socket %s is %w: another hubd is running there; stop it, or give this one its own admin.socket and hub.data_dir", path, ErrInUse)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("admin.socket %s: its directory does not exist; create it, or set admin.socket: %w", path, fs.ErrNotExist)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("admin.socket %s: permission denied; run hubd as the owner of that directory, or set admin.socket: %w", path, fs.ErrPermission)
	default:
		return fmt.Errorf("admin.socket %s: %w", path, err)
	}
}

// lockDir takes the advisory lock of a directory. Without it, two hubs that start
// together could both find a stale socket, and the second would remove the one that
// the first has just bound.
func lockDir(dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(dirLockWait); ; {
		err = syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			break
		}
		if time.Now().After(deadline) {
			_ = d.Close()
			return nil, fmt.Errorf("%s is locked by another program; is another hubd starting there?", dir)
		}
		time.Sleep(10 * time.Millisecond)
	}
	// Any other error means that this file system has no locks: go on without, the
	// race needs two hubs in the same millisecond.
	return func() { _ = d.Close() }, nil
}

// removeStale removes a socket file on which nobody listens.
func removeStale(path string) error {
	is, err := stale(path)
	if err != nil || !is {
		return err
	}
	return os.Remove(path)
}

// stale reports whether there is a socket file on which nobody listens. An error: what is there has to stay.
func stale(path string) (is bool, err error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return false, errors.New("exists and is not a socket; it is left as it is, set another admin.socket")
	}
	conn, err := net.DialTimeout("unix", path, probeTimeout)
	switch {
	case err == nil:
		_ = conn.Close()
		return false, ErrInUse
	case errors.Is(err, syscall.ECONNREFUSED):
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case errors.Is(err, fs.ErrPermission):
		return false, err
	default: // a full backlog or a timeout: somebody owns it
		return false, ErrInUse
	}
}
