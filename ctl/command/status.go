package command

import (
	"context"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"edgehub/ctl/client"
	"edgehub/hub/admin/api"
)

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "The whole hub at a glance", Args: takes(),
		RunE: run(a, func(ctx context.Context, hub *client.Client, _ []string) (api.Status, error) {
			return hub.Status(ctx)
		}, writeStatus),
	}
}

func writeStatus(w io.Writer, st api.Status) {
	var f facts
	f.add("hub", "%s, hubd %s", st.Hub, st.Version)
	f.add("instance", "%s, epoch %d", st.Instance, st.Epoch)
	f.add("up", "%s", span(st.UptimeS))
	f.add("clients", "%s, %s, %s", count(st.Connections)+" connected", plural(st.Sessions, "session"), plural(st.Subscriptions, "subscription"))
	f.add("messages", "%s in, %s out, %s retained", count(st.MessagesIn), count(st.MessagesOut), count(st.Retained))
	f.add("dropped", "%s", droppedText(st.Dropped))
	f.add("health", "%s", st.Health.State)
	f.write(w)
	for _, r := range st.Health.Reasons {
		line := "  - " + r.What + ": " + r.Why
		if r.Cure != "" {
			line += "; cure: " + r.Cure
		}
		_, _ = fmt.Fprintln(w, clean(line))
	}
	_, _ = fmt.Fprintln(w)
	writeStreams(w, st.Streams)
	_, _ = fmt.Fprintln(w)
	if len(st.Uplinks) == 0 {
		_, _ = fmt.Fprintln(w, "no uplink")
		return
	}
	writeUplinks(w, st.Uplinks)
}

func droppedText(dropped map[string]int64) string {
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(dropped)) {
		if n := dropped[reason]; n != 0 {
			parts = append(parts, count(n)+" "+reason)
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// versions is what `version` prints as JSON.
type versions struct {
	Hubctl   string `json:"hubctl"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Hubd     string `json:"hubd"` // empty: no hub answers
	Hub      string `json:"hub"`
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "The versions of hubctl and of the running hub", Args: takes(),
		RunE: func(c *cobra.Command, _ []string) error {
			v := versions{Hubctl: a.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
			// hubctl's own version is the answer; that no hub runs is part of it, no error.
			if hub, err := a.hub(); err == nil {
				if st, err := hub.Status(c.Context()); err == nil {
					v.Hubd, v.Hub = st.Version, st.Hub
				}
			}
			return show(a, v, writeVersions)
		},
	}
}

func writeVersions(w io.Writer, v versions) {
	var f facts
	f.add("hubctl", "%s (%s, %s)", v.Hubctl, v.Go, v.Platform)
	if v.Hubd == "" {
		f.add("hubd", "no hub answers")
	} else {
		f.add("hubd", "%s (hub %s)", v.Hubd, v.Hub)
	}
	f.write(w)
}
