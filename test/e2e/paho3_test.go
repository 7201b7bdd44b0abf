package e2e

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"

	"edgehub/test/harness/site"
)

// urls are the addresses of a site as Go's libraries write them, by transport, with the TLS configuration.
func urls(s *site.Site) map[string]struct {
	url string
	tls *tls.Config
} {
	return map[string]struct {
		url string
		tls *tls.Config
	}{
		"tcp":        {"tcp://" + s.Addr(), nil},
		"tls":        {"ssl://" + s.TLS, s.Trust()},
		"mutual tls": {"ssl://" + s.Mutual, s.Named()},
		"ws":         {"ws://" + s.WS + "/mqtt", nil},
		"wss":        {"wss://" + s.WSS + "/mqtt", s.Trust()},
		"mutual wss": {"wss://" + s.MutualWS + "/mqtt", s.Named()},
	}
}

// TestPahoMQTTGolang: paho.mqtt.golang, MQTT 3.1 and 3.1.1.
func TestPahoMQTTGolang(t *testing.T) {
	s := site.New(t, site.Options{WSMax: 100})
	for transport, at := range urls(s) {
		for version, name := range map[uint]string{3: "3.1", 4: "3.1.1"} {
			t.Run(transport+" "+name, func(t *testing.T) {
				l := library{v31: version == 3, dial: func(t *testing.T, d dial) client { return dialPaho3(t, at.url, at.tls, version, d) }}
				l.tryAll(t, strings.ReplaceAll("p3 "+transport+" "+name, " ", "-"))
			})
		}
	}
}

// paho3 is a client of paho.mqtt.golang.
type paho3 struct {
	c       mqtt.Client
	conn    net.Conn
	in      chan message
	session bool
}

func dialPaho3(t *testing.T, url string, cfg *tls.Config, version uint, d dial) client {
	t.Helper()
	p := &paho3{in: make(chan message, 100)}
	o := mqtt.NewClientOptions().AddBroker(url).SetProtocolVersion(version).SetClientID(d.id).SetCleanSession(!d.kept).
		SetAutoReconnect(false).SetConnectTimeout(patience).SetTLSConfig(cfg).SetOrderMatters(true)
	o.SetDefaultPublishHandler(func(_ mqtt.Client, m mqtt.Message) {
		p.in <- message{topic: m.Topic(), payload: string(m.Payload()), qos: m.Qos(), retained: m.Retained()}
	})
	if d.will != nil { // who leaves one breaks its connection, so that has to be at hand
		o.SetBinaryWill(d.will.topic, []byte(d.will.payload), d.will.qos, d.will.retained)
		o.SetCustomOpenConnectionFn(p.open)
	}
	p.c = mqtt.NewClient(o)
	tok := p.c.Connect()
	must(t, wait(tok))
	p.session = tok.(*mqtt.ConnectToken).SessionPresent()
	t.Cleanup(func() { p.c.Disconnect(0) })
	return p
}

// open connects as the library does, and keeps the connection.
func (p *paho3) open(u *url.URL, o mqtt.ClientOptions) (n net.Conn, err error) {
	switch u.Scheme {
	case "ws", "wss":
		n, err = mqtt.NewWebsocket(u.String(), o.TLSConfig, o.ConnectTimeout, http.Header{}, o.WebsocketOptions)
	case "ssl":
		n, err = tls.Dial("tcp", u.Host, o.TLSConfig)
	default:
		n, err = net.Dial("tcp", u.Host)
	}
	p.conn = n
	return n, err
}

var errLate = errors.New("no answer in time")

func wait(tok mqtt.Token) error {
	if !tok.WaitTimeout(patience) {
		return errLate
	}
	return tok.Error()
}

func (p *paho3) present() bool            { return p.session }
func (p *paho3) messages() <-chan message { return p.in }
func (p *paho3) drop() error              { return p.conn.Close() }

func (p *paho3) subscribe(filter string, qos byte) error {
	return wait(p.c.Subscribe(filter, qos, nil))
}

func (p *paho3) publish(m message) error {
	return wait(p.c.Publish(m.topic, m.qos, m.retained, []byte(m.payload)))
}

func (p *paho3) disconnect() error {
	p.c.Disconnect(uint(time.Second / time.Millisecond))
	return nil
}
