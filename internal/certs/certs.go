// Package certs reads the certificates of a TLS listener from files, says what is wrong with them and how to mend it,
// and reads them again when they change.
package certs

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Pair is a certificate with its key, by file.
type Pair struct{ CertFile, KeyFile string }

// Options of a listener's TLS.
type Options struct {
	// Pairs are the certificates; a client that names a host gets the first that is for it, others the first.
	Pairs             []Pair
	ClientCAFile      string // whose client certificates are accepted; empty: none is asked for
	RequireClientCert bool
	MinVersion        uint16   // tls.VersionTLS12 or tls.VersionTLS13
	NextProtos        []string // ALPN, in order of preference
}

// Error is a file that cannot be used.
type Error struct {
	Role Role
	Pair int // which of the pairs
	File string
	What string
	Cure string
}

// Role is what a file is for.
type Role int

// The roles.
const (
	RoleCert Role = iota
	RoleKey
	RoleClientCA
)

// Error writes it in one line.
func (e *Error) Error() string { return e.File + " " + e.What + "; " + e.Cure }

// Source is the certificates of one listener. Safe for concurrent use.
type Source struct {
	o       Options
	current atomic.Pointer[tls.Config]

	mu    sync.Mutex
	stamp []stamp // of the files that current was read from, or that failed last
	leafs []*x509.Certificate
}

// stamp tells whether a file has changed.
type stamp struct {
	mod  time.Time
	size int64
}

// Open reads the files. The error is an *Error.
func Open(o Options) (*Source, error) {
	s := &Source{o: o}
	return s, s.Reload()
}

// Config returns what new connections shall use.
func (s *Source) Config() *tls.Config { return s.current.Load() }

// Reload reads the files again, for new connections. On an error, an *Error, what was read before stays in use.
func (s *Source) Reload() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stamp = s.stamps()
	cfg, leafs, err := load(&s.o)
	if err != nil {
		return err
	}
	s.leafs = leafs
	s.current.Store(cfg)
	return nil
}

// Refresh reloads if a file has changed since the last attempt. It reports whether it did.
func (s *Source) Refresh() (bool, error) {
	s.mu.Lock()
	now := s.stamps()
	same := len(now) == len(s.stamp)
	for i := range now {
		same = same && now[i] == s.stamp[i]
	}
	s.mu.Unlock()
	if same {
		return false, nil
	}
	return true, s.Reload()
}

// stamps looks at the files. One that cannot be read has the zero stamp.
func (s *Source) stamps() []stamp {
	var all []stamp
	look := func(name string) {
		var st stamp
		if info, err := os.Stat(name); err == nil { // follows links: a renewed certificate may be a new target
			st = stamp{info.ModTime(), info.Size()}
		}
		all = append(all, st)
	}
	for _, p := range s.o.Pairs {
		look(p.CertFile)
		look(p.KeyFile)
	}
	if s.o.ClientCAFile != "" {
		look(s.o.ClientCAFile)
	}
	return all
}

// soon is how long before its end a certificate is worth a word.
const soon = 14 * 24 * time.Hour

// Warnings says which certificates in use are outside of their time, or soon will be. Clients refuse those.
func (s *Source) Warnings(now time.Time) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for i, leaf := range s.leafs {
		name := s.o.Pairs[i].CertFile
		switch left := leaf.NotAfter.Sub(now); {
		case left < 0:
			all = append(all, fmt.Sprintf("certificate %s has expired at %s", name, leaf.NotAfter.Format(time.RFC3339)))
		case left < soon:
			all = append(all, fmt.Sprintf("certificate %s expires in %d days, at %s", name, int(left.Hours()/24), leaf.NotAfter.Format(time.RFC3339)))
		case now.Before(leaf.NotBefore):
			all = append(all, fmt.Sprintf("certificate %s is not valid before %s", name, leaf.NotBefore.Format(time.RFC3339)))
		}
	}
	return all
}

func load(o *Options) (*tls.Config, []*x509.Certificate, error) {
	cfg := &tls.Config{
		MinVersion: o.MinVersion,
		NextProtos: o.NextProtos,
		// Packets are small, and what a loop has for a connection leaves in one write: records that grow with the
		// connection's age, as for web pages, would only be more of them.
		DynamicRecordSizingDisabled: true,
	}
	if cfg.MinVersion == 0 {
		cfg.MinVersion = tls.VersionTLS12
	}
	var leafs []*x509.Certificate
	for i, p := range o.Pairs {
		c, err := p.load(i)
		if err != nil {
			return nil, nil, err
		}
		cfg.Certificates = append(cfg.Certificates, c)
		leafs = append(leafs, c.Leaf)
	}
	if o.ClientCAFile != "" {
		pool, err := loadCAs(o.ClientCAFile)
		if err != nil {
			return nil, nil, err
		}
		cfg.ClientCAs = pool
		cfg.ClientAuth = tls.VerifyClientCertIfGiven
		if o.RequireClientCert {
			cfg.ClientAuth = tls.RequireAndVerifyClientCert
		}
	}
	return cfg, leafs, nil
}

