package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/paho"
	"github.com/eclipse/paho.golang/paho/extensions/topicaliases"

	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/site"
)

// TestAutopaho: paho.golang with autopaho, MQTT 5.
func TestAutopaho(t *testing.T) {
	s := site.New(t, site.Options{WSMax: 100})
	for transport, at := range urls(s) {
		t.Run(transport, func(t *testing.T) {
			l := library{v5: true, dial: func(t *testing.T, d dial) client { return dialAuto(t, at.url, at.tls, d, nil) }}
			l.tryAll(t, strings.ReplaceAll("p5 "+transport, " ", "-"))
		})
	}
}

// auto is a client of autopaho.
type auto struct {
	cm      *autopaho.ConnectionManager
	in      chan message
	session bool
	told    chan byte // reason codes of DISCONNECT
	acks    chan *paho.Connack
}

func dialAuto(t *testing.T, at string, cfg *tls.Config, d dial, change func(*autopaho.ClientConfig)) *auto {
	t.Helper()
	u, err := url.Parse(at)
	must(t, err)
	a := &auto{in: make(chan message, 100), told: make(chan byte, 10), acks: make(chan *paho.Connack, 10)}
	c := autopaho.ClientConfig{ServerUrls: []*url.URL{u}, TlsCfg: cfg, KeepAlive: 60, ConnectTimeout: patience,
		CleanStartOnInitialConnection: !d.kept,
		ReconnectBackoff:              func(int) time.Duration { return 100 * time.Millisecond },
		OnConnectionUp:                func(_ *autopaho.ConnectionManager, ack *paho.Connack) { a.acks <- ack },
		OnConnectionDown:              func() bool { return false },
		ClientConfig: paho.ClientConfig{ClientID: d.id,
			OnPublishReceived:  []func(paho.PublishReceived) (bool, error){a.received},
			OnServerDisconnect: func(p *paho.Disconnect) { a.told <- p.ReasonCode },
		}}
	if d.kept {
		c.SessionExpiryInterval = 3600
	}
	if w := d.will; w != nil {
		c.WillMessage = &paho.WillMessage{Topic: w.topic, Payload: []byte(w.payload), QoS: w.qos, Retain: w.retained}
	}
	if change != nil {
		change(&c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	a.cm, err = autopaho.NewConnection(ctx, c)
	must(t, err)
	a.session = a.connected(t).SessionPresent
	return a
}

// connected waits for the next CONNACK.
func (a *auto) connected(t *testing.T) *paho.Connack {
	t.Helper()
	select {
	case ack := <-a.acks:
		return ack
	case <-time.After(patience):
		t.Fatal("not connected in time")
		return nil
	}
}

func (a *auto) received(r paho.PublishReceived) (bool, error) {
	p := r.Packet
	m := message{topic: p.Topic, payload: string(p.Payload), qos: p.QoS, retained: p.Retain}
	if x := p.Properties; x != nil {
		m.props = &props{contentType: x.ContentType, responseTopic: x.ResponseTopic, correlation: string(x.CorrelationData)}
		for _, u := range x.User {
			m.props.user = append(m.props.user, [2]string{u.Key, u.Value})
		}
		if x.MessageExpiry != nil {
			m.props.expiryS = *x.MessageExpiry
		}
	}
	a.in <- m
	return true, nil
}

func (a *auto) present() bool            { return a.session }
func (a *auto) messages() <-chan message { return a.in }

func soon() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), patience)
}

func (a *auto) subscribe(filter string, qos byte) error {
	ctx, cancel := soon()
	defer cancel()
	_, err := a.cm.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: filter, QoS: qos}}})
	return err
}

func packetOf(m message) *paho.Publish {
	p := &paho.Publish{Topic: m.topic, Payload: []byte(m.payload), QoS: m.qos, Retain: m.retained}
	if x := m.props; x != nil {
		p.Properties = &paho.PublishProperties{ContentType: x.contentType, ResponseTopic: x.responseTopic,
			CorrelationData: []byte(x.correlation)}
		if x.expiryS > 0 {
			p.Properties.MessageExpiry = &x.expiryS
		}
		for _, u := range x.user {
			p.Properties.User.Add(u[0], u[1])
		}
	}
	return p
}

func (a *auto) publish(m message) error {
	ctx, cancel := soon()
	defer cancel()
	_, err := a.cm.Publish(ctx, packetOf(m))
	return err
}

func (a *auto) disconnect() error {
	ctx, cancel := soon()
	defer cancel()
	return a.cm.Disconnect(ctx)
}

func (a *auto) drop() error {
	a.cm.TerminateConnectionForTest()
	return nil
}

