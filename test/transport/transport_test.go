// Package transport holds the hub to serving MQTT over every transport, with
// clients that are not ours.
package transport

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"

	"edgehub/internal/certs/certstest"
	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/mqttc"
	"edgehub/test/harness/site"
)

const patience = 30 * time.Second

func TestMain(m *testing.M) {
	if storming() {
		os.Exit(storm())
	}
	hubtest.Main(m)
}

type suite struct{ *site.Site }

func newSite(t *testing.T, limits ...string) *suite {
	t.Helper()
	return &suite{site.New(t, site.Options{Limits: limits})}
}

// mosquitto runs one of mosquitto's clients.
func mosquitto(ctx context.Context, t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed (Debian: apt install mosquitto-clients)", name)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.WaitDelay = time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(out), err
}

func at(addr string, args ...string) []string {
	_, port, _ := net.SplitHostPort(addr)
	return append([]string{"-h", "localhost", "-p", port}, args...)
}

func TestMosquitto(t *testing.T) {
	s := newSite(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	trust := []string{"--cafile", s.CAFile}
	show := append(trust, "--cert", s.ClientCert, "--key", s.ClientKey)
	for _, c := range []struct {
		name string
		args []string
	}{
		{"tcp", at(s.Addr())},
		{"tls 1.2", at(s.TLS, append(trust, "--tls-version", "tlsv1.2")...)},
		{"tls 1.3", at(s.TLS, append(trust, "--tls-version", "tlsv1.3")...)},
		{"alpn", at(s.TLS, append(trust, "--tls-alpn", "mqtt")...)},
		{"mutual 1.2", at(s.Mutual, append(show, "--tls-version", "tlsv1.2")...)},
		{"mutual 1.3", at(s.Mutual, show...)},
		{"unix", []string{"--unix", s.Unix}},
	} {
		for i, version := range []string{"mqttv31", "mqttv311", "mqttv5"} {
			t.Run(c.name+" "+version, func(t *testing.T) {
				args := append(append([]string(nil), c.args...), "-V", version, "-q", fmt.Sprint(i))
				topic, want := "t/"+strings.ReplaceAll(c.name, " ", "/")+"/"+version, strings.Repeat("payload ", 1000)
				if _, err := mosquitto(ctx, t, "mosquitto_pub", append(args, "-r", "-t", topic, "-m", want)...); err != nil {
					t.Fatal(err)
				}
				got, err := mosquitto(ctx, t, "mosquitto_sub", append(args, "-t", topic, "-C", "1", "-W", "10")...)
				if err != nil || got != want+"\n" {
					t.Errorf("%d bytes, %v", len(got), err)
				}
				s.mosquittoSession(ctx, t, slices.Concat(c.args, []string{"-V", version}), topic)
			})
		}
	}
	for name, args := range map[string][]string{
		"no certificate":        at(s.Mutual, trust...),
		"plain to TLS":          at(s.TLS),
		"TLS to plain":          at(s.Addr(), trust...),
		"not trusted":           at(s.TLS, "--cafile", "/etc/ssl/certs/ca-certificates.crt"),
		"another ALPN protocol": at(s.TLS, append(trust, "--tls-alpn", "h2")...),
	} {
		if _, err := mosquitto(ctx, t, "mosquitto_pub", append(args, "-t", "x", "-m", "x")...); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// mosquittoSession: what is published while a kept session is away, one message as large as there may be, is there when
// it comes back.
func (s *suite) mosquittoSession(ctx context.Context, t *testing.T, args []string, topic string) {
	t.Helper()
	topic += "/missed"
	sub := slices.Concat(args, []string{"-i", strings.ReplaceAll(topic, "/", "-"), "-c", "-q", "2", "-t", topic})
	if args[len(args)-1] == "mqttv5" {
		sub = append(sub, "-x", "3600")
	}
	if _, err := mosquitto(ctx, t, "mosquitto_sub", slices.Concat(sub, []string{"-E"})...); err != nil {
		t.Fatal(err)
	}
	const header, properties = 5 + 2 + 2, 1
	large := strings.Repeat("x", 1<<20-header-properties-len(topic))
	file := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(file, []byte(large), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, body := range [][]string{{"-f", file}, {"-m", "small"}} {
		if _, err := mosquitto(ctx, t, "mosquitto_pub", slices.Concat(args, []string{"-q", "2", "-t", topic}, body)...); err != nil {
			t.Fatal(err)
		}
	}
	got, err := mosquitto(ctx, t, "mosquitto_sub", slices.Concat(sub, []string{"-C", "2", "-W", "20"})...)
	if err != nil || got != large+"\nsmall\n" {
		t.Errorf("a session got %d bytes, %v", len(got), err)
	}
}

// webConn is a WebSocket as a net.Conn: each Write is a message, and messages
// are read as a stream.
type webConn struct {
	net.Conn
	rd io.Reader
}

func (w *webConn) Read(p []byte) (int, error) {
	for {
		if w.rd == nil {
			msg, op, err := wsutil.ReadServerData(w.Conn)
			if err != nil {
				return 0, err
			}
			if op != ws.OpBinary {
				return 0, fmt.Errorf("a %v message", op)
			}
			w.rd = bytes.NewReader(msg)
		}
		n, err := w.rd.Read(p)
		if !errors.Is(err, io.EOF) {
			return n, err
		}
		w.rd = nil
	}
}

func (w *webConn) Write(p []byte) (int, error) {
	return len(p), wsutil.WriteClientBinary(w.Conn, p)
}

// web connects a WebSocket.
func web(t *testing.T, url string, cfg *tls.Config, header http.Header) (net.Conn, error) {
	t.Helper()
	d := ws.Dialer{Protocols: []string{"mqtt"}, TLSConfig: cfg, Timeout: 10 * time.Second, Header: ws.HandshakeHeaderHTTP(header)}
	conn, br, hs, err := d.Dial(t.Context(), url)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = conn.Close() })
	if br != nil || hs.Protocol != "mqtt" {
		t.Errorf("%s: protocol %q, early data %v", url, hs.Protocol, br != nil)
	}
	return &webConn{Conn: conn}, nil
}

// exchange publishes to itself.
func exchange(t *testing.T, c *mqttc.Conn, topic, want string) {
	t.Helper()
	if _, err := c.Subscribe(mqttc.Filter{Name: topic, Options: 1}); err != nil {
		t.Fatal(err)
	}
	if err := c.Publish(mqttc.Packet{Kind: mqttc.PUBLISH, Topic: topic, Payload: []byte(want), QoS: 1}); err != nil {
		t.Fatal(err)
	}
	if p, err := c.Receive(mqttc.Patience); err != nil || string(p.Payload) != want {
		t.Fatalf("%v %v", p, err)
	}
}

func TestWebSocket(t *testing.T) {
	s := newSite(t)
	shown := s.Named()
	for url, cfg := range map[string]*tls.Config{
		"ws://" + s.WS + "/mqtt":           nil,
		"ws://" + s.WS + "/":               nil,
		"wss://" + s.WSS + "/mqtt":         s.Trust(),
		"wss://" + s.MutualWS + "/mqtt?x=": shown,
	} {
		for _, version := range []byte{4, 5} {
			n, err := web(t, url, cfg, nil)
			if err != nil {
				t.Fatalf("%s: %v", url, err)
			}
			c, ack, err := mqttc.Over(n, mqttc.Connect{Version: version, ClientID: fmt.Sprintf("web-%d", version), Clean: true, KeepAlive: 30})
			if err != nil || ack.Code != 0 {
				t.Fatalf("%s: %v %v", url, ack, err)
			}
			exchange(t, c, "web/1", strings.Repeat("x", 200_000))
			_ = n.Close()
		}
	}
	for url, want := range map[string]int{"ws://" + s.WS + "/other": 404} {
		var status ws.StatusError
		if _, err := web(t, url, nil, nil); !errors.As(err, &status) || int(status) != want {
			t.Errorf("%s: %v", url, err)
		}
	}
	var status ws.StatusError
	if _, err := web(t, "ws://"+s.WS+"/mqtt", nil, http.Header{"Origin": {"https://evil.example.com"}}); !errors.As(err, &status) || status != 403 {
		t.Errorf("another origin on a loopback address: %v", err)
	}
	if _, err := web(t, "wss://"+s.MutualWS+"/mqtt", s.Trust(), nil); err == nil {
		t.Error("accepted without a certificate")
	}
}

// Each listener has its own limit, and its own word on anonymous clients.
func TestListenerLimits(t *testing.T) {
	s := newSite(t)
	for i := range 3 {
		if _, err := web(t, "ws://"+s.WS+"/mqtt", nil, nil); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	if _, err := web(t, "ws://"+s.WS+"/mqtt", nil, nil); err == nil {
		t.Error("a fourth connection was accepted")
	}
	if _, err := web(t, "wss://"+s.WSS+"/mqtt", s.Trust(), nil); err != nil {
		t.Errorf("the limit holds elsewhere too: %v", err)
	}
}

func (s *suite) connect(t *testing.T, id string, cfg *tls.Config) (*mqttc.Conn, *tls.Conn) {
	t.Helper()
	n, err := tls.Dial("tcp", s.TLS, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	c, ack, err := mqttc.Over(n, mqttc.Connect{Version: 5, ClientID: id, Clean: true, KeepAlive: 60})
	if err != nil || ack.Code != 0 {
		t.Fatalf("%v %v", ack, err)
	}
	return c, n
}

// A renewed certificate is used for new connections, at SIGHUP and by itself;
// the old connections go on, and a mistake changes nothing.
func TestCertificateReload(t *testing.T) {
	s := newSite(t)
	serial := func(n *tls.Conn) string { return n.ConnectionState().PeerCertificates[0].SerialNumber.String() }
	first, n := s.connect(t, "first", s.Trust())
	old := serial(n)

	if err := os.WriteFile(s.CertFile, []byte("a mistake"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Process().Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	hubtest.Eventually(t, patience, "the mistake is told", func() bool { return strings.Contains(s.Output(100), "the old ones stay in use") })
	if _, n := s.connect(t, "second", s.Trust()); serial(n) != old {
		t.Error("a mistake changed the certificate")
	}

	for _, hup := range []bool{true, false} {
		renewed := s.CA.Issue(t, "edge.test", time.Now().Add(90*24*time.Hour))
		certstest.Write(t, &renewed, s.Dir, "server")
		if hup {
			if err := s.Process().Signal(syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
		}
		want := renewed.Leaf.SerialNumber.String()
		hubtest.Eventually(t, patience, "the renewed certificate is in use", func() bool {
			n, err := tls.Dial("tcp", s.TLS, s.Trust())
			if err != nil {
				return false
			}
			defer n.Close()
			return serial(n) == want
		})
	}
	exchange(t, first, "still/here", "through three certificates")
}

// An expired certificate is a warning, not a reason not to start.
func TestExpiredCertificate(t *testing.T) {
	s := newSite(t)
	if code, err := s.Stop(20 * time.Second); code != 0 || err != nil {
		t.Fatal(code, err)
	}
	expired := s.CA.Issue(t, "edge.test", time.Now().Add(-time.Hour))
	certstest.Write(t, &expired, s.Dir, "server")
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(s.Output(100), "has expired at") {
		t.Error("no warning in the log")
	}
	out, err := s.Ctl(t.Context(), "status", "-o", "json")
	if err != nil || !bytes.Contains(out, []byte(`"degraded"`)) || !bytes.Contains(out, []byte("has expired at")) {
		t.Errorf("status does not say it: %v %s", err, out)
	}
	_, err = tls.Dial("tcp", s.TLS, s.Trust())
	var invalid x509.CertificateInvalidError
	if !errors.As(err, &invalid) || invalid.Reason != x509.Expired {
		t.Errorf("client sees %v", err)
	}
}

// Clients that dribble or fall silent are gone after the connect timeout,
// wherever they stopped, and nobody else waits for them.
func TestSlowHandshakes(t *testing.T) {
	s := newSite(t, `connect_timeout = "2s"`)
	var conns []net.Conn
	open := func(addr, text string) {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	for range 50 {
		open(s.TLS, "")
		open(s.TLS, "\x16\x03\x01\x02\x00\x01")
		open(s.WSS, "\x16\x03\x01\x00\x05\x01\x00\x01\x00\x00") // a whole record, but a part of its message
	}
	open(s.WS, "GET /mqtt HTTP/1.1\r\nHost: x\r\n")
	c, _ := s.connect(t, "beside", s.Trust())
	exchange(t, c, "beside/1", "hello")
	for i, c := range conns {
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		b, err := io.ReadAll(c)
		if err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("connection %d is still there: %v", i, err)
		}
		if last := i == len(conns)-1; last && !bytes.HasPrefix(b, []byte("HTTP/1.1 408 ")) {
			t.Errorf("slow request was told %q", b)
		}
	}
	exchange(t, c, "beside/2", "hello")
}

// The user of a connection is the name in its certificate.
func TestCertificateName(t *testing.T) {
	s := newSite(t)
	n, err := tls.Dial("tcp", s.Mutual, s.Named())
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if _, ack, err := mqttc.Over(n, mqttc.Connect{Version: 5, ClientID: "named", Clean: true}); err != nil || ack.Code != 0 {
		t.Fatalf("%v %v", ack, err)
	}
	out, err := s.Ctl(t.Context(), "client", "ls", "-o", "json")
	if err != nil || !bytes.Contains(out, []byte(`"device-7"`)) {
		t.Errorf("%v: %s", err, out)
	}
}
