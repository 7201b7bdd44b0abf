package server

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"strconv"
	"time"

	"edgehub/hub/admin/api"
	"edgehub/hub/broker"
	"edgehub/hub/config"
	"edgehub/hub/stream"
	"edgehub/internal/hubtime"
	"edgehub/storage/inspect"
	"edgehub/storage/meta"
	"edgehub/storage/seglog"
)

// Verify implements admin.Store.
func (s *Server) Verify(ctx context.Context, name string, fn func(inspect.Finding)) (inspect.Summary, error) {
	logs := []*seglog.Log{s.meta.Log()}
	if name != inspect.MetaStream {
		find := s.find
		if name == broker.OfflineStream || name == broker.RetainedStream {
			find = s.streams.Stream
		}
		x, err := find(name)
		if err != nil {
			return inspect.Summary{}, err
		}
		logs = x.Logs()
	}
	return inspect.Live(ctx, name, logs, fn)
}

// DeleteStream implements admin.Store.
func (s *Server) DeleteStream(name string) (inspect.Deleted, error) {
	x, err := s.find(name)
	if err != nil {
		return inspect.Deleted{}, err
	}
	got, err := s.streams.Delete(x)
	if errors.Is(err, stream.ErrConfigured) {
		return got, api.Conflict("stream %q is in the configuration; take it out and restart the hub, then delete it", name)
	}
	if err == nil {
		s.log.Warn("a stream was deleted by an operator", "stream", name, "records", got.Records, "bytes", got.Bytes)
	}
	return got, err
}

// Backup implements admin.Store.
func (s *Server) Backup(ctx context.Context, w io.Writer) error {
	began := time.Now()
	src := inspect.Source{Hub: s.cfg.Hub.ID, Version: s.version, Manifest: s.dir.Manifest,
		Logs: []inspect.BackupLog{{Partition: inspect.Partition{Name: meta.LogName, Dir: filepath.FromSlash(meta.LogDir)}, Log: s.meta}}}
	for _, p := range s.streams.Partitions {
		dir := filepath.Join("streams", p.Stream.Name, strconv.Itoa(p.Index))
		src.Logs = append(src.Logs, inspect.BackupLog{Partition: inspect.Partition{Name: p.Name, Dir: dir}, Log: p.Log})
	}
	got, err := inspect.Backup(ctx, w, src)
	if err == nil {
		s.log.Info("backup made", "files", len(got.Files), "bytes", got.Bytes, "took", time.Since(began).Round(time.Millisecond))
	}
	return err
}

// startClock goes on with hub time.
func (s *Server) startClock(last hubtime.Mark) {
	s.clock = hubtime.Continue(last, hubtime.Machine(s.cfg.Hub.Clock == config.ClockTrusted))
	if behind := s.clock.Behind(); last.HubMs > 0 && behind >= clockApart {
		s.log.Warn("hub time goes on from the last run, not from the machine's clock, until the kernel calls that synchronised; set up a time server, or hub.clock = \"trusted\"",
			"hub", hubtime.At(s.clock.NowMs()), "behind", behind.Round(time.Second))
	}
}

// clockApart is from what difference on the machine's clock and hub time count as apart.
const clockApart = 10 * time.Second
