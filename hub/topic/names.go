package topic

import "strings"

// Names is an index from topic names to values that can be searched by filter: the retained messages of a hub. A search walks a trie
// and costs what the filter can match, not what is stored. The zero Names is empty and ready.
//
// Names is not safe for concurrent use. Concurrent Get and Match calls alone are safe.
type Names[V any] struct {
	root nameNode[V]
	n    int
}

// nameNode is one level of the names. A node without children is a leaf: it stands for one name, which may go on below the node's
// level, because levels that only one name has are not built. In a node with children, has says that a name ends here.
// Invariant: a node other than the root is a leaf with has, or has a child; one whose only content is a single leaf is itself a leaf.
type nameNode[V any] struct {
	kids *branch[nameNode[V]]
	name string
	v    V
	has  bool
}

// Len returns the number of names.
func (t *Names[V]) Len() int { return t.n }

// Get returns the value of a name.
func (t *Names[V]) Get(name string) (v V, ok bool) {
	n, rest, more := &t.root, name, true
	for more {
		if n.kids == nil {
			break
		}
		var level string
		level, rest, more = strings.Cut(rest, "/")
		if n = n.kids.get(level); n == nil {
			return v, false
		}
	}
	if n.has && n.name == name {
		return n.v, true
	}
	return v, false
}

// Set stores v under the name and returns the value that it replaced.
func (t *Names[V]) Set(name string, v V) (old V, had bool) {
	n, rest, more := &t.root, name, true
	for more {
		if n.kids == nil {
			n.kids = new(branch[nameNode[V]])
		}
		var level string
		level, rest, more = strings.Cut(rest, "/")
		next := n.kids.get(level)
		if next == nil {
			n.kids.put(levelOf(level, name), &nameNode[V]{name: name, v: v, has: true})
			t.n++
			return old, false
		}
		if next.kids == nil && next.name != name {
			end := len(name) - len(rest) // of this level
			if more {
				end--
			}
			next.split(end)
		}
		n = next
		if n.kids == nil { // a leaf of this very name
			break
		}
	}
	old, had = n.v, n.has
	if !had {
		t.n++
		n.name = name
	}
	n.v, n.has = v, true
	return old, had
}

// split turns a leaf into a node with children; end is where the node's level ends in the leaf's name.
func (n *nameNode[V]) split(end int) {
	n.kids = new(branch[nameNode[V]])
	if end == len(n.name) {
		return
	}
	level, _, _ := strings.Cut(n.name[end+1:], "/")
	n.kids.put(levelOf(level, n.name), &nameNode[V]{name: n.name, v: n.v, has: true})
	n.clear()
}

func (n *nameNode[V]) clear() {
	var zero V
	n.name, n.v, n.has = "", zero, false
}

// Delete removes a name and reports whether it was there. What became empty is given back.
func (t *Names[V]) Delete(name string) bool {
	if !t.root.delete(name, name) {
		return false
	}
	t.n--
	return true
}

// delete removes the name below n; rest is the part of it that is below n.
func (n *nameNode[V]) delete(name, rest string) bool {
	if n.kids == nil {
		return false
	}
	level, rest, more := strings.Cut(rest, "/")
	k := n.kids.get(level)
	switch {
	case k == nil:
		return false
	case k.kids == nil:
		if k.name != name {
			return false
		}
		n.kids.delete(level)
		return true
	case more:
		if !k.delete(name, rest) {
			return false
		}
	case k.has:
		k.clear()
	default:
		return false
	}
	k.join()
	return true
}

// join makes n, which has lost something and is not the root, a leaf again when one name is all that is left.
func (n *nameNode[V]) join() {
	switch {
	case n.kids.len() == 0:
		n.kids = nil
	case n.kids.len() == 1 && !n.has:
		n.kids.each(func(_ string, k *nameNode[V]) bool {
			if k.kids == nil {
				*n = *k
			}
			return false
		})
	}
}

// Match calls fn for every name that the valid filter matches, in no particular order, until fn returns false. fn must not change the
// Names.
func (t *Names[V]) Match(filter string, fn func(name string, v V) bool) {
	if t.root.kids == nil {
		return
	}
	level, rest, more := strings.Cut(filter, "/")
	if level != "+" && level != "#" {
		if k := t.root.kids.get(level); k != nil {
			k.step(len(level), rest, more, fn)
		}
		return
	}
	t.root.kids.each(func(l string, k *nameNode[V]) bool {
		if l != "" && l[0] == '$' {
			return true
		}
		if level == "#" {
			return k.all(fn)
		}
		return k.step(len(l), rest, more, fn)
	})
}

// step goes on at n, whose level has been matched and ends at end in every name below it; rest is the rest of the filter, if there is
// more of it.
func (n *nameNode[V]) step(end int, rest string, more bool, fn func(string, V) bool) bool {
	if more && rest == "#" {
		return n.all(fn)
	}
	if n.kids == nil {
		if !more && end == len(n.name) || more && end < len(n.name) && matchRest(rest, n.name[end+1:]) {
			return fn(n.name, n.v)
		}
		return true
	}
	if !more {
		return !n.has || fn(n.name, n.v)
	}
	level, rest, more := strings.Cut(rest, "/")
	if level == "+" {
		return n.kids.each(func(l string, k *nameNode[V]) bool {
			return k.step(end+1+len(l), rest, more, fn)
		})
	}
	if k := n.kids.get(level); k != nil {
		return k.step(end+1+len(level), rest, more, fn)
	}
	return true
}

// all calls fn for every name at and below n.
func (n *nameNode[V]) all(fn func(string, V) bool) bool {
	if n.has && !fn(n.name, n.v) {
		return false
	}
	return n.kids == nil || n.kids.each(func(_ string, k *nameNode[V]) bool { return k.all(fn) })
}

// All calls fn for every name, `$` ones included, until fn returns false. fn must not change the Names.
func (t *Names[V]) All(fn func(name string, v V) bool) { t.root.all(fn) }
