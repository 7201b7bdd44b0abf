package command

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"edgehub/ctl/client"
	"edgehub/hub/admin/api"
)

func (a *app) shareCommand() *cobra.Command {
	ls := &cobra.Command{Use: "ls", Aliases: []string{"list"}, Short: "List the shared subscriptions", Args: takes(),
		RunE: run(a, func(ctx context.Context, hub *client.Client, _ []string) ([]api.Group, error) {
			return hub.Groups(ctx)
		}, writeGroups)}
	show := &cobra.Command{Use: "show SUBSCRIPTION", Short: "Show a shared subscription and its connected members", Args: takes("SUBSCRIPTION"),
		RunE: run(a, func(ctx context.Context, hub *client.Client, args []string) (api.Group, error) {
			list, err := hub.Groups(ctx)
			if err != nil {
				return api.Group{}, err
			}
			var keys []string
			for _, g := range list {
				if g.Subscription == args[0] {
					return g, nil
				}
				keys = append(keys, g.Subscription)
			}
			return api.Group{}, notFound("shared subscription", args[0], keys)
		}, writeGroup)}
	return a.group("group", "The shared subscriptions: groups of clients that divide messages among them", ls, show)
}

func writeGroups(w io.Writer, list []api.Group) {
	t := newTable("SUBSCRIPTION", ">SESSIONS", ">CONNECTED", ">INFLIGHT", ">WAITING")
	for i := range list {
		g := &list[i]
		t.add(g.Subscription, count(g.Sessions), count(len(g.Members)), count(g.Inflight), count(g.Inbox))
	}
	t.write(w)
}

func writeGroup(w io.Writer, g api.Group) {
	var f facts
	f.add("subscription", "%s", g.Subscription)
	f.add("sessions", "%s", count(g.Sessions))
	f.add("in flight", "%s", count(g.Inflight))
	f.add("waiting", "%s", count(g.Inbox))
	f.write(w)
	_, _ = fmt.Fprintln(w)
	t := newTable("MEMBER", ">QOS")
	for _, m := range g.Members {
		t.add(m.ClientID, strconv.Itoa(int(m.QoS)))
	}
	t.write(w)
}
