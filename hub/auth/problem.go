package auth

import (
	"fmt"
	"strings"
)

// Problem is one thing that is wrong with a users or ACL file.
type Problem struct {
	File string
	Line int
	What string
	Cure string
}

// Error implements error: one line.
func (p Problem) Error() string {
	at := p.File
	if p.Line > 0 {
		at = fmt.Sprintf("%s:%d", p.File, p.Line)
	}
	return at + ": " + p.What + "; " + p.Cure
}

// Problems are all that is wrong with a file; its text has a line for each.
type Problems []Problem

// Error implements error.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].Error()
	}
	return strings.Join(lines, "\n")
}

// err is the list as an error: nil when it is empty.
func (p Problems) err() error {
	if len(p) == 0 {
		return nil
	}
	return p
}
