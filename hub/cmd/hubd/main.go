// Command hubd is the hub's daemon.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"edgehub/hub/config"
	"edgehub/hub/server"
)

var version = "dev" // set when it is built

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

// run returns the exit code: 0 after a clean stop, 1 when the hub failed, 2 when it cannot start as configured.
func run(args []string, stderr io.Writer) int {
	fs := flag.NewFlagSet("hubd", flag.ContinueOnError)
	fs.SetOutput(stderr)
	file := fs.String("config", "", "configuration `FILE`; without it the built-in defaults hold")
	check := fs.Bool("check", false, "check the configuration and exit: 0 good, 2 bad")
	show := fs.Bool("version", false, "print the version and exit")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if *show {
		fmt.Println("hubd " + version)
		return 0
	}
	if fs.NArg() > 0 {
		return complain(stderr, fmt.Errorf("unexpected argument %q; give the configuration as -config FILE", fs.Arg(0)), 2)
	}
	cfg, err := load(*file)
	if err != nil {
		return complain(stderr, err, 2)
	}
	if *check {
		return 0
	}
	log := logger(cfg, stderr)
	s, err := server.New(cfg, version, log)
	if err != nil {
		if errors.Is(err, server.ErrUsage) {
			return complain(stderr, err, 2)
		}
		return complain(stderr, err, 1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := s.Run(ctx); err != nil {
		return complain(stderr, err, 1)
	}
	return 0
}

func load(file string) (*config.Config, error) {
	if file == "" {
		return config.Default(), nil
	}
	return config.Load(file)
}

// complain writes one line, except for a configuration with several problems, which has a line each.
func complain(w io.Writer, err error, code int) int {
	for _, line := range strings.Split(strings.TrimRight(err.Error(), "\n"), "\n") {
		_, _ = fmt.Fprintln(w, "hubd: "+line)
	}
	return code
}

func logger(cfg *config.Config, w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(cfg.Log.Level)) // validated by config
	o := &slog.HandlerOptions{Level: level}
	if cfg.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
