package config

import (
	"maps"
	"reflect"
)

// Change is one key whose value differs between two configurations. Old or New is empty where the key is in a table
// that is not there.
type Change struct {
	Key, Old, New string
	Live          bool // a running hub can take it over
}

// Changes lists what differs from c in next, in the order of the documentation.
func (c *Config) Changes(next *Config) []Change {
	var list []Change
	old := map[string]string{}
	c.each(func(e entry) { old[e.label] = e.key.text(e.value) })
	seen := map[string]bool{}
	next.each(func(e entry) {
		seen[e.label] = true
		if is, was := e.key.text(e.value), old[e.label]; is != was {
			list = append(list, Change{Key: e.label, Old: was, New: is, Live: e.key.live})
		}
	})
	c.each(func(e entry) {
		if !seen[e.label] {
			list = append(list, Change{Key: e.label, Old: old[e.label]})
		}
	})
	return list
}

// Adopt returns c with the values of next for the keys that a running hub can take over.
func (c *Config) Adopt(next *Config) *Config {
	n := *c
	n.given = maps.Clone(c.given)
	dst, src := reflect.ValueOf(&n).Elem(), reflect.ValueOf(next).Elem()
	for i := range tables {
		t := &tables[i]
		for j := range t.keys {
			k := &t.keys[j]
			if t.array || !k.live {
				continue
			}
			field(field(dst, t.name), k.name).Set(field(field(src, t.name), k.name))
			if label := t.name + "." + k.name; next.given[label] {
				n.given[label] = true
			} else {
				delete(n.given, label)
			}
		}
	}
	return &n
}
