// Package daemon is the command line of hubd: flags, the hub's own log, signals and exit codes. What the hub does is in
// hub/server.
package daemon

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
	"time"

	"edgehub/hub/config"
	"edgehub/hub/quietlog"
	"edgehub/hub/server"
)

// The exit codes.
const (
	ExitDone   = 0 // a clean stop, or nothing but an answer was asked for
	ExitFailed = 1 // the hub failed
	ExitUsage  = 2 // it cannot start as configured; nothing was touched
)

// Env is what a run sees of the world.
type Env struct {
	Args    []string // without the program's name
	Stdout  io.Writer
	Stderr  io.Writer
	Version string
}

// Run serves until SIGTERM or SIGINT and returns the exit code. Whatever is wrong is one line on Stderr, except for a
// configuration with several problems, which has a line each.
func Run(env Env) int {
	file, code, done := env.parse()
	if done {
		return code
	}
	cfg, err := load(file.path)
	if err != nil {
		return env.complain(err, ExitUsage)
	}
	if file.check {
		return ExitDone
	}
	// Whoever read the log lines has gone: that must not end the hub.
	signal.Ignore(syscall.SIGPIPE)
	// Before the data is opened: a signal during the start ends it cleanly too.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	level := &slog.LevelVar{}
	quiet := quietlog.New(handler(cfg, level, env.Stderr))
	s, err := server.New(cfg, env.Version, slog.New(quiet))
	if err != nil {
		if errors.Is(err, server.ErrUsage) {
			return env.complain(err, ExitUsage)
		}
		return env.complain(err, ExitFailed)
	}
	s.Level, s.LogSuppressed = level, quiet.Suppressed
	notified := make(chan struct{})
	go func() {
		defer close(notified)
		newNotifier(os.Getenv).run(ctx, s)
	}()
	defer func() { stop(); <-notified }()
	go reload(ctx, s)
	return env.serve(ctx, s.Run)
}

// stopMax bounds how long a stop may take: behind it stands a disk that does not answer, or a data directory that is
// gone. What was acknowledged is as safe then as after a kill -9.
const stopMax = 60 * time.Second

// serve runs the hub and sees to it that it ends within stopMax after ctx has.
func (env *Env) serve(ctx context.Context, run func(context.Context) error) int {
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		t := time.NewTimer(stopMax)
		defer t.Stop()
		select {
		case err = <-done:
		case <-t.C:
			err = fmt.Errorf("the stop did not finish within %v; look at the disk and the data directory, the next start recovers", stopMax)
		}
	}
	if err != nil {
		return env.complain(err, ExitFailed)
	}
	return ExitDone
}

// reload has what can change while the hub runs read again at each SIGHUP.
func reload(ctx context.Context, s *server.Server) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
			s.ReloadAndLog()
		}
	}
}

// file is the configuration file that the command line names ("": none), and whether it is only to be checked.
type file struct {
	path  string
	check bool
}

// parse reads the command line. done says that there is nothing more to do than to exit with code.
func (env *Env) parse() (f file, code int, done bool) {
	fs := flag.NewFlagSet("hubd", flag.ContinueOnError)
	fs.SetOutput(env.Stderr)
	fs.StringVar(&f.path, "config", "", "configuration `FILE`; without it the built-in defaults hold")
	fs.BoolVar(&f.check, "check", false, "check the configuration and exit: 0 good, 2 bad")
	show := fs.Bool("version", false, "print the version and exit")
	if err := fs.Parse(env.Args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return f, ExitDone, true
		}
		return f, ExitUsage, true
	}
	if *show {
		_, _ = fmt.Fprintln(env.Stdout, "hubd "+env.Version)
		return f, ExitDone, true
	}
	given := false
	fs.Visit(func(fl *flag.Flag) { given = given || fl.Name == "config" })
	if given && f.path == "" {
		return f, env.complain(errors.New("-config needs a FILE; leave it out for the built-in defaults"), ExitUsage), true
	}
	if fs.NArg() > 0 {
		err := fmt.Errorf("unexpected argument %q; give the configuration as -config FILE", fs.Arg(0))
		return f, env.complain(err, ExitUsage), true
	}
	return f, ExitDone, false
}

func load(path string) (*config.Config, error) {
	if path == "" {
		return config.Default(), nil
	}
	return config.Load(path)
}

// complain writes the lines of err and returns code.
func (env *Env) complain(err error, code int) int {
	for line := range strings.SplitSeq(strings.TrimRight(err.Error(), "\n"), "\n") {
		_, _ = fmt.Fprintln(env.Stderr, "hubd: "+line)
	}
	return code
}

func handler(cfg *config.Config, level *slog.LevelVar, w io.Writer) slog.Handler {
	_ = level.UnmarshalText([]byte(cfg.Log.Level)) // validated by config
	o := &slog.HandlerOptions{Level: level}
	if cfg.Log.Format == "json" {
		return slog.NewJSONHandler(w, o)
	}
	return slog.NewTextHandler(w, o)
}
