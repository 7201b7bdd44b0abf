// Package topic holds everything that the hub knows about MQTT topics: which names and filters are valid, which names a filter
// matches, and the two indexes built on that, [Tree] (filters) and [Names] (topic names). It is the only matcher in the program.
//
// The rules of a match, in one place [MQTT-4.7]: levels are separated by '/', and an empty level is a level. '+' stands for
// exactly one level. '#' stands for any number of levels, also none, so "a/#" matches "a". A filter that begins with a wildcard
// does not match a name that begins with '$'.
package topic

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"unicode/utf8"
	"unsafe"
)

// LengthMax is the greatest length of a name or a filter in bytes [MQTT-4.7.3-3].
const LengthMax = 65535

// What is wrong with a name or a filter.
var (
	ErrEmpty    = errors.New("topic: empty [MQTT-4.7.3-1]")
	ErrLong     = errors.New("topic: longer than 65,535 bytes [MQTT-4.7.3-3]")
	ErrUTF8     = errors.New("topic: not valid UTF-8 [MQTT-1.5.4-1]")
	ErrNUL      = errors.New("topic: holds U+0000 [MQTT-4.7.3-2]")
	ErrWildcard = errors.New("topic: a topic name has no wildcards [MQTT-4.7.1-1]")
	ErrHash     = errors.New("topic: '#' must be the whole last level of a filter [MQTT-4.7.1-1]")
	ErrPlus     = errors.New("topic: '+' must be a whole level of a filter [MQTT-4.7.1-2]")
	ErrShare    = errors.New("topic: a shared subscription is $share/GROUP/FILTER, GROUP without '/', '+' and '#' [MQTT-4.8.2-1] [MQTT-4.8.2-2]")
)

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// suspect returns a word with some high bit set when w holds a NUL, a '+', a '#' or a byte outside ASCII.
func suspect(w uint64) uint64 {
	p, h := w^('+'*ones), w^('#'*ones)
	return w | (w-ones)&^w | (p-ones)&^p | (h-ones)&^h
}

// plain reports whether b is ASCII without NUL and wildcards, eight bytes at a time: nearly every topic name in practice.
func plain(b []byte) bool {
	var acc uint64
	if len(b) >= 8 {
		for i := 0; i+8 <= len(b); i += 8 {
			acc |= suspect(binary.LittleEndian.Uint64(b[i:]))
		}
		// The last eight bytes overlap what was seen already; that is cheaper than a loop over the rest.
		acc |= suspect(binary.LittleEndian.Uint64(b[len(b)-8:]))
		return acc&highs == 0
	}
	for _, c := range b {
		if c-1 >= utf8.RuneSelf-1 || c == '+' || c == '#' {
			return false
		}
	}
	return true
}

// ValidateName returns nil when b is a topic name that can be published to.
func ValidateName(b []byte) error {
	if len(b)-1 < LengthMax && len(b) > 0 && plain(b) {
		return nil
	}
	return validateName(b)
}

func validateName(b []byte) error {
	if err := validateText(b); err != nil {
		return err
	}
	if bytes.IndexByte(b, '+') >= 0 || bytes.IndexByte(b, '#') >= 0 {
		return ErrWildcard
	}
	return nil
}

func validateText(b []byte) error {
	switch {
	case len(b) == 0:
		return ErrEmpty
	case len(b) > LengthMax:
		return ErrLong
	case !utf8.Valid(b):
		return ErrUTF8
	case bytes.IndexByte(b, 0) >= 0:
		return ErrNUL
	}
	return nil
}

// ValidateFilter returns nil when s is a topic filter. A shared subscription is judged by ParseShared, not here.
func ValidateFilter(s string) error {
	if err := validateText(unsafeBytes(s)); err != nil {
		return err
	}
	for more := true; more; {
		var level string
		level, s, more = strings.Cut(s, "/")
		switch {
		case level == "#":
			if more {
				return ErrHash
			}
		case level == "+":
		case strings.IndexByte(level, '#') >= 0:
			return ErrHash
		case strings.IndexByte(level, '+') >= 0:
			return ErrPlus
		}
	}
	return nil
}

// unsafeBytes views s as bytes that nobody may write to.
func unsafeBytes(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// unsafeString views b as a string; b must not change while the string is in use.
func unsafeString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// SharePrefix is how the filter of a shared subscription begins.
const SharePrefix = "$share/"

// ParseShared validates what a client subscribes to and takes it apart. For "$share/GROUP/FILTER" shared is true; anything else is
// returned as filter. The parts are substrings of f.
func ParseShared(f string) (group, filter string, shared bool, err error) {
	rest, shared := strings.CutPrefix(f, SharePrefix)
	if !shared {
		return "", f, false, ValidateFilter(f)
	}
	group, filter, ok := strings.Cut(rest, "/")
	if !ok || group == "" || filter == "" || strings.ContainsAny(group, "+#") {
		return "", "", true, ErrShare
	}
	if err := validateText(unsafeBytes(f)); err != nil {
		return "", "", true, err
	}
	if err := ValidateFilter(filter); err != nil {
		return "", "", true, err
	}
	return group, filter, true, nil
}

// HasWildcard reports whether the filter f can match more than one name.
func HasWildcard(f string) bool {
	return strings.IndexByte(f, '#') >= 0 || strings.IndexByte(f, '+') >= 0
}

// Levels returns the number of levels of a name or a filter: one more than it has separators.
func Levels(b []byte) int { return bytes.Count(b, []byte{'/'}) + 1 }

// Hash is the hash by which a topic finds its partition. It is part of the format of a data directory and never changes:
// FNV-1a with 64 bits, then the finaliser of MurmurHash3 (fmix64), because the low bits of FNV alone are poor for short names that
// differ only in their last digits.
func Hash(topic []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range topic {
		h = (h ^ uint64(c)) * 1099511628211
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	h ^= h >> 33
	return h
}
