package bench

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
)

// ipBindAddressNoPort makes the kernel choose the port at connect, so that every source address has all ports.
const ipBindAddressNoPort = 24

// rawLink is a bare socket: no goroutine, no buffer, no poller.
type rawLink int

// newOpener resolves the address once.
func newOpener(l *Load) (opener, error) {
	addr, err := net.ResolveTCPAddr("tcp", l.Address)
	if err != nil {
		return nil, fmt.Errorf("--broker %s: %w", l.Address, err)
	}
	codec := l.codec()
	return func(i int, hello []byte) (link, error) {
		fd, err := rawConnect(addr, i%l.Sources)
		if err != nil {
			return nil, err
		}
		if err := handshake(fd, codec, hello); err != nil {
			_ = syscall.Close(fd) // the first error is what matters
			return nil, err
		}
		return rawLink(fd), nil
	}, nil
}

func rawConnect(addr *net.TCPAddr, source int) (int, error) {
	family, to := syscall.AF_INET, syscall.Sockaddr(nil)
	ip4 := addr.IP.To4()
	if ip4 != nil {
		to = &syscall.SockaddrInet4{Port: addr.Port, Addr: [4]byte(ip4)}
	} else {
		family, to = syscall.AF_INET6, &syscall.SockaddrInet6{Port: addr.Port, Addr: [16]byte(addr.IP.To16())}
	}
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	limit := syscall.NsecToTimeval(int64(openTimeout))
	err = errors.Join(syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &limit),
		syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_SNDTIMEO, &limit))
	if err == nil && ip4 != nil && addr.IP.IsLoopback() {
		err = errors.Join(syscall.SetsockoptInt(fd, syscall.IPPROTO_IP, ipBindAddressNoPort, 1),
			syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 1, byte(1 + source)}}))
	}
	if err == nil {
		err = os.NewSyscallError("connect", again(func() error { return syscall.Connect(fd, to) }))
	}
	if err != nil && !errors.Is(err, syscall.EISCONN) { // the connect that a signal interrupted went on
		_ = syscall.Close(fd) // the first error is what matters
		return 0, err
	}
	return fd, nil
}

// again repeats what a signal has interrupted.
func again(f func() error) error {
	for {
		if err := f(); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// handshake sends the opening packet and waits for the consent.
func handshake(fd int, codec Codec, hello []byte) error {
	x := rawLink(fd)
	if err := x.write(hello); err != nil {
		return err
	}
	b, got := make([]byte, 512), 0
	for got < len(b) {
		n := 0
		err := again(func() (err error) { n, err = syscall.Read(fd, b[got:]); return err })
		switch {
		case errors.Is(err, syscall.EAGAIN):
			return fmt.Errorf("no answer within %v", openTimeout)
		case err != nil:
			return readError(err)
		case n == 0:
			return errors.New("the broker closed the connection")
		}
		got += n
		var e Event
		size, err := codec.Next(b[:got], &e)
		if err != nil {
			return err
		}
		if size > 0 {
			return e.Refused
		}
	}
	return errors.New("the broker's answer is too long")
}

func (x rawLink) alive() bool {
	var b [64]byte
	for {
		n, _, err := syscall.Recvfrom(int(x), b[:], syscall.MSG_DONTWAIT)
		switch {
		case errors.Is(err, syscall.EINTR), n > 0:
			continue
		case errors.Is(err, syscall.EAGAIN):
			return true
		}
		return false // closed, or an error
	}
}

func (x rawLink) write(b []byte) error {
	for len(b) > 0 {
		n := 0
		err := again(func() (err error) { n, err = syscall.Write(int(x), b); return err })
		if err != nil {
			return readError(err)
		}
		b = b[n:]
	}
	return nil
}

// closeWait bounds the wait for the peer's close.
const closeWait = 2 * time.Second

func (x rawLink) close(politely bool) {
	if politely {
		limit := syscall.NsecToTimeval(int64(closeWait))
		_ = syscall.SetsockoptTimeval(int(x), syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &limit)
		var b [64]byte
		for {
			n, err := syscall.Read(int(x), b[:])
			if n <= 0 && !errors.Is(err, syscall.EINTR) {
				break
			}
		}
	} else {
		// A reset: no port stays blocked for a minute.
		_ = syscall.SetsockoptLinger(int(x), syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1})
	}
	_ = syscall.Close(int(x))
}
