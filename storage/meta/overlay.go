package meta

import "math/rand/v2"

// overlayLevels suits some 4^8 keys; more only make it slower.
const overlayLevels = 8

// overlay is a sorted map of changes that the index does not have yet: a skip
// list, because scans by prefix are as frequent as lookups. Values are never
// changed in place, so a reader may keep one after unlocking. Not safe for
// concurrent use.
type overlay struct {
	head  [overlayLevels]*node
	count int
	bytes int
}

type node struct {
	key     string
	value   []byte
	deleted bool
	fresh   bool // the key was not there before this overlay
	next    []*node
}

// nodeCost estimates what a node takes beside its key and value.
const nodeCost = 96

// find returns the first node with a key >= key. When path is not nil it
// receives, per level, the link that a new node would take over.
func (o *overlay) find(key []byte, path *[overlayLevels]**node) *node {
	links := o.head[:]
	var at *node
	for level := overlayLevels - 1; level >= 0; level-- {
		for links[level] != nil && links[level].key < string(key) {
			links = links[level].next
		}
		if path != nil {
			path[level] = &links[level]
		}
		at = links[level]
	}
	return at
}

// putNew is put for a key that nothing older has: deleted again before the overlay is sealed, it leaves no trace.
func (o *overlay) putNew(key, value []byte) {
	n := o.count
	if at := o.put(key, value, false); o.count > n {
		at.fresh = true
	}
}

// unlink takes a node out.
func (o *overlay) unlink(key []byte, n *node) {
	var path [overlayLevels]**node
	o.find(key, &path)
	for level := range n.next {
		*path[level] = n.next[level]
	}
	o.count--
	o.bytes -= len(n.key) + len(n.value) + nodeCost
}

// put records a change and returns its node. It copies key and takes value.
func (o *overlay) put(key, value []byte, deleted bool) *node {
	var path [overlayLevels]**node
	if n := o.find(key, &path); n != nil && n.key == string(key) {
		if deleted && n.fresh {
			o.unlink(key, n)
			return n
		}
		o.bytes += len(value) - len(n.value)
		n.value, n.deleted = value, deleted
		return n
	}
	height := 1
	for height < overlayLevels && rand.Uint32()&3 == 0 { //nolint:gosec // balance, not secrecy
		height++
	}
	n := &node{key: string(key), value: value, deleted: deleted, next: make([]*node, height)}
	for level := range height {
		n.next[level] = *path[level]
		*path[level] = n
	}
	o.count++
	o.bytes += len(key) + len(value) + nodeCost
	return n
}

// get returns the change of a key, or nil.
func (o *overlay) get(key []byte) *node {
	if n := o.find(key, nil); n != nil && n.key == string(key) {
		return n
	}
	return nil
}

// prefix calls fn for each change whose key begins with prefix, in order.
func (o *overlay) prefix(prefix []byte, fn func(*node)) {
	for n := o.find(prefix, nil); n != nil; n = n.next[0] {
		if len(n.key) < len(prefix) || n.key[:len(prefix)] != string(prefix) { // compiled without a copy
			return
		}
		fn(n)
	}
}

// generation is what was put between two seals.
type generation struct {
	durable, hints overlay
}

func (g *generation) bytes() int { return g.durable.bytes + g.hints.bytes }
func (g *generation) count() int { return g.durable.count + g.hints.count }

// absorb puts the changes of a later generation over g's.
func (g *generation) absorb(later *generation) {
	later.durable.prefix(nil, func(n *node) { g.durable.put([]byte(n.key), n.value, n.deleted) })
	later.hints.prefix(nil, func(n *node) { g.hints.put([]byte(n.key), n.value, n.deleted) })
}

// clone copies a value for the caller.
func clone(b []byte) []byte { return append(make([]byte, 0, len(b)), b...) }

// merged lists the changes with prefix of several generations, the first one
// newest, sorted by key.
func merged(prefix []byte, newestFirst ...*overlay) []*node {
	var out []*node
	for _, o := range newestFirst {
		if o == nil || o.count == 0 {
			continue
		}
		older := len(out)
		o.prefix(prefix, func(n *node) { out = append(out, n) })
		out = mergeNewest(out, older)
	}
	return out
}

// mergeNewest merges two sorted runs of out, of which the first, of length
// split, wins where a key is in both.
func mergeNewest(out []*node, split int) []*node {
	if split == 0 || split == len(out) {
		return out
	}
	a, b := out[:split], out[split:]
	both := make([]*node, 0, len(out))
	for len(a) > 0 && len(b) > 0 {
		switch {
		case a[0].key < b[0].key:
			both, a = append(both, a[0]), a[1:]
		case a[0].key > b[0].key:
			both, b = append(both, b[0]), b[1:]
		default:
			both, a, b = append(both, a[0]), a[1:], b[1:]
		}
	}
	return append(append(both, a...), b...)
}
