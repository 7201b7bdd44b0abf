package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"edgehub/hub/admin/api"
	"edgehub/hub/topic"
)

type tailFlags struct {
	from, filter string
	partition    int
	limit        int64
	noFollow     bool
}

func (a *app) tailCommand() *cobra.Command {
	var f tailFlags
	c := &cobra.Command{
		Use: "tail STREAM", Short: "Print the records of a stream as they arrive", Args: takes("STREAM"),
		Long: "tail prints records as JSON lines, or as readable lines with -o table. Records of one\n" +
			"partition come in the order of their offsets.\n\n" +
			"Without --from it begins with what arrives from now on; with --no-follow, at the earliest\n" +
			"record, and it ends with what is in the log now.",
		Example: "  hubctl tail main\n" +
			"  hubctl tail main --from earliest -n 10 --no-follow\n" +
			"  hubctl tail telemetry --from 2026-01-31T08:00:00Z --topic 'devices/+/telemetry' -o table\n" +
			"  hubctl tail telemetry --partition 2 --from 1200",
		RunE: func(c *cobra.Command, args []string) error {
			req, err := f.request(c, args[0])
			if err != nil {
				return err
			}
			return a.tail(c.Context(), req)
		},
	}
	flags := c.Flags()
	flags.StringVar(&f.from, "from", "", "earliest, latest, an OFFSET (with --partition) or an RFC 3339 time")
	flags.IntVar(&f.partition, "partition", 0, "only this partition (default all)")
	flags.StringVar(&f.filter, "topic", "", "only topics that match this MQTT filter")
	flags.Int64VarP(&f.limit, "count", "n", 0, "end after so many records (default no limit)")
	flags.BoolVar(&f.noFollow, "no-follow", false, "end at the end of the log")
	return c
}

// request judges the flags.
func (f *tailFlags) request(c *cobra.Command, stream string) (api.TailRequest, error) {
	req := api.TailRequest{Stream: stream, From: api.From{Kind: api.FromLatest}, Partition: api.AllPartitions, Filter: f.filter, Limit: f.limit, Follow: !f.noFollow}
	if f.noFollow {
		req.From.Kind = api.FromEarliest
	}
	var err error
	changed := c.Flags().Changed
	if changed("from") {
		if req.From, err = api.ParseFrom(f.from); err != nil {
			return req, usagef("tail: --%v", err)
		}
	}
	if changed("partition") {
		if req.Partition = f.partition; f.partition < 0 {
			return req, usagef("tail: --partition %d; partitions count from 0", f.partition)
		}
	}
	if changed("count") && f.limit < 1 {
		return req, usagef("tail: -n %d; give 1 or more, or leave it out for no limit", f.limit)
	}
	if changed("topic") {
		if err := topic.ValidateFilter(f.filter); err != nil {
			return req, usagef("tail: --topic %q: %v", f.filter, err)
		}
	}
	if req.From.Kind == api.FromOffset && req.Partition == api.AllPartitions {
		return req, usagef("tail: --from %s is an offset, which belongs to one partition; add --partition P", f.from)
	}
	return req, nil
}

func (a *app) tail(ctx context.Context, req api.TailRequest) error {
	hub, err := a.hub()
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(a.Stdout, 64<<10)
	print := printJSON
	if a.output == "table" {
		print = printReadable
	}
	// Flushed whenever nothing more is waiting: a burst costs few writes, a single
	// record no delay.
	err = hub.Tail(ctx, req, func(line []byte) error { return print(out, line) },
		func() error { return outputError(out.Flush()) })
	if flushErr := out.Flush(); err == nil {
		err = outputError(flushErr)
	}
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return nil // ended by hand: that is how a tail ends
	}
	return err
}

func printJSON(w *bufio.Writer, line []byte) error {
	_, _ = w.Write(line) // a bufio.Writer keeps its error for the next call
	return outputError(w.WriteByte('\n'))
}

// shownBytesMax is how much of a payload a readable line shows.
const shownBytesMax = 200

