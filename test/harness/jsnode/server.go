// Package jsnode gives suites a JetStream server that may be stopped, killed
// and frozen like one on another machine, and reads back what it stores.
package jsnode

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// childEnv marks the re-executed test binary; its value is "address|directory".
const childEnv = "HUB_TEST_JETSTREAM"

// Embedded is a JetStream server in this process.
type Embedded struct {
	Addr string
	Dir  string
	s    *server.Server
}

// StartEmbedded starts a server that keeps its files in dir and serves addr.
func StartEmbedded(addr, dir string) (*Embedded, error) {
	host, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return nil, err
	}
	s, err := server.NewServer(&server.Options{
		ServerName: "central", Host: host, Port: port, JetStream: true, StoreDir: dir,
		NoSigs: true, NoLog: true,
	})
	if err != nil {
		return nil, fmt.Errorf("jsnode: %w", err)
	}
	s.Start()
	if !s.ReadyForConnections(20 * time.Second) {
		s.Shutdown()
		return nil, errors.New("jsnode: the server does not accept connections")
	}
	return &Embedded{Addr: addr, Dir: dir, s: s}, nil
}

// URL is what an uplink is configured with.
func (e *Embedded) URL() string { return "nats://" + e.Addr }

// Stop shuts the server down and waits for it; its files stay.
func (e *Embedded) Stop() {
	e.s.Shutdown()
	e.s.WaitForShutdown()
}

// ServeIfChild runs the server and never returns when this process was
// started by Start. Call it first in TestMain.
func ServeIfChild() {
	job := os.Getenv(childEnv)
	if job == "" {
		return
	}
	addr, dir, err := splitJob(job)
	if err == nil {
		_, err = StartEmbedded(addr, dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("ready")
	select {} // until a signal ends the process
}

func splitJob(job string) (addr, dir string, err error) {
	for i := range job {
		if job[i] == '|' {
			return job[:i], job[i+1:], nil
		}
	}
	return "", "", errors.New("jsnode: " + childEnv + " is not address|directory")
}
