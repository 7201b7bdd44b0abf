// Package command is hubctl: its verbs, their output and their exit codes. It
// speaks to the hub through ctl/client and never opens the hub's files while the
// hub is asked.
package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"edgehub/ctl/client"
	"edgehub/hub/admin/api"
	"edgehub/hub/config"
)

// The exit codes.
const (
	ExitDone   = 0 // it was done
	ExitFailed = 1 // the hub refused, or it failed
	ExitUsage  = 2 // the command line is wrong; nothing was tried
)

// DefaultSockets are where a hub is looked for when nothing names its socket: that
// of the package, then that of a hub run from the working directory.
var DefaultSockets = []string{"/run/hubd/hubd.sock", "./data/hubd.sock"}

// Env is what a run sees of the world.
type Env struct {
	Args    []string // without the program's name
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Getenv  func(string) string
	Version string
	Sockets []string // in place of DefaultSockets, unless nil
}

// Run executes one command line and returns the exit code. Errors are one line on
// stderr. When ctx ends, a tail ends well and everything else fails.
func Run(ctx context.Context, env Env) int {
	if env.Sockets == nil {
		env.Sockets = DefaultSockets
	}
	a := &app{Env: env}
	root := a.root()
	root.SetArgs(env.Args)
	return a.report(root.ExecuteContext(ctx))
}

// report prints err and returns the exit code that belongs to it.
func (a *app) report(err error) int {
	if err == nil {
		return ExitDone
	}
	lines := []string{err.Error()}
	var several config.Problems
	switch {
	case errors.As(err, &several):
		lines = lines[:0]
		for _, p := range several {
			lines = append(lines, p.Error())
		}
	case errors.Is(err, context.Canceled):
		lines[0] = "interrupted"
	}
	for _, l := range lines {
		_, _ = fmt.Fprintf(a.Stderr, "hubctl: %s\n", oneLine(l))
	}
	var usage *usageError
	if errors.As(err, &usage) || !a.started {
		return ExitUsage
	}
	return ExitFailed
}

// usageError is a wrong command line.
type usageError struct{ text string }

// Error implements error.
func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// app is one run.
type app struct {
	Env
	socket string
	config string
	output string // "", "table" or "json"

	started bool // the command line was understood; errors before are about it
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "hubctl",
		Short: "Operate an edge message hub",
		Long: "hubctl shows and steers the hub that runs on this machine, through its Unix socket.\n\n" +
			"The socket is that of --socket, else HUBCTL_SOCKET, else what the file of --config says,\n" +
			"else " + strings.Join(DefaultSockets, ", else ") + ".\n\n" +
			"Exit codes: 0 done, 1 refused or failed, 2 wrong command line.",
		Version:       a.Version,
		Args:          cobra.ArbitraryArgs,
		SilenceErrors: true, SilenceUsage: true, DisableSuggestions: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			a.started = true
			return a.checkOutput()
		},
		RunE: a.unknownVerb,
	}
	root.SetIn(a.Stdin)
	root.SetOut(a.Stdout) // before the completion command is made, which keeps it
	root.SetErr(a.Stderr)
	flags := root.PersistentFlags()
	flags.StringVar(&a.socket, "socket", "", "the hub's Unix socket")
	flags.StringVar(&a.config, "config", "", "the hub's configuration file, to find its socket by")
	flags.StringVarP(&a.output, "output", "o", "", "table or json (default table; tail: json)")
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(a.statusCommand(), a.streamCommand(), a.tailCommand(), a.pubCommand(), a.clientCommand(),
		a.sessionCommand(), a.shareCommand(), a.retainedCommand(), a.userCommand(), a.aclCommand(), a.banCommand(), a.uplinkCommand(),
		a.backupCommand(), a.restoreCommand(), a.configCommand(), a.doctorCommand(), a.benchCommand(), a.versionCommand())
	a.completeNames(root)
	root.SetHelpCommand(a.helpCommand())
	root.InitDefaultCompletionCmd()
	if c, _, err := root.Find([]string{"completion"}); err == nil {
		c.Args, c.RunE = cobra.ArbitraryArgs, a.unknownVerb
	}
	return root
}

// helpCommand differs from the built-in one in that an unknown verb is an error.
func (a *app) helpCommand() *cobra.Command {
	return &cobra.Command{
		Use: "help [VERB]...", Short: "Help about a verb",
		RunE: func(c *cobra.Command, args []string) error {
			target, rest, err := c.Root().Find(args)
			if err != nil {
				return usagef("%v", err)
			}
			if len(rest) > 0 {
				return a.unknownVerb(target, rest)
			}
			return target.Help()
		},
	}
}

// prefix begins an error about a command: its name without the program's, which
// stands in front of every error line.
func prefix(c *cobra.Command) string {
	if _, rest, ok := strings.Cut(c.CommandPath(), " "); ok {
		return rest + ": "
	}
	return ""
}

