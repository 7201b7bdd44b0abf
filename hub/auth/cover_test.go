package auth

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"edgehub/hub/topic"
)

func TestCoverByRules(t *testing.T) {
	for _, c := range []struct {
		name, rules, filter string
		want                bool
	}{
		{"one rule", "allow group:g subscribe a/#", "a/+/b", true},
		{"two rules together", "allow group:g subscribe a/x/#\nallow group:g subscribe a/+", "a/+", true},
		{"by level: names and the rest", "allow group:g subscribe a/x\nallow group:h subscribe a/+/y a/+", "a/+", true},
		{"# of one level and what is below", "allow group:g subscribe a a/+\nallow group:h subscribe a/+/#", "a/#", true},
		{"a level is missing", "allow group:g subscribe a/+\nallow group:h subscribe a/+/+/#", "a/#", false},
		{"a name is missing", "allow group:g subscribe a/x\nallow group:h subscribe a/y", "a/+", false},
		{"denied in part", "deny everyone subscribe a/secret\nallow group:g subscribe a/#", "a/+", false},
		{"denied where the filter is not", "deny everyone subscribe a/secret\nallow group:g subscribe a/#", "a/open/+", true},
		{"denied too late", "allow group:g subscribe a/#\ndeny everyone subscribe a/secret", "a/+", true},
		{"allowed before it is denied, all of it", "allow group:g subscribe a/secret\ndeny group:h subscribe a/+\nallow everyone subscribe #", "a/secret", true},
		{"another group's", "allow group:other subscribe a/#", "a/b", false},
		{"a user's and a group's", "allow user:u subscribe a/x\nallow group:g subscribe a/+", "a/+", true},
		{"# does not mean $", "allow everyone all #", "$own/x", false},
		{"$ by name", "allow everyone all $own/#", "$own/+", true},
		{"everything", "allow everyone all #", "#", true},
		{"everything, of everything but $", "allow everyone all +/#\ndeny everyone all $own/#", "#", true},
		{"nothing", "", "a", false},
		{"publish only", "allow everyone publish #", "a", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := ParseACL("acl", c.rules)
			if err != nil {
				t.Fatal(err)
			}
			if got := a.Rights("u", []string{"g", "h"}, "c").MayReceiveAll(c.filter); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

// topics are all up to that many levels of these names.
func topics(names []string, levels int) []string {
	all := append([]string{}, names...)
	for from, n := 0, 1; n < levels; n++ {
		next := len(all)
		for _, t := range all[from:next] {
			for _, name := range names {
				all = append(all, t+"/"+name)
			}
		}
		from = next
	}
	return all
}

// Rules at random, held against every topic one by one.
func TestCoverIsExact(t *testing.T) {
	const rounds, depth = 3000, 3
	rng := rand.New(rand.NewPCG(1, 2))
	all := topics([]string{"a", "b", "other", "$s"}, depth+2) // deeper than any rule, with names in none
	filter := func() string {
		var l []string
		for range 1 + rng.IntN(depth) {
			l = append(l, []string{"a", "b", "+", "+", "$s"}[rng.IntN(5)])
		}
		if rng.IntN(2) == 0 {
			l[len(l)-1] = "#"
		}
		return strings.Join(l, "/")
	}
	yes := 0
	for round := range rounds {
		var rules strings.Builder
		for range 1 + rng.IntN(6) {
			fmt.Fprintf(&rules, "%s everyone subscribe %s\n", []string{"allow", "allow", "deny"}[rng.IntN(3)], filter())
		}
		a, err := ParseACL("acl", rules.String())
		if err != nil {
			t.Fatal(err)
		}
		r, f := a.Rights("u", nil, "c"), filter()
		want, example := true, ""
		for _, name := range all {
			if topic.Match(f, name) && !r.MayReceive(name) {
				want, example = false, name
				break
			}
		}
		if got := r.MayReceiveAll(f); got != want {
			t.Fatalf("round %d: %s by\n%sis %v, want %v (%s)", round, f, rules.String(), got, want, example)
		}
		if want {
			yes++
		}
	}
	if yes < rounds/20 {
		t.Errorf("only %d of %d were allowed: the rules are no test", yes, rounds)
	}
}

// However many rules tell levels apart, the walk ends.
func TestCoverIsBounded(t *testing.T) {
	var rules strings.Builder
	for level := range 12 {
		for name := range 6 {
			fmt.Fprintf(&rules, "allow everyone subscribe %s%d/#\n", strings.Repeat("+/", level), name)
		}
	}
	a, err := ParseACL("acl", rules.String())
	if err != nil {
		t.Fatal(err)
	}
	if a.Rights("u", nil, "c").MayReceiveAll("+/+/+/+/+/+/+/+/+/+/+/+/+/+") {
		t.Error("allowed, although topics of other names are in no rule")
	}
}
