package broker

import (
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"testing"

	"edgehub/hub/session"
)

// The table says what a map says, through growth, deletion in any order, and shrinking.
func TestClientTable(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 5))
	table, naive := clientTable{seed: maphash.MakeSeed()}, map[string]*Client{}
	biggest := 0
	for step := range 60_000 {
		growing := step%20_000 < 12_000
		id := fmt.Sprintf("device-%d", rng.IntN(3000))
		if rng.IntN(10) < 7 == growing {
			c := &Client{Session: session.Session{ClientID: id}}
			table.put(c)
			naive[id] = c
		} else {
			table.remove(id)
			delete(naive, id)
		}
		if table.len() != len(naive) || table.get(id) != naive[id] {
			t.Fatalf("step %d: %d clients, want %d; %q is %p, want %p", step, table.len(), len(naive), id, table.get(id), naive[id])
		}
		biggest = max(biggest, len(table.slots))
	}
	for id, c := range naive {
		if table.get(id) != c {
			t.Fatalf("%q is lost", id)
		}
	}
	seen := map[string]bool{}
	for c := range table.all() {
		if seen[c.ClientID] || naive[c.ClientID] != c {
			t.Fatalf("%q comes twice, or should not", c.ClientID)
		}
		seen[c.ClientID] = true
	}
	if len(seen) != len(naive) {
		t.Fatalf("%d of %d clients", len(seen), len(naive))
	}
	for id := range naive {
		table.remove(id)
	}
	if table.len() != 0 || len(table.slots) >= biggest/16 || table.get("device-1") != nil {
		t.Fatalf("%d clients in %d slots, of %d", table.len(), len(table.slots), biggest)
	}
}

// Clients whose hashes are one and the same are told apart, whatever is deleted between them.
func TestClientTableCollisions(t *testing.T) {
	table := clientTable{slots: make([]*Client, 16), hashes: make([]uint32, 16)}
	add := func(id string, h uint32) {
		i := table.find(id, h)
		table.slots[i], table.hashes[i] = &Client{Session: session.Session{ClientID: id}}, h
		table.n++
	}
	for i := range 5 {
		add(fmt.Sprint("a", i), 14) // from the last slots into the first
	}
	add("b", 15)
	for i := range 5 {
		if c := table.slots[table.find(fmt.Sprint("a", i), 14)]; c == nil || c.ClientID != fmt.Sprint("a", i) {
			t.Fatalf("a%d: %+v", i, c)
		}
	}
	if c := table.slots[table.find("b", 15)]; c == nil || c.ClientID != "b" {
		t.Fatalf("b: %+v", c)
	}
}
