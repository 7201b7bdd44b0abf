package auth

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

func from(address string, q Attempt) Attempt {
	q.Address = netip.MustParseAddr(address)
	return q
}

func TestBansAfterFailedLogins(t *testing.T) {
	r := newRig(t, "anna:"+quick+"\nbert:"+quick+"\n", "", func(o *Options) { o.BanAfter = 3 })
	expect := func(what string, q Attempt, code byte) {
		t.Helper()
		if v, _ := r.login(q); v.Code != code {
			t.Errorf("%s: code %#x, want %#x", what, v.Code, code)
		}
	}
	wrong, right := with("anna", "wrong"), with("anna", "secret")
	expect("first failure", wrong, CodeBadCredentials)
	expect("second", wrong, CodeBadCredentials)
	expect("a success forgets them", right, CodeOK)
	for range 3 {
		expect("failure", wrong, CodeBadCredentials)
	}
	expect("banned, although right", right, CodeBanned)
	expect("another user from there", with("bert", "secret"), CodeOK)
	expect("the user from elsewhere", from("192.0.2.2", right), CodeOK)
	if list := r.Bans(); len(list) != 1 || list[0].Value != "anna at 192.0.2.1" || list[0].ByHand {
		t.Errorf("%+v", list)
	}
	r.pass(61 * time.Second)
	expect("the ban is over", right, CodeOK)
	if list := r.Bans(); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	expect("failure", wrong, CodeBadCredentials)
	expect("failure", wrong, CodeBadCredentials)
	r.pass(61 * time.Second)
	expect("failures far apart", wrong, CodeBadCredentials)
	expect("are not counted together", right, CodeOK)
}

// Many users failing from one address ban the address, but never the machine itself.
func TestAddressIsBanned(t *testing.T) {
	for _, c := range []struct {
		address, other string
		code           byte
	}{
		{"192.0.2.9", "192.0.2.9", CodeBanned},
		{"2001:db8::1", "2001:db8::ffff", CodeBanned}, // the same /64
		{"2001:db8::1", "2001:db8:0:1::1", CodeBadCredentials},
		{"127.0.0.1", "127.0.0.1", CodeBadCredentials},
		{"::ffff:127.0.0.1", "127.0.0.1", CodeBadCredentials},
	} {
		r := newRig(t, "anna:"+quick+"\n", "", func(o *Options) { o.BanAfter = 1 })
		for i := range addressFactor {
			q := from(c.address, with("nobody"+strings.Repeat("x", i), "wrong"))
			if v, _ := r.login(q); v.Code != CodeBadCredentials {
				t.Fatalf("%s, attempt %d: code %#x", c.address, i, v.Code)
			}
		}
		if v, _ := r.login(from(c.other, with("new", "wrong"))); v.Code != c.code {
			t.Errorf("%s then %s: code %#x, want %#x", c.address, c.other, v.Code, c.code)
		}
	}
}

// shelf is a Store in memory.
type shelf map[string]string

func (s shelf) Put(key, value []byte) { s[string(key)] = string(value) }
func (s shelf) Delete(key []byte)     { delete(s, string(key)) }
func (s shelf) Commit() error         { return nil }
func (s shelf) Scan(prefix []byte, fn func(key, value []byte) error) error {
	for _, k := range slices.Sorted(maps.Keys(s)) {
		if strings.HasPrefix(k, string(prefix)) {
			if err := fn([]byte(k), []byte(s[k])); err != nil {
				return err
			}
		}
	}
	return nil
}

func TestBansByHandOutliveTheHub(t *testing.T) {
	store := shelf{}
	use := func(o *Options) { o.Store = store }
	r := newRig(t, "anna:"+quick+"\n", "", use)
	until := time.Unix(0, r.clock.Load()).Add(time.Hour)
	for _, b := range []Ban{{Kind: BanUser, Value: "anna", Why: "left"}, {Kind: BanClient, Value: "c9", Until: until}, {Kind: BanAddress, Value: "192.0.2.77"}} {
		if _, err := r.Ban(b); err != nil {
			t.Fatal(err)
		}
	}
	r = newRig(t, "anna:"+quick+"\nbert:"+quick+"\n", "", use)
	if n := len(r.Bans()); n != 3 {
		t.Fatalf("%d bans after the restart", n)
	}
	bert := with("bert", "secret")
	c9 := bert
	c9.ClientID = "c9"
	certOf := Attempt{CertName: "anna"}
	for _, x := range []struct {
		q    Attempt
		code byte
	}{{with("anna", "secret"), CodeBanned}, {certOf, CodeBanned}, {c9, CodeBanned}, {from("192.0.2.77", bert), CodeBanned}, {bert, CodeOK}} {
		if v, _ := r.login(x.q); v.Code != x.code {
			t.Errorf("%+v: code %#x, want %#x", x.q, v.Code, x.code)
		}
	}
	r.pass(2 * time.Hour)
	if v, _ := r.login(c9); v.Code != CodeOK {
		t.Errorf("a ban that is over: code %#x", v.Code)
	}
	for _, b := range [][2]string{{BanUser, "anna"}, {BanAddress, "192.0.2.77"}} {
		if ok, err := r.Unban(b[0], b[1]); !ok || err != nil {
			t.Errorf("%v: %v, %v", b, ok, err)
		}
	}
	if ok, _ := r.Unban(BanUser, "anna"); ok {
		t.Error("taken back twice")
	}
	if v, _ := r.login(with("anna", "secret")); v.Code != CodeOK {
		t.Errorf("after it was taken back: code %#x", v.Code)
	}
}

func TestBanValues(t *testing.T) {
	r := newRig(t, "", "", nil)
	for _, c := range []struct {
		ban  Ban
		want string // empty: refused
	}{
		{Ban{Kind: BanAddress, Value: "::ffff:192.0.2.1"}, "192.0.2.1"},
		{Ban{Kind: BanAddress, Value: "2001:db8::5"}, "2001:db8::/64"},
		{Ban{Kind: BanAddress, Value: "2001:db8::/64"}, "2001:db8::/64"},
		{Ban{Kind: BanAddress, Value: "everything"}, ""},
		{Ban{Kind: "cat", Value: "x"}, ""},
		{Ban{Kind: BanUser}, ""},
	} {
		got, err := r.Ban(c.ban)
		if c.want == "" && !errors.Is(err, ErrBan) || c.want != "" && (err != nil || got.Value != c.want) {
			t.Errorf("%+v: %+v, %v", c.ban, got, err)
		}
	}
	b := Ban{Kind: BanAddress, Value: "2001:db8::/64"}
	if !b.Concerns("", "", netip.MustParseAddr("2001:db8::9")) || b.Concerns("", "", netip.MustParseAddr("2001:db9::9")) || b.Concerns("", "", netip.Addr{}) {
		t.Error("a ban of an address concerns the wrong clients")
	}
}
