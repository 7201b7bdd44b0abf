package topic

import "strings"

// naiveMatch is the rule of the standard written down as plainly as possible: what the fast matchers are held against.
func naiveMatch(filter, name string) bool {
	f, n := strings.Split(filter, "/"), strings.Split(name, "/")
	if strings.HasPrefix(name, "$") && (f[0] == "+" || f[0] == "#") {
		return false
	}
	return naiveLevels(f, n)
}

func naiveLevels(f, n []string) bool {
	if len(f) == 0 {
		return len(n) == 0
	}
	if f[0] == "#" {
		return true // none, one or many levels
	}
	return len(n) > 0 && (f[0] == "+" || f[0] == n[0]) && naiveLevels(f[1:], n[1:])
}

// vocabulary is a small set of levels in which names and filters meet often.
var vocabulary = []string{"a", "b", "", "$x", "long-level-name", "c"}

// nameOf and filterOf make a valid name and a valid filter of any bytes.
func nameOf(b []byte) string {
	levels := make([]string, 0, len(b)+1)
	for _, c := range b {
		levels = append(levels, vocabulary[int(c)%len(vocabulary)])
	}
	if name := strings.Join(levels, "/"); name != "" {
		return name
	}
	return "a"
}

func filterOf(b []byte) string {
	levels := make([]string, 0, len(b)+1)
	for i, c := range b {
		v := int(c) % (len(vocabulary) + 2)
		switch {
		case v < len(vocabulary):
			levels = append(levels, vocabulary[v])
		case v == len(vocabulary) || i < len(b)-1:
			levels = append(levels, "+")
		default:
			levels = append(levels, "#")
		}
	}
	if f := strings.Join(levels, "/"); f != "" {
		return f
	}
	return "#"
}
