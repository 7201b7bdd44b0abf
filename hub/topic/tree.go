package topic

import "strings"

// Tree is an index from topic filters to values: the subscriptions of a hub. Each filter holds one value per key (the subscriber).
// Filters without wildcards are in a hash map, the others in a trie, so that a publish costs what it matches and not what is
// subscribed. Filters must be valid (ValidateFilter). The zero Tree is empty and ready.
//
// A Tree is not safe for concurrent use: it belongs to one loop, or its owner locks it. Concurrent Match calls alone are safe.
type Tree[K comparable, V any] struct {
	exact map[string]set[K, V]
	root  treeNode[K, V]
	wild  int // entries in root
	n     int
}

// treeNode is one level of the wildcard filters. values are those of the filter that ends here, below those of the filter that ends
// with one more level, '#'. Invariant: a node other than the root has a child or an entry.
type treeNode[K comparable, V any] struct {
	kids   branch[treeNode[K, V]]
	plus   *treeNode[K, V]
	values *set[K, V]
	below  *set[K, V]
}

func (n *treeNode[K, V]) empty() bool {
	return n.kids.len() == 0 && n.plus == nil && n.values == nil && n.below == nil
}

// Len returns the number of entries: pairs of a filter and a key.
func (t *Tree[K, V]) Len() int { return t.n }

// Set stores v for the key under the filter and returns the value that it replaced.
func (t *Tree[K, V]) Set(filter string, key K, v V) (old V, replaced bool) {
	if HasWildcard(filter) {
		old, replaced = t.slot(filter).set(key, v)
		if !replaced {
			t.wild++
		}
	} else {
		s := t.exact[filter]
		old, replaced = s.set(key, v)
		if t.exact == nil {
			t.exact = make(map[string]set[K, V])
		}
		t.exact[filter] = s
	}
	if !replaced {
		t.n++
	}
	return old, replaced
}

// slot returns the set of a wildcard filter, creating what is missing on the way.
func (t *Tree[K, V]) slot(filter string) *set[K, V] {
	n, rest, more := &t.root, filter, true
	for more {
		var level string
		level, rest, more = strings.Cut(rest, "/")
		if level == "#" {
			if n.below == nil {
				n.below = new(set[K, V])
			}
			return n.below
		}
		next := n.plus
		if level != "+" {
			next = n.kids.get(level)
		}
		if next == nil {
			next = new(treeNode[K, V])
			if level == "+" {
				n.plus = next
			} else {
				n.kids.put(levelOf(level, filter), next)
			}
		}
		n = next
	}
	if n.values == nil {
		n.values = new(set[K, V])
	}
	return n.values
}

// Get returns the value of the key under the filter.
func (t *Tree[K, V]) Get(filter string, key K) (v V, ok bool) {
	if !HasWildcard(filter) {
		s := t.exact[filter]
		return s.get(key)
	}
	n, rest, more := &t.root, filter, true
	for more && n != nil {
		var level string
		level, rest, more = strings.Cut(rest, "/")
		switch level {
		case "#":
			return n.below.get(key)
		case "+":
			n = n.plus
		default:
			n = n.kids.get(level)
		}
	}
	if n == nil {
		return v, false
	}
	return n.values.get(key)
}

// Delete removes the key's value under the filter and reports whether there was one. What became empty is given back.
func (t *Tree[K, V]) Delete(filter string, key K) bool {
	if HasWildcard(filter) {
		if !t.root.delete(filter, key) {
			return false
		}
		t.wild--
	} else {
		s := t.exact[filter]
		if !s.delete(key) {
			return false
		}
		if s.empty() {
			delete(t.exact, filter)
		} else {
			t.exact[filter] = s
		}
	}
	t.n--
	return true
}

// delete removes an entry at or below n and prunes the nodes that hold nothing any more.
func (n *treeNode[K, V]) delete(filter string, key K) bool {
	level, rest, more := strings.Cut(filter, "/")
	if level == "#" {
		return drop(&n.below, key)
	}
	next := n.plus
	if level != "+" {
		next = n.kids.get(level)
	}
	if next == nil {
		return false
	}
	ok := false
	if more {
		ok = next.delete(rest, key)
	} else {
		ok = drop(&next.values, key)
	}
	if ok && next.empty() {
		if level == "+" {
			n.plus = nil
		} else {
			n.kids.delete(level)
		}
	}
	return ok
}