func printReadable(w *bufio.Writer, line []byte) error {
	r, err := api.StreamLine(line)
	if err != nil {
		return err
	}
	flags := fmt.Sprintf("qos%d", r.QoS)
	if r.Retain {
		flags += ",retain"
	}
	_, err = fmt.Fprintf(w, "%s  %s/%d-%d@%d  %s  %s  %s%s\n", r.Time, clean(r.Stream), r.Partition, r.Lane, r.Offset, clean(r.Topic), flags, payloadText(r.Payload), propertiesText(r.Properties))
	return outputError(err)
}

func payloadText(p []byte) string {
	switch {
	case len(p) == 0:
		return "(empty)"
	case !utf8.Valid(p):
		text := fmt.Sprintf("0x%x", p[:min(len(p), shownBytesMax/2)])
		return text + more(len(p)-shownBytesMax/2)
	}
	cut := min(len(p), shownBytesMax)
	for cut < len(p) && !utf8.RuneStart(p[cut]) {
		cut--
	}
	return clean(string(p[:cut])) + more(len(p)-cut)
}

func more(n int) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf(" … %s more", plural(int64(n), "byte"))
}

func propertiesText(properties [][]string) string {
	if len(properties) == 0 {
		return ""
	}
	parts := make([]string, len(properties))
	for i, p := range properties {
		parts[i] = clean(strings.Join(p, "="))
	}
	return "  [" + strings.Join(parts, " ") + "]"
}

func (a *app) pubCommand() *cobra.Command {
	var req api.PubRequest
	var qos int
	c := &cobra.Command{
		Use: "pub TOPIC [PAYLOAD]", Short: "Publish a message and say where it is in the log", Args: takes("TOPIC", "[PAYLOAD]"),
		Long: "pub publishes PAYLOAD, or else all of its standard input as it is, line ends included. It\n" +
			"returns when the stream's durability is reached. An empty payload with --retain removes the\n" +
			"retained message of the topic.",
		Example: "  hubctl pub devices/1/telemetry 21.5\n" +
			"  hubctl pub devices/1/telemetry -- -21.5\n" +
			"  hubctl pub devices/1/picture --qos 2 < picture.jpg",
		RunE: func(c *cobra.Command, args []string) error {
			if qos < 0 || qos > 2 {
				return usagef("pub: --qos %d; it is 0, 1 or 2", qos)
			}
			if err := topic.ValidateName([]byte(args[0])); err != nil {
				return usagef("pub: topic %q: %v", args[0], err)
			}
			req.Topic, req.QoS = args[0], byte(qos)
			if len(args) > 1 {
				req.Payload = []byte(args[1])
			}
			return a.pub(c.Context(), req, len(args) == 1)
		},
	}
	c.Flags().IntVar(&qos, "qos", 1, "0, 1 or 2: the quality of service that subscribers get at most")
	c.Flags().BoolVar(&req.Retain, "retain", false, "keep it for later subscribers")
	return c
}

// payloadBytesMax is the largest payload that MQTT knows.
const payloadBytesMax = 256 << 20

func (a *app) pub(ctx context.Context, req api.PubRequest, fromStdin bool) error {
	hub, err := a.hub() // first: whoever types the payload wants to know before
	if err != nil {
		return err
	}
	if fromStdin {
		req.Payload, err = io.ReadAll(io.LimitReader(a.Stdin, payloadBytesMax+1))
		if err != nil {
			return fmt.Errorf("the payload cannot be read from standard input: %w", err)
		}
		if len(req.Payload) > payloadBytesMax {
			return fmt.Errorf("the payload on standard input is larger than the %s that MQTT allows; send less", size(payloadBytesMax))
		}
	}
	res, err := hub.Publish(ctx, req)
	if err != nil {
		return err
	}
	return show(a, res, func(w io.Writer, r api.PubResult) {
		t := newTable("STREAM", ">PARTITION", ">LANE", ">OFFSET")
		t.add(r.Stream, fmt.Sprint(r.Partition), fmt.Sprint(r.Lane), fmt.Sprint(r.Offset))
		t.write(w)
	})
}
