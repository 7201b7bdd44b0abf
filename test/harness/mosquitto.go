package harness

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
)

// ErrNoMosquitto means that the broker is not installed here.
var ErrNoMosquitto = errors.New("harness: mosquitto is not installed (Debian: apt install mosquitto)")

// Mosquitto is a broker that is not ours: the suites are checked against it,
// so that a wrong expectation of theirs is not taken for a fault of the hub.
type Mosquitto struct {
	Addr string
	dir  string
	*Process
}

// StartMosquitto starts the broker, in memory only, with lines added to its
// configuration.
func StartMosquitto(lines string) (*Mosquitto, error) {
	exe, err := mosquittoPath()
	if err != nil {
		return nil, err
	}
	addr, err := FreeAddr()
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "hubmosq")
	if err != nil {
		return nil, err
	}
	m := &Mosquitto{Addr: addr, dir: dir}
	conf := filepath.Join(dir, "mosquitto.conf")
	text := fmt.Sprintf("listener %s 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\nmax_inflight_messages 1000\n%s\n", port, lines)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if m.Process, err = Launch(exec.Command(exe, "-c", conf)); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := AwaitDial(addr, m.Process); err != nil {
		return nil, errors.Join(err, m.Remove())
	}
	return m, nil
}

// mosquittoPath also looks where Debian puts daemons.
func mosquittoPath() (string, error) {
	for _, name := range []string{"mosquitto", "/usr/sbin/mosquitto"} {
		if p, err := exec.LookPath(name); err == nil {
			return p, nil
		}
	}
	return "", ErrNoMosquitto
}

// Remove kills the broker and deletes its files.
func (m *Mosquitto) Remove() error {
	m.Kill()
	return os.RemoveAll(m.dir)
}
