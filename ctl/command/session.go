package command

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"edgehub/ctl/client"
	"edgehub/hub/admin/api"
)

func (a *app) kickCommand() *cobra.Command {
	return &cobra.Command{
		Use: "kick CLIENT", Short: "End a client's connection; its session stays, and it may come back", Args: takes("CLIENT"),
		RunE: run(a, func(ctx context.Context, hub *client.Client, args []string) (api.Done, error) {
			return api.Done{Done: true}, hub.Kick(ctx, args[0])
		}, quiet),
	}
}

func (a *app) clientShowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show CLIENT", Short: "Show one connected client", Args: takes("CLIENT"),
		RunE: run(a, func(ctx context.Context, hub *client.Client, args []string) (api.Client, error) {
			list, err := hub.Clients(ctx)
			if err != nil {
				return api.Client{}, err
			}
			var ids []string
			for _, c := range list {
				if c.ClientID == args[0] {
					return c, nil
				}
				ids = append(ids, c.ClientID)
			}
			return api.Client{}, notFound("connected client", args[0], ids)
		}, writeClient),
	}
}

func writeClient(w io.Writer, c api.Client) {
	var f facts
	f.add("client", "%s", c.ClientID)
	f.add("user", "%s", c.Username)
	f.add("address", "%s, on %s", c.Address, c.Listener)
	f.add("protocol", "%s, keep-alive %s, clean: %s", c.Protocol, span(c.KeepAliveS), yesNo(c.Clean))
	f.add("connected", "%s", span(c.ConnectedS))
	f.add("session kept", "%s", span(c.SessionExpiryS))
	f.add("subscriptions", "%s", count(c.Subscriptions))
	f.add("in flight", "%s", count(c.Inflight))
	f.add("waiting", "%s", count(c.Inbox))
	f.add("outbound", "%s", size(c.OutboundBytes))
	f.write(w)
}

func (a *app) sessionCommand() *cobra.Command {
	ls := &cobra.Command{Use: "ls", Aliases: []string{"list"}, Short: "List the sessions, of connected clients and of absent ones", Args: takes(),
		RunE: run(a, func(ctx context.Context, hub *client.Client, _ []string) ([]api.Session, error) {
			return hub.Sessions(ctx)
		}, writeSessions)}
	show := &cobra.Command{Use: "show CLIENT", Short: "Show a session and its subscriptions", Args: takes("CLIENT"),
		RunE: run(a, func(ctx context.Context, hub *client.Client, args []string) (api.SessionDetail, error) {
			return hub.Session(ctx, args[0])
		}, writeSession)}
	var yes bool
	del := &cobra.Command{Use: "delete CLIENT", Short: "End a session with what waits for it, and its connection", Args: takes("CLIENT"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.confirm(yes, "Delete the session of %s, its subscriptions and what waits for it?", clean(args[0])); err != nil {
				return err
			}
			return run(a, func(ctx context.Context, hub *client.Client, args []string) (api.Done, error) {
				return api.Done{Done: true}, hub.DeleteSession(ctx, args[0])
			}, quiet)(c, args)
		}}
	del.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return a.group("session", "The sessions: what is kept for clients", ls, show, del)
}

func kept(s *api.Session) string {
	if s.ExpiryS < 0 {
		return "for ever"
	}
	if s.ExpiresAt > 0 {
		return "until " + time.UnixMilli(int64(s.ExpiresAt)).Format(time.RFC3339)
	}
	return span(s.ExpiryS)
}

func writeSessions(w io.Writer, list []api.Session) {
	t := newTable("CLIENT", "USER", "CONNECTED", "KEPT", ">SUBSCRIPTIONS", ">INFLIGHT", ">WAITING")
	for i := range list {
		s := &list[i]
		t.add(s.ClientID, s.Username, yesNo(s.Connected), kept(s), count(s.Subscriptions), count(s.Inflight), count(s.Inbox))
	}
	t.write(w)
}

func writeSession(w io.Writer, d api.SessionDetail) {
	var f facts
	f.add("client", "%s", d.ClientID)
	f.add("user", "%s", d.Username)
	f.add("connected", "%s", yesNo(d.Connected))
	f.add("kept", "%s", kept(&d.Session))
	f.add("in flight", "%s", count(d.Inflight))
	f.add("waiting", "%s", count(d.Inbox))
	if d.QueuedMessages > 0 {
		f.add("of these copied", "%s, %s", count(d.QueuedMessages), size(d.QueuedBytes))
	}
	if d.QueueDropped > 0 {
		f.add("lost", "%s", count(d.QueueDropped))
	}
	f.add("will", "%s", yesNo(d.Will))
	f.write(w)
	_, _ = fmt.Fprintln(w)
	t := newTable("FILTER", ">QOS", "NO LOCAL", "RETAIN AS PUBLISHED", ">ID")
	for _, s := range d.Filters {
		t.add(s.Filter, strconv.Itoa(int(s.QoS)), yesNo(s.NoLocal), yesNo(s.RetainAsPublished), strconv.FormatUint(uint64(s.ID), 10))
	}
	t.write(w)
}

func (a *app) retainedCommand() *cobra.Command {
	ls := &cobra.Command{Use: "ls [FILTER]", Aliases: []string{"list"}, Short: "List the topics with a retained message", Args: takes("[FILTER]"),
		RunE: run(a, func(ctx context.Context, hub *client.Client, args []string) ([]api.Retained, error) {
			if len(args) > 0 {
				return hub.Retained(ctx, args[0])
			}
			all, err := hub.Retained(ctx, "#") // which leaves out topics that begin with $
			if err != nil {
				return nil, err
			}
			own, err := hub.Retained(ctx, "$SYS/#")
			return slices.Concat(own, all), err
		}, writeRetained)}
	get := &cobra.Command{Use: "get TOPIC", Short: "Show a retained message", Args: takes("TOPIC"),
		RunE: run(a, func(ctx context.Context, hub *client.Client, args []string) (api.Record, error) {
			return hub.RetainedMessage(ctx, args[0])
		}, writeMessage)}
	var yes bool
	del := &cobra.Command{Use: "delete TOPIC", Short: "Clear a retained message, for everybody", Args: takes("TOPIC"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.confirm(yes, "Clear the retained message of %s?", clean(args[0])); err != nil {
				return err
			}
			return run(a, func(ctx context.Context, hub *client.Client, args []string) (api.Done, error) {
				return api.Done{Done: true}, hub.DeleteRetained(ctx, args[0])
			}, quiet)(c, args)
		}}
	del.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return a.group("retained", "The retained messages: what new subscribers are given", ls, get, del)
}

func writeRetained(w io.Writer, list []api.Retained) {
	t := newTable("TOPIC", "STREAM", ">PARTITION", ">OFFSET")
	for _, r := range list {
		t.add(r.Topic, r.Stream, strconv.Itoa(r.Partition), strconv.FormatInt(r.Offset, 10))
	}
	t.write(w)
}

func writeMessage(w io.Writer, r api.Record) {
	var f facts
	f.add("topic", "%s", r.Topic)
	f.add("at", "%s/%d offset %d, %s", r.Stream, r.Partition, r.Offset, time.UnixMilli(int64(r.Time)).Format(time.RFC3339Nano))
	f.add("qos", "%d", r.QoS)
	for _, p := range r.Properties {
		f.add(p[0], "%s", fmt.Sprint(p[1:]))
	}
	f.add("payload", "%s", string(r.Payload))
	f.write(w)
}
