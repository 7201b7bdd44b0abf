package basic

import (
	"fmt"
	"testing"

	"edgehub/test/harness"
	"edgehub/test/harness/hublog"
	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/mqttc"
)

// twice is a publisher and a persistent QoS 2 subscriber on one hub.
type twice struct {
	t       *testing.T
	h       *harness.Hub
	version byte
	pub     *hubtest.Client
}

func newTwice(t *testing.T, version byte) *twice {
	t.Helper()
	w := &twice{t: t, h: serveHub(t), version: version}
	sub := hubtest.Dial(t, w.h.Addr(), kept("sub", version))
	sub.Sub("two/#", 2)
	sub.Bye()
	w.connect()
	return w
}

func (w *twice) connect() {
	w.t.Helper()
	w.pub = hubtest.Dial(w.t, w.h.Addr(), kept("pub", w.version))
}

// kill -9, restart, and the publisher is back with its session.
func (w *twice) kill() {
	w.t.Helper()
	hubtest.Restart(w.t, w.h)
	w.connect()
	if !w.pub.Connack.SessionPresent {
		w.t.Fatal("the publisher's session is gone")
	}
}

func (w *twice) publish(payload string, id uint16, dup bool) {
	w.t.Helper()
	w.pub.Send(mqttc.Packet{Kind: mqttc.PUBLISH, QoS: 2, ID: id, Dup: dup, Topic: "two/x", Payload: []byte(payload)})
}

func (w *twice) want(kind byte, id uint16) {
	w.t.Helper()
	p := w.pub.WantPacket(kind)
	// 0x92 on PUBCOMP: the handshake was over already, which is no error.
	if p.ID != id || p.Code >= 0x80 && !(kind == mqttc.PUBCOMP && p.Code == 0x92) {
		w.t.Fatalf("got %v, want %s %d", p, mqttc.KindName(kind), id)
	}
}

func (w *twice) release(id uint16) {
	w.t.Helper()
	w.pub.Send(mqttc.Packet{Kind: mqttc.PUBREL, ID: id})
	w.want(mqttc.PUBCOMP, id)
}

// check expects exactly these payloads in the log and at the subscriber.
func (w *twice) check(payloads ...string) {
	w.t.Helper()
	log := hublog.Collect{}
	if err := hublog.ReadFiles(w.h.Config.DataDir, "main", nil, log.Add); err != nil {
		w.t.Fatal(err)
	}
	got := map[string]int{}
	for _, rs := range log {
		for _, r := range rs {
			got[string(r.Payload)]++
		}
	}
	if log.Len() != len(payloads) {
		w.t.Errorf("the log has %v, want each of %q once", got, payloads)
	}
	sub := hubtest.Dial(w.t, w.h.Addr(), kept("sub", w.version))
	for _, p := range payloads {
		sub.Want("two/x", p, 2)
	}
	sub.WantNothing()
}

// TestInboundQoS2ThroughKill kills the hub at each step of a publisher's
// handshake.
func TestInboundQoS2ThroughKill(t *testing.T) {
	versions(t, func(t *testing.T, version byte) {
		for name, steps := range map[string]func(w *twice){
			"after PUBLISH, answer unknown": func(w *twice) {
				w.publish("a", 7, false)
				w.kill()
				w.publish("a", 7, true)
				w.want(mqttc.PUBREC, 7)
				w.release(7)
			},
			"after PUBREC": func(w *twice) {
				w.publish("a", 7, false)
				w.want(mqttc.PUBREC, 7)
				w.kill()
				w.publish("a", 7, true)
				w.want(mqttc.PUBREC, 7)
				w.release(7)
			},
			"after PUBREC, going on": func(w *twice) {
				w.publish("a", 7, false)
				w.want(mqttc.PUBREC, 7)
				w.kill()
				w.release(7)
			},
			"after PUBREL, answer unknown": func(w *twice) {
				w.publish("a", 7, false)
				w.want(mqttc.PUBREC, 7)
				w.pub.Send(mqttc.Packet{Kind: mqttc.PUBREL, ID: 7})
				w.kill()
				w.release(7)
			},
			"after PUBCOMP": func(w *twice) {
				w.publish("a", 7, false)
				w.want(mqttc.PUBREC, 7)
				w.release(7)
				w.kill()
				w.release(7)
			},
			"twice": func(w *twice) {
				w.publish("a", 7, false)
				w.want(mqttc.PUBREC, 7)
				w.kill()
				w.kill()
				w.publish("a", 7, true)
				w.want(mqttc.PUBREC, 7)
				w.kill()
				w.release(7)
			},
		} {
			t.Run(name, func(t *testing.T) {
				w := newTwice(t, version)
				steps(w)
				// The id is free again, and means a new message now.
				w.publish("b", 7, false)
				w.want(mqttc.PUBREC, 7)
				w.release(7)
				w.check("a", "b")
			})
		}
	})
}

