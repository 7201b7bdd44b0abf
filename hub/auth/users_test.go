package auth

import (
	"errors"
	"strings"
	"testing"
)

// quick is a hash of "secret" that costs little.
const quick = "$argon2id$v=19$m=8,t=1,p=1$AAAAAAAAAAAAAAAAAAAAAA$XrjnWhpGJE4zdrpPcbs8R26g0CRTtp9Sz374sv8QW5I"

const bcryptSecret = "$2a$04$p2SNul.4.3EW93qVLzQF8en0.QI.LqfbKjacZSMvq.RipytCBUUgC"

func TestUsersKeepTheirFile(t *testing.T) {
	const text = "# who works here\nanna:" + quick + "\n\n# devices\nmeter-1:" + quick + ":meters,all\n"
	u, err := ParseUsers("users", text)
	if err != nil {
		t.Fatal(err)
	}
	if u.Len() != 2 || u.Get("anna") == nil || u.Get("otto") != nil || strings.Join(u.Get("meter-1").Groups, " ") != "meters all" {
		t.Fatalf("%+v", u.All())
	}
	if u.Text() != text {
		t.Errorf("written as\n%s", u.Text())
	}
	u.Set(User{Name: "otto", Hash: quick, Groups: []string{"operators"}})
	u.Set(User{Name: "anna", Hash: quick, Groups: []string{"x"}})
	if !u.Remove("meter-1") || u.Remove("meter-1") {
		t.Error("meter-1 was not removed once")
	}
	u.Set(User{Name: "otto", Hash: quick})
	want := "# who works here\nanna:" + quick + ":x\n\n# devices\notto:" + quick + "\n"
	if u.Text() != want {
		t.Errorf("written as\n%swant\n%s", u.Text(), want)
	}
	again, err := ParseUsers("users", u.Text())
	if err != nil || again.Len() != 2 {
		t.Errorf("%v, %d users", err, again.Len())
	}
}

func TestUsersProblems(t *testing.T) {
	for _, c := range []struct{ line, what string }{
		{"anna", "a line has no colon"},
		{":" + quick, "a name is empty"},
		{"an na:" + quick, "has a character that names do not have"},
		{"a/b:" + quick, "has a character that names do not have"},
		{"a+:" + quick, "has a character that names do not have"},
		{"anna:", "neither argon2id nor bcrypt"},
		{"anna:plaintext", "neither argon2id nor bcrypt"},
		{"anna:" + strings.Replace(quick, "m=8", "m=9000000", 1), "at most m="},
		{"anna:" + strings.Replace(quick, "m=8", "m=08", 1), "neither argon2id nor bcrypt"},
		{"anna:" + strings.Replace(bcryptSecret, "$04$", "$31$", 1), "has cost 31"},
		{"anna:" + quick + ":a b", "groups"},
		{"first:" + quick, "is there twice"},
	} {
		_, err := ParseUsers("users", "first:"+quick+"\n"+c.line)
		if err == nil || !strings.HasPrefix(err.Error(), "users:2: ") || !strings.Contains(err.Error(), c.what) {
			t.Errorf("%s: %v", c.line, err)
		}
		if err != nil && (strings.Contains(err.Error(), "plaintext") || strings.Contains(err.Error(), "XrjnW")) {
			t.Errorf("a hash is shown: %v", err)
		}
	}
}

func TestHash(t *testing.T) {
	h, err := Hash([]byte("correct horse"))
	if err != nil {
		t.Fatal(err)
	}
	other, _ := Hash([]byte("correct horse"))
	if h == other {
		t.Error("two hashes of one password are the same: no salt")
	}
	if err := checkHash(h); err != nil {
		t.Errorf("a new hash is refused in a file: %v", err)
	}
	if !verify(h, []byte("correct horse")) || verify(h, []byte("correct horsf")) || verify(h, nil) {
		t.Error("the hash does not tell right from wrong")
	}
	for _, bad := range [][]byte{nil, make([]byte, bcryptBytesMax+1)} {
		if _, err := Hash(bad); !errors.Is(err, ErrPassword) {
			t.Errorf("%d bytes: %v", len(bad), err)
		}
	}
}

func TestArgon2id(t *testing.T) {
	if err := checkHash(quick); err != nil {
		t.Fatal(err)
	}
	if !verify(quick, []byte("secret")) || verify(quick, []byte("Secret")) || verify(quick, make([]byte, passwordBytesMax+1)) {
		t.Error("argon2id does not tell right from wrong")
	}
}

func TestBcrypt(t *testing.T) {
	if err := checkHash(bcryptSecret); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", bcryptBytesMax)
	if h, err := Hash([]byte(long)); err != nil || !verify(h, []byte(long)) || verify(h, []byte(long+"y")) {
		t.Errorf("the longest password: %v", err)
	}
	if !verify(bcryptSecret, []byte("secret")) || verify(bcryptSecret, []byte("Secret")) {
		t.Error("bcrypt does not tell right from wrong")
	}
}

func FuzzParseUsers(f *testing.F) {
	f.Add("# x\nanna:" + quick + ":a,b\n")
	f.Add("a:" + bcryptSecret)
	f.Fuzz(func(t *testing.T, text string) {
		u, err := ParseUsers("users", text)
		if err != nil {
			return
		}
		again, err := ParseUsers("users", u.Text())
		if err != nil || again.Len() != u.Len() || again.Text() != u.Text() {
			t.Errorf("not read back as written: %v", err)
		}
	})
}
