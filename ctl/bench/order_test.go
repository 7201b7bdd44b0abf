package bench

import (
	"math/rand/v2"
	"testing"
)

func TestFlowLog(t *testing.T) {
	for _, c := range []struct {
		name              string
		got               []uint32
		sent              uint32
		fresh, late, dups int
		lost              int64
	}{
		{"all in order", []uint32{0, 1, 2, 3}, 4, 4, 0, 0, 0},
		{"nothing came", nil, 5, 0, 0, 0, 5},
		{"nothing was sent", nil, 0, 0, 0, 0, 0},
		{"the tail is missing", []uint32{0, 1}, 5, 2, 0, 0, 3},
		{"the head is missing", []uint32{2, 3}, 4, 2, 0, 0, 2},
		{"a hole", []uint32{0, 3}, 4, 2, 0, 0, 2},
		{"a hole filled from its middle", []uint32{0, 4, 2, 1, 3}, 5, 2, 3, 0, 0},
		{"a hole filled from its ends", []uint32{0, 5, 1, 4}, 6, 2, 2, 0, 2},
		{"twice at once", []uint32{0, 0, 1, 1}, 2, 2, 0, 2, 0},
		{"twice later", []uint32{0, 1, 2, 0, 1}, 3, 3, 0, 2, 0},
		{"a late one twice", []uint32{0, 2, 1, 1}, 3, 2, 1, 1, 0},
		{"backwards", []uint32{3, 2, 1, 0}, 4, 1, 3, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var f flowLog
			var n [3]int
			for _, seq := range c.got {
				n[f.take(seq)]++
			}
			if n != [3]int{c.fresh, c.late, c.dups} || f.lost(c.sent) != c.lost {
				t.Errorf("fresh, late, duplicate %v, lost %d; want %d %d %d, %d", n, f.lost(c.sent), c.fresh, c.late, c.dups, c.lost)
			}
		})
	}
}

// A plain set and a maximum say the same as the spans.
func TestFlowLogAgreesWithSet(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		const sent = 300
		var f flowLog
		seen, highest := map[uint32]bool{}, int64(-1)
		for range rnd.IntN(2 * sent) {
			seq := uint32(rnd.IntN(sent))
			want := fresh
			switch {
			case seen[seq]:
				want = duplicate
			case int64(seq) < highest:
				want = late
			}
			if got := f.take(seq); got != want {
				t.Fatalf("%d is %d, want %d", seq, got, want)
			}
			seen[seq], highest = true, max(highest, int64(seq))
		}
		if got := f.lost(sent); got != int64(sent-len(seen)) {
			t.Fatalf("lost %d, want %d", got, sent-len(seen))
		}
	}
}

func TestFlows(t *testing.T) {
	for _, c := range []struct {
		f     flows
		in    []int
		notIn []int
	}{
		{flows{0, 1, 3}, []int{0, 1, 2}, []int{3}},
		{flows{1, 3, 9}, []int{1, 4, 7}, []int{0, 2, 3, 10}},
		{flows{2, 8, 8}, []int{2}, []int{0, 10}},
		{flows{1, 3, 8}, []int{1, 4, 7}, []int{8, 10}},
	} {
		if c.f.count() != len(c.in) {
			t.Errorf("%v has %d, want %d", c.f, c.f.count(), len(c.in))
		}
		for want, flow := range c.in {
			if i, ok := c.f.index(uint32(flow)); !ok || i != want || c.f.at(i) != flow {
				t.Errorf("%v: flow %d is at %d, %v", c.f, flow, i, ok)
			}
		}
		for _, flow := range c.notIn {
			if _, ok := c.f.index(uint32(flow)); ok {
				t.Errorf("%v has flow %d", c.f, flow)
			}
		}
	}
}

// Members of a group share a flow: each must ascend, together they must be complete.
func TestTallyOfGroup(t *testing.T) {
	g := &group{logs: make([]flowLog, 1)}
	all := flows{0, 1, 1}
	a, b := newTally(all, g), newTally(all, g)
	for _, x := range []struct {
		to  *tally
		seq uint32
	}{{a, 0}, {b, 3}, {a, 1}, {a, 4}, {a, 2}, {b, 3}, {b, 6}} {
		x.to.take(0, x.seq)
	}
	if a.fresh != 4 || a.disordered != 1 || a.duplicated != 0 {
		t.Errorf("a has %d, out of order %d, duplicated %d", a.fresh, a.disordered, a.duplicated)
	}
	if b.fresh != 2 || b.disordered != 0 || b.duplicated != 1 {
		t.Errorf("b has %d, out of order %d, duplicated %d", b.fresh, b.disordered, b.duplicated)
	}
	if n := lost(all, g.logs, func(int) uint32 { return 8 }); n != 2 {
		t.Errorf("lost %d, want 2: numbers 5 and 7", n)
	}
	a.take(1, 0)
	if a.foreign != 1 {
		t.Error("a flow that nobody asked for was counted")
	}
}
