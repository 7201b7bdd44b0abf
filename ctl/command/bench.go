package command

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"edgehub/ctl/bench"
)

// benchModes says what each mode is; its defaults are in the package.
var benchModes = map[bench.Mode]struct{ short, long string }{
	bench.FanIn:   {"Many publishers, every subscriber gets everything", ""},
	bench.FanOut:  {"Few publishers, many subscribers", ""},
	bench.Pairs:   {"One subscriber for each publisher", ""},
	bench.Shared:  {"Subscribers that share one subscription", ""},
	bench.Offline: {"Publish to sessions that are offline, then drain them", "The sessions are made, left, filled, and then all connected at once.\n\n"},
	bench.Mixed: {"Every QoS, two sizes, wildcard and exact subscribers", "Publishers use QoS 0, 1 and 2 in turn; one message of ten has --size bytes, the others 100.\n" +
		"Of three subscribers, one gets everything and two get one topic each.\n\n"},
	bench.Storm: {"Connect and disconnect", "Each connection opens a session, waits for the broker's consent and says goodbye.\n\n"},
	bench.Idle:  {"Connect and stay", "The connections stay open for --hold, with pings as --keep-alive asks, to see what they cost.\n\n"},
}

const benchLong = "Without --rate, each publisher keeps a window of unacknowledged messages full, and delays count\n" +
	"from the send. With --rate, every message has its time and delays count from there, however late\n" +
	"the broker lets it be sent. With --pid, the broker's CPU time and memory are read from /proc."

func (a *app) benchCommand() *cobra.Command {
	var verbs []*cobra.Command
	for _, m := range bench.Modes() {
		verbs = append(verbs, a.benchModeCommand(m))
	}
	c := a.group("bench", "Put any MQTT broker under load and measure it", verbs...)
	c.Long = "bench puts a broker under load and reports messages per second, delays at P50, P99 and P99.9,\n" +
		"what was lost, duplicated or out of order, and the broker's CPU time per message and memory.\n\n" + benchLong
	c.Example = "  hubctl bench fan-in -p 50 --window 64 -n 1000000 --pid $(pidof hubd)\n" +
		"  hubctl bench fan-in -p 20 --rate 10000 --duration 30s --warm-up 3s -o json\n" +
		"  hubctl bench idle -c 15000 --hold 30s --broker 127.0.0.1:1884"
	return c
}

// benchFlags are a load on the command line.
type benchFlags struct {
	bench.Load
	mqtt  string
	quiet bool
}

func (a *app) benchModeCommand(m bench.Mode) *cobra.Command {
	f := &benchFlags{Load: bench.Defaults(m)}
	c := &cobra.Command{
		Use: string(m), Short: benchModes[m].short, Args: takes(),
		Long: benchModes[m].short + ".\n\n" + benchModes[m].long + benchLong,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.finish(c); err != nil {
				return usagef("%s%v", prefix(c), err)
			}
			res, err := bench.Run(c.Context(), &f.Load, a.benchProgress(f.quiet))
			if err != nil {
				return fmt.Errorf("%s%w", prefix(c), err)
			}
			return show(a, res, benchTable)
		},
	}
	f.common(c)
	if m == bench.Idle || m == bench.Storm {
		f.connections(c)
	} else {
		f.messages(c)
	}
	return c
}

func (f *benchFlags) common(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVarP(&f.Address, "broker", "b", f.Address, "the broker's HOST:PORT")
	flags.StringVar(&f.mqtt, "mqtt", "3.1.1", "version of MQTT: 3.1.1 or 5")
	flags.StringVar(&f.User, "user", "", "user name")
	flags.StringVar(&f.Password, "password", "", "password")
	flags.IntVar(&f.PID, "pid", 0, "the broker's process id, to know its CPU time and memory")
	flags.StringVar(&f.Label, "label", "", "a name that the result repeats")
	flags.DurationVar(&f.Limit, "limit", f.Limit, "end of the whole run, whatever happens")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "no progress on standard error")
}

