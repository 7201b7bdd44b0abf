// Command hubctl operates the edge message hub that runs on this machine.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"edgehub/ctl/command"
)

// version is set when a release is built: -ldflags "-X main.version=1.2.3".
var version = "0.1.0-dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := command.Run(ctx, command.Env{
		Args:    os.Args[1:],
		Stdin:   os.Stdin,
		Stdout:  os.Stdout,
		Stderr:  os.Stderr,
		Getenv:  os.Getenv,
		Version: version,
	})
	stop()
	os.Exit(code)
}
