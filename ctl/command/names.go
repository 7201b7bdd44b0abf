package command

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"edgehub/ctl/client"
)

// completeTimeout bounds how long a shell waits for names.
const completeTimeout = time.Second

type lister func(context.Context, *client.Client) []string

// completeNames gives verbs with a name the names that the running hub knows, for the completion of shells.
func (a *app) completeNames(root *cobra.Command) {
	for path, list := range map[string]lister{
		"stream show": streamNames, "stream verify": streamNames, "stream delete": streamNames, "tail": streamNames,
		"uplink show": uplinkNames, "uplink pause": uplinkNames, "uplink resume": uplinkNames,
		"client show": clientNames, "client kick": clientNames,
		"group show": groupNames, "session show": sessionNames, "session delete": sessionNames,
		"retained get": retainedNames, "retained delete": retainedNames,
	} {
		c, rest, err := root.Find(strings.Fields(path))
		if err != nil || len(rest) > 0 || c.ValidArgsFunction != nil {
			continue
		}
		c.ValidArgsFunction = func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			hub, err := a.hub()
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			parent := c.Context()
			if parent == nil {
				parent = context.Background()
			}
			ctx, cancel := context.WithTimeout(parent, completeTimeout)
			defer cancel()
			return list(ctx, hub), cobra.ShellCompDirectiveNoFileComp
		}
	}
}

// What cannot be asked is not completed: errors are for the verb itself to tell.

func streamNames(ctx context.Context, hub *client.Client) (names []string) {
	st, _ := hub.Status(ctx)
	for _, s := range st.Streams {
		names = append(names, s.Name)
	}
	return names
}

func uplinkNames(ctx context.Context, hub *client.Client) (names []string) {
	st, _ := hub.Status(ctx)
	for _, u := range st.Uplinks {
		names = append(names, u.Name)
	}
	return names
}

func clientNames(ctx context.Context, hub *client.Client) (names []string) {
	list, _ := hub.Clients(ctx)
	for _, c := range list {
		names = append(names, c.ClientID)
	}
	return names
}

func groupNames(ctx context.Context, hub *client.Client) (names []string) {
	list, err := hub.Groups(ctx)
	if err != nil {
		return nil
	}
	for _, g := range list {
		names = append(names, g.Subscription)
	}
	return names
}

func sessionNames(ctx context.Context, hub *client.Client) (names []string) {
	list, _ := hub.Sessions(ctx)
	for _, s := range list {
		names = append(names, s.ClientID)
	}
	return names
}

func retainedNames(ctx context.Context, hub *client.Client) (names []string) {
	list, _ := hub.Retained(ctx, "#")
	for _, r := range list {
		names = append(names, r.Topic)
	}
	return names
}
