package broker

import (
	"hash/maphash"
	"iter"
)

// clientTable finds clients by id: open addressing with linear probing, a pointer and 32 bits of hash per slot, since the
// id is in the client. A map would hold the id a second time, and cost more than twice as much for each of many idle
// connections. Guarded by the shard that it belongs to.
//
// Invariant: between the slot that a client's hash names and the one it is in, no slot is free.
type clientTable struct {
	seed   maphash.Seed
	slots  []*Client // length a power of two, or 0
	hashes []uint32  // of slots; of a free one without meaning
	n      int
}

const clientTableMin = 8

func (t *clientTable) hash(id string) uint32 { return uint32(maphash.String(t.seed, id) >> 32) }

func (t *clientTable) len() int { return t.n }

// find returns the slot of id, or the free one where it would go. There must be a free one.
func (t *clientTable) find(id string, h uint32) int {
	mask := len(t.slots) - 1
	i := int(h) & mask
	for t.slots[i] != nil && (t.hashes[i] != h || t.slots[i].ClientID != id) {
		i = (i + 1) & mask
	}
	return i
}

// get returns the client with that id, or nil.
func (t *clientTable) get(id string) *Client {
	if t.n == 0 {
		return nil
	}
	return t.slots[t.find(id, t.hash(id))]
}

// put adds a client, in place of one with the same id.
func (t *clientTable) put(c *Client) {
	if 8*(t.n+1) > 7*len(t.slots) {
		t.resize(max(2*len(t.slots), clientTableMin))
	}
	h := t.hash(c.ClientID)
	i := t.find(c.ClientID, h)
	if t.slots[i] == nil {
		t.n++
	}
	t.slots[i], t.hashes[i] = c, h
}

// remove takes out the client with that id, if there is one. Those behind it move up, so that no gap separates them from
// the slot of their hash.
func (t *clientTable) remove(id string) {
	if t.n == 0 {
		return
	}
	i := t.find(id, t.hash(id))
	if t.slots[i] == nil {
		return
	}
	t.n--
	mask := len(t.slots) - 1
	for j := (i + 1) & mask; t.slots[j] != nil; j = (j + 1) & mask {
		if home := int(t.hashes[j]) & mask; (j-home)&mask >= (j-i)&mask {
			t.slots[i], t.hashes[i] = t.slots[j], t.hashes[j]
			i = j
		}
	}
	t.slots[i] = nil
	if len(t.slots) > clientTableMin && t.n < len(t.slots)/8 {
		t.resize(len(t.slots) / 4)
	}
}

// resize moves the clients to a table of another size, which must have room.
func (t *clientTable) resize(size int) {
	old, hashes := t.slots, t.hashes
	t.slots, t.hashes = make([]*Client, size), make([]uint32, size)
	for k, c := range old {
		if c == nil {
			continue
		}
		i := int(hashes[k]) & (size - 1)
		for t.slots[i] != nil {
			i = (i + 1) & (size - 1)
		}
		t.slots[i], t.hashes[i] = c, hashes[k]
	}
}

// all yields every client, in no particular order. The table must not change meanwhile.
func (t *clientTable) all() iter.Seq[*Client] {
	return func(yield func(*Client) bool) {
		for _, c := range t.slots {
			if c != nil && !yield(c) {
				return
			}
		}
	}
}