func (f *benchFlags) messages(c *cobra.Command) {
	flags := c.Flags()
	flags.IntVarP(&f.Publishers, "publishers", "p", f.Publishers, "connections that publish")
	if f.Mode != bench.Pairs {
		flags.IntVarP(&f.Subscribers, "subscribers", "s", f.Subscribers, "connections that subscribe")
	}
	if f.Mode != bench.Pairs && f.Mode != bench.Mixed {
		flags.IntVar(&f.Topics, "topics", 0, "distinct topics (default one for each publisher)")
	}
	flags.StringVar(&f.Topic, "topic", f.Topic, "topic, with %d for its number")
	flags.StringVar(&f.Filter, "filter", "", "filter of the subscribers (default the topic with + for %d)")
	flags.Int64VarP(&f.Messages, "messages", "n", f.Messages, "messages to publish in all, after the warm-up")
	flags.DurationVarP(&f.Duration, "duration", "d", f.Duration, "how long to publish, after the warm-up; with -n, whichever ends first")
	flags.DurationVarP(&f.WarmUp, "warm-up", "w", 0, "how long to publish before anything is measured")
	flags.IntVar(&f.SizeBytes, "size", f.SizeBytes, "payload bytes, at least 16")
	if f.Mode != bench.Mixed {
		flags.IntVar(&f.QoS, "qos", f.QoS, "QoS of publishes")
		flags.IntVar(&f.SubQoS, "sub-qos", f.SubQoS, "QoS of subscriptions (default as --qos)")
		flags.Lookup("sub-qos").DefValue = "0" // not shown
	}
	flags.IntVar(&f.Window, "window", f.Window, "unacknowledged publishes per publisher; of QoS 0 so many before each ping")
	flags.Float64VarP(&f.RatePerS, "rate", "r", 0, "messages per second of all publishers together (default as fast as it goes)")
	flags.DurationVar(&f.Settle, "settle", f.Settle, "give up when nothing has moved for so long")
}

func (f *benchFlags) connections(c *cobra.Command) {
	flags := c.Flags()
	flags.IntVarP(&f.Connections, "connections", "c", f.Connections, "connections to make")
	flags.IntVar(&f.Window, "window", f.Window, "connections that are being made at the same time")
	flags.Float64VarP(&f.RatePerS, "rate", "r", 0, "connections per second (default as fast as it goes)")
	flags.IntVar(&f.Sources, "sources", f.Sources, "loopback addresses to connect from, when the broker is on loopback")
	if f.Mode == bench.Idle {
		flags.DurationVar(&f.Hold, "hold", f.Hold, "how long to stay connected")
		flags.DurationVar(&f.KeepAlive, "keep-alive", f.KeepAlive, "keep-alive of the connections")
	}
}

// finish judges the flags.
func (f *benchFlags) finish(c *cobra.Command) error {
	switch f.mqtt {
	case "3.1.1":
		f.Version = bench.MQTT311
	case "5":
		f.Version = bench.MQTT5
	default:
		return fmt.Errorf("--mqtt %q; it is 3.1.1 or 5", f.mqtt)
	}
	changed := c.Flags().Changed
	for _, name := range []string{"sub-qos", "messages", "duration", "pid"} {
		if v := c.Flags().Lookup(name); v != nil && changed(name) && (strings.HasPrefix(v.Value.String(), "-") || name != "sub-qos" && v.Value.String() == "0") {
			return fmt.Errorf("--%s %s; leave it out or give more", name, v.Value)
		}
	}
	if changed("messages") && !changed("duration") {
		f.Duration = 0 // the default one: the count is the end
	}
	f.Complete()
	return f.Check()
}

// benchProgress writes a line each second.
func (a *app) benchProgress(quiet bool) func(bench.Progress) {
	if quiet {
		return nil
	}
	return func(p bench.Progress) {
		line := fmt.Sprintf("%5.1fs  %-13s", p.ElapsedS, p.Phase)
		if p.Sent+p.Received > 0 {
			line += fmt.Sprintf("  sent %s (%s/s)  received %s (%s/s)", count(p.Sent), count(int64(p.SentPerS)), count(p.Received), count(int64(p.ReceivedPerS)))
		} else {
			line += fmt.Sprintf("  %s", plural(p.Connected, "connection"))
		}
		if p.CPUPercent >= 0 {
			line += fmt.Sprintf("  broker %.0f %% CPU, %s", p.CPUPercent, size(p.RSSBytes))
		}
		_, _ = fmt.Fprintln(a.Stderr, line) // a terminal that is gone does not end the run
	}
}

