package command_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"edgehub/hub/admin/admintest"
	"edgehub/hub/admin/api"
	"edgehub/hub/auth"
)

// Users are made, changed and removed without a hub; remarks, order and mode stay.
func TestUserFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "users")
	for _, c := range []struct {
		stdin string
		args  []string
		code  int
		says  string // a part of either output
	}{
		{"secret\n", []string{"add", "anna", "--groups", "ops,night"}, 0, "user anna is added"},
		{"secret\n", []string{"add", "anna"}, 1, "is there already"},
		{"", []string{"add", "bert"}, 1, "it is empty"},
		{"x\n", []string{"add", "b/x"}, 1, "character that names do not have"},
		{"x\n", []string{"add", "bert", "--groups", "a,,b"}, 1, "--groups"},
		{"", []string{"add", "bert", "--generate"}, 0, "user bert is added"},
		{"x\n", []string{"add", "carl", "--generate", "--password-file", "p"}, 2, "exclude each other"},
		{"x\n", []string{"passwd", "otto"}, 1, `no user "otto"`},
		{"changed\n", []string{"passwd", "anna"}, 0, "has a new password"},
		{"", []string{"rm", "bret"}, 1, `did you mean "bert"`},
		{"", []string{"rm", "bert"}, 0, "user bert is removed"},
		{"", []string{"ls"}, 0, "ops night"},
		{"", []string{"rm"}, 2, "NAME is missing"},
	} {
		r := hubctl(c.stdin, append([]string{"user"}, append(c.args, "--file", file)...)...)
		if r.code != c.code || !strings.Contains(r.out+r.errOut, c.says) {
			t.Errorf("user %v: exit %d, %q %q, want exit %d and %q", c.args, r.code, r.out, r.errOut, c.code, c.says)
		}
	}
	text, err := auth.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	users, err := auth.ParseUsers(file, text)
	if err != nil || users.Len() != 1 || strings.Join(users.Get("anna").Groups, " ") != "ops night" {
		t.Fatalf("%v, %s", err, text)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v, mode %v", err, info.Mode())
	}
	if r := hubctl("", "user", "ls"); r.code != 1 || !strings.Contains(r.errOut, "--file") {
		t.Errorf("without any file: %+v", r)
	}
}

// Changes at the same time are all kept.
func TestUsersAddedTogether(t *testing.T) {
	file := filepath.Join(t.TempDir(), "users")
	names := []string{"a", "b", "c", "d", "e", "f"}
	var wg sync.WaitGroup
	for _, n := range names {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if r := hubctl("secret\n", "user", "add", n, "--file", file); r.code != 0 {
				t.Errorf("%s: %s", n, r.errOut)
			}
		}()
	}
	wg.Wait()
	r := hubctl("", "user", "ls", "--file", file)
	for _, n := range names {
		if !strings.Contains(r.out, "\n"+n+" ") {
			t.Errorf("%s is lost:\n%s", n, r.out)
		}
	}
}

func TestACLCheckOfAFile(t *testing.T) {
	dir := t.TempDir()
	acl, users := filepath.Join(dir, "acl"), filepath.Join(dir, "users")
	if err := os.WriteFile(acl, []byte("deny everyone publish x/#\nallow group:ops all #\nallow users subscribe d/%c/#\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := hubctl("secret\n", "user", "add", "anna", "--groups", "ops", "--file", users); r.code != 0 {
		t.Fatal(r)
	}
	for _, c := range []struct {
		args []string
		code int
		says []string
	}{
		{[]string{"anna", "a/b", "--users", users}, 0, []string{"user anna of ops", "publish    allow", acl + ":2", "allow group:ops all #"}},
		{[]string{"anna", "x/b", "--users", users}, 0, []string{"publish    deny", acl + ":1", "subscribe  allow"}},
		{[]string{"anna", "a/b"}, 1, []string{"not in the users file", "no rule fits", "not allowed"}},
		{[]string{"bert", "d/7/x", "--client", "7"}, 0, []string{"as client 7", "subscribe  allow", acl + ":3"}},
		{[]string{"", "d/#"}, 1, []string{"an anonymous client", "subscribe  deny"}},
		{[]string{"anna", "a#"}, 1, []string{"neither a topic nor a filter"}},
	} {
		r := hubctl("", append([]string{"acl", "check", "--acl", acl}, c.args...)...)
		if r.code != c.code {
			t.Errorf("%v: exit %d: %s%s", c.args, r.code, r.out, r.errOut)
		}
		for _, want := range c.says {
			if !strings.Contains(r.out+r.errOut, want) {
				t.Errorf("%v: %q lacks %q", c.args, r.out+r.errOut, want)
			}
		}
	}
}

// Completion asks the hub for names, and is silent without one.
func TestCompletionOfNames(t *testing.T) {
	r := hubctl("", "__complete", "stream", "show", "")
	if r.code != 0 || strings.Contains(r.out, "telemetry") {
		t.Errorf("without a hub: %+v", r)
	}
	socket, _ := serve(t, admintest.New(api.Status{Streams: []api.StreamStatus{{Name: "telemetry"}, {Name: "main"}}}))
	r = hubctlEnv(map[string]string{"HUBCTL_SOCKET": socket}, nil, "", "__complete", "stream", "show", "")
	if !strings.HasPrefix(r.out, "telemetry\nmain\n") {
		t.Errorf("%+v", r)
	}
}
