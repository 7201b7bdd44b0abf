package auth

import (
	"fmt"
	"slices"
	"strings"

	"edgehub/hub/topic"
)

// Action is what a rule is about.
type Action uint8

// The actions. Receiving a message is judged by the rules of Subscribe.
const (
	Publish Action = 1 << iota
	Subscribe
	All = Publish | Subscribe
)

// String is the action as it stands in the file.
func (a Action) String() string {
	switch a {
	case Publish:
		return "publish"
	case Subscribe:
		return "subscribe"
	default:
		return "all"
	}
}

// whose says which clients a rule is for.
type whose uint8

const (
	everyone  whose = iota // every client
	anonymous              // clients without a user
	anyUser                // clients with one
	oneUser                // the user of that name
	oneGroup               // users of that group
	oneClient              // the client with that id, or all whose id begins so
)

// Rule is one line of an ACL.
type Rule struct {
	Line    int
	Allow   bool
	Actions Action
	Filters []string // as written: %u and %c not replaced
	Text    string   // the line

	who    whose
	name   string // user, group or client id
	prefix bool   // name is the beginning of a client id
}

// ACL is a list of rules; the first that fits decides, and where none fits the answer is no. Immutable.
type ACL struct {
	rules []Rule
	// Where the rules for a client are found: positions in rules.
	users, groups, clients map[string][]int
	rest                   []int
}

// Rules is the number of rules.
func (a *ACL) Rules() int { return len(a.rules) }

const (
	filtersPerRuleMax = 64
	rulesMax          = 100_000
)

// ParseACL reads the text of an ACL file. The error is Problems.
func ParseACL(file, text string) (*ACL, error) {
	a := &ACL{users: map[string][]int{}, groups: map[string][]int{}, clients: map[string][]int{}}
	var bad Problems
	n := 0
	for line := range strings.SplitSeq(text, "\n") {
		n++
		fields, err := split(line)
		if err == nil && len(fields) == 0 {
			continue
		}
		var r Rule
		if err == nil {
			r, err = parseRule(fields)
		}
		if err == nil && len(a.rules) == rulesMax {
			err = &cured{fmt.Sprintf("more than %d rules", rulesMax), "use groups, %u and %c"}
		}
		if err != nil {
			c := err.(*cured) //nolint:errorlint // split and parseRule return nothing else
			if bad = append(bad, Problem{file, n, c.what, c.cure}); len(bad) == problemsMax {
				break
			}
			continue
		}
		r.Line, r.Text = n, strings.Join(strings.Fields(line), " ")
		a.add(r)
	}
	if len(bad) > 0 {
		return nil, bad.err()
	}
	return a, nil
}

// problemsMax bounds what is said about a file that is something else altogether.
const problemsMax = 20

func (a *ACL) add(r Rule) {
	i := len(a.rules)
	a.rules = append(a.rules, r)
	switch {
	case r.who == oneUser:
		a.users[r.name] = append(a.users[r.name], i)
	case r.who == oneGroup:
		a.groups[r.name] = append(a.groups[r.name], i)
	case r.who == oneClient && !r.prefix:
		a.clients[r.name] = append(a.clients[r.name], i)
	default:
		a.rest = append(a.rest, i)
	}
}

// cured is what is wrong with a line, and its cure.
type cured struct{ what, cure string }

// Error implements error.
func (c *cured) Error() string { return c.what + "; " + c.cure }

// split cuts a line into fields; "..." makes one field of what has spaces. A line that begins with # is a remark.
func split(line string) ([]string, error) {
	var fields []string
	for {
		line = strings.TrimLeft(line, " \t\r")
		if line == "" || line[0] == '#' && len(fields) == 0 {
			return fields, nil
		}
		if line[0] == '"' {
			text, rest, ok := strings.Cut(line[1:], `"`)
			if !ok {
				return nil, &cured{"a \" is not closed", "write another at the end"}
			}
			fields, line = append(fields, text), rest
			continue
		}
		end := strings.IndexAny(line, " \t\r")
		if end < 0 {
			end = len(line)
		}
		fields, line = append(fields, line[:end]), line[end:]
	}
}

const ruleForm = "write `allow|deny WHO publish|subscribe|all FILTER...`"

func parseRule(fields []string) (r Rule, err error) {
	if len(fields) < 4 {
		return r, &cured{"a rule has four parts or more", ruleForm}
	}
	switch fields[0] {
	case "allow":
		r.Allow = true
	case "deny":
	default:
		return r, &cured{fmt.Sprintf("%q is neither allow nor deny", fields[0]), ruleForm}
	}
	if err := r.parseWho(fields[1]); err != nil {
		return r, err
	}
	switch fields[2] {
	case "publish":
		r.Actions = Publish
	case "subscribe":
		r.Actions = Subscribe
	case "all":
		r.Actions = All
	default:
		return r, &cured{fmt.Sprintf("%q is not an action", fields[2]), "write publish, subscribe or all"}
	}
	r.Filters = fields[3:]
	if len(r.Filters) > filtersPerRuleMax {
		return r, &cured{fmt.Sprintf("%d filters in one rule", len(r.Filters)), fmt.Sprintf("write at most %d, the others in a rule of their own", filtersPerRuleMax)}
	}
	if len(r.Filters) > 1 && slices.Contains(r.Filters, "#") {
		// Somebody meant a remark, and would have allowed everything.
		return r, &cured{"# is the filter for everything and stands among others", "give remarks a line of their own; write # as the only filter where everything is meant"}
	}
	for _, f := range r.Filters {
		if err := topic.ValidateFilter(expand(f, "x", "x")); err != nil {
			return r, &cured{fmt.Sprintf("%q is not a topic filter: %v", f, err), `write one such as devices/+/telemetry or devices/%c/#`}
		}
		if _, _, shared, _ := topic.ParseShared(f); shared {
			return r, &cured{fmt.Sprintf("%q is a shared subscription", f), "leave out $share/GROUP/: rules are about topics"}
		}
		if r.who == anonymous && strings.Contains(f, "%u") {
			return r, &cured{"anonymous clients have no user for %u", "write %c, or name the topics"}
		}
	}
	return r, nil
}

