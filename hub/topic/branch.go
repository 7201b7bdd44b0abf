package topic

import "strings"

// listMax is how many children a node keeps in a list before it takes a map: most nodes of a topic tree have very few, and a small
// list costs a fifth of the smallest map.
const listMax = 8

// branch holds the children of a node by their level.
type branch[N any] struct {
	list []edge[N]
	m    map[string]*N // nil while the list is used
}

type edge[N any] struct {
	level string
	node  *N
}

func (b *branch[N]) get(level string) *N {
	if b.m != nil {
		return b.m[level]
	}
	for i := range b.list {
		if b.list[i].level == level {
			return b.list[i].node
		}
	}
	return nil
}

// put adds a child that is not there yet.
func (b *branch[N]) put(level string, n *N) {
	if b.m == nil && len(b.list) < listMax {
		b.list = append(b.list, edge[N]{level, n})
		return
	}
	if b.m == nil {
		b.m = make(map[string]*N, 2*listMax)
		for _, e := range b.list {
			b.m[e.level] = e.node
		}
		b.list = nil
	}
	b.m[level] = n
}

// delete removes a child. A map that has become small is given back, since maps do not shrink by themselves.
func (b *branch[N]) delete(level string) {
	if b.m != nil {
		delete(b.m, level)
		if len(b.m) <= listMax/2 {
			for l, n := range b.m {
				b.list = append(b.list, edge[N]{l, n})
			}
			b.m = nil
		}
		return
	}
	for i := range b.list {
		if b.list[i].level == level {
			last := len(b.list) - 1
			b.list[i] = b.list[last]
			b.list[last] = edge[N]{}
			b.list = b.list[:last]
			return
		}
	}
}

func (b *branch[N]) len() int { return len(b.list) + len(b.m) }

// each calls fn for every child until it returns false, and returns what the last call returned.
func (b *branch[N]) each(fn func(level string, n *N) bool) bool {
	for i := range b.list {
		if !fn(b.list[i].level, b.list[i].node) {
			return false
		}
	}
	for l, n := range b.m {
		if !fn(l, n) {
			return false
		}
	}
	return true
}

// pinMax is how much of a long string a node may keep alive only because its level is a part of it.
const pinMax = 64

// levelOf returns a string for level, a part of whole, that is fit to be kept.
func levelOf(level, whole string) string {
	if len(whole)-len(level) > pinMax {
		return strings.Clone(level)
	}
	return level
}
