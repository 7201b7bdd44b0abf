// Command generate writes the files that are made from the configuration's key
// tables. It runs in the root of the repository.
package main

import (
	"fmt"
	"os"

	"edgehub/hub/config"
)

func main() {
	for path, text := range map[string]string{
		"configs/hubd.toml": config.Example(),
		"docs/CONFIG.md":    config.Reference(),
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
