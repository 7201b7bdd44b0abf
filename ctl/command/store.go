package command

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"edgehub/ctl/client"
	"edgehub/hub/admin/api"
	"edgehub/internal/vfs"
	"edgehub/storage/inspect"
)

// dataDirFlag adds --data-dir to a verb that works without a hub as well.
func dataDirFlag(c *cobra.Command, dir *string) *cobra.Command {
	c.Flags().StringVar(dir, "data-dir", "", "work on this data directory, or a copy of one, instead of asking a hub")
	return c
}

func (a *app) verifyCommand() *cobra.Command {
	var dir string
	return dataDirFlag(&cobra.Command{
		Use: "verify STREAM", Short: "Prove every record of a stream", Args: takes("STREAM"),
		Long: "verify reads the whole stream, proves every checksum and decodes every record. It prints a line\n" +
			"for each range of offsets that cannot be served, with segment and reason, and then a summary.\n\n" +
			"It asks the running hub, which goes on meanwhile. With --data-dir it reads the files itself: of a\n" +
			"hub that is stopped, or of a copy. The stream $meta holds the hub's own metadata.\n\n" +
			"Exit code 1 when anything was found.",
		Example: "  hubctl stream verify telemetry\n  hubctl stream verify telemetry --data-dir /mnt/copy/data",
		RunE:    func(c *cobra.Command, args []string) error { return a.verify(c.Context(), args[0], dir) },
	}, &dir)
}

// verified is what `stream verify` prints as JSON.
type verified struct {
	inspect.Summary
	Found []inspect.Finding `json:"found"`
}

// findingsMax bounds what is kept for JSON; the summary counts all.
const findingsMax = 100_000

func (a *app) verify(ctx context.Context, stream, dir string) error {
	v := verified{Found: []inspect.Finding{}}
	out := bufio.NewWriter(a.Stdout)
	tell := func(f inspect.Finding) {
		if a.output != "json" {
			_, _ = fmt.Fprintln(out, clean(f.String())) // the flush tells
		} else if len(v.Found) < findingsMax {
			v.Found = append(v.Found, f)
		}
	}
	m := a.progress("verify "+clean(stream), 0)
	var err error
	if dir != "" {
		var d *inspect.Dir
		if d, err = inspect.Open(vfs.OS, dir); err == nil {
			v.Summary, err = d.Verify(ctx, stream, tell)
		}
	} else if hub, herr := a.hub(); herr == nil {
		v.Summary, err = hub.Verify(ctx, stream, tell)
	} else if err = herr; errors.Is(herr, client.ErrNotRunning) {
		err = fmt.Errorf("%w; or verify the files of a stopped hub with --data-dir", herr)
	}
	m.end()
	if ferr := out.Flush(); err == nil {
		err = outputError(ferr)
	}
	if err != nil {
		return err
	}
	if err := show(a, v, writeVerified); err != nil {
		return err
	}
	if v.Findings > 0 {
		return fmt.Errorf("stream %s: %s; with the hub stopped, `hubctl stream repair %s --data-dir DIR` puts an end to it", stream, plural(int64(v.Findings), "finding"), stream)
	}
	return nil
}

func writeVerified(w io.Writer, v verified) {
	state := "good"
	if v.Findings > 0 {
		state = plural(int64(v.Findings), "finding")
	}
	_, _ = fmt.Fprintf(w, "%s: %s in %s, %s, %s: %s\n", v.Stream, plural(v.Records, "record"), plural(int64(v.Partitions), "partition"),
		plural(int64(v.Segments), "segment"), size(v.Bytes), state)
	if v.Void > 0 {
		_, _ = fmt.Fprintf(w, "%s were lost before and are on record as such\n", plural(v.Void, "offset"))
	}
}

func (a *app) repairCommand() *cobra.Command {
	var dir string
	var dry bool
	c := dataDirFlag(&cobra.Command{
		Use: "repair STREAM", Short: "Cut damage out of a stream, with the hub stopped", Args: takes("STREAM"),
		Long: "repair replaces what cannot be proven by a mark that says which offsets are lost, cuts off an\n" +
			"unfinished write, and moves files that are no segments away. The bytes as they were are kept in\n" +
			"quarantine/ in the data directory. It brings nothing back: a hub reads around damage by itself.\n\n" +
			"It needs --data-dir and refuses while a hub owns that directory.",
		RunE: func(_ *cobra.Command, args []string) error {
			if dir == "" {
				return usagef("stream repair: it works on files; stop the hub and give its --data-dir")
			}
			return a.repair(args[0], dir, dry)
		},
	}, &dir)
	c.Flags().BoolVar(&dry, "dry-run", false, "only say what would be done")
	return c
}

func (a *app) repair(stream, dir string, dry bool) error {
	d, err := inspect.Open(vfs.OS, dir)
	if err != nil {
		return err
	}
	done := []inspect.Mended{}
	if err := d.Repair(stream, dry, func(m inspect.Mended) { done = append(done, m) }); err != nil {
		return err
	}
	return show(a, done, func(w io.Writer, list []inspect.Mended) {
		for _, m := range list {
			line := m.Finding.String() + ": " + m.Action
			if m.Aside != "" {
				line += ", as it was in " + m.Aside
			}
			_, _ = fmt.Fprintln(w, clean(line))
		}
		what := "nothing to repair"
		if n := int64(len(list)); n > 0 && dry {
			what = plural(n, "thing") + " to repair; nothing was changed"
		} else if n > 0 {
			what = plural(n, "thing") + " repaired"
		}
		_, _ = fmt.Fprintf(w, "%s: %s\n", stream, what)
	})
}

