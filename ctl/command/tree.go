package command

import (
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// Tree is hubctl's commands for a manual and for completions: to be read, not run.
func Tree(version string) *cobra.Command {
	a := &app{Env: Env{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard, Version: version,
		Getenv: func(string) string { return "" }, Sockets: DefaultSockets}}
	return a.root()
}
