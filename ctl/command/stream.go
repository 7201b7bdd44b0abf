package command

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"edgehub/ctl/client"
	"edgehub/hub/admin/api"
)

func (a *app) streamCommand() *cobra.Command {
	ls := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the streams", Args: takes(),
		RunE: run(a, func(ctx context.Context, hub *client.Client, _ []string) ([]api.StreamStatus, error) {
			st, err := hub.Status(ctx)
			return st.Streams, err
		}, writeStreams),
	}
	show := &cobra.Command{
		Use: "show STREAM", Short: "Show a stream, its settings and partitions", Args: takes("STREAM"),
		RunE: run(a, func(ctx context.Context, hub *client.Client, args []string) (api.StreamDetail, error) {
			return hub.Stream(ctx, args[0])
		}, writeStream),
	}
	return a.group("stream", "The streams: durable logs of messages", ls, show, a.verifyCommand(), a.dumpCommand(), a.repairCommand(), a.deleteStreamCommand())
}

func writeStreams(w io.Writer, streams []api.StreamStatus) {
	t := newTable("STREAM", "DURABILITY", ">PARTITIONS", ">RECORDS", ">UNSYNCED", ">SIZE", ">SEGMENTS", "CONFIGURED")
	for _, s := range streams {
		records, bytes, unsynced, segments := s.Totals()
		t.add(s.Name, s.Durability, count(len(s.Partitions)), count(records), count(unsynced), size(bytes), count(segments), yesNo(s.Configured))
	}
	t.write(w)
}

func writeStream(w io.Writer, d api.StreamDetail) {
	var f facts
	f.add("stream", "%s", d.Name)
	if d.Configured {
		f.add("filters", "%s", strings.Join(d.Filters, " "))
		f.add("partition by", "%s", d.PartitionBy)
		f.add("durability", "%s", d.Durability)
		f.add("compression", "%s", d.Compression)
		f.add("segment", "%s", size(d.SegmentBytes))
		f.add("retention", "%s", retentionText(d.Retention))
		f.add("removed", "%s", plural(d.Retention.RemovedRecords, "record"))
	} else {
		f.add("configured", "no: its data is kept and can be read; nothing is added")
	}
	f.write(w)
	_, _ = fmt.Fprintln(w)
	t := newTable(">PARTITION", ">LANE", ">FIRST", ">NEXT", ">SYNCED", ">RECORDS", ">SIZE", ">SEGMENTS", ">DAMAGED")
	for _, p := range d.Partitions {
		t.add(strconv.Itoa(p.Partition), strconv.Itoa(p.Lane), strconv.FormatInt(p.FirstOffset, 10), strconv.FormatInt(p.NextOffset, 10),
			strconv.FormatInt(p.SyncedOffset, 10), count(p.NextOffset-p.FirstOffset), size(p.Bytes), count(p.Segments), count(p.DamagedRanges))
	}
	t.write(w)
}

func retentionText(r api.Retention) string {
	age := "no limit by age"
	if r.MaxAgeS > 0 {
		age = span(r.MaxAgeS)
	}
	most := size(r.MaxBytes)
	if r.MaxRecords > 0 {
		most += ", " + count(r.MaxRecords) + " records"
	}
	text := fmt.Sprintf("%s, %s, when full %s", age, most, r.Full)
	if r.HeldBy != "" {
		text += ", age waits for uplink " + r.HeldBy
	}
	return text
}
