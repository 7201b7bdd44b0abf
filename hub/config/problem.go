package config

import (
	"strconv"
	"strings"
)

// Problem is one thing that is wrong with a configuration.
type Problem struct {
	File string // empty for a configuration that is not from a file
	Line int    // 0 when it stands nowhere in the file
	Key  string // as config show names it, "stream.telemetry.lanes"
	What string
	Cure string
}

// Error writes it as one line: FILE:LINE: key: what is wrong; cure.
func (p Problem) Error() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File)
		if p.Line > 0 {
			b.WriteString(":" + strconv.Itoa(p.Line))
		}
		b.WriteString(": ")
	}
	if p.Key != "" {
		b.WriteString(p.Key + ": ")
	}
	b.WriteString(p.What)
	if p.Cure != "" {
		b.WriteString("; " + p.Cure)
	}
	return b.String()
}

// Problems are all that are wrong, in the order of the file.
type Problems []Problem

// Error writes one line per problem.
func (p Problems) Error() string {
	all := make([]string, len(p))
	for i := range p {
		all[i] = p[i].Error()
	}
	return strings.Join(all, "\n")
}
