package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/hooks/auth"
	"github.com/mochi-mqtt/server/v2/listeners"
	"github.com/nats-io/nats-server/v2/server"

	"edgehub/test/harness"
)

// broker is one that runs now.
type broker struct {
	name, addr string
	pid        int
	stop       func() error
	// beside makes a backlog, lets it drain from then on, and returns how to end that; nil: there is none.
	beside func(quick bool) (end func() error, err error)
}

// brokerNames is the order of the columns; the hub comes first.
var brokerNames = []string{"hub", "mosquitto", "nats-server", "mochi"}

// starters start a broker for one measurement.
var starters = map[string]func(row) (*broker, error){
	"hub":         startHub,
	"mosquitto":   startMosquitto,
	"nats-server": func(row) (*broker, error) { return startChild("nats-server") },
	"mochi":       func(row) (*broker, error) { return startChild("mochi") },
}

const stopTimeout = 15 * time.Second

// startHub runs hubd with one stream of one partition: the built-in configuration but for addresses and directory.
func startHub(r row) (*broker, error) {
	if r.beside != "" {
		return startBeside(r.beside)
	}
	h, err := harness.NewHub(func(c *harness.Config) {
		c.LogLevel = "warn"
		if r.synced {
			c.Streams = []harness.Stream{{Name: "devices", Filters: []string{"devices/#"}, Durability: "synced"}}
		}
	})
	if err != nil {
		return nil, err
	}
	if err := h.Start(); err != nil {
		return nil, errors.Join(err, h.Remove())
	}
	return &broker{name: "hub", addr: h.Addr(), pid: h.Process().PID(), stop: func() error { return stopHub(h) }}, nil
}

func stopHub(h *harness.Hub) error {
	fault := h.Fault()
	_, err := h.Stop(stopTimeout)
	if err = errors.Join(err, h.Remove()); fault != "" {
		err = errors.Join(err, errors.New(fault))
	}
	return err
}

// startMosquitto runs Debian's, in memory only, with queues that do not drop.
func startMosquitto(row) (*broker, error) {
	m, err := harness.StartMosquitto("persistence false\nset_tcp_nodelay true")
	if err != nil {
		return nil, err
	}
	return &broker{name: "mosquitto", addr: m.Addr, pid: m.PID(), stop: m.Remove}, nil
}

// childEnv makes this program a broker: NAME|ADDRESS|DIRECTORY.
const childEnv = "HUB_BENCH_BROKER"

// startChild runs one of the brokers that are Go modules, in a process of its own.
func startChild(name string) (*broker, error) {
	addr, err := harness.FreeAddr()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "hubpeer")
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"="+strings.Join([]string{name, addr, dir}, "|"))
	cmd.Stderr = os.Stderr
	p, err := harness.Launch(cmd)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	stop := func() error {
		p.Kill()
		return os.RemoveAll(dir)
	}
	if err := harness.AwaitDial(addr, p); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), stop())
	}
	return &broker{name: name, addr: addr, pid: p.PID(), stop: stop}, nil
}

// serveIfChild is the broker's side of startChild; it does not return in a child.
func serveIfChild() {
	job := os.Getenv(childEnv)
	if job == "" {
		return
	}
	part := strings.SplitN(job, "|", 3)
	err := errors.New("a broker is NAME|ADDRESS|DIRECTORY")
	if len(part) == 3 {
		switch part[0] {
		case "nats-server":
			err = serveNATS(part[1], part[2])
		case "jetstream":
			err = serveJetStream(part[1], part[2])
		case "mochi":
			err = serveMochi(part[1])
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	select {} // until it is killed
}

// serveNATS: QoS 1 and 2 are stored in files, as its documentation recommends for MQTT.
func serveNATS(addr, dir string) error {
	host, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return err
	}
	s, err := server.NewServer(&server.Options{ServerName: "peer", Host: host, Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir,
		NoSigs: true, NoLog: true, MQTT: server.MQTTOpts{Host: host, Port: port}})
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(20 * time.Second) {
		return errors.New("nats-server is not ready")
	}
	return nil
}

func serveMochi(addr string) error {
	s := mochi.New(&mochi.Options{Logger: slog.New(slog.DiscardHandler)})
	if err := s.AddHook(new(auth.AllowHook), nil); err != nil {
		return err
	}
	if err := s.AddListener(listeners.NewTCP(listeners.Config{ID: "t", Address: addr})); err != nil {
		return err
	}
	return s.Serve()
}
