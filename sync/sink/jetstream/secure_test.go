package jetstream

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"edgehub/internal/certs/certstest"
	"edgehub/sync/uplink"
)

func writeFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// connects reports whether a sink gets a session, and the error if not.
func (h *hub) connects(url string, change func(*Options)) error {
	s, err := h.sink(url, change).Connect(ctxFor(h.t))
	if err == nil {
		s.Close()
	}
	return err
}

func TestUserAndPasswordFile(t *testing.T) {
	s := embedded(t, func(o *server.Options) { o.Username, o.Password = "gw", "s3cret" })
	h := newHub(t, 1)
	h.append(10)
	good := writeFile(t, "password", "s3cret\n")
	bad := writeFile(t, "password", "wrong")
	for _, c := range []struct {
		name, user, file, want string
	}{
		{"right", "gw", good, ""},
		{"wrong password", "gw", bad, "refuses the user or the credentials"},
		{"no user", "", "", "refuses the user or the credentials"},
		{"no file", "gw", "/nonexistent/password", "password_file"},
	} {
		err := h.connects(s.ClientURL(), func(o *Options) { o.User, o.PasswordFile = c.user, c.file })
		if (err == nil) != (c.want == "") || (err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "s3cret"))) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	// A password that is mended in its file is used by the next try.
	l := h.uplink(s.ClientURL(), settings{sink: func(o *Options) { o.User, o.PasswordFile = "gw", bad }})
	until(t, 10*time.Second, "refused", func() bool { return l.Status().Counters.Failures > 1 })
	must(t, os.WriteFile(bad, []byte("s3cret\n"), 0o600))
	l.drains()
}

// TestCredentialsFile uses an operator with one account and one user.
func TestCredentialsFile(t *testing.T) {
	key := func(kp nkeys.KeyPair, err error) (nkeys.KeyPair, string) {
		must(t, err)
		pub, err := kp.PublicKey()
		must(t, err)
		return kp, pub
	}
	okp, opub := key(nkeys.CreateOperator())
	akp, apub := key(nkeys.CreateAccount())
	_, syspub := key(nkeys.CreateAccount())
	ukp, upub := key(nkeys.CreateUser())

	oc := jwt.NewOperatorClaims(opub)
	oc.SystemAccount = syspub
	ot, err := oc.Encode(okp)
	must(t, err)
	ac := jwt.NewAccountClaims(apub)
	ac.Limits.JetStreamLimits.DiskStorage, ac.Limits.JetStreamLimits.MemoryStorage = -1, -1
	at, err := ac.Encode(okp)
	must(t, err)
	st, err := jwt.NewAccountClaims(syspub).Encode(okp)
	must(t, err)
	ut, err := jwt.NewUserClaims(upub).Encode(akp)
	must(t, err)
	seed, err := ukp.Seed()
	must(t, err)
	creds, err := jwt.FormatUserConfig(ut, seed)
	must(t, err)

	decoded, err := jwt.DecodeOperatorClaims(ot)
	must(t, err)
	res := &server.MemAccResolver{}
	must(t, res.Store(apub, at))
	must(t, res.Store(syspub, st))
	s := embedded(t, func(o *server.Options) {
		o.TrustedOperators, o.AccountResolver, o.SystemAccount = []*jwt.OperatorClaims{decoded}, res, syspub
	})
	h := newHub(t, 1)
	h.append(10)
	if err := h.connects(s.ClientURL(), nil); err == nil {
		t.Error("connected without credentials")
	}
	if err := h.connects(s.ClientURL(), func(o *Options) { o.CredentialsFile = "/nonexistent/u.creds" }); err == nil || !strings.Contains(err.Error(), "credentials_file") {
		t.Errorf("missing file: %v", err)
	}
	file := writeFile(t, "u.creds", string(creds))
	l := h.uplink(s.ClientURL(), settings{sink: func(o *Options) { o.CredentialsFile = file }})
	l.drains()
}

