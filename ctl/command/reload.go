package command

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"edgehub/hub/admin/api"
)

func (a *app) reloadCommand() *cobra.Command {
	return &cobra.Command{
		Use: "reload", Short: "Have the hub read its configuration, users, access list and certificates again", Args: takes(),
		Long: "reload checks the configuration whole and takes over what a running hub can. It says of every key that\n" +
			"has changed whether it is applied or needs a restart. When anything is wrong, nothing changes.\n\n" +
			"SIGHUP does the same, and says it in the hub's log.",
		RunE: func(c *cobra.Command, _ []string) error {
			hub, err := a.hub()
			if err != nil {
				return err
			}
			r, err := hub.Reload(c.Context())
			if err != nil {
				return err
			}
			if err := show(a, r, writeReloaded); err != nil {
				return err
			}
			if r.Failed != "" {
				return fmt.Errorf("the rest was reloaded, but %s", r.Failed)
			}
			return nil
		},
	}
}

func writeReloaded(w io.Writer, r api.Reloaded) {
	if len(r.Applied)+len(r.Restart) > 0 {
		t := newTable("KEY", "WAS", "IS", "EFFECT")
		for _, c := range r.Applied {
			t.add(c.Key, c.Old, c.New, "applied")
		}
		for _, c := range r.Restart {
			t.add(c.Key, c.Old, c.New, "needs a restart")
		}
		t.write(w)
	} else {
		_, _ = fmt.Fprintln(w, "no key has changed")
	}
	if r.Access.UsersFile != "" {
		_, _ = fmt.Fprintf(w, "%s: %s\n", clean(r.Access.UsersFile), plural(int64(r.Access.Users), "user"))
	}
	if r.Access.ACLFile != "" {
		_, _ = fmt.Fprintf(w, "%s: %s\n", clean(r.Access.ACLFile), plural(int64(r.Access.Rules), "rule"))
	}
	if r.Kicked > 0 {
		_, _ = fmt.Fprintf(w, "%s ended: the user is gone or has a new password\n", plural(int64(r.Kicked), "connection"))
	}
}
