package command

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"edgehub/ctl/client"
	"edgehub/hub/admin/api"
)

func (a *app) uplinkCommand() *cobra.Command {
	one := func(use, short string, ask func(*client.Client, context.Context, string) (api.UplinkStatus, error)) *cobra.Command {
		return &cobra.Command{
			Use: use + " UPLINK", Short: short, Args: takes("UPLINK"),
			RunE: run(a, func(ctx context.Context, hub *client.Client, args []string) (api.UplinkStatus, error) {
				return ask(hub, ctx, args[0])
			}, writeUplink),
		}
	}
	ls := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the uplinks", Args: takes(),
		RunE: run(a, func(ctx context.Context, hub *client.Client, _ []string) ([]api.UplinkStatus, error) {
			st, err := hub.Status(ctx)
			return st.Uplinks, err
		}, writeUplinks),
	}
	return a.group("uplink", "The uplinks: replicators to central clusters", ls,
		one("show", "Show an uplink and what the remote has acknowledged", (*client.Client).Uplink),
		one("pause", "Stop forwarding until resume; the log keeps what arrives", (*client.Client).Pause),
		a.resumeCommand())
}

func (a *app) resumeCommand() *cobra.Command {
	var yes bool
	c := &cobra.Command{Use: "resume UPLINK", Short: "Forward again; a blocked uplink goes on in spite of the cause that it shows", Args: takes("UPLINK"),
		RunE: run(a, func(ctx context.Context, hub *client.Client, args []string) (api.UplinkStatus, error) {
			u, err := hub.Uplink(ctx, args[0])
			if err != nil {
				return u, err
			}
			if u.State == api.UplinkBlocked {
				if err := a.confirm(yes, "Uplink %s is blocked: %s\nGo on in spite of it?", clean(u.Name), clean(u.LastError)); err != nil {
					return u, err
				}
			}
			return hub.Resume(ctx, args[0])
		}, writeUplink)}
	c.Flags().BoolVar(&yes, "yes", false, "do not ask, also when it is blocked")
	return c
}

func writeUplinks(w io.Writer, uplinks []api.UplinkStatus) {
	t := newTable("UPLINK", "KIND", "STATE", "CONNECTED", ">LAG", ">LAG SIZE", ">LAG AGE", "LAST ERROR")
	for _, u := range uplinks {
		t.add(u.Name, u.Kind, u.State, yesNo(u.Connected), count(u.LagMessages), size(u.LagBytes), span(u.LagAgeS), lastError(&u))
	}
	t.write(w)
}

// lastError says what went wrong last, and whether it is over.
func lastError(u *api.UplinkStatus) string {
	switch {
	case u.LastError == "":
		return ""
	case u.Recovered:
		return fmt.Sprintf("recovered; %s ago: %s", span(u.LastErrorS), u.LastError)
	}
	return u.LastError
}

func writeUplink(w io.Writer, u api.UplinkStatus) {
	var f facts
	f.add("uplink", "%s, %s", u.Name, u.Kind)
	f.add("url", "%s", u.URL)
	f.add("remote", "%s", u.RemoteStream)
	f.add("streams", "%s", strings.Join(u.Streams, " "))
	f.add("state", "%s, connected: %s", u.State, yesNo(u.Connected))
	f.add("lag", "%s, %s, oldest %s", plural(u.LagMessages, "message"), size(u.LagBytes), span(u.LagAgeS))
	f.add("since start", "%s sent, %s acknowledged", count(u.Sent), count(u.Delivered))
	if u.LastError == "" {
		f.add("last error", "none")
	} else {
		f.add("last error", "%s, at %s", lastError(&u), u.LastErrorAt)
	}
	f.write(w)
	if len(u.Acked) == 0 {
		return
	}
	_, _ = fmt.Fprintln(w)
	t := newTable("PARTITION", ">ACKNOWLEDGED OFFSET")
	for _, p := range slices.Sorted(maps.Keys(u.Acked)) {
		t.add(p, strconv.FormatInt(u.Acked[p], 10))
	}
	t.write(w)
}

func (a *app) clientCommand() *cobra.Command {
	ls := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the connected clients", Args: takes(),
		RunE: run(a, func(ctx context.Context, hub *client.Client, _ []string) ([]api.Client, error) {
			return hub.Clients(ctx)
		}, writeClients),
	}
	return a.group("client", "The connected clients", ls, a.clientShowCommand(), a.kickCommand())
}

func writeClients(w io.Writer, clients []api.Client) {
	t := newTable("CLIENT", "USER", "ADDRESS", "PROTOCOL", ">CONNECTED", ">SUBSCRIPTIONS", ">INFLIGHT", ">WAITING", ">IN", ">OUT", ">DROPPED")
	for _, c := range clients {
		t.add(c.ClientID, c.Username, c.Address, c.Protocol, span(c.ConnectedS), count(c.Subscriptions), count(c.Inflight), count(c.Inbox),
			count(c.MessagesIn), count(c.MessagesOut), count(c.Dropped))
	}
	t.write(w)
}
