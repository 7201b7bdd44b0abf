// Package site is a hub with a listener of every kind, for suites that try
// clients over all of them.
package site

import (
	"crypto/tls"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgehub/internal/certs/certstest"
	"edgehub/test/harness"
	"edgehub/test/harness/hubtest"
)

// ServerName is the host name in the server's certificate.
const ServerName = "edge.test"

// Site is a running hub, its addresses and its certificates. The plain
// listener is the hub's own address.
type Site struct {
	*harness.Hub
	CA                             *certstest.CA
	Dir, CAFile                    string
	CertFile, KeyFile              string // the server's
	Client                         tls.Certificate
	ClientCert, ClientKey          string // its files
	TLS, Mutual, WS, WSS, MutualWS string // addresses; Mutual ones want a certificate
	Unix                           string // path of the socket
}

// WSMax is how many connections the plain WebSocket listener takes, when New is
// not told otherwise.
const WSMax = 3

// Options of a site.
type Options struct {
	Limits []string // lines of the [limits] table
	WSMax  int      // 0: WSMax
}

// New starts a hub with all listeners; it goes away with the test.
func New(t testing.TB, o Options) *Site {
	t.Helper()
	s := &Site{CA: certstest.NewCA(t, "site"), Dir: t.TempDir()}
	s.CAFile = s.CA.Write(t, s.Dir, "ca")
	server := s.CA.Issue(t, ServerName, time.Now().Add(90*24*time.Hour))
	s.CertFile, s.KeyFile = certstest.Write(t, &server, s.Dir, "server")
	s.Client = s.CA.Issue(t, "device-7", time.Now().Add(time.Hour))
	s.ClientCert, s.ClientKey = certstest.Write(t, &s.Client, s.Dir, "client")
	for _, a := range []*string{&s.TLS, &s.Mutual, &s.WS, &s.WSS, &s.MutualWS} {
		addr, err := harness.FreeAddr()
		if err != nil {
			t.Fatal(err)
		}
		*a = addr
	}
	s.Hub = hubtest.New(t, func(c *harness.Config) { s.configure(c, o) })
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *Site) configure(c *harness.Config, o Options) {
	s.Unix = filepath.Join(filepath.Dir(c.Socket), "mqtt.sock")
	c.LogLevel, c.Limits = "debug", o.Limits
	if o.WSMax == 0 {
		o.WSMax = WSMax
	}
	pair := fmt.Sprintf("cert_file = %q, key_file = %q", s.CertFile, s.KeyFile)
	trusted := pair + fmt.Sprintf(", client_ca_file = %q, require_client_cert = true", s.CAFile)
	listener := func(lines ...string) { c.Additional += "\n[[listener]]\n" + strings.Join(lines, "\n") + "\n" }
	web, named := `protocol = "websocket"`, "allow_anonymous = false"
	listener(address(s.TLS), "tls = { "+pair+" }")
	listener(address(s.Mutual), named, "tls = { "+trusted+" }")
	listener(web, address(s.WS), fmt.Sprint("max_connections = ", o.WSMax))
	listener(web, address(s.WSS), "tls = { "+pair+" }")
	listener(web, address(s.MutualWS), named, "tls = { "+trusted+" }")
	listener(address("unix:" + s.Unix))
}

func address(a string) string { return fmt.Sprintf("address = %q", a) }

// Trust is a client's TLS configuration without a certificate of its own.
func (s *Site) Trust() *tls.Config {
	return &tls.Config{RootCAs: s.CA.Pool(), ServerName: ServerName, MinVersion: tls.VersionTLS12}
}

// Named is Trust with the client's certificate.
func (s *Site) Named() *tls.Config {
	c := s.Trust()
	c.Certificates = []tls.Certificate{s.Client}
	return c
}
