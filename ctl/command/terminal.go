package command

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// terminal returns the descriptor of standard input when a person sits there.
func (a *app) terminal() (fd int, ok bool) {
	f, isFile := a.Stdin.(*os.File)
	if !isFile {
		return 0, false
	}
	fd = int(f.Fd())
	_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	return fd, err == nil
}

// confirm asks a person before something is destroyed. Scripts are not asked.
func (a *app) confirm(yes bool, format string, args ...any) error {
	if _, person := a.terminal(); yes || !person {
		return nil
	}
	_, _ = fmt.Fprintf(a.Stderr, format+" [y/N] ", args...)
	line, _ := bufio.NewReader(a.Stdin).ReadString('\n') // what cannot be read is a no
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	return errors.New("nothing was done")
}

const passwordLineMax = 4096

// password reads a new password: twice and unseen from a terminal, the first line of standard input otherwise.
func (a *app) password() ([]byte, error) {
	fd, person := a.terminal()
	if !person {
		line, err := bufio.NewReader(io.LimitReader(a.Stdin, passwordLineMax)).ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("the password cannot be read: %w", err)
		}
		return trimLine(line), nil
	}
	old, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, err
	}
	unseen := *old
	unseen.Lflag &^= unix.ECHO
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &unseen); err != nil {
		return nil, err
	}
	defer func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, old) }()
	in := bufio.NewReader(a.Stdin)
	ask := func(prompt string) ([]byte, error) {
		_, _ = fmt.Fprint(a.Stderr, prompt)
		line, err := in.ReadBytes('\n')
		_, _ = fmt.Fprintln(a.Stderr)
		return trimLine(line), err
	}
	first, err := ask("Password: ")
	if err != nil {
		return nil, fmt.Errorf("the password cannot be read: %w", err)
	}
	again, err := ask("Again: ")
	if err != nil {
		return nil, fmt.Errorf("the password cannot be read: %w", err)
	}
	if string(first) != string(again) {
		return nil, errors.New("the two passwords differ; nothing was changed")
	}
	return first, nil
}

func trimLine(line []byte) []byte {
	n := len(line)
	for n > 0 && (line[n-1] == '\n' || line[n-1] == '\r') {
		n--
	}
	return line[:n]
}
