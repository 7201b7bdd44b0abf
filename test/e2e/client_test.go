package e2e

import (
	"fmt"
	"testing"
	"time"

	"edgehub/test/harness/hubtest"
)

func TestMain(m *testing.M) { hubtest.Main(m) }

const patience = 20 * time.Second

// message is one as a library sends or receives it.
type message struct {
	topic    string
	payload  string
	qos      byte
	retained bool
	props    *props // MQTT 5
}

// props are the properties of MQTT 5 that go through with a message.
type props struct {
	contentType, responseTopic, correlation string
	user                                    [][2]string
	expiryS                                 uint32 // 0: none
}

// dial is how a client connects.
type dial struct {
	id   string
	kept bool // the session outlives the connection
	will *message
}

// client is a connected client of some library.
type client interface {
	present() bool // there was a session
	subscribe(filter string, qos byte) error
	publish(m message) error
	messages() <-chan message
	disconnect() error
	drop() error // ends the connection without a goodbye
}

// library is a client library over one transport, in one version.
type library struct {
	v5   bool
	v31  bool // which has no word for a session that is there
	dial func(t *testing.T, d dial) client
}

// receive takes the next message, or fails the test.
func receive(t *testing.T, c client, what string) message {
	t.Helper()
	select {
	case m := <-c.messages():
		return m
	case <-time.After(patience):
		t.Fatalf("%s did not come", what)
		return message{}
	}
}

func expect(t *testing.T, c client, want message) message {
	t.Helper()
	got := receive(t, c, want.topic)
	if got.topic != want.topic || got.payload != want.payload || got.qos != want.qos || got.retained != want.retained {
		t.Fatalf("got %d bytes on %q at QoS %d, retained %v; want %d bytes on %q at QoS %d, retained %v",
			len(got.payload), got.topic, got.qos, got.retained, len(want.payload), want.topic, want.qos, want.retained)
	}
	return got
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// largest is a payload that just fits the default limit of a packet, 1 MiB.
func largest(topic string) []byte {
	const most, header, properties = 1 << 20, 5 + 2 + 2, 1
	b := make([]byte, most-header-properties-len(topic))
	for i := range b {
		b[i] = byte('a' + i%26)
	}
	return b
}

// tryAll is what every library has to do over every transport.
func (l *library) tryAll(t *testing.T, name string) {
	t.Run("both ways", func(t *testing.T) { l.bothWays(t, name) })
	t.Run("retained", func(t *testing.T) { l.retained(t, name) })
	t.Run("will", func(t *testing.T) { l.will(t, name) })
	t.Run("session", func(t *testing.T) { l.session(t, name) })
	if l.v5 {
		t.Run("properties", func(t *testing.T) { l.properties(t, name) })
	}
}

// bothWays: every QoS from one client to another and back, up to the largest packet.
func (l *library) bothWays(t *testing.T, name string) {
	a, b := l.dial(t, dial{id: name + "-a"}), l.dial(t, dial{id: name + "-b"})
	must(t, a.subscribe(name+"/to-a", 2))
	must(t, b.subscribe(name+"/to-b", 2))
	for qos := range byte(3) {
		for _, way := range []struct {
			from, to client
			topic    string
		}{{a, b, name + "/to-b"}, {b, a, name + "/to-a"}} {
			for _, payload := range []string{"", "one", string(largest(way.topic))} {
				m := message{topic: way.topic, payload: payload, qos: qos}
				must(t, way.from.publish(m))
				expect(t, way.to, m)
			}
		}
	}
	must(t, a.disconnect())
	must(t, b.disconnect())
}

// retained: kept for who subscribes later, marked as such, and cleared by an empty one.
func (l *library) retained(t *testing.T, name string) {
	pub := l.dial(t, dial{id: name + "-pub"})
	m := message{topic: name + "/retained", payload: "kept", qos: 1, retained: true}
	must(t, pub.publish(m))
	sub := l.dial(t, dial{id: name + "-sub"})
	must(t, sub.subscribe(name+"/#", 2))
	expect(t, sub, m)
	m.payload = ""
	must(t, pub.publish(m))
	m.retained = false
	expect(t, sub, m)
	late := l.dial(t, dial{id: name + "-late"})
	must(t, late.subscribe(name+"/#", 2))
	must(t, pub.publish(message{topic: name + "/last", qos: 1}))
	expect(t, late, message{topic: name + "/last", qos: 1})
	for _, c := range []client{pub, sub, late} {
		must(t, c.disconnect())
	}
}

// will: published when the connection breaks, not after a goodbye.
func (l *library) will(t *testing.T, name string) {
	sub := l.dial(t, dial{id: name + "-sub"})
	must(t, sub.subscribe(name+"/will/#", 1))
	polite := l.dial(t, dial{id: name + "-polite", will: &message{topic: name + "/will/polite", payload: "gone", qos: 1}})
	must(t, polite.disconnect())
	w := message{topic: name + "/will/broken", payload: "gone", qos: 1}
	broken := l.dial(t, dial{id: name + "-broken", will: &w})
	must(t, broken.drop())
	expect(t, sub, w)
	must(t, sub.disconnect())
}

// session: what is published while a kept session is away is there when it comes back, in order.
func (l *library) session(t *testing.T, name string) {
	d := dial{id: name + "-kept", kept: true}
	c := l.dial(t, d)
	if c.present() {
		t.Error("a session before the first connection")
	}
	must(t, c.subscribe(name+"/missed", 2))
	must(t, c.disconnect())
	pub := l.dial(t, dial{id: name + "-pub"})
	var missed []message
	for i := range 20 {
		m := message{topic: name + "/missed", payload: fmt.Sprint(i), qos: byte(1 + i%2)}
		must(t, pub.publish(m))
		missed = append(missed, m)
	}
	c = l.dial(t, d)
	if !c.present() && !l.v31 {
		t.Error("the session is gone")
	}
	for _, m := range missed {
		expect(t, c, m)
	}
	must(t, c.disconnect())
	must(t, pub.disconnect())
}

// properties: of MQTT 5, as they were sent, but for the expiry, which counts down.
func (l *library) properties(t *testing.T, name string) {
	c := l.dial(t, dial{id: name + "-self"})
	must(t, c.subscribe(name+"/props", 1))
	p := props{contentType: "text/plain", responseTopic: name + "/answer", correlation: "c\x00rr", expiryS: 60,
		user: [][2]string{{"b", "1"}, {"a", "2"}, {"b", "1"}}}
	must(t, c.publish(message{topic: name + "/props", payload: "x", qos: 1, props: &p}))
	got := expect(t, c, message{topic: name + "/props", payload: "x", qos: 1}).props
	if got == nil || got.expiryS == 0 || got.expiryS > p.expiryS {
		t.Fatalf("got %+v", got)
	}
	got.expiryS = p.expiryS
	if fmt.Sprint(*got) != fmt.Sprint(p) {
		t.Errorf("got  %+v\nsent %+v", *got, p)
	}
	must(t, c.disconnect())
}
