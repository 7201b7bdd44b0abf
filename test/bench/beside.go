package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"edgehub/test/harness"
	"edgehub/test/harness/load"
	"edgehub/test/harness/mqttc"
)

// Who drains a backlog while live messages are measured.
const (
	besideSession = "session"
	besideUplink  = "uplink"
)

const (
	bulkSize       = 4096
	bulkMessages   = 1 << 30 / bulkSize
	bulkQuick      = 1 << 25 / bulkSize
	bulkPublishers = 8
	bulkPatience   = 2 * time.Minute
)

// startBeside runs a hub that has a stream for the backlog beside the one for live messages, and something to drain it.
func startBeside(what string) (*broker, error) {
	var remote *broker
	var err error
	if what == besideUplink {
		if remote, err = startChild("jetstream"); err != nil {
			return nil, err
		}
	}
	h, err := harness.NewHub(func(c *harness.Config) {
		c.LogLevel = "warn"
		c.Streams = []harness.Stream{{Name: "bulk", Filters: []string{"bulk/#"}, Lines: []string{`retention = { max_bytes = "4GiB" }`}}}
		if remote != nil {
			c.Uplinks = []harness.Uplink{{Name: "bulk", URL: "nats://" + remote.addr, Streams: []string{"bulk"}}}
		}
	})
	if err == nil {
		if err = h.Start(); err != nil {
			err = errors.Join(err, h.Remove())
		}
	}
	if err != nil {
		return nil, errors.Join(err, remote.end())
	}
	b := &broker{name: "hub", addr: h.Addr(), pid: h.Process().PID(), beside: func(quick bool) (func() error, error) {
		n := bulkMessages
		if quick {
			n = bulkQuick
		}
		if what == besideUplink {
			return drainUplink(h, n)
		}
		return drainSession(h, n)
	}}
	b.stop = func() error { return errors.Join(stopHub(h), remote.end()) }
	return b, nil
}

// end stops a broker, if there is one.
func (b *broker) end() error {
	if b == nil {
		return nil
	}
	return b.stop()
}

// serveJetStream is a central server.
func serveJetStream(addr, dir string) error {
	host, portText, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return err
	}
	s, err := server.NewServer(&server.Options{ServerName: "center", Host: host, Port: port, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true})
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(20 * time.Second) {
		return errors.New("nats-server is not ready")
	}
	return nil
}

// fillBulk publishes the backlog.
func fillBulk(h *harness.Hub, n int) error {
	f := load.New(load.Options{Addr: h.Addr(), Name: "bulk", Publishers: bulkPublishers, Each: uint64(n / bulkPublishers), Size: bulkSize,
		Topic: func(p int) string { return "bulk/" + strconv.Itoa(p) }})
	f.Start()
	if err := f.Wait(bulkPatience); err != nil {
		return err
	}
	if c := f.Counters(); c.Acked != int64(n) {
		return fmt.Errorf("the backlog is not what it should be: %v", c)
	}
	return nil
}

// drainSession fills the inbox of an absent session and lets its client come back.
func drainSession(h *harness.Hub, n int) (func() error, error) {
	dial := func() (*mqttc.Conn, error) {
		c, _, err := mqttc.Dial(h.Addr(), mqttc.Connect{Version: 4, ClientID: "bulk", SessionExpiry: 3600, KeepAlive: 60})
		return c, err
	}
	c, err := dial()
	if err != nil {
		return nil, err
	}
	if _, err := c.Subscribe(mqttc.Filter{Name: "bulk/#", Options: 1}); err != nil {
		return nil, err
	}
	if err := errors.Join(c.Disconnect(), fillBulk(h, n)); err != nil {
		return nil, err
	}
	if c, err = dial(); err != nil {
		return nil, err
	}
	var got atomic.Int64
	done := make(chan error, 1)
	go func() {
		for {
			p, err := c.Next(bulkPatience)
			if err != nil {
				done <- err
				return
			}
			if p.Kind == mqttc.PUBLISH {
				got.Add(1)
				_ = c.Ack(mqttc.PUBACK, p.ID)
			}
		}
	}()
	return func() error {
		c.Abort()
		<-done
		return drained(got.Load(), n)
	}, nil
}

// drained makes sure that something was drained while the live messages were measured.
func drained(got int64, n int) error {
	if got < int64(n)/20 {
		return fmt.Errorf("only %d of %d messages of the backlog were drained meanwhile: that is no measurement", got, n)
	}
	return nil
}

// drainUplink makes a backlog for a paused uplink and lets it go on.
func drainUplink(h *harness.Hub, n int) (func() error, error) {
	ctx, cancel := context.WithTimeout(context.Background(), bulkPatience)
	defer cancel()
	if _, err := h.Ctl(ctx, "uplink", "pause", "bulk"); err != nil {
		return nil, err
	}
	if err := fillBulk(h, n); err != nil {
		return nil, err
	}
	if _, err := h.Ctl(ctx, "uplink", "resume", "bulk"); err != nil {
		return nil, err
	}
	return func() error {
		st, err := h.Status()
		if err != nil {
			return err
		}
		u, ok := st.Uplink("bulk")
		if !ok {
			return errors.New("the uplink is gone")
		}
		return drained(int64(n)-u.LagMessages, n)
	}, nil
}
