// Package archtest holds the project to its own rules: which package may import
// which, how long a file or function may be, what must have a comment, and that
// documents name only what exists. Its tests parse the sources in process: a test
// that asks another program would be cached and pass with the violation in place.
package archtest
