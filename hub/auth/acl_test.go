package auth

import (
	"fmt"
	"strings"
	"testing"
)

const policy = `# rules of a plant
deny   everyone          publish    $SYS/#  hub/#
deny   user:mallory      all        #

allow  users             publish    devices/%c/#   "devices/%u/with space"
deny   group:guests      subscribe  plant/secret/#
allow  group:guests      subscribe  plant/#
allow  group:operators   all        plant/#
allow  client:meter-*    publish    meters/%c/+
allow  client:panel      subscribe  panel/in
allow  anonymous         subscribe  public/#
deny   everyone          subscribe  a/+/c
allow  everyone          subscribe  a/#
`

func mustACL(t *testing.T, text string) *ACL {
	t.Helper()
	a, err := ParseACL("acl", text)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestDecide(t *testing.T) {
	a := mustACL(t, policy)
	for _, c := range []struct {
		user, groups, client string
		do                   Action
		topic                string
		allowed              bool
		line                 int // that decides; 0: none fits
	}{
		{"anna", "", "d1", Publish, "devices/d1/t", true, 5},
		{"anna", "", "d1", Publish, "devices/d2/t", false, 0},
		{"anna", "", "d1", Publish, "devices/anna/with space", true, 5},
		{"anna", "", "d1", Publish, "hub/x", false, 2},
		{"", "", "d1", Publish, "devices/d1/t", false, 0},
		{"mallory", "operators", "d1", Publish, "plant/x", false, 3},
		{"mallory", "", "d1", Subscribe, "a/b", false, 3},
		{"greta", "guests", "g", Subscribe, "plant/open", true, 7},
		{"greta", "guests", "g", Subscribe, "plant/secret/x", false, 6},
		{"greta", "guests", "g", Subscribe, "plant/secret", false, 6},
		{"greta", "guests", "g", Publish, "plant/open", false, 0},
		{"otto", "guests,operators", "o", Publish, "plant/secret/x", true, 8},
		{"otto", "operators", "o", Subscribe, "plant/secret/x", true, 8},
		{"", "", "meter-7", Publish, "meters/meter-7/kwh", true, 9},
		{"", "", "meter-7", Publish, "meters/meter-8/kwh", false, 0},
		{"", "", "meter", Publish, "meters/meter/kwh", false, 0},
		{"", "", "panel", Subscribe, "panel/in", true, 10},
		{"", "", "panel2", Subscribe, "panel/in", false, 0},
		{"", "", "x", Subscribe, "public/a/b", true, 11},
		{"anna", "", "x", Subscribe, "public/a/b", false, 0},
		{"anna", "", "x", Subscribe, "a/b/c", false, 12},
		{"anna", "", "x", Subscribe, "a/b/d", true, 13},
		// A client id is never a wildcard or more than a level.
		{"anna", "", "+", Publish, "devices/d2/t", false, 0},
		{"anna", "", "#", Publish, "devices/d2/t", false, 0},
		{"anna", "", "d2/t", Publish, "devices/d2/t/x", false, 0},
		{"", "", "meter-+", Publish, "meters/meter-1/x", false, 0},
		{"anna", "", "", Publish, "devices//t", false, 0},
	} {
		t.Run(fmt.Sprintf("%s(%s)/%s/%s/%s", c.user, c.groups, c.client, c.do, c.topic), func(t *testing.T) {
			var groups []string
			if c.groups != "" {
				groups = strings.Split(c.groups, ",")
			}
			d := a.Rights(c.user, groups, c.client).Decide(c.do, c.topic)
			line := 0
			if d.Rule != nil {
				line = d.Rule.Line
			}
			if d.Allowed != c.allowed || line != c.line {
				t.Errorf("allowed %v by line %d, want %v by line %d", d.Allowed, line, c.allowed, c.line)
			}
		})
	}
}

func TestDecideFilter(t *testing.T) {
	a := mustACL(t, policy)
	for _, c := range []struct {
		user, group, client, filter string
		allowed                     bool
		line                        int
	}{
		{"greta", "guests", "g", "plant/#", true, 7},         // some of it is denied: left out at delivery
		{"greta", "guests", "g", "plant/secret/#", false, 6}, // all of it is
		{"greta", "guests", "g", "plant/secret/+/x", false, 6},
		{"greta", "guests", "g", "#", true, 7},
		{"greta", "guests", "g", "other/#", false, 0},
		{"anna", "", "x", "a/+/c", false, 12},
		{"anna", "", "x", "a/+/+", true, 13},
		{"anna", "", "x", "$SYS/#", false, 0},
		{"mallory", "", "x", "a/#", false, 3},
		{"mallory", "", "x", "$SYS/#", false, 0}, // # does not cover $SYS/#, and nothing allows it
		{"", "", "x", "+/x", true, 11},
		{"", "", "panel", "panel/+", true, 10},
	} {
		d := a.Rights(c.user, []string{c.group}, c.client).DecideFilter(c.filter)
		line := 0
		if d.Rule != nil {
			line = d.Rule.Line
		}
		if d.Allowed != c.allowed || line != c.line {
			t.Errorf("%s (%s) as %s to %s: allowed %v by line %d, want %v by line %d", c.user, c.group, c.client, c.filter, d.Allowed, line, c.allowed, c.line)
		}
	}
}

func TestMayReceiveAll(t *testing.T) {
	r := mustACL(t, "deny everyone subscribe a/secret\nallow everyone publish x/#\nallow everyone subscribe a/# b/+\n").Rights("u", nil, "c")
	for filter, want := range map[string]bool{"a/b/#": true, "a/#": false, "a/+": false, "a/secret": false, "b/+": true, "b/#": false, "x/#": false, "#": false} {
		if got := r.MayReceiveAll(filter); got != want {
			t.Errorf("%s: %v", filter, got)
		}
	}
	if !(*Rights)(nil).MayReceiveAll("#") {
		t.Error("refused without an ACL")
	}
}

// Without an ACL everything is allowed, with an empty one nothing.
func TestNoRulesAndNoACL(t *testing.T) {
	var none *ACL
	if r := none.Rights("u", nil, "c"); !r.MayPublish("a") || !r.MayReceive("a") || !r.MaySubscribe("#") {
		t.Error("something is refused without an ACL")
	}
	if r := mustACL(t, "# nothing\n").Rights("u", nil, "c"); r.MayPublish("a") || r.MayReceive("a") || r.MaySubscribe("#") {
		t.Error("something is allowed without a rule")
	}
}

func TestACLProblems(t *testing.T) {
	for _, c := range []struct{ line, what string }{
		{"allow everyone all", "a rule has four parts or more"},
		{"permit everyone all #", `"permit" is neither allow nor deny`},
		{"allow anna all #", `"anna" names nobody`},
		{"allow role:x all #", `"role:x" names nobody`},
		{"allow user: all #", "has no name behind the colon"},
		{"allow everyone read #", `"read" is not an action`},
		{"allow everyone all a/#/b", "is not a topic filter"},
		{"allow everyone all a#", "is not a topic filter"},
		{"allow everyone all $share/g/a", "is a shared subscription"},
		{"allow anonymous all d/%u", "anonymous clients have no user"},
		{`allow everyone all "a`, `a " is not closed`},
		{"allow user:anna publish x # only x", "# is the filter for everything"},
	} {
		_, err := ParseACL("acl", "allow everyone all x\n"+c.line+"\n")
		if err == nil || !strings.HasPrefix(err.Error(), "acl:2: ") || !strings.Contains(err.Error(), c.what) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", c.line, err)
		}
	}
	if _, err := ParseACL("acl", strings.Repeat("nonsense\n", 1000)); strings.Count(err.Error(), "\n") >= problemsMax {
		t.Errorf("%d lines about a file that is no ACL", strings.Count(err.Error(), "\n"))
	}
}

func FuzzParseACL(f *testing.F) {
	f.Add(policy, "anna", "d1", "devices/d1/x")
	f.Add("allow everyone all #", "", "", "$SYS/x")
	f.Add("allow client:* publish %c/%u", "u", "+", "+/u")
	f.Fuzz(func(t *testing.T, text, user, client, name string) {
		a, err := ParseACL("acl", text)
		if err != nil {
			return
		}
		r := a.Rights(user, []string{user}, client)
		// What is received of a topic is never more than what a subscription to just that topic is granted.
		if strings.ContainsAny(name, "+#\x00") || name == "" {
			return
		}
		if r.MayReceive(name) != r.MaySubscribe(name) {
			t.Errorf("receive %v, subscribe %v: %q", r.MayReceive(name), r.MaySubscribe(name), name)
		}
	})
}

func BenchmarkDecide(b *testing.B) {
	a, err := ParseACL("acl", policy)
	if err != nil {
		b.Fatal(err)
	}
	r := a.Rights("anna", []string{"operators"}, "d1")
	b.ReportAllocs()
	for b.Loop() {
		r.MayPublish("devices/d1/telemetry")
	}
}
