package command

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"edgehub/ctl/client"
	"edgehub/hub/auth"
)

// completeTimeout bounds how long a shell waits for names.
const completeTimeout = time.Second

// lister returns what may stand behind args.
type lister func(ctx context.Context, hub *client.Client, args []string) []string

// first is a lister for verbs that take one name.
func first(list func(context.Context, *client.Client) []string) lister {
	return func(ctx context.Context, hub *client.Client, args []string) []string {
		if len(args) > 0 {
			return nil
		}
		return list(ctx, hub)
	}
}

// completeNames gives verbs with a name the names that the running hub knows, for the completion of shells.
func (a *app) completeNames(root *cobra.Command) {
	users := first(a.userNames)
	for path, list := range map[string]lister{
		"stream show": first(streamNames), "stream verify": first(streamNames), "stream delete": first(streamNames), "tail": first(streamNames),
		"uplink show": first(uplinkNames), "uplink pause": first(uplinkNames), "uplink resume": first(uplinkNames),
		"uplink acknowledge": first(uplinkNames), "uplink skip": first(uplinkNames), "uplink rewind": first(uplinkNames),
		"group show":  first(groupNames),
		"client show": first(clientNames), "client kick": first(clientNames),
		"session show": first(sessionNames), "session delete": first(sessionNames),
		"retained get": first(retainedNames), "retained delete": first(retainedNames),
		"user passwd": users, "user rm": users, "acl check": users,
		"ban add": a.toBan, "ban rm": banned,
	} {
		c, rest, err := root.Find(strings.Fields(path))
		if err != nil || len(rest) > 0 || c.ValidArgsFunction != nil {
			continue
		}
		c.ValidArgsFunction = func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
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
			return list(ctx, hub, args), cobra.ShellCompDirectiveNoFileComp
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

func (a *app) userNames(ctx context.Context, _ *client.Client) (names []string) {
	path, _, err := a.usersFile(ctx, "")
	if err != nil {
		return nil
	}
	users, err := readUsers(path, false)
	if err != nil {
		return nil
	}
	for _, u := range users.All() {
		names = append(names, u.Name)
	}
	return names
}

// toBan lists the kinds, then whom the hub knows of a kind.
func (a *app) toBan(ctx context.Context, hub *client.Client, args []string) []string {
	switch {
	case len(args) == 0:
		return []string{auth.BanAddress, auth.BanUser, auth.BanClient}
	case len(args) > 1:
	case args[0] == auth.BanUser:
		return a.userNames(ctx, hub)
	case args[0] == auth.BanClient:
		return sessionNames(ctx, hub)
	}
	return nil
}

// banned lists the kinds of bans that there are, then those of a kind.
func banned(ctx context.Context, hub *client.Client, args []string) (names []string) {
	bans, _ := hub.Bans(ctx)
	for _, b := range bans {
		switch {
		case len(args) == 0 && !slices.Contains(names, b.Kind):
			names = append(names, b.Kind)
		case len(args) == 1 && b.Kind == args[0]:
			names = append(names, b.Value)
		}
	}
	return names
}