func (r *Rule) parseWho(s string) error {
	const cure = "write everyone, anonymous, users, user:NAME, group:NAME, client:ID or client:BEGINNING*"
	kind, name, named := strings.Cut(s, ":")
	switch {
	case s == "everyone":
		r.who = everyone
	case s == "anonymous":
		r.who = anonymous
	case s == "users":
		r.who = anyUser
	case !named:
		return &cured{fmt.Sprintf("%q names nobody", s), cure}
	case name == "":
		return &cured{fmt.Sprintf("%q has no name behind the colon", s), cure}
	case kind == "user":
		r.who = oneUser
	case kind == "group":
		r.who = oneGroup
	case kind == "client":
		r.who = oneClient
		name, r.prefix = strings.CutSuffix(name, "*")
	default:
		return &cured{fmt.Sprintf("%q names nobody", s), cure}
	}
	r.name = name
	return nil
}

func expand(filter, user, client string) string {
	if !strings.Contains(filter, "%") {
		return filter
	}
	return strings.NewReplacer("%u", user, "%c", client).Replace(filter)
}

// plainLevel reports whether a name may stand in a filter: one level that matches nothing but itself. A client chooses
// its id; with a wildcard in it, it would otherwise choose its rights.
func plainLevel(s string) bool { return s != "" && !strings.ContainsAny(s, "+#/") }

// permit is one filter of a rule, made out for one client.
type permit struct {
	filter string
	rule   *Rule
}

// Rights are the rules that concern one client, with its names in place. Nil means that there is no ACL: everything
// is allowed. Immutable.
type Rights struct {
	permits []permit
}

// Rights makes out the rules for a client. The user is empty for an anonymous one.
func (a *ACL) Rights(user string, groups []string, client string) *Rights {
	if a == nil {
		return nil
	}
	at := slices.Clone(a.rest)
	if user != "" {
		at = append(at, a.users[user]...)
		for _, g := range groups {
			at = append(at, a.groups[g]...)
		}
	}
	at = append(at, a.clients[client]...)
	slices.Sort(at)
	r := &Rights{}
	for _, i := range slices.Compact(at) {
		rule := &a.rules[i]
		if !rule.concerns(user, client) {
			continue
		}
		for _, f := range rule.Filters {
			if strings.Contains(f, "%u") && !plainLevel(user) || strings.Contains(f, "%c") && !plainLevel(client) {
				continue
			}
			r.permits = append(r.permits, permit{expand(f, user, client), rule})
		}
	}
	return r
}

// concerns judges what the index of an ACL does not.
func (r *Rule) concerns(user, client string) bool {
	switch {
	case r.who == anonymous:
		return user == ""
	case r.who == anyUser:
		return user != ""
	case r.who == oneClient && r.prefix:
		return strings.HasPrefix(client, r.name)
	}
	return true
}

// Decision is what the rules say, and which one said it: nil when none fits, or when there is no ACL.
type Decision struct {
	Allowed bool
	Rule    *Rule
}

// Decide judges one topic. Receiving is judged as Subscribe.
func (r *Rights) Decide(do Action, name string) Decision {
	if r == nil {
		return Decision{Allowed: true}
	}
	for i := range r.permits {
		if p := &r.permits[i]; p.rule.Actions&do != 0 && topic.Match(p.filter, name) {
			return Decision{p.rule.Allow, p.rule}
		}
	}
	return Decision{}
}

// DecideFilter judges a subscription. It is allowed when some topic that it matches may be received: what may not be
// is left out at delivery. It is refused when a rule denies all of it, or none allows any of it.
func (r *Rights) DecideFilter(filter string) Decision {
	if r == nil {
		return Decision{Allowed: true}
	}
	for i := range r.permits {
		p := &r.permits[i]
		switch {
		case p.rule.Actions&Subscribe == 0:
		case p.rule.Allow && topic.Overlap(p.filter, filter), !p.rule.Allow && topic.Covers(p.filter, filter):
			return Decision{p.rule.Allow, p.rule}
		}
	}
	return Decision{}
}

// MayPublish reports whether the client may publish to a topic.
func (r *Rights) MayPublish(name string) bool { return r == nil || r.Decide(Publish, name).Allowed }

// MayReceive reports whether the client may be given a message of a topic.
func (r *Rights) MayReceive(name string) bool { return r == nil || r.Decide(Subscribe, name).Allowed }

// MaySubscribe reports whether the client may hold a subscription, without $share/GROUP/.
func (r *Rights) MaySubscribe(filter string) bool { return r == nil || r.DecideFilter(filter).Allowed }
