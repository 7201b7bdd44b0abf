// Package hubtest joins the harness with package testing: a hub per test that
// is cleaned up, its output when the test failed, and sizes of the suites.
package hubtest

import (
	"os"
	"strconv"
	"testing"
	"time"

	"edgehub/test/harness"
	"edgehub/test/harness/mqttc"
)

// FullEnv names the variable that makes suites as long as the promises say;
// without it they are as long as a change can wait for.
const FullEnv = "HUB_TEST_FULL"

// Full reports whether the suites run at full length.
func Full() bool { return os.Getenv(FullEnv) != "" }

// Scale chooses a size: from the variable env when it is set, else full, quick
// or, with -short, the least that still means something.
func Scale(t testing.TB, env string, full, quick, least int) int {
	t.Helper()
	if s := os.Getenv(env); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			t.Fatalf("%s=%q is not a positive number", env, s)
		}
		return n
	}
	switch {
	case Full():
		return full
	case testing.Short():
		return least
	}
	return quick
}

// Main runs a suite and removes the binaries it built.
func Main(m *testing.M) {
	code := m.Run()
	harness.RemoveBuilt()
	os.Exit(code)
}

// New prepares a hub that goes away with the test.
func New(t testing.TB, change func(*harness.Config)) *harness.Hub {
	t.Helper()
	h, err := harness.NewHub(change)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if fault := h.Fault(); fault != "" {
			t.Errorf("hubd is at fault:\n%s", fault)
		}
		if t.Failed() {
			t.Logf("last output of hubd:\n%s", h.Output(30))
		}
		if err := h.Remove(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// Start prepares a hub and starts it.
func Start(t testing.TB, change func(*harness.Config)) *harness.Hub {
	t.Helper()
	h := New(t, change)
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	return h
}

// Restart kills the hub the hard way and starts it again.
func Restart(t testing.TB, h *harness.Hub) {
	t.Helper()
	h.Kill()
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
}

// Eventually polls until ok or fails the test. It is for facts that a process
// outside reaches in its own time and does not announce.
func Eventually(t testing.TB, timeout time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(timeout)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("not within %v: %s", timeout, what)
		case <-tick.C:
		}
	}
}

// Client is a connection whose errors end the test.
type Client struct {
	*mqttc.Conn
	Connack mqttc.Packet
	t       testing.TB
}

// Dial connects; a refusal ends the test.
func Dial(t testing.TB, addr string, o mqttc.Connect) *Client {
	t.Helper()
	c, ack, err := mqttc.Dial(addr, o)
	if err != nil {
		t.Fatalf("connect %q: %v", o.ClientID, err)
	}
	t.Cleanup(c.Abort)
	if ack.Code != 0 {
		t.Fatalf("connect %q: refused with %v", o.ClientID, ack)
	}
	return &Client{Conn: c, Connack: ack, t: t}
}

// Send sends one packet.
func (c *Client) Send(p mqttc.Packet) {
	c.t.Helper()
	if err := c.Conn.Send(p); err != nil {
		c.t.Fatalf("send %v: %v", p, err)
	}
}

// Sub subscribes to one filter, which must be granted with that QoS.
func (c *Client) Sub(filter string, options byte) {
	c.t.Helper()
	p, err := c.Subscribe(mqttc.Filter{Name: filter, Options: options})
	if err != nil || len(p.Codes) != 1 || p.Codes[0] != options&3 {
		c.t.Fatalf("subscribe %q with options %#x: %v, codes % x", filter, options, err, p.Codes)
	}
}

// Pub publishes and completes the handshake.
func (c *Client) Pub(topic, payload string, qos byte) {
	c.t.Helper()
	c.PubPacket(mqttc.Packet{Topic: topic, Payload: []byte(payload), QoS: qos})
}

// PubPacket publishes p and completes the handshake.
func (c *Client) PubPacket(p mqttc.Packet) {
	c.t.Helper()
	if err := c.Publish(p); err != nil {
		c.t.Fatalf("publish to %q: %v", p.Topic, err)
	}
}

// Want receives one message, acknowledges it, and compares it.
func (c *Client) Want(topic, payload string, qos byte) mqttc.Packet {
	c.t.Helper()
	p, err := c.Receive(mqttc.Patience)
	if err != nil {
		c.t.Fatalf("want %q on %q: %v", payload, topic, err)
	}
	if p.Topic != topic || string(p.Payload) != payload || p.QoS != qos {
		c.t.Fatalf("want %q on %q with QoS %d, got %v %.60q", payload, topic, qos, p, p.Payload)
	}
	return p
}

// WantPacket waits for the next packet, which must be of that type.
func (c *Client) WantPacket(kind byte) mqttc.Packet {
	c.t.Helper()
	p, err := c.Next(mqttc.Patience)
	if err != nil || p.Kind != kind {
		c.t.Fatalf("want %s, got %v, %v", mqttc.KindName(kind), p, err)
	}
	return p
}

// WantNothing fails when a packet comes before the answer to a PINGREQ, by
// which time everything that the hub owed this client has been sent.
func (c *Client) WantNothing() {
	c.t.Helper()
	c.Send(mqttc.Packet{Kind: mqttc.PINGREQ})
	p, err := c.Next(mqttc.Patience)
	if err != nil || p.Kind != mqttc.PINGRESP {
		c.t.Fatalf("want nothing, got %v %.60q, %v", p, p.Payload, err)
	}
}

// WantClose waits until the server closes and returns what it sent before.
func (c *Client) WantClose(timeout time.Duration) []mqttc.Packet {
	c.t.Helper()
	ps, err := c.AwaitClose(timeout)
	if err != nil {
		c.t.Fatalf("not closed within %v: %v; got %v", timeout, err, ps)
	}
	return ps
}

// Bye disconnects in the proper way and waits for the server's close, so that
// the server has taken notice when it returns.
func (c *Client) Bye() {
	c.t.Helper()
	c.Send(mqttc.Packet{Kind: mqttc.DISCONNECT})
	c.WantClose(mqttc.Patience)
	c.Abort()
}