func (a *app) deleteStreamCommand() *cobra.Command {
	var dir string
	var yes bool
	c := dataDirFlag(&cobra.Command{
		Use: "delete STREAM", Short: "Delete the records of a stream that is no longer configured", Args: takes("STREAM"),
		Long: "delete removes all records of the stream, for good. The hub refuses while its configuration has\n" +
			"the stream. Should it be configured again, its offsets go on where they were.",
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.confirm(yes, "Delete all records of stream %s, for good?", clean(args[0])); err != nil {
				return err
			}
			return a.deleteStream(c.Context(), args[0], dir)
		},
	}, &dir)
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return c
}

func (a *app) deleteStream(ctx context.Context, stream, dir string) error {
	var got inspect.Deleted
	var err error
	switch {
	case dir == "":
		hub, herr := a.hub()
		if herr != nil {
			return herr
		}
		got, err = hub.DeleteStream(ctx, stream)
	case stream == "" || stream[0] == '$':
		return fmt.Errorf("stream %q is the hub's own and is not deleted", stream)
	default:
		if a.config != "" {
			cfg, cerr := loadConfig(a.config)
			if cerr != nil {
				return cerr
			}
			if cfg.Stream(stream) != nil {
				return fmt.Errorf("stream %q is in %s; take it out first", stream, a.config)
			}
		}
		var d *inspect.Dir
		if d, err = inspect.Open(vfs.OS, dir); err == nil {
			got, err = d.Delete(stream)
		}
	}
	if err != nil {
		return err
	}
	return show(a, got, func(w io.Writer, d inspect.Deleted) {
		_, _ = fmt.Fprintf(w, "stream %s: %s deleted, %s\n", clean(d.Stream), plural(d.Records, "record"), size(d.Bytes))
	})
}

func (a *app) dumpCommand() *cobra.Command {
	var headers bool
	c := &cobra.Command{
		Use: "dump FILE", Short: "Print what is in a segment file, as JSON lines", Args: takes("FILE"),
		Long: "dump prints a line for each batch of the file, and one for each record in it. It needs no hub and\n" +
			"disturbs none. What is no batch has a line with its position and the reason; then the exit code is 1.\n" +
			"Header checksums are judged where the file lies in a data directory.",
		RunE: func(_ *cobra.Command, args []string) error { return a.dump(args[0], headers) },
	}
	c.Flags().BoolVar(&headers, "headers", false, "only the batches, not their records")
	return c
}

// dumpedBatch and dumpedRecord are the lines of `stream dump`.
type dumpedBatch struct {
	Batch struct {
		Position  int64       `json:"position"`
		Bytes     int64       `json:"bytes"`
		Base      int64       `json:"base_offset"`
		Last      int64       `json:"last_offset"`
		Records   int         `json:"records"`
		Codec     string      `json:"codec"`
		Time      *api.Millis `json:"time,omitempty"`
		MaxTime   *api.Millis `json:"max_time,omitempty"`
		HeaderCRC string      `json:"header_crc"`
		Error     string      `json:"error,omitempty"`
	} `json:"batch"`
}

type dumpedRecord struct {
	Offset        int64       `json:"offset"`
	Time          api.Millis  `json:"time"`
	Topic         string      `json:"topic"`
	Payload       *string     `json:"payload,omitempty"`
	PayloadBase64 *string     `json:"payload_base64,omitempty"`
	Headers       [][2]string `json:"headers,omitempty"` // names that begin with a NUL are the hub's own, their values in base64
}

func (a *app) dump(path string, headersOnly bool) error {
	out := bufio.NewWriterSize(a.Stdout, 64<<10)
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	bad := 0
	err := inspect.Dump(vfs.OS, path, func(b inspect.Batch, err error) error {
		var line dumpedBatch
		x := &line.Batch
		x.Position, x.Bytes, x.Base, x.Last, x.Records = b.Position, b.Bytes, b.Base, b.Last, b.Records
		x.Codec, x.HeaderCRC = b.Codec.String(), b.HeaderCRC
		if err != nil || b.HeaderCRC == "wrong" {
			bad++
		}
		if err != nil {
			x.Error = err.Error()
		} else {
			first, last := api.Millis(b.BaseMs), api.Millis(b.MaxMs)
			x.Time, x.MaxTime = &first, &last
		}
		return outputError(enc.Encode(line))
	}, func(r inspect.Record) error {
		if headersOnly {
			return nil
		}
		return outputError(enc.Encode(dumpRecord(r)))
	})
	if err == nil {
		err = outputError(out.Flush())
	}
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("there is no file %s; segments are below DATA/streams/STREAM/PARTITION", path)
	}
	if err == nil && bad > 0 {
		return fmt.Errorf("%s: %s cannot be believed", path, plural(int64(bad), "stretch"))
	}
	return err
}

func dumpRecord(r inspect.Record) dumpedRecord {
	line := dumpedRecord{Offset: r.Offset, Time: api.Millis(r.TimeMs), Topic: string(r.Key)}
	text := string(r.Value)
	if utf8.Valid(r.Value) {
		line.Payload = &text
	} else {
		text = base64.StdEncoding.EncodeToString(r.Value)
		line.PayloadBase64 = &text
	}
	for k, v := range r.Headers.All() {
		value := string(v)
		if len(k) > 0 && k[0] == 0 {
			value = base64.StdEncoding.EncodeToString(v)
		}
		line.Headers = append(line.Headers, [2]string{string(k), value})
	}
	return line
}
