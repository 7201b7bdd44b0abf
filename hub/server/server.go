// Package server puts the hub together: it opens the data directory, the metadata and the streams, recovers, serves,
// and stops in the reverse order. It is the only package of the hub that sees all others.
package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"edgehub/adapters/eventloop"
	"edgehub/adapters/mqtt"
	"edgehub/adapters/tlsconn"
	"edgehub/hub/admin"
	"edgehub/hub/auth"
	"edgehub/hub/broker"
	"edgehub/hub/config"
	"edgehub/hub/stream"
	"edgehub/internal/hubtime"
	"edgehub/internal/vfs"
	"edgehub/storage/datadir"
	"edgehub/storage/diskguard"
	"edgehub/storage/meta"
	"edgehub/storage/seglog"
)

// ErrUsage marks errors that the operator mends before another start: nothing was touched.
var ErrUsage = errors.New("cannot start")

// usage wraps an error as one of those, without changing its text.
type usage struct{ error }

func (u usage) Is(target error) bool { return target == ErrUsage }
func (u usage) Unwrap() error        { return u.error }

const (
	// stopConnections bounds how long a stop waits for connections to close.
	stopConnections = 5 * time.Second
	// descriptorsKept are not used for connections: segments, metadata, uplinks, the admin interface.
	// (64 open segments and as many unsynced ones, 192 connections of the admin interface, metadata, spare ones).
	descriptorsKept = 448
	connectionsMin  = 16
	readBytes       = 256 << 10
	gcPercent       = 50
)

// Server is a running hub.
type Server struct {
	cfg     *config.Config
	version string
	log     *slog.Logger
	started time.Time

	dir      *datadir.Dir
	disk     *diskguard.Guard
	diskMeta atomic.Pointer[meta.Store] // whose index the guard suspends
	meta     *meta.Store
	clock    *hubtime.Clock
	streams  *stream.Set
	broker   *broker.Broker
	mqtt     *mqtt.Server
	engine   *eventloop.Engine
	admin    *admin.Server
	uplinks  atomic.Pointer[[]*uplinkRunner] // changed by a reload, see runners
	source   *source
	auth     *auth.Auth

	// Level is the least severe level that the hub logs; set before Run, nil: fixed.
	Level *slog.LevelVar
	// LogSuppressed says how many lines the log has left out; set before Run, nil: none.
	LogSuppressed func() int64

	reloadMu sync.Mutex // guards running
	running  *config.Config
	serving  chan struct{} // closed once the hub serves
	hashing  sync.Once     // see roomForHashing

	listeners  []listener
	handshakes *tlsconn.Pool
	watch      chan struct{} // closed at stop

	ready       atomic.Bool
	stopping    atomic.Bool
	damaged     int              // metadata records that could not be read
	lost        map[string]int64 // by partition: records that were there at the last, clean stop
	metaRec     meta.Recovery
	maxConns    int
	descriptors int
	closeOnce   sync.Once
}

// New opens everything and recovers. Nothing is served before Run. On an error everything is closed again.
func New(cfg *config.Config, version string, log *slog.Logger) (*Server, error) {
	s := &Server{cfg: cfg, running: cfg, serving: make(chan struct{}), version: version, log: log, started: time.Now(), watch: make(chan struct{})}
	if err := s.limits(); err != nil {
		return nil, err
	}
	if err := s.probe(); err != nil {
		return nil, usage{err}
	}
	if err := s.openListeners(); err != nil {
		return nil, err
	}
	if err := s.open(); err != nil {
		_ = s.closeStores(false) // the error at hand is the one that matters
		return nil, err
	}
	return s, nil
}