// TestReconnect: autopaho with its queue goes through a kill of the hub; the session, its subscription and every
// message are there afterwards.
func TestReconnect(t *testing.T) {
	s := site.New(t, site.Options{})
	again := func(c *autopaho.ClientConfig) { c.OnConnectionDown = func() bool { return true } }
	sub := dialAuto(t, "tcp://"+s.Addr(), nil, dial{id: "sub", kept: true}, again)
	pub := dialAuto(t, "tcp://"+s.Addr(), nil, dial{id: "pub", kept: true}, again)
	must(t, sub.subscribe("through/kill", 2))
	must(t, pub.publish(message{topic: "through/kill", payload: "before", qos: 2}))
	expect(t, sub, message{topic: "through/kill", payload: "before", qos: 2})
	hubtest.Restart(t, s.Hub)
	for _, a := range []*auto{sub, pub} {
		if !a.connected(t).SessionPresent {
			t.Error("the session is gone")
		}
	}
	must(t, pub.publish(message{topic: "through/kill", payload: "after", qos: 2}))
	expect(t, sub, message{topic: "through/kill", payload: "after", qos: 2})
	must(t, sub.disconnect())
	must(t, pub.disconnect())
}

// TestReasons: what MQTT 5 tells this client: refused filters and topics, a takeover, the limits of CONNACK.
func TestReasons(t *testing.T) {
	s := site.New(t, site.Options{})
	at := "tcp://" + s.Addr()
	first := dialAuto(t, at, nil, dial{id: "same"}, nil)
	ctx, cancel := soon()
	defer cancel()
	ack, err := first.cm.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: "ok", QoS: 1}, {Topic: "a/#/b"}}})
	if err == nil || ack == nil || fmt.Sprint(ack.Reasons) != fmt.Sprint([]byte{1, 0x8f}) {
		t.Errorf("SUBACK %+v, %v", ack, err)
	}
	resp, err := first.cm.Publish(ctx, &paho.Publish{Topic: "$SYS/mine", QoS: 1, Payload: []byte("x")})
	if err == nil || resp == nil || resp.ReasonCode != 0x87 {
		t.Errorf("PUBACK %+v, %v", resp, err)
	}
	second := dialAuto(t, at, nil, dial{id: "same"}, nil)
	select {
	case code := <-first.told:
		if code != 0x8e {
			t.Errorf("the first connection was told %#x", code)
		}
	case <-time.After(patience):
		t.Error("the first connection was told nothing")
	}
	must(t, second.disconnect())
}

// TestExpiry: a message whose time is over while its session is away is not delivered; the next one is.
func TestExpiry(t *testing.T) {
	s := site.New(t, site.Options{})
	at, d := "tcp://"+s.Addr(), dial{id: "away", kept: true}
	c := dialAuto(t, at, nil, d, nil)
	must(t, c.subscribe("expires", 1))
	must(t, c.disconnect())
	pub := dialAuto(t, at, nil, dial{id: "pub"}, nil)
	begin := time.Now()
	must(t, pub.publish(message{topic: "expires", payload: "short", qos: 1, props: &props{expiryS: 1}}))
	must(t, pub.publish(message{topic: "expires", payload: "long", qos: 1, props: &props{expiryS: 100}}))
	<-time.After(time.Until(begin.Add(1100 * time.Millisecond)))
	c = dialAuto(t, at, nil, d, nil)
	if m := receive(t, c, "the message that lasts"); m.payload != "long" || m.props == nil || m.props.expiryS > 99 || m.props.expiryS < 60 {
		t.Errorf("got %+v %+v", m, m.props)
	}
	must(t, c.disconnect())
	must(t, pub.disconnect())
}

// TestAliases: the library's handler gives every topic an alias, as many as the hub takes.
func TestAliases(t *testing.T) {
	s := site.New(t, site.Options{})
	at := "tcp://" + s.Addr()
	handler := topicaliases.NewTAHandler(16)
	pub := dialAuto(t, at, nil, dial{id: "pub"}, func(c *autopaho.ClientConfig) { c.PublishHook = handler.PublishHook })
	sub := dialAuto(t, at, nil, dial{id: "sub"}, nil)
	must(t, sub.subscribe("alias/#", 2))
	for i := range 100 {
		m := message{topic: fmt.Sprint("alias/", i%16), payload: fmt.Sprint(i), qos: byte(i % 3)}
		must(t, pub.publish(m))
		expect(t, sub, m)
	}
	if handler.GetAlias("alias/3") == 0 {
		t.Error("no alias was used")
	}
	must(t, errors.Join(pub.disconnect(), sub.disconnect()))
}
