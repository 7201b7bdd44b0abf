package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"edgehub/ctl/client"
	"edgehub/hub/admin/api"
	"edgehub/hub/config"
)

// The outcomes of a check.
const (
	checkOK   = "ok"
	checkWarn = "warn"
	checkFail = "fail"
	checkSkip = "skip" // could not be looked at
)

// finding is one line of `doctor`.
type finding struct {
	Check string `json:"check"`
	State string `json:"state"`
	Found string `json:"found"`
	Do    string `json:"do"` // what to do about it
}

// examination is one run of doctor.
type examination struct {
	ctx   context.Context
	cfg   *config.Config
	hub   *client.Client // nil: none runs
	found []finding
}

func (x *examination) ok(check, format string, args ...any) {
	x.found = append(x.found, finding{Check: check, State: checkOK, Found: fmt.Sprintf(format, args...)})
}

func (x *examination) warn(check, do, format string, args ...any) {
	x.found = append(x.found, finding{check, checkWarn, fmt.Sprintf(format, args...), do})
}

func (x *examination) fail(check, do, format string, args ...any) {
	x.found = append(x.found, finding{check, checkFail, fmt.Sprintf(format, args...), do})
}

func (x *examination) skip(check, do, format string, args ...any) {
	x.found = append(x.found, finding{check, checkSkip, fmt.Sprintf(format, args...), do})
}

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Look for what is wrong on this machine, and say what to do", Args: takes(),
		Long: "doctor looks at the configuration, the hub, descriptors, clock, disk, free space, memory, permissions,\n" +
			"certificates, ports and remotes. It uses the configuration of the running hub, else that of --config.\n" +
			"It writes a file of 8 MiB into the data directory for a moment, to measure the disk.\n\n" +
			"Exit code 1 when something fails; warnings do not count.",
		RunE: func(c *cobra.Command, _ []string) error { return a.doctor(c.Context()) },
	}
}

func (a *app) doctor(ctx context.Context) error {
	x := &examination{ctx: ctx}
	a.findHub(x)
	if x.cfg != nil {
		for _, check := range []func(){x.health, x.descriptors, x.clock, x.disk, x.space, x.memory, x.permissions, x.certificates, x.ports, x.remotes} {
			check()
		}
	}
	err := show(a, x.found, func(w io.Writer, list []finding) {
		t := newTable("CHECK", "STATE", "FOUND", "DO")
		for _, f := range list {
			t.add(f.Check, f.State, f.Found, f.Do)
		}
		t.write(w)
	})
	if err != nil {
		return err
	}
	failed := 0
	for _, f := range x.found {
		if f.State == checkFail {
			failed++
		}
	}
	if failed > 0 {
		return fmt.Errorf("%s", plural(int64(failed), "check")+" failed")
	}
	return nil
}

// findHub finds the hub and its configuration.
func (a *app) findHub(x *examination) {
	const check = "configuration"
	file := a.config
	hub, err := a.hub()
	switch {
	case err == nil:
		x.hub = hub
		access, err := hub.Access(x.ctx)
		if err != nil {
			x.fail("hub", "see its log", "%v", err)
			return
		}
		file = access.ConfigFile
	case errors.Is(err, client.ErrNotRunning):
		x.warn("hub", "start it: systemctl start hubd, or hubd -config FILE", "no hub runs")
	default:
		x.fail("hub", "run hubctl as root or in the hub's group", "%v", err)
	}
	if file == "" {
		x.cfg = config.Default()
		x.ok(check, "the built-in one")
		return
	}
	cfg, err := config.Load(file)
	if err != nil {
		x.fail(check, "hubctl config check "+file, "%s", strings.Join(strings.Split(err.Error(), "\n"), "; "))
		return
	}
	x.cfg = cfg
	x.ok(check, "%s", file)
}

// health is what the hub says of itself.
func (x *examination) health() {
	if x.hub == nil {
		return
	}
	st, err := x.hub.Status(x.ctx)
	if err != nil {
		x.fail("hub", "see its log", "%v", err)
		return
	}
	if st.Health.State == api.HealthOK {
		x.ok("hub", "version %s, up %s", st.Version, span(st.UptimeS))
	}
	for _, r := range st.Health.Reasons {
		x.fail("hub", r.Cure, "%s: %s", r.What, r.Why)
	}
}
