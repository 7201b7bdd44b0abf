package command

import (
	"cmp"
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
		a.resumeCommand(),
		one("acknowledge", "Take note of records lost to retention: health no longer speaks of them", (*client.Client).Acknowledge),
		a.skipCommand(), a.rewindCommand())
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

func (a *app) skipCommand() *cobra.Command {
	var yes bool
	offset := int64(-1)
	c := &cobra.Command{
		Use: "skip UPLINK [PARTITION]", Short: "Leave out the record that a partition is stuck at, or all before --offset", Args: takes("UPLINK", "[PARTITION]"),
		Long: `Leave records of a partition out: the remote never gets them. They stay in the hub's log, and are counted as lost.

Without --offset it is just the record that the partition is stuck at. PARTITION is STREAM/PARTITION, as
"hubctl uplink show" lists it, and may be left out where there is no choice. It is carried out as soon as the
remote is reached.`,
		Example: "  hubctl uplink skip cloud telemetry/0\n  hubctl uplink skip cloud telemetry/0 --offset 1500",
		RunE: func(c *cobra.Command, args []string) error {
			if c.Flags().Changed("offset") && offset < 0 {
				return usagef("--offset %d: it is the offset of the record to send next", offset)
			}
			what := "the record that it is stuck at"
			if offset >= 0 {
				what = fmt.Sprintf("all that is not sent before offset %d", offset)
			}
			return a.move(c, args, yes, api.UplinkMove{Action: api.MoveSkip, Offset: offset}, "Leave out "+what)
		}}
	c.Flags().Int64Var(&offset, "offset", -1, "the record to send next")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return c
}

func (a *app) rewindCommand() *cobra.Command {
	var yes bool
	var offset int64
	c := &cobra.Command{
		Use: "rewind UPLINK [PARTITION] --offset N", Short: "Send a partition's records again from an offset on", Args: takes("UPLINK", "[PARTITION]"),
		Long: `Send records again that the remote has acknowledged. They come behind what is there, in order, in an epoch of their own:
the remote has them twice in content, never under one id.`,
		Example: "  hubctl uplink rewind cloud telemetry/0 --offset 1200",
		RunE: func(c *cobra.Command, args []string) error {
			if !c.Flags().Changed("offset") || offset < 0 {
				return usagef("%s--offset is missing: the record to send again first", prefix(c))
			}
			return a.move(c, args, yes, api.UplinkMove{Action: api.MoveRewind, Offset: offset}, fmt.Sprintf("Send again from offset %d on", offset))
		}}
	c.Flags().Int64Var(&offset, "offset", 0, "the record to send again first")
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return c
}

func (a *app) move(c *cobra.Command, args []string, yes bool, m api.UplinkMove, question string) error {
	of := "uplink " + clean(args[0])
	if len(args) > 1 {
		m.Partition = args[1]
		of += ", partition " + clean(args[1])
	}
	if err := a.confirm(yes, "%s, of %s?", question, of); err != nil {
		return err
	}
	return run(a, func(ctx context.Context, hub *client.Client, args []string) (api.UplinkStatus, error) {
		return hub.Move(ctx, args[0], m)
	}, writeUplink)(c, args)
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
	if u.RecordMax > 0 {
		f.add("largest record", "%s", size(u.RecordMax))
	}
	f.add("lost", "%s to retention, %s skipped", count(u.Lost[api.LostRetention]), count(u.Lost[api.LostSkipped]))
	if u.LastError == "" {
		f.add("last error", "none")
	} else {
		f.add("last error", "%s, at %s", lastError(&u), u.LastErrorAt)
	}
	for _, k := range u.Stuck {
		f.add("stuck", "%s, since %s; %s", k.Reason, k.Since, k.Cure)
	}
	for _, m := range u.Pending {
		f.add("ordered", "%s %s to offset %d", m.Action, m.Partition, m.Offset)
	}
	f.write(w)
	writeUplinkPartitions(w, u)
}

// writeUplinkPartitions lists the partitions of which there is something to tell.
func writeUplinkPartitions(w io.Writer, u api.UplinkStatus) {
	type row struct{ acked, lost, skipped, stuck string }
	rows := map[string]row{}
	for p, offset := range u.Acked {
		rows[p] = row{acked: strconv.FormatInt(offset, 10)}
	}
	for _, l := range u.Losses {
		r := rows[l.Partition]
		r.lost, r.skipped = count(l.Retention), count(l.Skipped)
		rows[l.Partition] = r
	}
	for _, k := range u.Stuck {
		r := rows[k.Partition]
		r.stuck = strconv.FormatInt(k.Offset, 10)
		rows[k.Partition] = r
	}
	if len(rows) == 0 {
		return
	}
	_, _ = fmt.Fprintln(w)
	t := newTable("PARTITION", ">ACKNOWLEDGED OFFSET", ">LOST", ">SKIPPED", ">STUCK AT")
	for _, p := range slices.Sorted(maps.Keys(rows)) {
		r := rows[p]
		t.add(p, cmp.Or(r.acked, "-"), cmp.Or(r.lost, "0"), cmp.Or(r.skipped, "0"), cmp.Or(r.stuck, "-"))
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