// TestInboundQoS2Window leaves a window of handshakes in different states.
func TestInboundQoS2Window(t *testing.T) {
	const n = 12
	w := newTwice(t, 5)
	var payloads []string
	for i := range uint16(n) {
		payloads = append(payloads, fmt.Sprintf("m%02d", i))
		w.publish(payloads[i], i+1, false)
		w.want(mqttc.PUBREC, i+1)
	}
	for i := range uint16(n / 2) {
		w.release(i + 1)
	}
	w.kill()
	for i := uint16(n / 2); i < n; i++ {
		w.publish(payloads[i], i+1, true)
		w.want(mqttc.PUBREC, i+1)
	}
	w.kill()
	for i := uint16(n / 2); i < n; i++ {
		w.release(i + 1)
	}
	w.check(payloads...)
}

// TestOutboundQoS2ThroughKill kills the hub at each step of a subscriber's
// handshake. A PUBLISH may be repeated with its packet id until PUBREC; after
// PUBREL it must never come again.
func TestOutboundQoS2ThroughKill(t *testing.T) {
	versions(t, func(t *testing.T, version byte) {
		h := serveHub(t)
		dial := func(t *testing.T) *hubtest.Client {
			t.Helper()
			c := hubtest.Dial(t, h.Addr(), kept("sub", version))
			if !c.Connack.SessionPresent {
				t.Fatal("the session is gone")
			}
			return c
		}
		first := hubtest.Dial(t, h.Addr(), kept("sub", version))
		first.Sub("two/#", 2)
		first.Bye()
		send := func(t *testing.T, payload string) {
			t.Helper()
			pub := hubtest.Dial(t, h.Addr(), clean("pub", 4))
			pub.Pub("two/x", payload, 2)
			pub.Bye()
		}
		again := func(t *testing.T, c *hubtest.Client, id uint16, payload string) {
			t.Helper()
			p := c.WantPacket(mqttc.PUBLISH)
			if p.ID != id || !p.Dup || string(p.Payload) != payload {
				t.Fatalf("sent again as %v %q, want id %d, %q", p, p.Payload, id, payload)
			}
		}
		finish := func(t *testing.T, c *hubtest.Client, id uint16) {
			t.Helper()
			if p := c.WantPacket(mqttc.PUBREL); p.ID != id {
				t.Fatalf("%v, want id %d", p, id)
			}
			c.Send(mqttc.Packet{Kind: mqttc.PUBCOMP, ID: id})
			c.WantNothing()
		}

		t.Run("after PUBLISH", func(t *testing.T) {
			send(t, "a")
			id := dial(t).WantPacket(mqttc.PUBLISH).ID
			hubtest.Restart(t, h)
			c := dial(t)
			again(t, c, id, "a")
			hubtest.Restart(t, h)
			c = dial(t)
			again(t, c, id, "a")
			c.Send(mqttc.Packet{Kind: mqttc.PUBREC, ID: id})
			finish(t, c, id)
		})
		t.Run("after PUBREC and PUBREL", func(t *testing.T) {
			send(t, "b")
			c := dial(t)
			id := c.WantPacket(mqttc.PUBLISH).ID
			c.Send(mqttc.Packet{Kind: mqttc.PUBREC, ID: id})
			if p := c.WantPacket(mqttc.PUBREL); p.ID != id {
				t.Fatalf("got %v", p)
			}
			hubtest.Restart(t, h)
			finish(t, dial(t), id)
		})
		t.Run("after PUBCOMP", func(t *testing.T) {
			send(t, "c")
			c := dial(t)
			id := c.WantPacket(mqttc.PUBLISH).ID
			c.Send(mqttc.Packet{Kind: mqttc.PUBREC, ID: id})
			finish(t, c, id)
			hubtest.Restart(t, h)
			c = dial(t)
			c.Send(mqttc.Packet{Kind: mqttc.PINGREQ})
			for { // PUBREL may come again, PUBLISH may not
				p, err := c.Next(mqttc.Patience)
				if err != nil || p.Kind == mqttc.PUBLISH {
					t.Fatalf("%v, %v", p, err)
				}
				if p.Kind == mqttc.PINGRESP {
					break
				}
				c.Send(mqttc.Packet{Kind: mqttc.PUBCOMP, ID: p.ID})
			}
			send(t, "d")
			c.Want("two/x", "d", 2)
			c.WantNothing()
		})
	})
}
