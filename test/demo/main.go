// Command demo shows the hub's main promise in about a minute: devices
// publish, the central server goes away for a while, the hub is killed, and
// in the end the central server holds exactly the hub's log, and the log
// every message that was acknowledged. It exits with 1 when it does not.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"edgehub/test/demo/internal/stage"
)

func main() {
	var o stage.Options
	flag.IntVar(&o.Devices, "devices", 200, "simulated devices")
	flag.Float64Var(&o.Rate, "rate", 2000, "messages a second of all devices")
	flag.DurationVar(&o.Outage, "outage", stage.DefaultOutage, "how long the central server is away")
	flag.BoolVar(&o.Keep, "keep", false, "keep the directory with configuration, log and output")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ok, err := stage.Run(ctx, os.Stdout, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
	}
	if !ok || err != nil {
		os.Exit(1)
	}
}