func (a *app) checkOutput() error {
	switch a.output {
	case "", "table", "json":
		return nil
	}
	return usagef("-o %q is neither table nor json", a.output)
}

// group makes a command that only holds others.
func (a *app) group(use, short string, verbs ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs, RunE: a.unknownVerb}
	c.AddCommand(verbs...)
	return c
}

// unknownVerb runs when a command that only holds others was given something else
// than one of them.
func (a *app) unknownVerb(c *cobra.Command, args []string) error {
	var verbs []string
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			verbs = append(verbs, sub.Name())
		}
	}
	if len(args) == 0 && c == c.Root() {
		c.SetOut(a.Stderr)
		_ = c.Help() // to a terminal that is gone: nobody to tell
		return usagef("no verb given; `hubctl status` is a good first one")
	}
	if len(args) == 0 {
		return usagef("%sgive a verb: %s", prefix(c), strings.Join(verbs, ", "))
	}
	if near := api.Nearest(args[0], verbs); near != "" {
		return usagef("%sno verb %q; did you mean %q?", prefix(c), args[0], near)
	}
	return usagef("%sno verb %q; there is %s", prefix(c), args[0], strings.Join(verbs, ", "))
}

// takes checks the number of arguments against their names; a name in brackets may
// be left out.
func takes(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < len(names) && !strings.HasPrefix(names[len(args)], "[") {
			return usagef("%s%s is missing; write `%s`", prefix(c), names[len(args)], c.UseLine())
		}
		if len(args) > len(names) {
			return usagef("%s%q is one argument too many; write `%s`", prefix(c), args[len(names)], c.UseLine())
		}
		return nil
	}
}

var (
	definedFlag      = regexp.MustCompile(`(?m)^ +(?:-\w, )?--([\w-]+)`)
	unknownFlag      = regexp.MustCompile(`^unknown flag: --(.+)$`)
	unknownShorthand = regexp.MustCompile(`^unknown shorthand flag: '.*' in (-+)(.+)$`)
)

// flagError makes a usage error of what pflag says and names the flag that was meant.
func flagError(c *cobra.Command, err error) error {
	var names []string
	for _, m := range definedFlag.FindAllStringSubmatch(c.Flags().FlagUsages(), -1) {
		names = append(names, m[1])
	}
	flag := ""
	if m := unknownFlag.FindStringSubmatch(err.Error()); m != nil {
		flag = m[1]
	} else if m := unknownShorthand.FindStringSubmatch(err.Error()); m != nil {
		if flag = m[2]; flag[0] >= '0' && flag[0] <= '9' || flag[0] == '.' {
			return usagef("%swhat begins with - and is not a flag goes after --, as in `%s ... -- -%s`", prefix(c), c.CommandPath(), flag)
		}
	}
	if flag != "" {
		flag, _, _ = strings.Cut(flag, "=")
		if near := api.Nearest(flag, names); near != "" {
			return usagef("%s%v; did you mean --%s?", prefix(c), err, near)
		}
	}
	return usagef("%s%v; see `%s --help`", prefix(c), err, c.CommandPath())
}

// sockets returns where the hub may be, and loads the configuration if that decides.
func (a *app) sockets() ([]string, error) {
	if a.socket != "" {
		return []string{a.socket}, nil
	}
	if s := a.Getenv("HUBCTL_SOCKET"); s != "" {
		return []string{s}, nil
	}
	if a.config == "" {
		return a.Sockets, nil
	}
	cfg, err := loadConfig(a.config)
	if err != nil {
		return nil, err
	}
	return []string{cfg.Admin.Socket}, nil
}

// hub connects to the hub.
func (a *app) hub() (*client.Client, error) {
	candidates, err := a.sockets()
	if err != nil {
		return nil, err
	}
	socket, err := client.Find(candidates)
	if err != nil {
		return nil, err
	}
	return client.New(socket), nil
}

// run is the common shape of verbs: connect, ask, print.
func run[T any](a *app, ask func(context.Context, *client.Client, []string) (T, error), table func(io.Writer, T)) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		hub, err := a.hub()
		if err != nil {
			return err
		}
		v, err := ask(c.Context(), hub, args)
		if err != nil {
			return err
		}
		return show(a, v, table)
	}
}

// show prints v as JSON or by table.
func show[T any](a *app, v T, table func(io.Writer, T)) error {
	out := &strings.Builder{}
	if a.output == "json" {
		enc := json.NewEncoder(out)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(v); err != nil {
			return err
		}
	} else {
		table(out, v)
	}
	_, err := io.WriteString(a.Stdout, out.String())
	return outputError(err)
}

func outputError(err error) error {
	if err != nil {
		return fmt.Errorf("the output cannot be written: %w", err)
	}
	return nil
}
