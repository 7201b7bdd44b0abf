package topic

import (
	"fmt"
	"slices"
	"testing"
)

func (t *Names[V]) collect(filter string) []string {
	got := []string{}
	t.Match(filter, func(name string, _ V) bool {
		got = append(got, name)
		return true
	})
	return sorted(got)
}

func TestNames(t *testing.T) {
	names := []string{"a", "a/b", "a/b/c/d", "a/b/c/e", "/", "/x", "$SYS/a", "b/c", "a/x/c/d", "long/chain/of/levels"}
	var ix Names[int]
	for i, n := range names {
		if _, had := ix.Set(n, i); had {
			t.Errorf("Set(%q) replaced something", n)
		}
	}
	for _, f := range []string{"#", "a", "a/#", "a/+", "a/+/c/+", "+", "+/+", "a/b/c/d", "$SYS/#", "+/#", "/+", "long/#", "long/+/of/levels", "long/chain", "x/#", "a/b/#"} {
		want := []string{}
		for _, n := range names {
			if naiveMatch(f, n) {
				want = append(want, n)
			}
		}
		if got := ix.collect(f); !slices.Equal(got, sorted(want)) {
			t.Errorf("Match(%q) = %q, want %q", f, got, want)
		}
	}
	all := []string{}
	ix.All(func(name string, _ int) bool { all = append(all, name); return true })
	if !slices.Equal(sorted(all), sorted(slices.Clone(names))) {
		t.Errorf("All = %q", all)
	}
	if old, had := ix.Set("a/b", 99); !had || old != 1 {
		t.Errorf("Set again = %d, %v; want 1, true", old, had)
	}
	if v, ok := ix.Get("a/b"); !ok || v != 99 {
		t.Errorf("Get = %d, %v; want 99, true", v, ok)
	}
	for _, n := range []string{"a/b/c", "long", "long/chain", "c", "a/b/c/d/e", "$SYS"} {
		if _, ok := ix.Get(n); ok || ix.Delete(n) {
			t.Errorf("%q is there", n)
		}
	}
	calls := 0
	ix.Match("#", func(string, int) bool { calls++; return calls < 3 })
	if calls != 3 {
		t.Errorf("Match went on after false: %d calls", calls)
	}
	for _, n := range names {
		if !ix.Delete(n) {
			t.Errorf("Delete(%q) is false", n)
		}
	}
	if ix.Len() != 0 || ix.root.kids.len() != 0 {
		t.Errorf("not empty after all is deleted: %+v", ix)
	}
}

// checkNames fails unless the invariant of nameNode holds everywhere below n.
func checkNames(t *testing.T, n *nameNode[int], root bool) {
	t.Helper()
	if n.kids == nil {
		if !root && !n.has {
			t.Fatal("a leaf without a name was left behind")
		}
		return
	}
	if !root && n.kids.len() == 0 {
		t.Fatalf("%q: a node without children is not a leaf", n.name)
	}
	n.kids.each(func(l string, k *nameNode[int]) bool {
		if !root && !n.has && n.kids.len() == 1 && k.kids == nil {
			t.Fatalf("level %q of the single name %q was left behind", l, k.name)
		}
		checkNames(t, k, false)
		return true
	})
}

// FuzzNames runs a script of Set, Delete and Match against a map and the naive matcher.
func FuzzNames(f *testing.F) {
	f.Add([]byte{0, 1, 0, 0, 2, 0, 1, 2, 2, 0, 7, 1, 1, 0})
	f.Add([]byte{0, 4, 0, 1, 2, 3, 0, 4, 0, 1, 2, 5, 1, 4, 0, 1, 2, 3, 2, 1, 7})
	f.Fuzz(func(t *testing.T, script []byte) {
		var ix Names[int]
		model := map[string]int{}
		for step := 1; len(script) >= 2; step++ {
			op, n := script[0], min(int(script[1])%6, len(script)-2)
			arg := script[2 : 2+n]
			script = script[2+n:]
			name := nameOf(arg)
			old, had := model[name]
			switch op % 3 {
			case 0:
				if v, ok := ix.Set(name, step); ok != had || v != old {
					t.Fatalf("Set(%q) = %d, %v; want %d, %v", name, v, ok, old, had)
				}
				model[name] = step
			case 1:
				if got := ix.Delete(name); got != had {
					t.Fatalf("Delete(%q) = %v", name, got)
				}
				delete(model, name)
			}
			want, has := model[name]
			if v, ok := ix.Get(name); ok != has || v != want {
				t.Fatalf("Get(%q) = %d, %v; want %d, %v", name, v, ok, want, has)
			}
			filter, wants := filterOf(arg), []string{}
			for n := range model {
				if naiveMatch(filter, n) {
					wants = append(wants, n)
				}
			}
			if got := ix.collect(filter); !slices.Equal(got, sorted(wants)) {
				t.Fatalf("Match(%q) = %q, want %q", filter, got, wants)
			}
			if ix.Len() != len(model) {
				t.Fatalf("Len = %d, want %d", ix.Len(), len(model))
			}
			checkNames(t, &ix.root, true)
		}
	})
}

// A node must not keep a long name alive after that name is gone.
func TestNamesDoNotPinLongNames(t *testing.T) {
	if l := levelOf("a", "a/"+string(make([]byte, 60_000))); l != "a" {
		t.Fatalf("levelOf = %q", l)
	}
	var ix Names[int]
	for i := range 200 {
		ix.Set(fmt.Sprintf("a%d/%060000d", i, i), i)
		ix.Set(fmt.Sprintf("a%d/x", i), i)
		ix.Delete(fmt.Sprintf("a%d/%060000d", i, i))
	}
	if heap := heapBytes(); heap > 8<<20 {
		t.Errorf("200 short names keep %d bytes", heap)
	}
	if ix.Len() != 200 {
		t.Errorf("Len = %d", ix.Len())
	}
}

func BenchmarkNamesMatch(b *testing.B) {
	var ix Names[[2]int64]
	const n = 1_000_000
	before := heapBytes()
	for i := range n {
		ix.Set("devices/"+itoa(i)+"/telemetry", [2]int64{})
	}
	perName := float64(heapBytes()-before) / n
	sum := 0
	for _, f := range []string{"devices/4711/+", "devices/4711/#", "+/+/nothing-of-it"} {
		b.Run(f, func(b *testing.B) {
			b.ReportAllocs()
			b.ReportMetric(perName, "B/name")
			for range b.N {
				ix.Match(f, func(string, [2]int64) bool { sum++; return true })
			}
		})
	}
}
