package auth

import (
	"crypto/tls"
	"fmt"
	"net"
	"testing"
	"time"

	"edgehub/internal/certs/certstest"
	"edgehub/test/harness"
	"edgehub/test/harness/mqttc"
)

// A certificate is a user: its name is that of the access list, with the groups of the users file, and can be banned.
// A user name beside it is judged by its password.
func TestCertificateIsAUser(t *testing.T) {
	ca, dir := certstest.NewCA(t, "plant"), t.TempDir()
	until := time.Now().Add(time.Hour)
	server := ca.Issue(t, "localhost", until)
	certFile, keyFile := certstest.Write(t, &server, dir, "server")
	caFile := ca.Write(t, dir, "ca")
	addr, err := harness.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	h := start(t, "allow user:meter-1 all m/%u/#\nallow group:ops all #\n", fmt.Sprintf(
		"[[listener]]\naddress = %q\nallow_anonymous = false\ntls = { cert_file = %q, key_file = %q, client_ca_file = %q }\n", addr, certFile, keyFile, caFile))

	over := func(cert *tls.Certificate, c mqttc.Connect) (*mqttc.Conn, byte) {
		t.Helper()
		cfg := &tls.Config{RootCAs: ca.Pool(), ServerName: "localhost"}
		if cert != nil {
			cfg.Certificates = []tls.Certificate{*cert}
		}
		n, err := (&tls.Dialer{NetDialer: &net.Dialer{Timeout: mqttc.Patience}, Config: cfg}).DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		c.Version, c.Clean = 5, true
		conn, ack, err := mqttc.Over(n, c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Abort)
		return conn, ack.Code
	}
	meter := ca.Issue(t, "meter-1", until)
	anna := ca.Issue(t, "anna", until) // in the users file, of the group ops

	conn, code := over(&meter, mqttc.Connect{ClientID: "c"})
	if code != 0 {
		t.Fatalf("code %#x", code)
	}
	for topic, want := range map[string]byte{"m/meter-1/kwh": 0, "m/meter-2/kwh": notAuthorized} {
		if p, err := conn.Request(mqttc.Packet{Kind: mqttc.PUBLISH, Topic: topic, QoS: 1, ID: conn.NextID()}, mqttc.PUBACK); err != nil || p.Code != want {
			t.Errorf("%s: %v, %v", topic, p, err)
		}
	}
	conn, _ = over(&anna, mqttc.Connect{ClientID: "a"})
	if p, err := conn.Request(mqttc.Packet{Kind: mqttc.PUBLISH, Topic: "anything", QoS: 1, ID: 1}, mqttc.PUBACK); err != nil || p.Code != 0 {
		t.Errorf("group of a certificate's user: %v, %v", p, err)
	}
	for _, c := range []struct {
		cert *tls.Certificate
		c    mqttc.Connect
		want byte
	}{
		{nil, mqttc.Connect{ClientID: "n"}, notAuthorized},
		{nil, mqttc.Connect{ClientID: "n", Username: "bert", Password: "bert"}, 0},
		{&meter, mqttc.Connect{ClientID: "n", Username: "bert", Password: "wrong"}, badCredentials},
		{&meter, mqttc.Connect{ClientID: "n", Username: "bert", Password: "bert"}, 0},
	} {
		if _, code := over(c.cert, c.c); code != c.want {
			t.Errorf("%+v: code %#x, want %#x", c.c, code, c.want)
		}
	}
	h.mustCtl("ban", "add", "user", "meter-1")
	if _, code := over(&meter, mqttc.Connect{ClientID: "c"}); code != banned {
		t.Errorf("banned certificate: code %#x", code)
	}
}
