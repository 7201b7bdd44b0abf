package datadir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

const lockName = "hub.lock"

// lock holds the directory for this program. It is taken with the operating
// system, not with a vfs.FS: it guards against other programs, and a lock that
// a test could copy would guard nothing.
type lock struct{ f *os.File }

// takeLock locks dir or says who holds it.
func takeLock(dir string) (*lock, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) //nolint:forbidigo // another program is kept out, see the type
	if err != nil {
		return nil, notWritable(dir, err)
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		pid := holder(f)
		_ = f.Close()
		return nil, fmt.Errorf("%w: %s is held by another hubd%s; stop it or choose another data_dir", ErrInUse, dir, pid)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	// The pid is only for the message above, so a failure to write it is no reason to stop.
	if f.Truncate(0) == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return &lock{f: f}, nil
}

// holder reads the pid that the owner of the lock left, as " (pid N)".
func holder(f *os.File) string {
	var b [24]byte
	n, _ := f.ReadAt(b[:], 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	if err != nil || pid <= 0 {
		return ""
	}
	return fmt.Sprintf(" (pid %d)", pid)
}

// release gives the directory free; the kernel does the same when the program dies.
func (l *lock) release() error { return l.f.Close() }
