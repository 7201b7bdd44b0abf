package topic

import (
	"strings"
	"testing"
)

// spell lists every text of one to n levels from an alphabet of levels.
func spell(n int, alphabet ...string) []string {
	list := append([]string(nil), alphabet...)
	last := list
	for range n - 1 {
		var next []string
		for _, s := range last {
			for _, l := range alphabet {
				next = append(next, s+"/"+l)
			}
		}
		list = append(list, next...)
		last = next
	}
	return list
}

// Covers agrees with what trying every name says. The names have a level and a length that no filter has, so that a
// filter that covers another by chance is told apart.
func TestCoversAgreesWithMatch(t *testing.T) {
	var filters []string
	for _, f := range spell(3, "a", "$b", "", "+", "#") {
		if ValidateFilter(f) == nil {
			filters = append(filters, f)
		}
	}
	var names []string
	for _, n := range spell(4, "a", "$b", "", "z", "$z") {
		if ValidateName([]byte(n)) == nil {
			names = append(names, n)
		}
	}
	sees := map[string][]bool{}
	for _, f := range filters {
		for _, n := range names {
			sees[f] = append(sees[f], Match(f, n))
		}
	}
	covered := 0
	for _, a := range filters {
		for _, b := range filters {
			want := true
			for i := range names {
				if sees[b][i] && !sees[a][i] {
					want = false
					break
				}
			}
			if got := Covers(a, b); got != want {
				t.Errorf("Covers(%q, %q) = %v, want %v", a, b, got, want)
			}
			if want {
				covered++
			}
		}
	}
	if covered < len(filters) {
		t.Errorf("%d pairs cover each other, fewer than there are filters", covered)
	}
}

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"#", "a/b", true},
		{"#", "$SYS/x", false},
		{"$SYS/#", "$SYS", true},
		{"a/#", "a/+/c", true},
		{"a/+", "a/#", false},
		{"a/+/#", "a/#", false},
		{"a/b", "a/b", true},
		{"a/b", "a/+", false},
		{"+/#", "#", true},
	} {
		if got := Covers(c.a, c.b); got != c.want {
			t.Errorf("Covers(%q, %q) = %v", c.a, c.b, got)
		}
		if strings.Contains(c.b, "$") {
			continue
		}
		if c.want && !Overlap(c.a, c.b) {
			t.Errorf("%q covers %q and does not overlap with it", c.a, c.b)
		}
	}
}
