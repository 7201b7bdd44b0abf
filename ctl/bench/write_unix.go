//go:build unix

package bench

import (
	"errors"
	"syscall"
)

// tryWriter writes what a socket takes at once.
type tryWriter struct {
	raw   syscall.RawConn
	write func(fd uintptr) bool // made once: a closure per write would be an allocation per message
	b     []byte
	n     int
	err   error
}

func newTryWriter(c *conn) (*tryWriter, error) {
	s, ok := c.net.(syscall.Conn)
	if !ok {
		return nil, errors.New("bench: this connection cannot be written without waiting")
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil, err
	}
	w := &tryWriter{raw: raw}
	w.write = func(fd uintptr) bool {
		for {
			if w.n, w.err = syscall.Write(int(fd), w.b); !errors.Is(w.err, syscall.EINTR) {
				return true // also when the socket is full: the caller comes again
			}
		}
	}
	return w, nil
}

// flush writes what goes of c.out and keeps the rest.
func (w *tryWriter) flush(c *conn) error {
	if len(c.out) == 0 {
		return nil
	}
	w.b, w.n, w.err = c.out, 0, nil
	if err := w.raw.Write(w.write); err != nil {
		return err
	}
	if errors.Is(w.err, syscall.EAGAIN) {
		return nil
	}
	if w.n > 0 {
		c.out = c.out[:copy(c.out, c.out[w.n:])]
	}
	return readError(w.err)
}
