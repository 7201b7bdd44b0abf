package topic

import "strings"

// Covers reports whether the valid filter a matches every topic name that the valid filter b matches.
func Covers(a, b string) bool {
	if hiddenFrom(a, b) {
		return false
	}
	switch b { // no name is empty, so that these begin with a level
	case "#":
		b = "+/#"
	case "/#":
		b = "/+/#"
	}
	for {
		x, aRest, aMore := strings.Cut(a, "/")
		y, bRest, bMore := strings.Cut(b, "/")
		switch {
		case x == "#":
			return true
		case y == "#", x != "+" && x != y:
			return false
		case !bMore:
			return !aMore || aRest == "#"
		case !aMore:
			return false
		}
		a, b = aRest, bRest
	}
}