func benchTable(w io.Writer, r *bench.Result) {
	var f facts
	f.add("load", "%s", benchLoad(r))
	if r.Label != "" {
		f.add("label", "%s", r.Label)
	}
	f.add("broker", "%s, %s", r.Broker, r.Protocol)
	switch {
	case r.Connections != nil:
		benchConnections(&f, r.Connections)
	default:
		benchMessages(&f, r)
	}
	if t := r.Target; t != nil {
		what := "a message"
		if r.Connections != nil {
			what = "a connect"
		}
		f.add("broker's CPU", "%s µs %s, %.2f s, %s %% of a core", decimal(t.CPUUsPerMessage), what, t.CPUSeconds, decimal(t.CPUPercent))
		f.add("broker's memory", "%s before, %s after, %s at most", size(t.RSSBeforeBytes), size(t.RSSAfterBytes), size(t.RSSPeakBytes))
	}
	f.add("load's own CPU", "%.2f s", r.LoadCPUS)
	for _, n := range r.Notes {
		f.add("note", "%s", n)
	}
	f.write(w)
	benchDelays(w, r)
}

func benchLoad(r *bench.Result) string {
	if c := r.Connections; c != nil {
		return fmt.Sprintf("%s, %s, %d at the same time", r.Mode, plural(int64(c.Asked), "connection"), r.Window)
	}
	text := fmt.Sprintf("%s, %s, %s, %s, %s, QoS %d", r.Mode, plural(int64(r.Publishers), "publisher"), plural(int64(r.Subscribers), "subscriber"),
		plural(int64(r.Topics), "topic"), size(int64(r.SizeBytes)), r.QoS)
	if r.SubQoS != r.QoS {
		text += fmt.Sprintf(" to %d", r.SubQoS)
	}
	if r.RatePerS > 0 {
		return text + fmt.Sprintf(", %s/s", count(int64(r.RatePerS)))
	}
	return text + fmt.Sprintf(", window %d", r.Window)
}

func benchMessages(f *facts, r *bench.Result) {
	f.add("published", "%s (%s/s in %.1f s), %s acknowledged, %s refused", count(r.Published), count(int64(r.PublishedPerS)), r.MeasuredS, count(r.Acked), count(r.Refused))
	f.add("received", "%s of %s (%s/s)", count(r.Received), count(r.Expected), count(int64(r.ReceivedPerS)))
	f.add("lost", "%s", count(r.Lost))
	f.add("duplicated", "%s", count(r.Duplicated))
	f.add("out of order", "%s", count(r.Disordered))
	if r.Foreign > 0 {
		f.add("not of this run", "%s", count(r.Foreign))
	}
	if r.Stalled {
		f.add("stalled", "yes")
	}
	if o := r.Offline; o != nil {
		f.add("queued", "in %.2f s (%s/s)", o.QueueS, count(int64(o.QueuedPerS)))
		f.add("drained", "in %.2f s (%s/s), the first message after %s ms", o.DrainS, count(int64(o.DrainedPerS)), decimal(o.FirstMessageAfterMs))
		if r.Target != nil {
			f.add("broker's growth", "%s at most", size(o.RSSGrowthPeakBytes))
		}
	}
}

func benchConnections(f *facts, c *bench.ConnectionResult) {
	f.add("connected", "%s of %s (%s/s)", count(c.Connected), count(c.Asked), count(int64(c.ConnectedPerS)))
	if c.FirstError != "" {
		f.add("first error", "%s", c.FirstError)
	}
	if c.HeldS > 0 {
		f.add("held", "%.1f s, %s alive at the end", c.HeldS, count(c.AliveAfterHold))
	}
	if c.RSSPerOne != 0 {
		f.add("broker's memory per connection", "%s B", count(int64(c.RSSPerOne)))
		f.add("broker's CPU while idle", "%s %% of a core", decimal(c.IdleCPUPercent))
	}
}

func benchDelays(w io.Writer, r *bench.Result) {
	t := newTable("DELAY (ms)", ">P50", ">P99", ">P99.9", ">MAX", ">MEASURED")
	add := func(name string, l *bench.Latency) {
		if l != nil {
			t.add(name, decimal(l.P50Ms), decimal(l.P99Ms), decimal(l.P999Ms), decimal(l.MaxMs), count(l.Count))
		}
	}
	add("delivery", r.Delivery)
	add("acknowledgement", r.Ack)
	add("sending late", r.SendDelay)
	if r.Connections != nil {
		add("connect", r.Connections.Connect)
	}
	if len(t.rows) > 0 {
		_, _ = fmt.Fprintln(w)
		t.write(w)
	}
}

// decimal writes three significant digits at most, without an exponent.
func decimal(v float64) string {
	digits := 3
	switch {
	case v >= 100 || v <= -100:
		digits = 0
	case v >= 10 || v <= -10:
		digits = 1
	case v >= 1 || v <= -1:
		digits = 2
	}
	return strconv.FormatFloat(v, 'f', digits, 64)
}
