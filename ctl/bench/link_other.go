//go:build !linux

package bench

import (
	"context"
	"errors"
	"io"
	"net"
	"time"
)

// netLink is an ordinary connection: where sockets are not bare, fewer fit.
type netLink struct{ net.Conn }

func newOpener(l *Load) (opener, error) {
	return func(_ int, hello []byte) (link, error) {
		d := net.Dialer{Timeout: openTimeout}
		n, err := d.DialContext(context.Background(), "tcp", l.Address)
		if err != nil {
			return nil, err
		}
		c := &conn{net: n, codec: l.codec(), in: make([]byte, 512), out: hello}
		e, err := c.request(Opened)
		if err = errors.Join(err, e.Refused); err != nil {
			return nil, errors.Join(err, n.Close())
		}
		return netLink{n}, nil
	}, nil
}

func (x netLink) alive() bool {
	var b [64]byte
	for {
		_ = x.SetReadDeadline(time.Now().Add(time.Microsecond))
		if _, err := x.Read(b[:]); err != nil {
			return !errors.Is(err, io.EOF)
		}
	}
}

func (x netLink) write(b []byte) error {
	_, err := x.Write(b)
	return err
}

func (x netLink) close(politely bool) {
	if politely {
		_ = x.SetReadDeadline(time.Now().Add(2 * time.Second))
		_, _ = io.Copy(io.Discard, x.Conn) // until the peer closes
	}
	_ = x.Close()
}
