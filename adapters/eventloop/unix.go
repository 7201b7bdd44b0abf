package eventloop

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"github.com/panjf2000/gnet/v2"

	"edgehub/internal/vfs"
)

// unixMode lets the owner and the group connect.
const unixMode = 0o660

// probeUnix removes a socket that a hub has left behind when it was killed, and refuses one that is in use.
func probeUnix(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("eventloop: listen on %s%s: %w", unixPrefix, path, err)
	case info.Mode()&fs.ModeSocket == 0:
		return fmt.Errorf("eventloop: listen on %s%s: there is a file that is not a socket", unixPrefix, path)
	}
	if c, err := net.Dial("unix", path); err == nil {
		_ = c.Close()
		return fmt.Errorf("%w: %s%s", ErrAddressInUse, unixPrefix, path)
	}
	return vfs.OS.Remove(path)
}

func (on *Listener) listenUnix(path string) error {
	if err := probeUnix(path); err != nil {
		return err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return fmt.Errorf("eventloop: listen on %s: %w", on.Address, err)
	}
	on.unix = l
	if err := os.Chmod(path, unixMode); err != nil {
		return fmt.Errorf("eventloop: listen on %s: %w", on.Address, err)
	}
	return nil
}

// acceptUnix accepts on every Unix socket, in one goroutine each.
func (e *Engine) acceptUnix() {
	for _, on := range e.o.Listeners {
		if on.unix != nil {
			go e.serveUnix(on)
		}
	}
}

func (e *Engine) closeUnix() {
	for _, on := range e.o.Listeners {
		if on.unix != nil {
			_ = on.unix.Close() // removes the file too
		}
	}
}

const (
	acceptPauseMin = 5 * time.Millisecond
	acceptPauseMax = time.Second
)

// serveUnix hands new connections to the loops. Want of descriptors is waited out.
func (e *Engine) serveUnix(on *Listener) {
	pause := acceptPauseMin
	for {
		c, err := on.unix.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			err = e.adopt(on, c)
		}
		if err == nil {
			pause = acceptPauseMin
			continue
		}
		logger{e.o.Logf}.Warnf("accept on %s: %v", on.Address, err)
		select {
		case <-e.done:
			return
		case <-time.After(pause):
			pause = min(2*pause, acceptPauseMax)
		}
	}
}

// adopt gives a connection to a loop and waits until it is there, so that no more are on their way than can be served.
func (e *Engine) adopt(on *Listener, c *net.UnixConn) error {
	ctx := gnet.NewContext(gnet.NewNetConnContext(context.Background(), c), on)
	e.enroll.Lock()
	result, err := e.eng.Register(ctx)
	e.enroll.Unlock()
	if err != nil {
		return errors.Join(err, c.Close())
	}
	select {
	case r := <-result:
		return r.Err
	case <-e.done:
		return nil
	}
}
