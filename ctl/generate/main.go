// Command generate writes what packages ship beside the programs: hubctl's manual page and its completions.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"edgehub/ctl/command"
	"edgehub/ctl/manual"
)

var version = "dev" // set when it is built

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: generate DIRECTORY, with man and completion in it")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func write(dir string) error {
	root := command.Tree(version)
	completion := func(shell string) string { return filepath.Join(dir, "completion", "hubctl."+shell) }
	//nolint:gosec // the directory is whoever builds the packages'
	if err := os.WriteFile(filepath.Join(dir, "man", "hubctl.1"), []byte(manual.Page(root)), 0o600); err != nil {
		return err
	}
	if err := root.GenBashCompletionFileV2(completion("bash"), true); err != nil {
		return err
	}
	if err := root.GenZshCompletionFile(completion("zsh")); err != nil {
		return err
	}
	return root.GenFishCompletionFile(completion("fish"), true)
}
