package topic

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
)

func itoa(i int) string { return strconv.Itoa(i) }

func sorted[T int | string](s []T) []T {
	slices.Sort(s)
	return s
}

func TestTree(t *testing.T) {
	var tr Tree[string, int]
	filters := []string{"a/b", "a/+", "a/#", "#", "+/b", "+/+", "+", "a/b/#", "$SYS/#", "+/#", "/", "a/+/c"}
	for i, f := range filters {
		if _, replaced := tr.Set(f, "k", i); replaced {
			t.Errorf("Set(%q) replaced something", f)
		}
	}
	if tr.Len() != len(filters) {
		t.Errorf("Len = %d, want %d", tr.Len(), len(filters))
	}
	for _, name := range []string{"a", "a/b", "a/b/c", "/", "$SYS", "$SYS/x", "b", "a/x/c", "x/y/z"} {
		var want []int
		for i, f := range filters {
			if naiveMatch(f, name) {
				want = append(want, i)
			}
		}
		if got := sorted(tr.Match(name, nil)); !slices.Equal(got, want) {
			t.Errorf("Match(%q) = %v, want %v", name, got, want)
		}
		if got := sorted(tr.MatchBytes([]byte(name), []int{})); !slices.Equal(got, want) {
			t.Errorf("MatchBytes(%q) = %v, want %v", name, got, want)
		}
	}
	if old, replaced := tr.Set("a/#", "k", 77); !replaced || old != 2 {
		t.Errorf("Set again = %d, %v; want 2, true", old, replaced)
	}
	if v, ok := tr.Get("a/#", "k"); !ok || v != 77 {
		t.Errorf("Get = %d, %v; want 77, true", v, ok)
	}
	for _, f := range []string{"x", "a", "a/b/+", "a/+/#", "+/+/+", "b/#"} {
		if tr.Delete(f, "k") {
			t.Errorf("Delete(%q) of what is not there is true", f)
		}
		if _, ok := tr.Get(f, "k"); ok {
			t.Errorf("Get(%q) of what is not there is true", f)
		}
	}
	if tr.Delete("a/b", "other") || tr.Delete("a/+", "other") {
		t.Error("Delete with another key is true")
	}
	for _, f := range filters {
		if !tr.Delete(f, "k") {
			t.Errorf("Delete(%q) is false", f)
		}
	}
	if tr.Len() != 0 || tr.wild != 0 || len(tr.exact) != 0 || !tr.root.empty() {
		t.Errorf("not empty after all is deleted: %+v", tr)
	}
}

// One filter with very many subscribers: entries keep their values while others come and go, and memory is given back.
func TestTreeManyKeys(t *testing.T) {
	for _, filter := range []string{"a/+", "a/b"} {
		var tr Tree[int, int]
		const n = 5000
		for k := range n {
			tr.Set(filter, k, k*10)
		}
		order := rand.New(rand.NewPCG(1, 2)).Perm(n)
		for i, k := range order {
			if v, ok := tr.Get(filter, k); !ok || v != k*10 {
				t.Fatalf("%s: Get(%d) = %d, %v after %d deletions", filter, k, v, ok, i)
			}
			if !tr.Delete(filter, k) || tr.Delete(filter, k) {
				t.Fatalf("%s: Delete(%d) twice is not true, false", filter, k)
			}
			if left := n - i - 1; left%500 == 0 {
				got := tr.Match("a/b", nil)
				if len(got) != left {
					t.Fatalf("%s: %d matches, want %d", filter, len(got), left)
				}
				if s := tr.exact["a/b"]; cap(s.items) > 8*left+2*indexMin {
					t.Fatalf("%d entries keep room for %d", left, cap(s.items))
				}
			}
		}
		if tr.Len() != 0 {
			t.Errorf("%s: Len = %d", filter, tr.Len())
		}
	}
}

// checkNode fails unless the invariant of treeNode holds everywhere below n.
func checkNode(t *testing.T, n *treeNode[byte, int], root bool) {
	t.Helper()
	if !root && n.empty() {
		t.Fatal("an empty node was left behind")
	}
	if n.kids.m != nil && (len(n.kids.list) > 0 || len(n.kids.m) <= listMax/2) {
		t.Fatalf("branch with a map of %d and a list of %d", len(n.kids.m), len(n.kids.list))
	}
	n.kids.each(func(_ string, k *treeNode[byte, int]) bool { checkNode(t, k, false); return true })
	if n.plus != nil {
		checkNode(t, n.plus, false)
	}
}

