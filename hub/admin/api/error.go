package api

import (
	"errors"
	"fmt"
	"strings"
)

// The codes of Error.
const (
	CodeInvalid     = "invalid"     // the request can never succeed as it is
	CodeNotFound    = "not_found"   // what it names does not exist
	CodeConflict    = "conflict"    // the present state forbids it
	CodeTooLarge    = "too_large"   // beyond a limit
	CodeUnavailable = "unavailable" // not now: starting, stopping, disk full, busy
	CodeInternal    = "internal"    // the hub failed
)

// Error is a refusal or failure as it travels from hub to hubctl. Message is one
// line that names the cure.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

// ErrorBody is the JSON body of every answer that is not a success.
type ErrorBody struct {
	Error *Error `json:"error"`
}

// Invalid makes an error of CodeInvalid.
func Invalid(format string, args ...any) *Error {
	return &Error{Code: CodeInvalid, Message: fmt.Sprintf(format, args...)}
}

// Conflict makes an error of CodeConflict.
func Conflict(format string, args ...any) *Error {
	return &Error{Code: CodeConflict, Message: fmt.Sprintf(format, args...)}
}

// TooLarge makes an error of CodeTooLarge.
func TooLarge(format string, args ...any) *Error {
	return &Error{Code: CodeTooLarge, Message: fmt.Sprintf(format, args...)}
}

// Unavailable makes an error of CodeUnavailable.
func Unavailable(format string, args ...any) *Error {
	return &Error{Code: CodeUnavailable, Message: fmt.Sprintf(format, args...)}
}

// NotFound makes an error of CodeNotFound for a thing of that kind ("stream",
// "uplink"). It names the nearest of the known names, or lists them when none is near.
func NotFound(kind, name string, known []string) *Error {
	msg := fmt.Sprintf("no %s %q", kind, name)
	switch near := Nearest(name, known); {
	case near != "":
		msg += fmt.Sprintf("; did you mean %q?", near)
	case len(known) == 0:
		msg += fmt.Sprintf("; the hub has no %ss", kind)
	default:
		shown := known[:min(len(known), listedMax)]
		msg += fmt.Sprintf("; there is %s", strings.Join(shown, ", "))
		if more := len(known) - len(shown); more > 0 {
			msg += fmt.Sprintf(" and %d more", more)
		}
	}
	return &Error{Code: CodeNotFound, Message: msg}
}

// listedMax bounds the names that NotFound lists.
const listedMax = 8

// AsError returns err as an *Error; what is not one becomes CodeInternal with the
// text of err. Nil stays nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Code: CodeInternal, Message: err.Error()}
}

// Nearest returns the candidate that name was most likely meant to be: the one of
// the smallest edit distance, at most a third of the name's length (at least 1,
// at most 3), or the only one that name is a prefix of. Empty: none is near.
func Nearest(name string, candidates []string) string {
	best, bestAt := "", min(max(len(name)/3, 1), 3)+1
	var prefixed []string
	for _, c := range candidates {
		if d := distance(strings.ToLower(name), strings.ToLower(c)); d < bestAt {
			best, bestAt = c, d
		}
		if name != "" && strings.HasPrefix(c, name) {
			prefixed = append(prefixed, c)
		}
	}
	if best == "" && len(prefixed) == 1 {
		return prefixed[0]
	}
	return best
}

// distance counts the insertions, deletions, replacements and swaps of neighbours
// that turn a into b, over bytes.
func distance(a, b string) int {
	const tooLong = 256 // names are short; a hostile one must not cost a square of its length
	if len(a) > tooLong || len(b) > tooLong {
		return tooLong
	}
	before, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], before[j-2]+1)
			}
		}
		before, prev, cur = prev, cur, before
	}
	return prev[len(b)]
}
