package session

import (
	"math/rand/v2"
	"testing"
)

func TestFlightsGiveDistinctIDsAndKeepOrder(t *testing.T) {
	var f Flights
	inUse := map[uint16]bool{}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300_000 {
		if len(inUse) > 0 && (len(inUse) > 900 || rng.IntN(2) == 0) {
			for id := range inUse {
				if !f.Remove(id) {
					t.Fatalf("id %d was in flight and cannot be removed", id)
				}
				delete(inUse, id)
				break
			}
			continue
		}
		e := f.Add()
		if e.ID == 0 || inUse[e.ID] {
			t.Fatalf("id %d given twice", e.ID)
		}
		inUse[e.ID] = true
	}
	if f.Len() != len(inUse) {
		t.Fatalf("Len = %d, want %d", f.Len(), len(inUse))
	}
	ids := f.Ordered()
	for i := 1; i < len(ids); i++ {
		if f.Get(ids[i-1]).Seq >= f.Get(ids[i]).Seq {
			t.Fatalf("ids out of sending order")
		}
	}
}

func TestFlightsUseEveryID(t *testing.T) {
	var f Flights
	for i := range 65535 {
		if f.Add() == nil {
			t.Fatalf("no id after %d", i)
		}
	}
	if f.Add() != nil {
		t.Fatal("an id was given although all are in use")
	}
	f.Remove(77)
	if e := f.Add(); e == nil || e.ID != 77 {
		t.Fatalf("the only free id was not found: %+v", e)
	}
}

func TestFlightsRestoreKeepsIDs(t *testing.T) {
	var f Flights
	for i, id := range []uint16{65535, 1, 9, 17, 33, 1024} {
		if !f.Restore(Flight{ID: id, Seq: uint32(1000 + i)}) {
			t.Fatalf("id %d not restored", id)
		}
	}
	if f.Restore(Flight{ID: 9, Seq: 2000}) {
		t.Fatal("an id was restored twice")
	}
	next := f.Add() // behind all that were there before, after a second restart too
	if got := f.Ordered(); len(got) != 7 || got[0] != 65535 || got[5] != 1024 || got[6] != next.ID || next.Seq != 1006 {
		t.Fatalf("order after restore: %v, next %+v", got, next)
	}
}

func TestInboundNumbersSurviveReuseOfAnID(t *testing.T) {
	var in Inbound
	first := in.Take(5)
	if !in.Pending(5) {
		t.Fatal("taken id is not pending")
	}
	if !in.Release(5) || in.Release(5) {
		t.Fatal("an id is released once")
	}
	second := in.Take(5)
	if second <= first {
		t.Fatalf("numbers do not rise: %d after %d", second, first)
	}
	in.Commit(5)
	in.Restore(5, first)
	for id, e := range in.All() {
		if id != 5 || e.Seq != second || !e.Committed {
			t.Fatalf("id %d: %+v, want number %d, committed", id, e, second)
		}
	}
}

func TestSubscribeReplacesAndKeepsTheStart(t *testing.T) {
	s := &Session{ClientID: "a"}
	s.Subscribe(&Sub{Filter: "a/+", QoS: 1, Starts: []Position{{Part: 2, Offset: 10}}})
	if !s.Subscribe(&Sub{Filter: "a/+", QoS: 2}) {
		t.Fatal("the same filter was not replaced")
	}
	if s.FindSub("a/+").StartIn(2) != 10 {
		t.Fatal("a replaced subscription lost its start")
	}
	s.FallBehind(2, 12)
	s.DropCursor(2)
	if s.FindSub("a/+").StartIn(2) != 0 || s.Cursors != nil {
		t.Fatal("starts and cursors of a live partition are not needed any more")
	}
	if !s.Unsubscribe("a/+") || s.Unsubscribe("a/+") {
		t.Fatal("unsubscribe")
	}
}

func TestMergeTakesTheHighestQoSAndAllIdentifiers(t *testing.T) {
	g := Merge([]*Sub{{QoS: 0, ID: 3}, {QoS: 2, NoLocal: true}, {QoS: 1, ID: 7, RetainAsPublished: true}})
	if g.QoS != 2 || g.NoLocal || !g.RetainAsPublished || len(g.SubIDs) != 2 {
		t.Fatalf("grant %+v", g)
	}
}

