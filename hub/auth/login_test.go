package auth

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
)

func TestMain(m *testing.M) {
	bcryptCost = bcrypt.MinCost // what it costs is not what is tested
	os.Exit(m.Run())
}

// rig is an Auth with a clock that is turned by hand.
type rig struct {
	*Auth
	t     *testing.T
	users string
	acl   string
	clock atomic.Int64
}

func newRig(t *testing.T, users, acl string, change func(*Options)) *rig {
	t.Helper()
	r := &rig{t: t}
	r.clock.Store(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano())
	dir := t.TempDir()
	o := Options{Logger: slog.New(slog.DiscardHandler), BanTime: time.Minute, Workers: 1,
		Now: func() time.Time { return time.Unix(0, r.clock.Load()) }}
	if users != "" {
		o.UsersFile = filepath.Join(dir, "users")
		r.write(o.UsersFile, users)
	}
	if acl != "" {
		o.ACLFile = filepath.Join(dir, "acl")
		r.write(o.ACLFile, acl)
	}
	if change != nil {
		change(&o)
	}
	r.users, r.acl = o.UsersFile, o.ACLFile
	var err error
	if r.Auth, err = New(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func (r *rig) write(path, text string) {
	r.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) pass(d time.Duration) { r.clock.Add(int64(d)) }

// login waits for the verdict and says whether it was there at once.
func (r *rig) login(q Attempt) (v Verdict, atOnce bool) {
	r.t.Helper()
	got := make(chan Verdict, 1)
	v, atOnce = r.Login(&q, func(v Verdict) { got <- v })
	if !atOnce {
		select {
		case v = <-got:
		case <-time.After(30 * time.Second):
			r.t.Fatal("no verdict")
		}
	}
	return v, atOnce
}

func with(user, password string) Attempt {
	return Attempt{ClientID: "c", HasUser: true, User: user, Password: []byte(password), Address: netip.MustParseAddr("192.0.2.1")}
}

func TestLogin(t *testing.T) {
	const users = "anna:" + quick + "\nbert:" + bcryptSecret + "\n"
	anyone := Attempt{ClientID: "c", Anonymous: true}
	cert := Attempt{ClientID: "c", CertName: "device-1"}
	both := with("anna", "secret")
	both.CertName = "device-1"
	bothWrong := with("anna", "wrong")
	bothWrong.CertName, bothWrong.Anonymous = "device-1", true
	unverified := with("root", "x")
	unverified.Anonymous = true
	for _, c := range []struct {
		name  string
		users string
		q     Attempt
		user  string
		code  byte
	}{
		{"right", users, with("anna", "secret"), "anna", CodeOK},
		{"right, bcrypt", users, with("bert", "secret"), "bert", CodeOK},
		{"wrong", users, with("anna", "Secret"), "", CodeBadCredentials},
		{"no such user", users, with("otto", "secret"), "", CodeBadCredentials},
		{"empty", users, with("anna", ""), "", CodeBadCredentials},
		{"anonymous", users, anyone, "", CodeOK},
		{"anonymous where it is not taken", users, Attempt{ClientID: "c"}, "", CodeNotAuthorized},
		{"certificate", users, cert, "device-1", CodeOK},
		{"certificate and password", users, both, "anna", CodeOK},
		{"certificate and wrong password", users, bothWrong, "", CodeBadCredentials},
		{"no users file: the name says nothing", "", unverified, "", CodeOK},
		{"no users file and not anonymous", "", with("anna", "secret"), "", CodeNotAuthorized},
		{"no users", "# none yet\n", with("anna", "secret"), "", CodeBadCredentials},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, _ := newRig(t, c.users, "", nil).login(c.q)
			if v.Code != c.code || v.User != c.user {
				t.Errorf("code %#x as %q (%s), want %#x as %q", v.Code, v.User, v.Why, c.code, c.user)
			}
		})
	}
}

// A password that was right is not hashed again for a while, unless the user's hash has changed.
func TestVerifiedPasswordsAreRemembered(t *testing.T) {
	r := newRig(t, "anna:"+quick+"\n", "", nil)
	steps := []struct {
		what   string
		pass   time.Duration
		q      Attempt
		code   byte
		atOnce bool
	}{
		{"first", 0, with("anna", "secret"), CodeOK, false},
		{"again", rememberFor / 2, with("anna", "secret"), CodeOK, true},
		{"wrong is not remembered", 0, with("anna", "x"), CodeBadCredentials, false},
		{"wrong again", 0, with("anna", "x"), CodeBadCredentials, false},
		{"later", rememberFor, with("anna", "secret"), CodeOK, false},
	}
	for _, s := range steps {
		r.pass(s.pass)
		if v, atOnce := r.login(s.q); v.Code != s.code || atOnce != s.atOnce {
			t.Errorf("%s: code %#x, at once %v", s.what, v.Code, atOnce)
		}
	}
	r.write(r.users, "anna:"+bcryptSecret+"\n")
	l, err := r.Reload(r.users, "", 0, 0)
	if err != nil || len(l.Gone) != 1 || l.Gone[0] != "anna" {
		t.Fatalf("%+v, %v", l, err)
	}
	if v, atOnce := r.login(with("anna", "secret")); v.Code != CodeOK || atOnce {
		t.Errorf("after the hash changed: code %#x, at once %v", v.Code, atOnce)
	}
}

// What waits to be hashed is bounded.
func TestPoolIsBounded(t *testing.T) {
	p := newPool(1)
	block, running := make(chan struct{}), make(chan struct{})
	p.do(func() { close(running); <-block })
	<-running
	n := 0
	for p.do(func() {}) {
		n++
	}
	if n != attemptsWaitingMax {
		t.Errorf("%d wait, want %d", n, attemptsWaitingMax)
	}
	close(block)
	p.close()
}

// A failed reload changes nothing, a good one both files at once.
func TestReload(t *testing.T) {
	r := newRig(t, "anna:"+quick+"\n", "allow user:anna all a\n", nil)
	r.write(r.users, "otto:"+quick+":ops\n")
	r.write(r.acl, "allow group:ops all b\nallow nobody\n")
	if _, err := r.Reload(r.users, r.acl, 0, 0); err == nil {
		t.Fatal("a bad ACL was taken")
	}
	if v, _ := r.login(with("anna", "secret")); v.Code != CodeOK || !r.Rights("anna", "c").MayPublish("a") {
		t.Error("a failed reload changed something")
	}
	r.write(r.acl, "allow group:ops all b\n")
	l, err := r.Reload(r.users, r.acl, 0, 0)
	if err != nil || l.Users != 1 || l.Rules != 1 || fmt.Sprint(l.Gone) != "[anna]" {
		t.Fatalf("%+v, %v", l, err)
	}
	if r.Rights("anna", "c").MayPublish("a") || !r.Rights("otto", "c").MayPublish("b") {
		t.Error("the new rules are not in force")
	}
	if v, _ := r.login(with("anna", "secret")); v.Code != CodeBadCredentials {
		t.Errorf("a removed user: code %#x", v.Code)
	}
	if l, err = r.Reload("", "", 0, 0); err != nil || r.Rights("x", "c") != nil {
		t.Errorf("without files: %+v, %v", l, err)
	}
	if _, err := r.Reload(r.users+".not", "", 0, 0); err == nil {
		t.Error("a missing file was taken")
	}
}
