package eventloop

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/panjf2000/gnet/v2"
)

// ErrAddressInUse is returned by Run when another process listens on one of the addresses.
var ErrAddressInUse = errors.New("eventloop: address in use")

// unixPrefix begins the address of a Unix socket.
const unixPrefix = "unix:"

// Listener is one address with what is spoken on it. Fields in capitals are set before the engine is made.
type Listener struct {
	Address        string // HOST:PORT, or unix:PATH
	MaxConnections int    // 0: no limit of its own
	Layers         []Wrap // from the socket upwards; none for plain TCP
	Index          int    // position in Options.Listeners, set by New

	Accepted       atomic.Int64 // connections
	RefusedFull    atomic.Int64 // beyond MaxConnections
	RefusedAddress atomic.Int64 // beyond Options.PerAddress

	open atomic.Int64
	addr string // as gnet writes it: resolved, with the port in place of 0
	unix *net.UnixListener
}

// Open is the number of open connections.
func (on *Listener) Open() int64 { return on.open.Load() }

// Addr is where the listener is bound, once the engine is booted.
func (on *Listener) Addr() string {
	if on.unix != nil {
		return on.Address
	}
	return on.addr
}

// UnixPath returns the path of a Unix socket's address, and false for others.
func UnixPath(address string) (string, bool) { return strings.CutPrefix(address, unixPrefix) }

// Probe binds address alone for a moment and says why it cannot: the engine's own binds share ports and would not
// notice another listener.
func Probe(address string) error {
	if path, ok := UnixPath(address); ok {
		return probeUnix(path)
	}
	_, err := probe("tcp", address)
	return err
}

// probe returns the address that was bound.
func probe(network, address string) (net.Addr, error) {
	l, err := net.Listen(network, address)
	if err != nil {
		if isAddrInUse(err) {
			return nil, fmt.Errorf("%w: %s", ErrAddressInUse, address)
		}
		return nil, fmt.Errorf("eventloop: listen on %s: %w", address, err)
	}
	return l.Addr(), l.Close()
}

// bind probes every address, opens the Unix sockets, and returns what gnet shall bind.
func (e *Engine) bind() ([]string, error) {
	e.byAddr = map[string]*Listener{}
	var addrs []string
	for _, on := range e.o.Listeners {
		if path, ok := UnixPath(on.Address); ok {
			if err := on.listenUnix(path); err != nil {
				e.closeUnix()
				return nil, err
			}
			continue
		}
		network, err := on.resolve(e.o.Listeners)
		if err != nil {
			e.closeUnix()
			return nil, err
		}
		e.byAddr[on.addr] = on
		addrs = append(addrs, network+"://"+on.addr)
	}
	if len(addrs) == 0 {
		// gnet does not run without a listener: an abstract socket on which every connection is refused.
		addrs = append(addrs, "unix://@edgehub-"+strconv.Itoa(processID()))
	}
	return addrs, nil
}

// resolve finds the address and network to bind. Without a host, or with [::], a listener is for IPv4 and IPv6, unless
// another takes the IPv4 side of that port.
func (on *Listener) resolve(all []*Listener) (network string, err error) {
	ta, err := net.ResolveTCPAddr("tcp", on.Address)
	if err != nil {
		return "", fmt.Errorf("eventloop: listen on %s: %w", on.Address, err)
	}
	network = "tcp4"
	if ta.IP.To4() == nil {
		network = "tcp6"
		if ip := ta.IP; (ip == nil || ip.IsUnspecified()) && !otherTakesIPv4(on, all, ta.Port) {
			network, ta.IP = "tcp", nil
		} else if ip == nil {
			ta.IP = net.IPv6unspecified
		}
	}
	bound, err := probe(network, ta.String())
	if err != nil {
		return "", err
	}
	if ta.Port == 0 {
		ta.Port = bound.(*net.TCPAddr).Port
	}
	on.addr = ta.String()
	return network, nil
}

func otherTakesIPv4(on *Listener, all []*Listener, port int) bool {
	for _, other := range all {
		if ta, err := net.ResolveTCPAddr("tcp", other.Address); err == nil && other != on && ta.Port == port && port != 0 && ta.IP.To4() != nil && ta.IP.IsUnspecified() {
			return true
		}
	}
	return false
}

// lane finds the listener of a new connection: by what was noted with it, or by the address that it listens on. The
// objects that gnet has for those are few; nil when there is none.
func (l *Loop) lane(c gnet.Conn) *lane {
	on, _ := c.Context().(*Listener) // of a Unix socket
	key := c.LocalAddr()
	if on != nil {
		key = on.unix.Addr()
	}
	to, ok := l.lanes[key]
	if !ok && key != nil {
		if on == nil {
			on = l.e.byAddr[key.String()]
		}
		if on != nil {
			to = &lane{l, on}
		}
		l.lanes[key] = to
	}
	return to
}

// admit counts a new connection, and says whether the limits allow it.
func (e *Engine) admit(on *Listener, c gnet.Conn) bool {
	if n := on.open.Add(1); on.MaxConnections > 0 && n > int64(on.MaxConnections) {
		on.open.Add(-1)
		on.RefusedFull.Add(1)
		return false
	}
	if !e.peers.enter(c.RemoteAddr()) {
		on.open.Add(-1)
		on.RefusedAddress.Add(1)
		return false
	}
	on.Accepted.Add(1)
	if on.unix == nil && e.o.UserTimeout > 0 {
		// Without it the kernel's default holds, a quarter of an hour: not worth refusing a connection for.
		_ = setUserTimeout(c.Fd(), e.o.UserTimeout)
	}
	return true
}

// release undoes admit.
func (e *Engine) release(on *Listener, c gnet.Conn) {
	on.open.Add(-1)
	e.peers.leave(c.RemoteAddr())
}

// peers counts the connections of each address. An IPv6 host has a whole /64 to choose from, so that counts as one.
type peers struct {
	max int // 0: nothing is counted
	mu  sync.Mutex
	n   map[netip.Addr]int
}

func (p *peers) enter(a net.Addr) bool {
	ip, ok := p.key(a)
	if !ok {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.n == nil {
		p.n = map[netip.Addr]int{}
	}
	if p.n[ip] >= p.max {
		return false
	}
	p.n[ip]++
	return true
}

func (p *peers) leave(a net.Addr) {
	ip, ok := p.key(a)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.n[ip]--; p.n[ip] <= 0 {
		delete(p.n, ip)
	}
}

// key is what an address counts as; false when it is not counted.
func (p *peers) key(a net.Addr) (netip.Addr, bool) {
	ta, ok := a.(*net.TCPAddr)
	if !ok || p.max == 0 {
		return netip.Addr{}, false
	}
	ip := ta.AddrPort().Addr().Unmap().WithZone("")
	if ip.Is6() {
		if prefix, err := ip.Prefix(64); err == nil {
			ip = prefix.Addr()
		}
	}
	return ip, ip.IsValid()
}
