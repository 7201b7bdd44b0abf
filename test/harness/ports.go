package harness

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"
)

// Ports are handed out below the range from which the kernel takes the source
// ports of clients. Otherwise a client that reconnects to a hub that is down
// may be given the hub's own port as its source, connect to itself, and keep
// the hub from binding it again.
const (
	portFirst = 12000
	portLast  = 31999
)

var (
	portsMu   sync.Mutex
	portsUsed = map[int]bool{} // guarded by portsMu
)

// FreeAddr returns a loopback address with a port that nobody listens on and
// that this program has not handed out before.
func FreeAddr() (string, error) {
	portsMu.Lock()
	defer portsMu.Unlock()
	for range 1000 {
		port := portFirst + rand.IntN(portLast-portFirst+1)
		if portsUsed[port] {
			continue
		}
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			continue
		}
		portsUsed[port] = true
		return addr, nil
	}
	return "", errors.New("harness: no free loopback port found")
}

// AwaitDial waits until a program serves at an address.
func AwaitDial(addr string, p *Process) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for {
		if c, err := net.Dial("tcp", addr); err == nil {
			return c.Close()
		}
		select {
		case <-p.Done():
			return errors.New("harness: it ended before it served")
		case <-deadline:
			return errors.New("harness: it does not serve")
		case <-tick.C:
		}
	}
}