func (p Pair) load(i int) (tls.Certificate, error) {
	cert, err := readFile(RoleCert, i, p.CertFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := readFile(RoleKey, i, p.KeyFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	if what, cure := wrongPEM(cert, "CERTIFICATE", p.KeyFile); what != "" {
		return tls.Certificate{}, &Error{RoleCert, i, p.CertFile, what, cure}
	}
	if what, cure := wrongPEM(key, "PRIVATE KEY", p.CertFile); what != "" {
		return tls.Certificate{}, &Error{RoleKey, i, p.KeyFile, what, cure}
	}
	c, err := tls.X509KeyPair(cert, key)
	if err == nil && c.Leaf == nil { // with GODEBUG=x509keypairleaf=0
		c.Leaf, err = x509.ParseCertificate(c.Certificate[0])
	}
	if err == nil {
		return c, nil
	}
	if _, certErr := x509.ParseCertificate(firstBlock(cert, "CERTIFICATE")); certErr != nil {
		return c, &Error{RoleCert, i, p.CertFile, "holds a certificate that cannot be read: " + certErr.Error(), "write it again"}
	}
	if isMismatch(err) {
		return c, &Error{RoleKey, i, p.KeyFile, "is not the key of " + p.CertFile, "give the key that the certificate was made with, the server's own certificate first in its file"}
	}
	return c, &Error{RoleKey, i, p.KeyFile, "holds a key that cannot be used: " + err.Error(), "give an RSA, ECDSA or Ed25519 key in PEM"}
}

// isMismatch tells a key of another certificate from one that cannot be read. The library has no error value for it.
func isMismatch(err error) bool {
	return err.Error() == "tls: private key does not match public key" || err.Error() == "tls: private key type does not match public key type"
}

// wrongPEM says why a file has no block of the wanted type, or nothing.
func wrongPEM(text []byte, want, other string) (what, cure string) {
	if firstBlock(text, want) != nil {
		return "", ""
	}
	block, _ := pem.Decode(text)
	switch {
	case block == nil:
		return "is not PEM", "convert it with openssl, for example: openssl x509 -inform der -in FILE"
	case block.Type == "ENCRYPTED PRIVATE KEY" || block.Headers["DEK-Info"] != "":
		return "is encrypted", "write it without a passphrase, readable by the hub only: openssl pkey -in FILE -out NEW"
	case want == "CERTIFICATE":
		return "holds no certificate but " + block.Type, "is it exchanged with " + other + "?"
	default:
		return "holds no private key but " + block.Type, "is it exchanged with " + other + "?"
	}
}

// firstBlock returns the first block whose type ends with want: keys have several types.
func firstBlock(text []byte, want string) []byte {
	for {
		var b *pem.Block
		if b, text = pem.Decode(text); b == nil {
			return nil
		}
		if b.Type == want || want == "PRIVATE KEY" && b.Headers["DEK-Info"] == "" && (b.Type == "RSA PRIVATE KEY" || b.Type == "EC PRIVATE KEY") {
			return b.Bytes
		}
	}
}

func loadCAs(name string) (*x509.CertPool, error) {
	text, err := readFile(RoleClientCA, 0, name)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, &Error{RoleClientCA, 0, name, "holds no certificate", "give the PEM certificates of those who sign the clients' certificates"}
	}
	return pool, nil
}

// fileBytesMax bounds what is read: a wrong path must not fill the memory.
const fileBytesMax = 4 << 20

func readFile(role Role, pair int, name string) ([]byte, error) {
	fail := func(what, cure string) ([]byte, error) { return nil, &Error{role, pair, name, what, cure} }
	info, err := os.Stat(name)
	if err == nil && !info.Mode().IsRegular() {
		return fail("is not a file", "give the path of a PEM file")
	}
	if err == nil && info.Size() > fileBytesMax {
		return fail("is too large for a PEM file", "is the path right?")
	}
	var text []byte
	if err == nil {
		text, err = os.ReadFile(name)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fail("does not exist", "give the path of a PEM file; relative paths are relative to the working directory")
	case errors.Is(err, fs.ErrPermission):
		return fail("may not be read by this user", "let the hub's user read it")
	case err != nil:
		return fail("cannot be read: "+err.Error(), "mend that")
	}
	return text, nil
}
