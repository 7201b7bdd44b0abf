package eventloop

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func isAddrInUse(err error) bool { return errors.Is(err, syscall.EADDRINUSE) }

func closeWrite(fd int) error { return syscall.Shutdown(fd, syscall.SHUT_WR) }

// unread is the number of bytes that a socket has received and nobody has read.
func unread(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil {
		return 0
	}
	return n
}

func processID() int { return os.Getpid() }

// setUserTimeout bounds how long sent data may stay unacknowledged before the kernel gives the connection up: a peer
// that has vanished is then noticed long before the last retransmission.
func setUserTimeout(fd int, d time.Duration) error {
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
}

// RaiseDescriptors raises the soft limit of descriptors to the hard one and returns what is in force.
func RaiseDescriptors() (int, error) {
	var lim syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim); err != nil {
		return 0, err
	}
	if lim.Cur < lim.Max {
		lim.Cur = lim.Max
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &lim); err != nil {
			return int(lim.Cur), err
		}
	}
	return int(lim.Cur), nil
}

// logger passes what gnet says to the hub's log.
type logger struct {
	logf func(format string, args ...any)
}

func (l logger) say(format string, args ...any) {
	if l.logf != nil {
		l.logf(format, args...)
	}
}

func (l logger) Debugf(string, ...any)             {}
func (l logger) Infof(string, ...any)              {}
func (l logger) Warnf(format string, args ...any)  { l.say(format, args...) }
func (l logger) Errorf(format string, args ...any) { l.say(format, args...) }
func (l logger) Fatalf(format string, args ...any) { l.say(format, args...) }
