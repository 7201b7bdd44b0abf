package command

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"edgehub/ctl/client"
	"edgehub/hub/admin/api"
	"edgehub/hub/config"
)

func (a *app) configCommand() *cobra.Command {
	check := &cobra.Command{
		Use: "check [FILE]", Short: "Check a configuration file without a hub", Args: takes("[FILE]"),
		Long: "check reads FILE, or the file of --config, as hubd would, and prints a line for each thing\n" +
			"that is wrong, with its cure.",
		RunE: func(_ *cobra.Command, args []string) error { return a.configCheck(args) },
	}
	show := &cobra.Command{
		Use: "show [FILE]", Short: "Show every effective value, defaults included", Args: takes("[FILE]"),
		Long: "show asks the running hub. With FILE, or when no hub runs and --config names a file, it shows\n" +
			"what that file gives. Secrets are never shown.",
		RunE: func(c *cobra.Command, args []string) error { return a.configShow(c, args) },
	}
	return a.group("config", "The configuration", check, show, a.reloadCommand())
}

// loadConfig loads the file that --config names for its socket. All that is wrong
// with it is for `config check` to say; here the first line is enough.
func loadConfig(path string) (*config.Config, error) {
	cfg, err := config.Load(path)
	var problems config.Problems
	if errors.As(err, &problems) && len(problems) > 1 {
		return nil, fmt.Errorf("%w (and %d more; see `hubctl config check %s`)", problems[0], len(problems)-1, path)
	}
	return cfg, err
}

// checked is what `config check` prints as JSON.
type checked struct {
	File     string    `json:"file"`
	OK       bool      `json:"ok"`
	Problems []problem `json:"problems"`
}

type problem struct {
	Line int    `json:"line"`
	Key  string `json:"key"`
	What string `json:"what"`
	Cure string `json:"cure"`
}

func (a *app) configCheck(args []string) error {
	file := a.config
	if len(args) > 0 {
		file = args[0]
	}
	if file == "" {
		return usagef("config check: which file? write `hubctl config check FILE`")
	}
	cfg, err := config.Load(file)
	if err == nil {
		return show(a, checked{File: file, OK: true, Problems: []problem{}}, func(w io.Writer, _ checked) {
			_, _ = fmt.Fprintf(w, "%s: good (%s, %s, %s)\n", clean(file), plural(int64(len(cfg.Listeners)), "listener"),
				plural(int64(len(cfg.Streams)), "stream"), plural(int64(len(cfg.Uplinks)), "uplink"))
		})
	}
	if a.output == "json" {
		report := checked{File: file, Problems: []problem{}}
		var problems config.Problems
		errors.As(err, &problems)
		for _, p := range problems {
			report.Problems = append(report.Problems, problem{Line: p.Line, Key: p.Key, What: p.What, Cure: p.Cure})
		}
		if err := show(a, report, nil); err != nil {
			return err
		}
	}
	return err
}

func (a *app) configShow(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return a.showFile(args[0])
	}
	hub, err := a.hub()
	if errors.Is(err, client.ErrNotRunning) && a.config != "" {
		_, _ = fmt.Fprintf(a.Stderr, "hubctl: no hub runs there; this is what %s gives\n", clean(a.config))
		return a.showFile(a.config)
	}
	if err != nil {
		return err
	}
	settings, err := hub.Config(c.Context())
	if err != nil {
		return err
	}
	return show(a, settings, writeSettings)
}

func (a *app) showFile(path string) error {
	cfg, err := config.Load(path)
	if err != nil {
		return err
	}
	settings := []api.Setting{}
	for _, s := range cfg.Show() {
		settings = append(settings, api.Setting{Key: s.Key, Value: s.Value, Default: s.Default})
	}
	return show(a, settings, writeSettings)
}

func writeSettings(w io.Writer, settings []api.Setting) {
	t := newTable("KEY", "VALUE", "DEFAULT")
	for _, s := range settings {
		t.add(s.Key, s.Value, yesNo(s.Default))
	}
	t.write(w)
}