// limits raises the descriptors to what is allowed, and bounds the memory.
func (s *Server) limits() error {
	n, err := eventloop.RaiseDescriptors()
	if err != nil {
		s.log.Warn("the limit of descriptors could not be raised", "limit", n, "err", err)
	}
	s.maxConns = s.cfg.Limits.MaxConnections
	s.descriptors = n
	kept := descriptorsKept
	for i := range s.cfg.Streams {
		kept += s.cfg.Streams[i].Partitions
	}
	allowed := n - kept
	if allowed < connectionsMin {
		return usage{fmt.Errorf("the limit of descriptors is %d and the hub itself may need %d of them: raise it to %d or more (LimitNOFILE= in the unit, ulimit -n in a shell)",
			n, kept, kept+connectionsMin)}
	}
	if s.maxConns == 0 || s.maxConns > allowed {
		if s.maxConns > allowed {
			s.log.Warn("limits.max_connections is more than the descriptors allow", "max_connections", s.maxConns, "allowed", allowed)
		}
		s.maxConns = allowed
	}
	// Most of what the hub holds is small or passing; collecting at half the growth costs little and halves the slack.
	debug.SetGCPercent(gcPercent)
	if m := s.cfg.Limits.Memory; m > 0 {
		debug.SetMemoryLimit(int64(m))
	}
	return nil
}

// probe finds addresses in use before anything on disk is touched.
func (s *Server) probe() error {
	for _, l := range s.cfg.Listeners {
		if err := eventloop.Probe(l.Address); err != nil {
			if errors.Is(err, eventloop.ErrAddressInUse) {
				return fmt.Errorf("listener address %s is in use: stop the program that listens there (ss -ltnp shows it) or change listener.address", l.Address)
			}
			return fmt.Errorf("%w; change listener.address", err)
		}
	}
	if a := s.cfg.Admin.Address; a != "" {
		if err := eventloop.Probe(a); err != nil {
			return fmt.Errorf("admin address %s cannot be used: %w; change admin.address, or set it to \"\" to turn it off", a, err)
		}
	}
	if s.cfg.Admin.Socket != "" && !s.inDataDir(s.cfg.Admin.Socket) {
		return admin.ProbeSocket(s.cfg.Admin.Socket)
	}
	return nil
}

