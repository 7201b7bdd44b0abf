// Command generate writes docs/METRICS.md. It runs in the root of the repository.
package main

import (
	"fmt"
	"os"

	"edgehub/hub/server"
)

func main() {
	if err := os.WriteFile("docs/METRICS.md", []byte(server.MetricsReference()), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
