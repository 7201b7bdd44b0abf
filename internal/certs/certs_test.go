package certs

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgehub/internal/certs/certstest"
)

func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	ca := certstest.NewCA(t, "ca")
	a, b := ca.Issue(t, "a", time.Now().Add(time.Hour)), ca.Issue(t, "b", time.Now().Add(time.Hour))
	certA, keyA := certstest.Write(t, &a, dir, "a")
	certB, keyB := certstest.Write(t, &b, dir, "b")
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	block := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	other := file("rsa.key", block("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(rsaKey)))
	text, garbageKey, garbageCert := file("text", "hello"), file("bad.key", block("PRIVATE KEY", []byte("x"))), file("bad.pem", block("CERTIFICATE", []byte("x")))
	sealed := file("sealed.key", block("ENCRYPTED PRIVATE KEY", []byte("x")))
	large := file("large.pem", strings.Repeat("x", fileBytesMax+1))
	for _, c := range []struct {
		name string
		o    Options
		role Role
		pair int
		what string
	}{
		{"no certificate", Options{Pairs: []Pair{{filepath.Join(dir, "none"), keyA}}}, RoleCert, 0, "does not exist"},
		{"no key", Options{Pairs: []Pair{{certA, filepath.Join(dir, "none")}}}, RoleKey, 0, "does not exist"},
		{"a directory", Options{Pairs: []Pair{{dir, keyA}}}, RoleCert, 0, "is not a file"},
		{"too large", Options{Pairs: []Pair{{large, keyA}}}, RoleCert, 0, "is too large for a PEM file"},
		{"not PEM", Options{Pairs: []Pair{{text, keyA}}}, RoleCert, 0, "is not PEM"},
		{"key is not PEM", Options{Pairs: []Pair{{certA, text}}}, RoleKey, 0, "is not PEM"},
		{"exchanged", Options{Pairs: []Pair{{keyA, certA}}}, RoleCert, 0, "holds no certificate but PRIVATE KEY"},
		{"certificate as key", Options{Pairs: []Pair{{certA, certA}}}, RoleKey, 0, "holds no private key but CERTIFICATE"},
		{"encrypted", Options{Pairs: []Pair{{certA, sealed}}}, RoleKey, 0, "is encrypted"},
		{"another's key", Options{Pairs: []Pair{{certA, keyB}}}, RoleKey, 0, "is not the key of " + certA},
		{"another kind of key", Options{Pairs: []Pair{{certA, other}}}, RoleKey, 0, "is not the key of " + certA},
		{"key that is none", Options{Pairs: []Pair{{certA, garbageKey}}}, RoleKey, 0, "holds a key that cannot be used: "},
		{"certificate that is none", Options{Pairs: []Pair{{garbageCert, keyA}}}, RoleCert, 0, "holds a certificate that cannot be read: "},
		{"second pair", Options{Pairs: []Pair{{certA, keyA}, {certB, keyA}}}, RoleKey, 1, "is not the key of " + certB},
		{"no authority", Options{Pairs: []Pair{{certA, keyA}}, ClientCAFile: keyA}, RoleClientCA, 0, "holds no certificate"},
		{"authority missing", Options{Pairs: []Pair{{certA, keyA}}, ClientCAFile: dir + "/none"}, RoleClientCA, 0, "does not exist"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Open(c.o)
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("got %v", err)
			}
			if e.Role != c.role || e.Pair != c.pair || !strings.HasPrefix(e.What, c.what) || e.Cure == "" || strings.Contains(e.Error(), "\n") {
				t.Errorf("got %+v", e)
			}
		})
	}
}

func TestReload(t *testing.T) {
	dir := t.TempDir()
	ca := certstest.NewCA(t, "ca")
	now := time.Now()
	first, second := ca.Issue(t, "first", now.Add(100*24*time.Hour)), ca.Issue(t, "second", now.Add(48*time.Hour))
	certFile, keyFile := certstest.Write(t, &first, dir, "edge")
	// The time of a change may be coarse; tests write faster than that.
	stamp := now.Add(-time.Hour)
	touch := func() {
		stamp = stamp.Add(time.Second)
		for _, f := range []string{certFile, keyFile} {
			if err := os.Chtimes(f, stamp, stamp); err != nil {
				t.Fatal(err)
			}
		}
	}
	touch()
	s, err := Open(Options{Pairs: []Pair{{certFile, keyFile}}, ClientCAFile: ca.Write(t, dir, "ca"), RequireClientCert: true, NextProtos: []string{"mqtt"}})
	if err != nil {
		t.Fatal(err)
	}
	name := func() string { return s.Config().Certificates[0].Leaf.Subject.CommonName }
	if c := s.Config(); name() != "first" || c.MinVersion != tls.VersionTLS12 || c.ClientAuth != tls.RequireAndVerifyClientCert || c.NextProtos[0] != "mqtt" {
		t.Errorf("%+v", c)
	}
	if changed, err := s.Refresh(); changed || err != nil {
		t.Errorf("nothing changed: %v %v", changed, err)
	}
	if w := s.Warnings(now); w != nil {
		t.Errorf("warnings: %v", w)
	}

	// Half a change: the certificate is there, its key is not yet.
	old := s.Config()
	secondCert, secondKey := certstest.Write(t, &second, t.TempDir(), "edge")
	replace := func(from, to string) {
		b, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(to, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		touch()
	}
	replace(secondCert, certFile)
	if changed, err := s.Refresh(); !changed || err == nil || s.Config() != old {
		t.Errorf("half a change: %v %v", changed, err)
	}
	if changed, err := s.Refresh(); changed || err != nil {
		t.Errorf("the same failure is told once: %v %v", changed, err)
	}
	replace(secondKey, keyFile)
	if changed, err := s.Refresh(); !changed || err != nil || name() != "second" {
		t.Errorf("the whole change: %v %v, %s in use", changed, err, name())
	}
	if err := os.Remove(certFile); err != nil {
		t.Fatal(err)
	}
	if changed, err := s.Refresh(); !changed || err == nil || name() != "second" {
		t.Errorf("removed: %v %v", changed, err)
	}

	for _, c := range []struct {
		at   time.Duration
		want string
	}{
		{0, "expires in 1 days"},
		{49 * time.Hour, "has expired"},
		{-400 * 24 * time.Hour, "is not valid before"},
	} {
		if w := s.Warnings(now.Add(c.at)); len(w) != 1 || !strings.Contains(w[0], c.want) {
			t.Errorf("%v: %v", c.at, w)
		}
	}
}
