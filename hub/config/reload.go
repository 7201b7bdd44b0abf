package config

import (
	"maps"
	"reflect"
	"strings"
)

// Change is one key whose value differs between two configurations. Old or New is empty where the key is in a table
// that is not there.
type Change struct {
	Key, Old, New string
	Live          bool // a running hub takes it over
}

// texts are the values of all keys, by label.
func (c *Config) texts() map[string]string {
	m := map[string]string{}
	c.each(func(e entry) { m[e.label] = e.key.text(e.value) })
	return m
}

// Changes lists what differs from c in next, in the order of the documentation. What Adopt takes over is live. Of tables
// that only one of them has it lists what the file says, without the defaults.
func (c *Config) Changes(next *Config) []Change {
	var list []Change
	old, now, adopted := c.texts(), next.texts(), c.Adopt(next).texts()
	add := func(label string) {
		is, ok := adopted[label]
		want, there := now[label]
		list = append(list, Change{Key: label, Old: old[label], New: want, Live: ok == there && is == want})
	}
	next.each(func(e entry) {
		if was, ok := old[e.label]; ok && was != now[e.label] || !ok && next.given[e.label] {
			add(e.label)
		}
	})
	c.each(func(e entry) {
		if _, ok := now[e.label]; !ok && c.given[e.label] {
			add(e.label)
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
		from, to := field(src, t.name), field(dst, t.name)
		switch {
		case t.live:
			to.Set(from)
			n.adoptGiven(next, t.name+".")
		case t.array:
			to.Set(reflect.AppendSlice(reflect.MakeSlice(to.Type(), 0, to.Len()), to)) // c keeps its own
			n.adoptElements(next, t, to, from)
		default:
			n.adoptKeys(next, t, t.name, to, from)
		}
	}
	return &n
}

// adoptElements takes over the live keys of the elements that both have, by name. A stream whose segments are too large
// for the new max_bytes keeps its limits: whole segments are deleted, so it could not hold to them.
func (c *Config) adoptElements(next *Config, t *table, to, from reflect.Value) {
	if t.key("name") == nil {
		return
	}
	for i := range to.Len() {
		name := field(to.Index(i), "name").String()
		for j := range from.Len() {
			if field(from.Index(j), "name").String() != name {
				continue
			}
			if s, ok := from.Index(j).Addr().Interface().(*Stream); ok && c.Stream(name).needs() > s.Retention.MaxBytes {
				continue
			}
			c.adoptKeys(next, t, label(t.name, name, i), to.Index(i), from.Index(j))
		}
	}
}

// needs is the least that max_bytes may be with the stream's segments.
func (s *Stream) needs() Bytes { return 2 * s.SegmentBytes * Bytes(s.Partitions) }

func (c *Config) adoptKeys(next *Config, t *table, label string, to, from reflect.Value) {
	for i := range t.keys {
		if k := &t.keys[i]; k.live {
			field(to, k.name).Set(field(from, k.name))
			c.adoptGiven(next, label+"."+k.name)
		}
	}
}

// adoptGiven takes over which keys the file has, of those whose label begins so.
func (c *Config) adoptGiven(next *Config, prefix string) {
	maps.DeleteFunc(c.given, func(label string, _ bool) bool { return strings.HasPrefix(label, prefix) })
	for label := range next.given {
		if strings.HasPrefix(label, prefix) {
			c.given[label] = true
		}
	}
}
