package config

import (
	"errors"
	"net"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"edgehub/internal/certs"
)

func (ch *checker) listeners(c *Config) {
	defaults := withDefaults(findTable("listener"), reflect.TypeFor[Listener](), nil).Interface().(Listener)
	for i := range c.Listeners {
		l := &c.Listeners[i]
		path, name := element("listener", i), label("listener", "", i)
		fail := func(key, what, cure string) { ch.fail(path+"."+key, name+"."+key, what, cure) }
		if !l.AllowAnonymous && l.TLS.ClientCAFile == "" && c.Auth.UsersFile == "" {
			fail("allow_anonymous", l.Address+" would refuse every client: there are no users",
				"write allow_anonymous = true where everyone on that network may read and write everything, or auth.users_file for users, or tls.client_ca_file for clients with certificates, or a loopback address")
		}
		for _, other := range c.Listeners[:i] {
			if sameAddress(other.Address, l.Address) {
				fail("address", quote(l.Address)+" is another listener's", "give each its own port")
				break
			}
		}
		if overlap(c.Admin.Address, l.Address) {
			fail("address", quote(l.Address)+" takes the port of admin.address", "give one of them another port")
		}
		if path, ok := strings.CutPrefix(l.Address, unixPrefix); ok && filepath.Clean(path) == filepath.Clean(c.Admin.Socket) {
			fail("address", quote(l.Address)+" is admin.socket", "give one of them another path")
		}
		if l.Protocol != ProtocolWebSocket && (len(l.WebSocket.Origins) > 0 || !slices.Equal(l.WebSocket.Paths, defaults.WebSocket.Paths)) {
			fail("websocket", "is for listeners with protocol = \"websocket\"", "remove it, or change the protocol")
		}
		l.tlsProblems(fail)
	}
}

// hostPort takes an address apart; one host is always written the same way, and any is "". Port 0 is any free one and
// so nobody's.
func hostPort(address string) (host, port string, ok bool) {
	host, port, err := net.SplitHostPort(address)
	if err != nil || strings.Trim(port, "0") == "" {
		return "", "", false
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	if ip := net.ParseIP(host); ip != nil {
		if host = ip.String(); ip.IsUnspecified() && ip.To4() == nil {
			host = ""
		}
	}
	return host, strings.TrimLeft(port, "0"), true
}

// sameAddress reports whether two listeners are one. Listeners on one port of different hosts, one of them any, are
// told apart by the kernel.
func sameAddress(a, b string) bool {
	aHost, aPort, ok := hostPort(a)
	if !ok {
		return a == b && strings.HasPrefix(a, unixPrefix)
	}
	bHost, bPort, ok := hostPort(b)
	return ok && aHost == bHost && aPort == bPort
}

// overlap reports whether the admin interface, which shares no port, and a listener cannot both have their address.
func overlap(admin, listener string) bool {
	aHost, aPort, aOK := hostPort(admin)
	bHost, bPort, bOK := hostPort(listener)
	anyHost := func(h string) bool { return h == "" || h == "0.0.0.0" }
	return aOK && bOK && aPort == bPort && (aHost == bHost || anyHost(aHost) || anyHost(bHost))
}

// tlsProblems reads the certificates, so that what is wrong with them is found before anything is touched.
func (l *Listener) tlsProblems(fail func(key, what, cure string)) {
	t := &l.TLS
	switch {
	case t.CertFile == "" && t.KeyFile == "":
		if t.ClientCAFile != "" || t.RequireClientCert || len(t.SNICertFiles)+len(t.SNIKeyFiles) > 0 {
			fail("tls", "there is no certificate", "write tls.cert_file and tls.key_file")
		}
		return
	case t.CertFile == "" || t.KeyFile == "":
		fail("tls", "tls.cert_file and tls.key_file belong together", "write both or none")
		return
	case len(t.SNICertFiles) != len(t.SNIKeyFiles):
		fail("tls", "tls.sni_cert_files and tls.sni_key_files differ in length", "write one key for each certificate, in the same order")
		return
	case t.RequireClientCert && t.ClientCAFile == "":
		fail("tls.require_client_cert", "nobody is there to sign client certificates", "write tls.client_ca_file")
		return
	}
	_, err := certs.Open(l.Certs())
	var bad *certs.Error
	if errors.As(err, &bad) {
		key := [...]string{"tls.cert_file", "tls.key_file", "tls.client_ca_file"}[bad.Role]
		if bad.Pair > 0 {
			key = [...]string{"tls.sni_cert_files", "tls.sni_key_files"}[bad.Role]
		}
		fail(key, quote(bad.File)+" "+bad.What, bad.Cure)
	}
}
