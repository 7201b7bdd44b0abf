package config

import (
	"errors"
	"reflect"
	"slices"
	"strings"

	"edgehub/internal/certs"
)

func (ch *checker) listeners(c *Config) {
	defaults := withDefaults(findTable("listener"), reflect.TypeFor[Listener]()).Interface().(Listener)
	for i := range c.Listeners {
		l := &c.Listeners[i]
		path, name := element("listener", i), label("listener", "", i)
		fail := func(key, what, cure string) { ch.fail(path+"."+key, name+"."+key, what, cure) }
		if !l.AllowAnonymous && l.TLS.ClientCAFile == "" && c.Auth.UsersFile == "" {
			fail("allow_anonymous", l.Address+" would refuse every client: there are no users",
				"write allow_anonymous = true where everyone on that network may read and write everything, or auth.users_file for users, or tls.client_ca_file for clients with certificates, or a loopback address")
		}
		for _, other := range c.Listeners[:i] {
			if other.Address == l.Address && !strings.HasSuffix(l.Address, ":0") {
				fail("address", quote(l.Address)+" is another listener's", "give each its own port")
			}
		}
		if l.Protocol != ProtocolWebSocket && (len(l.WebSocket.Origins) > 0 || !slices.Equal(l.WebSocket.Paths, defaults.WebSocket.Paths)) {
			fail("websocket", "is for listeners with protocol = \"websocket\"", "remove it, or change the protocol")
		}
		l.tlsProblems(fail)
	}
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
