package topic

import "strings"

// Match reports whether the valid filter matches the topic name.
func Match(filter, name string) bool {
	if hiddenFrom(filter, name) {
		return false
	}
	return matchRest(filter, name)
}

// hiddenFrom is the rule of '$' [MQTT-4.7.2-1]: a leading wildcard does not see names that begin with '$'.
func hiddenFrom(filter, name string) bool {
	return name != "" && name[0] == '$' && filter != "" && (filter[0] == '+' || filter[0] == '#')
}

// matchRest matches from some level on, where '$' has no meaning any more.
func matchRest(filter, name string) bool {
	for {
		f, fRest, fMore := strings.Cut(filter, "/")
		if f == "#" {
			return true
		}
		n, nRest, nMore := strings.Cut(name, "/")
		if f != "+" && f != n {
			return false
		}
		if !nMore {
			return !fMore || fRest == "#"
		}
		if !fMore {
			return false
		}
		filter, name = fRest, nRest
	}
}

// Overlap reports whether there is a topic name that both valid filters match.
func Overlap(a, b string) bool {
	if hiddenFrom(a, b) || hiddenFrom(b, a) {
		return false
	}
	if a == "+" && b == "/#" || a == "/#" && b == "+" {
		return false // all they share is the empty name, which is none
	}
	for {
		x, aRest, aMore := strings.Cut(a, "/")
		y, bRest, bMore := strings.Cut(b, "/")
		if x == "#" || y == "#" {
			return true
		}
		if x != y && x != "+" && y != "+" {
			return false
		}
		if !aMore || !bMore {
			return aMore == bMore || aRest == "#" || bRest == "#"
		}
		a, b = aRest, bRest
	}
}