// The matcher of a job is as of its making: what the session does meanwhile does not reach the reader.
func TestMatcherIsImmutable(t *testing.T) {
	s := &Session{ClientID: "a"}
	s.Subscribe(&Sub{Filter: "a/+", QoS: 1, Starts: []Position{{Part: 2, Offset: 10}}})
	m := s.Matcher()
	if s.Matcher() != m {
		t.Fatal("made anew although nothing has changed")
	}
	s.FallBehind(2, 12)
	s.DropCursor(2)
	s.Subscribe(&Sub{Filter: "#", QoS: 2})
	got := m.Match("a/b", nil)
	if len(got) != 1 || got[0].StartIn(2) != 10 {
		t.Fatalf("the old matcher says %+v", got)
	}
	if got := s.Matcher().Match("a/b", nil); len(got) != 2 {
		t.Fatalf("the new matcher says %+v", got)
	}
	s.Unsubscribe("a/+")
	if got := s.Matcher().Match("a/b", nil); len(got) != 1 || got[0].Filter != "#" {
		t.Fatalf("after an unsubscribe: %+v", got)
	}
}

// A cursor: behind from an offset on, then live at it, then gone.
func TestCursors(t *testing.T) {
	s := &Session{}
	s.FallBehind(1, 5)
	s.FallBehind(3, 7)
	s.FallBehind(1, 9)
	c := s.Cursor(1)
	if c == nil || c.Next != 9 || !c.Behind || len(s.Cursors) != 2 || s.Cursor(2) != nil {
		t.Fatalf("cursors: %+v", s.Cursors)
	}
	c.Behind = false
	if !s.IsBehind() {
		t.Fatal("it is behind in the other partition")
	}
	s.DropCursor(3)
	if s.IsBehind() || s.Cursor(1) == nil {
		t.Fatalf("cursors: %+v", s.Cursors)
	}
	s.DropCursor(1)
	s.DropCursor(1)
	if s.Cursors != nil {
		t.Fatal("an idle session holds an array")
	}
}

// Numbers of inbound publishes rise over everything that is known of earlier ones.
func TestInboundNumbers(t *testing.T) {
	var in Inbound
	in.SkipTo(100)
	in.SkipTo(50)
	if n := in.Take(1); n != 101 || in.Seq(1) != 101 || in.Last() != 101 {
		t.Fatalf("number %d", n)
	}
	in.Commit(1)
	in.Commit(2) // not pending: nothing
	if in.Seq(1) != 101 || in.Len() != 1 {
		t.Fatal("a commit changes the number or adds one")
	}
	in.Restore(7, 300)
	if n := in.Take(2); n != 301 {
		t.Fatalf("number %d after a restored 300", n)
	}
	for id, e := range in.All() {
		if e.Committed != (id != 2) {
			t.Errorf("id %d: %+v", id, e)
		}
	}
	if in.Seq(9) != 0 || in.Release(9) || in.Pending(9) {
		t.Fatal("an id that was never taken")
	}
}

// Clear leaves nothing but the name.
func TestClear(t *testing.T) {
	s := &Session{ClientID: "a", Expiry: 5, ExpiresMs: 9}
	s.Subscribe(&Sub{Filter: "#"})
	s.FallBehind(0, 1)
	s.Flights.Add()
	s.Inbound.Take(1)
	s.Matcher()
	s.Clear()
	if s.ClientID != "a" || s.Persistent() || s.ExpiresMs != 0 || len(s.Subs)+len(s.Cursors)+s.Flights.Len()+s.Inbound.Len() != 0 ||
		len(s.Matcher().Match("x", nil)) != 0 {
		t.Fatalf("left: %+v", s)
	}
}

// An idle client gives the memory of its flights back, and can go on.
func TestFlightsTrim(t *testing.T) {
	var f Flights
	id := f.Add().ID
	f.Trim()
	if f.Get(id) == nil {
		t.Fatal("trimmed while in use")
	}
	f.Remove(id)
	f.Trim()
	if f.ring != nil || f.Remove(id) || f.Get(id) != nil {
		t.Fatal("an empty ring is kept")
	}
	if e := f.Add(); e == nil || e.ID == id {
		t.Fatal("ids begin anew after a trim")
	}
}
