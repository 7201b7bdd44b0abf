package auth

import "strings"

// coverStepsMax bounds how far MayReceiveAll looks. Beyond it the answer is no: a shared subscription that is refused
// can be written as several, one that is granted too much cannot be taken back.
const coverStepsMax = 10_000

// MayReceiveAll reports whether the client may be given every message that a filter matches: whether for each topic of
// the filter the first rule that fits allows it, be it one rule or several together.
//
// It walks the topics level by level, all that no rule tells apart as one: at each level there is a name for each that
// stands in a rule there, and one more for all others.
func (r *Rights) MayReceiveAll(filter string) bool {
	if r == nil {
		return true
	}
	w := cover{filter: strings.Split(filter, "/"), steps: coverStepsMax}
	own := strings.HasPrefix(filter, "$") // no wildcard means these topics
	var alive []walker
	for i := range r.permits {
		p := &r.permits[i]
		if p.rule.Actions&Subscribe == 0 {
			continue
		}
		levels := strings.Split(p.filter, "/")
		if wild := levels[0] == "+" || levels[0] == "#"; own && wild || !own && strings.HasPrefix(levels[0], "$") {
			continue
		}
		alive = append(alive, walker{levels, p.rule.Allow})
	}
	return w.all(0, alive)
}

// cover is one walk.
type cover struct {
	filter []string
	steps  int // left
}

// walker is a rule that fits the levels so far, and what is left of its filter.
type walker struct {
	rest  []string
	allow bool
}

// endless reports whether a filter fits whatever follows.
func endless(rest []string) bool { return len(rest) > 0 && rest[0] == "#" }

// all reports whether every topic of the filter that begins with the levels walked, depth of them, is allowed; alive are
// the rules that fit so far, in their order.
func (w *cover) all(depth int, alive []walker) bool {
	if w.steps--; w.steps < 0 || len(alive) == 0 {
		return false
	}
	if endless(alive[0].rest) {
		return alive[0].allow // it decides about everything from here on
	}
	rest := w.filter[min(depth, len(w.filter)):]
	if last := len(w.filter) - 1; w.filter[last] == "#" && depth > last {
		rest = w.filter[last:]
	}
	if ends := len(rest) == 0 || endless(rest); ends && depth > 0 && !endsAllowed(alive) {
		return false
	}
	if len(rest) == 0 {
		return true
	}
	if rest[0] != "+" && rest[0] != "#" {
		return w.all(depth+1, step(alive, rest[0], true))
	}
	names := map[string]bool{}
	for i := range alive {
		if l := alive[i].rest; len(l) > 0 && l[0] != "+" && l[0] != "#" {
			names[l[0]] = true
		}
	}
	for name := range names {
		if !w.all(depth+1, step(alive, name, true)) {
			return false
		}
	}
	return w.all(depth+1, step(alive, "", false))
}

// endsAllowed judges the topic that ends here.
func endsAllowed(alive []walker) bool {
	for i := range alive {
		if len(alive[i].rest) == 0 || endless(alive[i].rest) {
			return alive[i].allow
		}
	}
	return false
}

// step leaves the rules that fit one more level: one of that name, or, when it is not named, one that no rule names.
func step(alive []walker, name string, named bool) []walker {
	var next []walker
	for _, r := range alive {
		switch {
		case endless(r.rest):
			next = append(next, r)
		case len(r.rest) > 0 && (r.rest[0] == "+" || named && r.rest[0] == name):
			next = append(next, walker{r.rest[1:], r.allow})
		}
	}
	return next
}
