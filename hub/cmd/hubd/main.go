// Command hubd is the hub's daemon.
package main

import (
	"os"

	"edgehub/hub/daemon"
)

var version = "dev" // set when it is built

func main() {
	os.Exit(daemon.Run(daemon.Env{Args: os.Args[1:], Stdout: os.Stdout, Stderr: os.Stderr, Version: version}))
}