// drop removes a key from the set at p, and the set when it was the last.
func drop[K comparable, V any](p **set[K, V], key K) bool {
	if *p == nil || !(*p).delete(key) {
		return false
	}
	if (*p).empty() {
		*p = nil
	}
	return true
}

// Match appends to dst the values of all filters that match the topic name, in no particular order. A key that has several matching
// filters is there once for each of them. Match does not allocate beyond the growth of dst.
func (t *Tree[K, V]) Match(name string, dst []V) []V {
	if s, ok := t.exact[name]; ok {
		dst = s.appendTo(dst)
	}
	if t.wild == 0 {
		return dst
	}
	return t.root.match(name, dst, name == "" || name[0] != '$')
}

// MatchBytes is Match for a name that is still in a packet; nothing of it is kept.
func (t *Tree[K, V]) MatchBytes(name []byte, dst []V) []V { return t.Match(unsafeString(name), dst) }

// match appends what matches below n. wild is false at the first level of a name that begins with '$'.
func (n *treeNode[K, V]) match(name string, dst []V, wild bool) []V {
	if wild && n.below != nil {
		dst = n.below.appendTo(dst)
	}
	level, rest, more := strings.Cut(name, "/")
	if k := n.kids.get(level); k != nil {
		dst = k.step(rest, more, dst)
	}
	if wild && n.plus != nil {
		dst = n.plus.step(rest, more, dst)
	}
	return dst
}

// step goes on at n, whose level has been matched.
func (n *treeNode[K, V]) step(rest string, more bool, dst []V) []V {
	if more {
		return n.match(rest, dst, true)
	}
	if n.values != nil {
		dst = n.values.appendTo(dst)
	}
	if n.below != nil { // "a/#" matches "a"
		dst = n.below.appendTo(dst)
	}
	return dst
}

// indexMin is how many entries a set searches one by one before it keeps an index of its keys.
const indexMin = 32

// set is a small map from keys to values whose values can be copied out fast.
type set[K comparable, V any] struct {
	items []item[K, V]
	index map[K]int // position in items; nil while there are few
}

type item[K comparable, V any] struct {
	key K
	v   V
}

func (s *set[K, V]) empty() bool { return len(s.items) == 0 }

func (s *set[K, V]) find(key K) int {
	if s.index != nil {
		if i, ok := s.index[key]; ok {
			return i
		}
		return -1
	}
	for i := range s.items {
		if s.items[i].key == key {
			return i
		}
	}
	return -1
}

func (s *set[K, V]) get(key K) (v V, ok bool) {
	if s == nil {
		return v, false
	}
	if i := s.find(key); i >= 0 {
		return s.items[i].v, true
	}
	return v, false
}

func (s *set[K, V]) set(key K, v V) (old V, replaced bool) {
	if i := s.find(key); i >= 0 {
		old, s.items[i].v = s.items[i].v, v
		return old, true
	}
	s.items = append(s.items, item[K, V]{key, v})
	if s.index != nil {
		s.index[key] = len(s.items) - 1
	} else if len(s.items) > indexMin {
		s.index = make(map[K]int, 2*indexMin)
		for i := range s.items {
			s.index[s.items[i].key] = i
		}
	}
	return old, false
}

// delete removes a key; the last entry takes its place.
func (s *set[K, V]) delete(key K) bool {
	i := s.find(key)
	if i < 0 {
		return false
	}
	last := len(s.items) - 1
	s.items[i] = s.items[last]
	s.items[last] = item[K, V]{}
	s.items = s.items[:last]
	if s.index != nil {
		if i < last {
			s.index[s.items[i].key] = i
		}
		delete(s.index, key)
	}
	if len(s.items) < cap(s.items)/4 && cap(s.items) > indexMin {
		s.shrink()
	}
	return true
}

// shrink gives memory back after most entries of a big set are gone.
func (s *set[K, V]) shrink() {
	s.items = append(make([]item[K, V], 0, 2*len(s.items)), s.items...)
	s.index = nil
	if len(s.items) > indexMin {
		s.index = make(map[K]int, 2*len(s.items))
		for i := range s.items {
			s.index[s.items[i].key] = i
		}
	}
}

func (s *set[K, V]) appendTo(dst []V) []V {
	for i := range s.items {
		dst = append(dst, s.items[i].v)
	}
	return dst
}