func TestTLS(t *testing.T) {
	ca, other, dir := certstest.NewCA(t, "central"), certstest.NewCA(t, "other"), t.TempDir()
	tomorrow := time.Now().Add(24 * time.Hour)
	pair := ca.Issue(t, "central.example", tomorrow)
	s := embedded(t, func(o *server.Options) {
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool()}
	})
	mine, strange, old := ca.Issue(t, "gw", tomorrow), other.Issue(t, "gw", tomorrow), ca.Issue(t, "gw", time.Now().Add(-time.Hour))
	ok := TLS{CAFile: ca.Write(t, dir, "ca"), ServerName: "central.example"}
	ok.CertFile, ok.KeyFile = certstest.Write(t, &mine, dir, "client")
	h := newHub(t, 1)
	h.append(500)
	for _, c := range []struct {
		name   string
		change func(*TLS)
		want   string
	}{
		{"right", func(*TLS) {}, ""},
		{"another CA", func(o *TLS) { o.CAFile = other.Write(t, dir, "other") }, "certificate"},
		{"no CA file", func(o *TLS) { o.CAFile = "/nonexistent/ca.pem" }, "ca_file"},
		{"empty CA file", func(o *TLS) { o.CAFile = writeFile(t, "ca.pem", "") }, "has no certificate"},
		{"another name", func(o *TLS) { o.ServerName = "elsewhere.example" }, "elsewhere.example"},
		{"no client certificate", func(o *TLS) { o.CertFile, o.KeyFile = "", "" }, "tls"},
		{"a certificate of another CA", func(o *TLS) { o.CertFile, o.KeyFile = certstest.Write(t, &strange, dir, "strange") }, "tls"},
		{"an expired certificate", func(o *TLS) { o.CertFile, o.KeyFile = certstest.Write(t, &old, dir, "old") }, "tls"},
		{"no key", func(o *TLS) { o.KeyFile = "" }, "key_file"},
	} {
		o := ok
		c.change(&o)
		err := h.connects(s.ClientURL(), func(p *Options) { p.TLS = &o })
		if (err == nil) != (c.want == "") || (err != nil && !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	l := h.uplink(s.ClientURL(), settings{sink: func(o *Options) { o.TLS = &ok }})
	l.drains()
	if st := l.Status(); st.State != uplink.Stream || st.Counters.Acked != 500 {
		t.Errorf("status %+v", st)
	}
}

// TestNkey: a file that has nothing but the seed of an nkey.
func TestNkey(t *testing.T) {
	mine, err := nkeys.CreateUser()
	must(t, err)
	strange, err := nkeys.CreateUser()
	must(t, err)
	public, err := mine.PublicKey()
	must(t, err)
	s := embedded(t, func(o *server.Options) { o.Nkeys = []*server.NkeyUser{{Nkey: public}} })
	seed := func(k nkeys.KeyPair) string {
		b, err := k.Seed()
		must(t, err)
		return string(b)
	}
	h := newHub(t, 1)
	h.append(10)
	for _, c := range []struct{ name, text, want string }{
		{"right", seed(mine) + "\n", ""},
		{"another", seed(strange), "refuses the user or the credentials"},
		{"half", seed(mine)[:20], "neither the credentials of a user"},
		{"empty", "", "neither the credentials of a user"},
		{"public key", public, "neither the credentials of a user"},
	} {
		file := writeFile(t, "u.nk", c.text)
		err := h.connects(s.ClientURL(), func(o *Options) { o.CredentialsFile = file })
		if (err == nil) != (c.want == "") || (err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), seed(mine)[4:20]))) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	file := writeFile(t, "u.nk", seed(mine))
	l := h.uplink(s.ClientURL(), settings{sink: func(o *Options) { o.CredentialsFile = file }})
	l.drains()
	h.compare(s.ClientURL(), nats.Nkey(public, mine.Sign))
}

// TestSeveralUplinks: two uplinks of one log, one of them paused, each to a remote of
// its own: neither waits for the other, and each remote holds exactly the log.
func TestSeveralUplinks(t *testing.T) {
	a, b := embedded(t, nil), embedded(t, nil)
	h := newHub(t, 2)
	h.append(100)
	other := h.cursors
	one := h.uplink(a.ClientURL(), settings{})
	h.cursors = newCursors()
	two := h.uplink(b.ClientURL(), settings{up: func(o *uplink.Options) { o.Name = "lab" }})
	until(t, 10*time.Second, "both drained", func() bool { return one.drained() && two.drained() })
	must(t, two.Pause())
	h.append(300)
	until(t, 10*time.Second, "the other goes on", one.drained)
	if st := two.Status(); st.State != uplink.Paused || st.LagMessages != 600 || two.Floor("main/0-0") != 100 {
		t.Errorf("paused: %+v, floor %d", st, two.Floor("main/0-0"))
	}
	one.stop()
	must(t, two.Resume())
	until(t, 10*time.Second, "resumed and drained", two.drained)
	h.append(7)
	h.cursors = other
	one = h.uplink(a.ClientURL(), settings{})
	until(t, 10*time.Second, "both drained", func() bool { return one.drained() && two.drained() })
	h.compare(a.ClientURL())
	h.compare(b.ClientURL())
}

func TestOptions(t *testing.T) {
	subjects, err := NewSubjects("edge.{hub}.{topic}", "h")
	must(t, err)
	good := Options{URL: "nats://a:1, tls://b:2", RemoteStream: "EDGE-h", Subjects: subjects}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Options){
		"no url":           func(o *Options) { o.URL = "" },
		"scheme":           func(o *Options) { o.URL = "http://a:1" },
		"one of two":       func(o *Options) { o.URL = "nats://a:1,b" },
		"no stream":        func(o *Options) { o.RemoteStream = "" },
		"dots":             func(o *Options) { o.RemoteStream = "a.b" },
		"not filled in":    func(o *Options) { o.RemoteStream = "EDGE-{hub}" },
		"no subjects":      func(o *Options) { o.Subjects = Subjects{} },
		"two credentials":  func(o *Options) { o.User, o.CredentialsFile = "a", "b" },
		"password in text": func(o *Options) { o.URL = "nats://u:hunter2@" },
	} {
		o := good
		change(&o)
		if _, err := New(o); err == nil || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := RemoteName("EDGE-{hub}", "site 1.a/b"); got != "EDGE-site%201%2Ea%2Fb" {
		t.Errorf("RemoteName = %q", got)
	}
}
