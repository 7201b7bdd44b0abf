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
	if p.ID != id || p.Code >= 0x80 && (kind != mqttc.PUBCOMP || p.Code != 0x92) {
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

// absentee is a persistent QoS 2 subscriber that comes and goes.
type absentee struct {
	t       *testing.T
	h       *harness.Hub
	version byte
	*hubtest.Client
}

func newAbsentee(t *testing.T, version byte) *absentee {
	t.Helper()
	a := &absentee{t: t, h: serveHub(t), version: version}
	a.Client = hubtest.Dial(t, a.h.Addr(), kept("sub", version))
	a.Sub("two/#", 2)
	a.Bye()
	return a
}

// back connects again; the session must be there.
func (a *absentee) back() {
	a.t.Helper()
	a.Client = hubtest.Dial(a.t, a.h.Addr(), kept("sub", a.version))
	if !a.Connack.SessionPresent {
		a.t.Fatal("the session is gone")
	}
}

// kill -9, restart, and back.
func (a *absentee) kill() {
	a.t.Helper()
	hubtest.Restart(a.t, a.h)
	a.back()
}

// post publishes one message to the subscriber.
func (a *absentee) post(payload string) {
	a.t.Helper()
	pub := hubtest.Dial(a.t, a.h.Addr(), clean("pub", 4))
	pub.Pub("two/x", payload, 2)
	pub.Bye()
}

// first is back and gets a message for the first time.
func (a *absentee) first(payload string) uint16 {
	a.t.Helper()
	a.back()
	p := a.WantPacket(mqttc.PUBLISH)
	if string(p.Payload) != payload {
		a.t.Fatalf("got %v %q, want %q", p, p.Payload, payload)
	}
	return p.ID
}

// again gets a message that is known by its packet id.
func (a *absentee) again(id uint16, payload string) {
	a.t.Helper()
	p := a.WantPacket(mqttc.PUBLISH)
	if p.ID != id || !p.Dup || string(p.Payload) != payload {
		a.t.Fatalf("sent again as %v %q, want id %d, %q", p, p.Payload, id, payload)
	}
}

// finish gets PUBREL and completes the handshake; nothing may follow.
func (a *absentee) finish(id uint16) {
	a.t.Helper()
	if p := a.WantPacket(mqttc.PUBREL); p.ID != id {
		a.t.Fatalf("%v, want id %d", p, id)
	}
	a.Send(mqttc.Packet{Kind: mqttc.PUBCOMP, ID: id})
	a.WantNothing()
}

// quiet lets handshakes end that the hub does not know as ended. PUBREL may
// come again; PUBLISH may not.
func (a *absentee) quiet() {
	a.t.Helper()
	a.Send(mqttc.Packet{Kind: mqttc.PINGREQ})
	for {
		p, err := a.Next(mqttc.Patience)
		if err != nil || p.Kind == mqttc.PUBLISH {
			a.t.Fatalf("%v %q, %v", p, p.Payload, err)
		}
		if p.Kind == mqttc.PINGRESP {
			return
		}
		a.Send(mqttc.Packet{Kind: mqttc.PUBCOMP, ID: p.ID})
	}
}

// TestOutboundQoS2ThroughKill kills the hub at each step of a subscriber's
// handshake. A PUBLISH may be repeated with its packet id until PUBREC; after
// PUBREL it must never come again.
func TestOutboundQoS2ThroughKill(t *testing.T) {
	versions(t, func(t *testing.T, version byte) {
		a := newAbsentee(t, version)

		a.post("after PUBLISH")
		id := a.first("after PUBLISH")
		a.kill()
		a.again(id, "after PUBLISH")
		a.kill()
		a.again(id, "after PUBLISH")
		a.Send(mqttc.Packet{Kind: mqttc.PUBREC, ID: id})
		a.finish(id)
		a.Abort()

		a.post("after PUBREL")
		id = a.first("after PUBREL")
		a.Send(mqttc.Packet{Kind: mqttc.PUBREC, ID: id})
		if p := a.WantPacket(mqttc.PUBREL); p.ID != id {
			t.Fatalf("got %v", p)
		}
		a.kill()
		a.finish(id)
		a.Abort()

		a.post("after PUBCOMP")
		id = a.first("after PUBCOMP")
		a.Send(mqttc.Packet{Kind: mqttc.PUBREC, ID: id})
		a.finish(id)
		a.kill()
		a.quiet()

		a.post("last")
		a.Want("two/x", "last", 2)
		a.WantNothing()
	})
}