// FuzzTree runs a script of Set, Delete and Match against a plain list of filters and the naive matcher.
func FuzzTree(f *testing.F) {
	f.Add([]byte{0, 2, 0, 7, 0, 2, 6, 1, 2, 1, 0, 3, 1, 2, 0, 7})
	f.Add([]byte{0, 1, 7, 0, 1, 3, 2, 1, 3, 1, 1, 7, 2, 2, 3, 1})
	many := []byte{}
	for i := range byte(40) {
		many = append(many, 0, 2, i, 6, 3, 3, i, i, i)
	}
	f.Add(many)
	f.Fuzz(func(t *testing.T, script []byte) {
		var tr Tree[byte, int]
		type id struct {
			filter string
			key    byte
		}
		model := map[id]int{}
		for step := 0; len(script) >= 2; step++ {
			op, n := script[0], int(script[1])%6
			n = min(n, len(script)-2)
			arg := script[2 : 2+n]
			script = script[2+n:]
			k := id{filterOf(arg), op / 4 % 3}
			old, had := model[k]
			switch op % 4 {
			case 0, 3:
				if v, replaced := tr.Set(k.filter, k.key, step); replaced != had || v != old {
					t.Fatalf("Set(%v) = %d, %v; want %d, %v", k, v, replaced, old, had)
				}
				model[k] = step
			case 1:
				if got := tr.Delete(k.filter, k.key); got != had {
					t.Fatalf("Delete(%v) = %v", k, got)
				}
				delete(model, k)
			}
			if v, ok := tr.Get(k.filter, k.key); ok != (op%4 != 1 && (had || op%4 != 2)) || ok && v != model[k] {
				t.Fatalf("Get(%v) = %d, %v", k, v, ok)
			}
			name := nameOf(arg)
			want := []int{}
			for k, v := range model {
				if naiveMatch(k.filter, name) {
					want = append(want, v)
				}
			}
			if got := sorted(tr.Match(name, []int{})); !slices.Equal(got, sorted(want)) {
				t.Fatalf("Match(%q) = %v, want %v, with %v", name, got, want, model)
			}
			if tr.Len() != len(model) {
				t.Fatalf("Len = %d, want %d", tr.Len(), len(model))
			}
		}
		checkNode(t, &tr.root, true)
	})
}

func TestTreeMatchDoesNotAllocate(t *testing.T) {
	var tr Tree[int, int]
	for i := range 2000 {
		tr.Set(fmt.Sprintf("devices/%d/+", i), i, i)
		tr.Set(fmt.Sprintf("devices/%d/telemetry", i), i, i)
		tr.Set("devices/+/telemetry/#", i, i)
	}
	dst := make([]int, 0, 4096)
	name := []byte("devices/17/telemetry")
	if n := testing.AllocsPerRun(100, func() { dst = tr.MatchBytes(name, dst[:0]) }); n != 0 {
		t.Errorf("Match allocates %v times", n)
	}
	if len(dst) != 2002 {
		t.Errorf("%d matches, want 2002", len(dst))
	}
}

func BenchmarkTreeMatch(b *testing.B) {
	for _, n := range []int{10_000, 1_000_000} {
		var tr Tree[int, int]
		for i := range n / 2 {
			tr.Set("devices/"+itoa(i)+"/telemetry", i, i)
			tr.Set("devices/"+itoa(i)+"/#", i, i)
		}
		names := make([]string, 1024)
		for i := range names {
			names[i] = "devices/" + itoa(rand.IntN(n/2)) + "/telemetry"
		}
		dst := make([]int, 0, 16)
		b.Run(fmt.Sprintf("two of %d", n), func(b *testing.B) {
			b.ReportAllocs()
			for i := range b.N {
				dst = tr.Match(names[i&1023], dst[:0])
			}
		})
		b.Run(fmt.Sprintf("none of %d", n), func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				dst = tr.Match("other/17/telemetry", dst[:0])
			}
		})
	}
}
