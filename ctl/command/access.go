package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"edgehub/ctl/client"
	"edgehub/hub/admin/api"
	"edgehub/hub/auth"
	"edgehub/hub/topic"
)

func notFound(kind, name string, known []string) error { return api.NotFound(kind, name, known) }

func (a *app) aclCommand() *cobra.Command {
	var id, aclFile, usersFile string
	check := &cobra.Command{
		Use: "check USER TOPIC", Short: "Say what a user may do with a topic, and which line decides", Args: takes("USER", "TOPIC"),
		Long: "check judges TOPIC, a topic or a filter, for USER; \"\" is an anonymous client. It asks the running hub;\n" +
			"with --acl and --users it reads the files instead.\n\n" +
			"Exit code 1 when neither publishing nor subscribing is allowed.",
		RunE: func(c *cobra.Command, args []string) error {
			q := api.ACLQuery{User: args[0], Client: id, Topic: args[1]}
			answer, err := a.judge(c.Context(), q, aclFile, usersFile)
			if err != nil {
				return err
			}
			if err := show(a, answer, func(w io.Writer, r api.ACLAnswer) { writeJudged(w, q, r) }); err != nil {
				return err
			}
			if !answer.Subscribe.Allowed && (answer.Publish == nil || !answer.Publish.Allowed) {
				return errors.New("not allowed")
			}
			return nil
		},
	}
	check.Flags().StringVar(&id, "client", "", "the client id, for rules with client: and %c")
	check.Flags().StringVar(&aclFile, "acl", "", "judge by this ACL file")
	check.Flags().StringVar(&usersFile, "users", "", "with --acl: take the user's groups from this users file")
	return a.group("acl", "The access list: who may publish and subscribe to what", check)
}

func (a *app) judge(ctx context.Context, q api.ACLQuery, aclFile, usersFile string) (answer api.ACLAnswer, err error) {
	if aclFile == "" {
		hub, err := a.hub()
		if err != nil {
			return answer, err
		}
		return hub.CheckACL(ctx, q)
	}
	if err := topic.ValidateFilter(q.Topic); err != nil {
		return answer, fmt.Errorf("%q is neither a topic nor a filter: %w", q.Topic, err)
	}
	text, err := auth.ReadFile(aclFile)
	if err != nil {
		return answer, err
	}
	acl, err := auth.ParseACL(aclFile, text)
	if err != nil {
		return answer, err
	}
	answer = api.ACLAnswer{Topic: q.Topic, Known: q.User == "", Groups: []string{}}
	if usersFile != "" {
		users, err := readUsers(usersFile, false)
		if err != nil {
			return answer, err
		}
		if u := users.Get(q.User); u != nil {
			answer.Known, answer.Groups = true, append(answer.Groups, u.Groups...)
		}
	}
	judged := func(d auth.Decision) api.Judged {
		j := api.Judged{Allowed: d.Allowed, File: aclFile}
		if d.Rule != nil {
			j.Line, j.Rule = d.Rule.Line, d.Rule.Text
		}
		return j
	}
	rights := acl.Rights(q.User, answer.Groups, q.Client)
	answer.Subscribe = judged(rights.DecideFilter(q.Topic))
	if !topic.HasWildcard(q.Topic) {
		p := judged(rights.Decide(auth.Publish, q.Topic))
		answer.Publish = &p
	}
	return answer, nil
}

func writeJudged(w io.Writer, q api.ACLQuery, r api.ACLAnswer) {
	who := "an anonymous client"
	if q.User != "" {
		who = "user " + q.User
		if !r.Known {
			who += " (not in the users file)"
		}
	}
	if len(r.Groups) > 0 {
		who += " of " + strings.Join(r.Groups, ", ")
	}
	if q.Client != "" {
		who += " as client " + q.Client
	}
	_, _ = fmt.Fprintln(w, clean(who)+", "+clean(q.Topic))
	t := newTable("ACTION", "ANSWER", "BY", "RULE")
	line := func(action string, j api.Judged) {
		answer, by := "deny", fmt.Sprintf("%s:%d", j.File, j.Line)
		if j.Allowed {
			answer = "allow"
		}
		switch {
		case j.File == "":
			by, j.Rule = "", "there is no access list"
		case j.Line == 0:
			by, j.Rule = j.File, "no rule fits"
		}
		t.add(action, answer, by, j.Rule)
	}
	if r.Publish != nil {
		line("publish", *r.Publish)
	}
	line("subscribe", r.Subscribe)
	t.write(w)
}

func (a *app) banCommand() *cobra.Command {
	var span, why string
	add := &cobra.Command{
		Use: "add address|user|client VALUE", Short: "Keep an address, a user or a client id out, and end its connections", Args: takes("address|user|client", "VALUE"),
		RunE: func(c *cobra.Command, args []string) error {
			b := api.Ban{Kind: args[0], Value: args[1], Why: why}
			if span != "" {
				d, err := time.ParseDuration(span)
				if err != nil || d <= 0 {
					return usagef("--for %q is not a time such as 30m or 24h", span)
				}
				b.Until = api.Millis(time.Now().Add(d).UnixMilli())
			}
			hub, err := a.hub()
			if err != nil {
				return err
			}
			if b, err = hub.Ban(c.Context(), b); err != nil {
				return err
			}
			return show(a, []api.Ban{b}, writeBans)
		},
	}
	add.Flags().StringVar(&span, "for", "", "end it after this time, such as 24h; default: when it is taken back")
	add.Flags().StringVar(&why, "why", "", "a word about it")
	ls := &cobra.Command{Use: "ls", Aliases: []string{"list"}, Short: "List the bans", Args: takes(),
		RunE: run(a, func(ctx context.Context, hub *client.Client, _ []string) ([]api.Ban, error) { return hub.Bans(ctx) }, writeBans)}
	rm := &cobra.Command{Use: "rm KIND VALUE", Short: "Take a ban back; KIND and VALUE as ls shows them", Args: takes("KIND", "VALUE"),
		RunE: run(a, func(ctx context.Context, hub *client.Client, args []string) (api.Done, error) {
			return api.Done{Done: true}, hub.Unban(ctx, args[0], args[1])
		}, quiet)}
	return a.group("ban", "Who is kept out", add, ls, rm)
}

// quiet is the table of verbs that have nothing to show.
func quiet(io.Writer, api.Done) {}

func writeBans(w io.Writer, bans []api.Ban) {
	t := newTable("KIND", "VALUE", "UNTIL", "BY", "WHY")
	for _, b := range bans {
		until, by := "taken back", "the hub"
		if b.Until > 0 {
			until = time.UnixMilli(int64(b.Until)).Format(time.RFC3339)
		}
		if b.ByHand {
			by = "hand"
		}
		t.add(b.Kind, b.Value, until, by, b.Why)
	}
	t.write(w)
}