// inDataDir reports whether a path is in the data directory, which has a lock of its own and may not be there yet.
func (s *Server) inDataDir(path string) bool {
	dir, err1 := filepath.Abs(s.cfg.Hub.DataDir)
	abs, err2 := filepath.Abs(path)
	rel, err3 := filepath.Rel(dir, abs)
	return errors.Join(err1, err2, err3) == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

func (s *Server) open() (err error) {
	data := s.cfg.Hub.DataDir
	if err := diskguard.MakeRoom(vfs.OS, data); err != nil {
		s.log.Warn("no room could be made on a full disk", "err", err)
	}
	if s.dir, err = datadir.Open(vfs.OS, data, s.cfg.Paths()...); err != nil {
		return usage{err}
	}
	s.watchDisk()
	if s.admin, err = admin.Listen(admin.Options{Socket: s.cfg.Admin.Socket, Address: s.cfg.Admin.Address,
		PayloadBytesMax: int64(s.cfg.Limits.MaxPacketBytes), Logger: s.log}); err != nil {
		return usage{err}
	}
	s.meta, s.metaRec, err = meta.Open(meta.Options{FS: s.disk.FS(), DataDir: data, Salt: s.dir.Salt(), Logger: s.log,
		IndexBytes: int64(s.cfg.Limits.IndexBytes), Free: s.disk.Free})
	if err != nil {
		return err
	}
	s.sayMeta()
	s.diskMeta.Store(s.meta)
	s.diskChanged(s.disk.Low())
	last, err := broker.LastTime(s.meta)
	if err != nil {
		return err
	}
	s.startClock(last)
	s.streams, err = stream.Open(specs(s.cfg), stream.Options{FS: s.disk.FS(), Dir: filepath.Join(data, "streams"),
		QuarantineDir: filepath.Join(data, "quarantine"), Salt: s.dir.Salt(), Index: s.meta.SegmentIndex(), Clock: s.clock, Logger: s.log})
	if err != nil {
		if errors.Is(err, stream.ErrPartitions) {
			return usage{err}
		}
		return err
	}
	s.streams.Slow.SyncBound = s.cfg.Disk.SlowAfter
	s.sayStreams()
	next := map[string]int64{}
	for _, p := range s.streams.Partitions {
		next[p.Name] = p.Log.Next()
		s.clock.Raise(p.Log.LastTime())
	}
	if s.dir.Unclean() {
		s.log.Info("the last run did not stop cleanly; recovered")
	} else if err := s.checkCleanStop(next); err != nil {
		return err
	}
	// The epoch's first offsets are synced before anything is appended under it.
	if err := s.dir.BeginRun(next); err != nil {
		return err
	}
	if s.auth, err = auth.New(auth.Options{UsersFile: s.cfg.Auth.UsersFile, ACLFile: s.cfg.Auth.ACLFile, BanAfter: s.cfg.Auth.BanAfter,
		BanTime: s.cfg.Auth.BanTime, Store: s.meta, Logger: s.log}); err != nil {
		return err
	}
	s.broker = broker.New(broker.Options{Streams: s.streams, Meta: s.meta, Clock: s.clock, Logger: s.log, Limits: s.brokerLimits(), Rights: s.auth.Rights,
		DiskLow: s.disk.Low, WriteWait: s.cfg.Disk.WriteWait})
	if s.damaged, err = s.broker.Recover(); err != nil {
		return err
	}
	s.source = newSource(s)
	return s.openUplinks()
}

func (s *Server) brokerLimits() broker.Limits {
	l := &s.cfg.Limits
	return broker.Limits{
		ReceiveMaximum:   l.ReceiveMaximum,
		SessionExpiryMax: seconds(l.SessionExpiryMax),
		SubsPerClient:    l.SubscriptionsPerClient,
		TopicLevels:      l.TopicLevelsMax,
		RetainedMessages: l.RetainedMessages,
		RetainedBytes:    int64(l.RetainedBytes),

		TakeoversPerMinute: l.TakeoversPerMinute,
		QoS0LagMs:          l.QoS0LagMax.Milliseconds(),
		AckHoldMs:          l.AckHoldMax.Milliseconds(),
		LagBytes:           int64(l.SubscriberLag),
		CatchupBytes:       int64(l.CatchupBytes),
		InboundBytes:       int64(l.InboundBytes),
		QueuedMessages:     l.QueuedMessages,
		QueuedBytes:        int64(l.QueuedBytes),
		OfflineBytes:       int64(l.OfflineBytes),
		QoS0WhenLow:        s.cfg.Disk.QoS0 == config.QoS0Write,
	}
}

func seconds(d time.Duration) uint32 {
	return uint32(min(int64(d/time.Second), math.MaxUint32))
}

// specs are the configured streams and the internal ones for retained messages and for absent sessions.
func specs(cfg *config.Config) []stream.Spec {
	var list []stream.Spec
	for i := range cfg.Streams {
		c := &cfg.Streams[i]
		sp := stream.Spec{Name: c.Name, Filters: c.Filters, Partitions: c.Partitions, ByClient: c.PartitionBy == config.PartitionByClient,
			ByLevel: c.PartitionLevel(), SegmentBytes: int64(c.SegmentBytes), MaxAge: c.Retention.MaxAge, MaxBytes: int64(c.Retention.MaxBytes),
			MaxRecords: int64(c.Retention.MaxRecords),
			RejectNew:  c.Retention.Full == config.FullRejectNew}
		switch c.Offline {
		case config.OfflineDropNew:
			sp.Offline = stream.OfflineDropNew
		case config.OfflineNone:
			sp.Offline = stream.OfflineNone
		}
		switch c.Durability {
		case config.DurabilitySynced:
			sp.Durability = stream.Synced
		case config.DurabilityMemory:
			sp.Durability = stream.Memory
		}
		if sp.Linger = c.Linger; c.Compression == config.CompressionZstd {
			sp.Codec = seglog.CodecZstd
		}
		list = append(list, sp)
	}
	return append(list, stream.Spec{Name: broker.RetainedStream, Partitions: 1, SegmentBytes: 16 << 20},
		stream.Spec{Name: broker.OfflineStream, Partitions: 1, SegmentBytes: offlineSegment(int64(cfg.Limits.OfflineBytes))})
}

// offlineSegment divides the copies for absent sessions into segments small enough to give back what is done with.
func offlineSegment(limit int64) int64 {
	if limit == 0 {
		return 16 << 20
	}
	return min(max(limit/16, 1<<20), 16<<20)
}

// metaGone reports whether all metadata of an earlier run are gone.
func (s *Server) metaGone() bool { return s.metaRec.Empty && s.dir.Ran() }

func (s *Server) sayMeta() {
	if s.metaGone() {
		s.log.Error("all metadata of earlier runs are gone: sessions, subscriptions, retained messages and uplink positions",
			"missing", []string{"meta", "streams/$meta"}, "cure", metaGoneCure)
	}
	sayRecovery(s.log, "$meta/0", seglog.Recovery{Quarantined: s.metaRec.Log.Quarantined}) // the store tells the damage itself
	if r := s.metaRec; r.Rebuilt && r.Reason != "" {
		s.log.Warn("the metadata index was rebuilt from the log", "reason", r.Reason, "quarantined", r.Quarantined)
	}
}

func (s *Server) sayStreams() {
	for name, r := range s.streams.Recoveries {
		sayRecovery(s.log, name, r)
	}
}

func sayRecovery(log *slog.Logger, name string, r seglog.Recovery) {
	if r.TornBytes > 0 {
		log.Warn("an incomplete write at the end of the log was cut", "partition", name, "bytes", r.TornBytes)
	}
	for _, q := range r.Quarantined {
		log.Warn("a file that is not a usable segment was moved away", "partition", name, "file", q.Name, "to", q.Path, "reason", q.Reason)
	}
	for _, d := range r.Damaged {
		log.Error("part of a segment is damaged and is skipped", "partition", name, "segment", d.Segment, "from", d.From, "to", d.To, "err", d.Err)
	}
}

// Run serves until ctx ends, then stops. It returns nil after a clean stop.
func (s *Server) Run(ctx context.Context) error {
	s.streams.Start(s.onSynced, stream.RetentionHooks{Hold: s.hold, BeforeDrop: s.beforeDrop, Tidy: s.broker.TidyOffline, Roll: s.broker.Roll, Dropped: s.droppedHeld})
	s.disk.Start()
	s.broker.Start()
	s.startMQTT()
	failed := make(chan error, 2)
	go func() { failed <- s.engine.Run() }()
	go func() {
		if err := s.admin.Serve(admin.Backend{Hub: s, Uplinks: s, Health: s, Metrics: s.metrics(), Store: s, Sessions: s, Retained: s, Guard: s}); err != nil {
			failed <- err
		}
	}()
	select {
	case <-s.engine.Booted():
	case err := <-failed:
		return errors.Join(err, s.stop())
	}
	s.startUplinks()
	s.mqtt.Start()
	go s.watchCertificates(s.watch)
	go s.watchSys(s.watch)
	go s.watchMemory(s.watch)
	s.ready.Store(true)
	close(s.serving)
	s.log.Info("serving", "hub", s.cfg.Hub.ID, "version", s.version, "data", s.cfg.Hub.DataDir, "listeners", addresses(s.cfg),
		"admin", s.cfg.Admin.Address, "max_connections", s.maxConns, "epoch", s.dir.Epoch(), "ready_ms", time.Since(s.started).Milliseconds())
	var err error
	select {
	case <-ctx.Done():
		s.log.Info("stopping")
	case err = <-failed:
		s.log.Error("stopping, since a part of the hub has failed", "err", err)
	}
	return errors.Join(err, s.stop())
}

func addresses(cfg *config.Config) []string {
	var list []string
	for _, l := range cfg.Listeners {
		list = append(list, l.Address)
	}
	return list
}

func (s *Server) startMQTT() {
	l := &s.cfg.Limits
	s.mqtt = mqtt.New(mqtt.Options{Broker: s.broker, Auth: s.auth, Clock: s.clock, Logger: s.log, Listeners: s.mqttListeners(),
		MaxConnections: s.maxConns, MaxPacket: int(l.MaxPacketBytes), TopicLevels: l.TopicLevelsMax, ReceiveMaximum: l.ReceiveMaximum,
		SessionExpiryMax: seconds(l.SessionExpiryMax), KeepAliveMax: int(l.KeepAliveMax / time.Second), ConnectTimeout: l.ConnectTimeout,
		PublishMessages: int64(l.PublishMessagesPerS), PublishBytes: int64(l.PublishBytesPerS), ValidatePayload: l.ValidatePayloadFormat,
		QoSMax: byte(l.QoSMax), NoRetain: !l.Retain, ResponseInfo: s.cfg.Hub.ResponseInformation,
		OutboundPerClient: int(l.OutboundBytesPerClient), Outbound: int64(l.OutboundBytes)})
	s.mqtt.HideReasons(s.cfg.Auth.HideReasons)
	loops := l.Loops
	if loops == 0 {
		loops = runtime.GOMAXPROCS(0)
	}
	s.roomForHashing(s.cfg)
	s.engine = eventloop.New(eventloop.Options{Listeners: s.engineListeners(), Loops: loops, Descriptors: s.descriptors, ReadBytes: readBytes,
		PerAddress: l.ConnectionsPerAddress, UserTimeout: l.TCPUserTimeout,
		Logf: func(format string, args ...any) { s.log.Warn("event loop", "says", fmt.Sprintf(format, args...)) }}, s.mqtt)
}

// What the log held at a clean stop is in the metadata, so that a loss in between is noticed: the epoch then rises, or
// the uplink would take new records under old offsets for ones that the remote has.
func cleanStopKey(part string) []byte { return []byte("n/" + part) }

func (s *Server) noteCleanStop() {
	for _, p := range s.streams.Partitions {
		s.meta.Put(cleanStopKey(p.Name), binary.BigEndian.AppendUint64(nil, uint64(p.Log.Next())))
	}
}

func (s *Server) checkCleanStop(next map[string]int64) error {
	s.lost = map[string]int64{}
	err := s.meta.Scan([]byte("n/"), func(key, v []byte) error {
		name := string(key[2:])
		if now, open := next[name]; len(v) == 8 && (!open || now < int64(binary.BigEndian.Uint64(v))) {
			s.lost[name] = int64(binary.BigEndian.Uint64(v)) - now
		}
		return nil
	})
	for name, n := range s.lost {
		s.log.Error("records are gone that were in the log at the last, clean stop", "partition", name, "records", n)
		s.dir.RaiseEpoch()
	}
	return err
}

func (s *Server) onSynced(p *stream.Partition, synced int64) {
	s.broker.Synced(p, synced)
	s.source.notify()
}

func (s *Server) beforeDrop(p *stream.Partition, seg seglog.SegmentInfo) error {
	if err := s.broker.KeepRetained(p, seg); err != nil {
		return err
	}
	return s.broker.KeepOffline(p, seg)
}

// stop ends everything in order: no new connections, the last round, the uplinks, then sync and close.
func (s *Server) stop() error {
	s.ready.Store(false)
	s.stopping.Store(true)
	close(s.watch)
	var errs []error
	ctx, cancel := context.WithTimeout(context.Background(), stopConnections)
	defer cancel()
	if s.broker != nil {
		s.broker.ReleaseAcks()
	}
	if s.mqtt != nil {
		if err := s.mqtt.Shutdown(ctx); err != nil {
			s.log.Warn("not every connection closed in time", "open", s.mqtt.Open())
		}
		s.mqtt.Stop()
	}
	if s.engine != nil {
		select {
		case <-s.engine.Booted():
			errs = append(errs, s.engine.Stop(context.Background()))
		default:
		}
	}
	s.stopUplinks()
	s.broker.Stop()
	s.disk.Stop()
	return errors.Join(append(errs, s.closeStores(true))...)
}

// closeStores syncs and closes whatever is open. clean says that the last round has finished.
func (s *Server) closeStores(clean bool) error {
	var errs []error
	s.closeOnce.Do(func() {
		if s.auth != nil {
			s.auth.Close()
		}
		if s.streams != nil {
			errs = append(errs, s.streams.Close())
		}
		if clean && s.streams != nil && errors.Join(errs...) == nil {
			s.noteCleanStop()
		}
		if s.meta != nil {
			errs = append(errs, s.meta.Sync(), s.meta.Close())
		}
		if s.admin != nil {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			errs = append(errs, s.admin.Shutdown(ctx))
		}
		if s.dir != nil {
			errs = append(errs, s.dir.Close(clean && errors.Join(errs...) == nil))
		}
	})
	return errors.Join(errs...)
}
