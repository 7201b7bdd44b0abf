// Package stream keeps the hub's named logs: which topics a stream captures, its partitions on disk, when they are
// synced, and when their oldest segments go.
//
// A Set is opened once from the configuration. Routing is by first match over the streams in their order; the built-in
// stream comes last and takes the rest. The bytes of a partition are a storage/seglog Log; who appends to it, and what
// follows a commit, is the broker's business.
package stream

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"edgehub/hub/topic"
	"edgehub/internal/hubtime"
	"edgehub/internal/vfs"
	"edgehub/storage/seglog"
)

// Errors that callers tell apart.
var (
	// ErrPartitions is returned when a stream that has data is configured with another number of partitions.
	ErrPartitions = errors.New("stream: the number of partitions may not change once the stream has data")
	// ErrUnknown is returned for the name of a stream that the hub does not have.
	ErrUnknown = errors.New("stream: unknown stream")
)

// Durability says when an append counts as committed.
type Durability uint8

// The durabilities.
const (
	Written Durability = iota // write(2) has returned: survives the end of the process
	Synced                    // fdatasync has returned: survives a power cut
	Memory                    // nothing: written behind, within Spec.Linger
)

// lingerMemory is the linger of Memory streams that name none.
const lingerMemory = 100 * time.Millisecond

// Offline says what becomes of QoS 1 and 2 messages that a session still has to receive when their segment goes.
type Offline uint8

// The policies. A session that would have more copies than it may loses its oldest ones, or gets no more.
const (
	OfflineDropOldest Offline = iota
	OfflineDropNew
	OfflineNone // nothing is copied
)

// Spec is the configuration of one stream.
type Spec struct {
	Name         string
	Filters      []string
	Partitions   int
	ByClient     bool // partition by client id instead of by topic
	ByLevel      int  // partition by the topic's first N levels; 0: by the whole topic
	Durability   Durability
	Codec        seglog.Codec  // of what is written; everything can be read
	Linger       time.Duration // how long records wait for others to be written with; at least 1 ms for Memory
	SegmentBytes int64
	MaxAge       time.Duration // 0: no limit
	MaxBytes     int64         // over all partitions; 0: no limit
	MaxRecords   int64         // over all partitions; 0: no limit
	RejectNew    bool          // at MaxBytes or MaxRecords: refuse new messages instead of dropping the oldest
	Offline      Offline
}

// Limits are what retention holds a stream to; they may change while the hub runs.
type Limits struct {
	MaxAge     time.Duration // as in Spec
	MaxBytes   int64
	MaxRecords int64
	RejectNew  bool
}

// Stream is one named log. Immutable but for the atomics.
type Stream struct {
	Spec       // what it was opened with; the limits in force are those of Limits
	Partitions []*Partition
	Configured bool // false: data of a stream that the configuration no longer has; served to readers only
	exact      map[string]bool
	bytes      atomic.Int64 // on disk, all partitions; recomputed by retention
	limits     atomic.Pointer[Limits]
	records    atomic.Int64 // in the log, all partitions; recomputed by retention
	full       atomic.Bool  // at a limit with RejectNew
	Dropped    atomic.Int64 // records deleted by retention for bytes or their number
	Expired    atomic.Int64 // records deleted by retention for age
	Refused    atomic.Int64 // messages refused because the stream is full
}

// Partition is one ordered log of a stream.
type Partition struct {
	ID     uint32 // dense over the Set, this run only
	Index  int
	Name   string // "telemetry/0-0": stream, partition, lane; stable over restarts
	Stream *Stream
	Log    *seglog.Log
	// committed is the offset below which readers may read: written for Written streams, synced for Synced ones.
	committed atomic.Int64
	syncing   atomic.Bool  // a sync was asked for
	unsynced  atomic.Int64 // bytes appended since the last sync began
	counted   atomic.Int64 // Next as of the last look, for Stream.records
	follow    atomic.Bool  // an uplink reads it: keep the synced offset close
}

// Committed is the offset below which records are committed in the stream's durability and may be read.
func (p *Partition) Committed() int64 { return p.committed.Load() }

// Readable is Committed, or less where records are committed before they are written: what the log can be asked for.
func (p *Partition) Readable() int64 { return min(p.committed.Load(), p.Log.Next()) }

// SetCommitted publishes a new committed offset. Only the partition's committer calls it, with rising values.
func (p *Partition) SetCommitted(o int64) { p.committed.Store(o) }

// unsyncedSegments bounds how many segments may wait for their fdatasync: each holds a descriptor.
const (
	unsyncedSegments = 48
	unsyncedMin      = 32 << 20 // bytes that may wait however small the segments are
)

// Stalled reports that the disk does not sync as fast as records come: no more are taken until it has caught up.
func (p *Partition) Stalled() bool {
	return p.unsynced.Load() > max(unsyncedSegments*p.Stream.SegmentBytes, unsyncedMin)
}

// Limits are the retention limits in force.
func (s *Stream) Limits() *Limits { return s.limits.Load() }

// SetLimits changes the retention limits of a stream. They hold for the next message, and for what is there at once.
func (s *Set) SetLimits(st *Stream, l Limits) {
	st.limits.Store(&l)
	st.full.Store(l.RejectNew && l.over(st.bytes.Load(), st.records.Load()))
	poke(s.retention.kick)
}

// Full reports that the stream takes no new messages until retention makes room.
func (s *Stream) Full() bool { return s.full.Load() }

// Options of a Set.
type Options struct {
	FS            vfs.FS
	Dir           string // the streams directory
	QuarantineDir string
	Salt          uint32
	Index         seglog.IndexStore
	Clock         *hubtime.Clock
	Logger        *slog.Logger
	OpenAtOnce    int // how many logs are opened at the same time; 0: openAtOnce
}

// Set is all streams of the hub.
type Set struct {
	o          Options
	Streams    []*Stream // configured ones in matching order, then the others
	Partitions []*Partition
	Recoveries map[string]seglog.Recovery // what opening each partition found, by its name
	Slow       Slow                       // what the disk takes long for
	sync       *syncer
	retention  *retention
	summaries  *summarizer
}

// Open opens every configured stream, creating what is missing, and every other stream found on disk for reading.
func Open(specs []Spec, o Options) (*Set, error) {
	s := &Set{o: o, Recoveries: map[string]seglog.Recovery{}}
	known := map[string]bool{}
	for _, sp := range specs {
		known[sp.Name] = true
		if err := s.checkPartitions(sp); err != nil {
			return nil, err
		}
	}
	for _, sp := range specs {
		s.add(sp, true)
	}
	entries, err := o.FS.ReadDir(o.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("stream: read %s: %w", o.Dir, err)
	}
	for _, e := range entries {
		if !e.IsDir() || known[e.Name()] || strings.HasPrefix(e.Name(), "$") {
			continue
		}
		n, err := s.partitionsOnDisk(e.Name())
		if err != nil {
			return nil, err
		}
		if n > 0 {
			s.add(Spec{Name: e.Name(), Partitions: n, SegmentBytes: 64 << 20}, false)
		}
	}
	if err := s.openLogs(); err != nil {
		return nil, errors.Join(err, s.closeLogs())
	}
	s.sync = newSyncer(s)
	s.retention = newRetention(s)
	s.summaries = newSummarizer(s)
	return s, nil
}

func partitionDir(dir, stream string, index int) string {
	return filepath.Join(dir, stream, strconv.Itoa(index))
}

// partitionsOnDisk counts the partition directories of a stream; 0 when it has none.
func (s *Set) partitionsOnDisk(name string) (int, error) {
	entries, err := s.o.FS.ReadDir(filepath.Join(s.o.Dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("stream %s: %w", name, err)
	}
	n := 0
	for _, e := range entries {
		if i, err := strconv.Atoi(e.Name()); err == nil && e.IsDir() {
			n = max(n, i+1)
		}
	}
	return n, nil
}

// checkPartitions refuses another number of partitions before anything is opened: a topic would change its partition
// and lose its order.
func (s *Set) checkPartitions(sp Spec) error {
	n, err := s.partitionsOnDisk(sp.Name)
	if err != nil {
		return err
	}
	if n == 0 || n == sp.Partitions {
		return nil
	}
	if empty, err := s.holdsNothing(sp.Name, n); err != nil || empty {
		return err
	}
	return fmt.Errorf("%w: stream %q has %d on disk and %d in the configuration; set partitions = %d, or give the stream a new name",
		ErrPartitions, sp.Name, n, sp.Partitions, n)
}

// add lists a stream and its partitions, whose logs are still to be opened.
func (s *Set) add(sp Spec, configured bool) {
	if sp.Durability == Memory && sp.Linger <= 0 {
		sp.Linger = lingerMemory
	}
	st := &Stream{Spec: sp, Configured: configured, exact: map[string]bool{}}
	st.limits.Store(&Limits{MaxAge: sp.MaxAge, MaxBytes: sp.MaxBytes, MaxRecords: sp.MaxRecords, RejectNew: sp.RejectNew})
	for _, f := range sp.Filters {
		if !strings.ContainsAny(f, "+#") {
			st.exact[f] = true
		}
	}
	for i := range sp.Partitions {
		p := &Partition{ID: uint32(len(s.Partitions)), Index: i, Name: sp.Name + "/" + strconv.Itoa(i) + "-0", Stream: st}
		st.Partitions = append(st.Partitions, p)
		s.Partitions = append(s.Partitions, p)
	}
	s.Streams = append(s.Streams, st)
}

// indexBytes spaces the sparse index so that a full segment has about 4,096 entries, and at least every 4 KiB one.
func indexBytes(segment int64) int { return int(max(segment/4096, 4096)) }

// Route returns the stream that captures the topic: the first configured one with a matching filter; nil when there is
// none, as for `$` topics that no filter names.
func (s *Set) Route(name string) *Stream {
	for _, st := range s.Streams {
		if !st.Configured {
			break
		}
		if st.exact[name] || slices.ContainsFunc(st.Filters, func(f string) bool { return topic.Match(f, name) }) {
			return st
		}
	}
	return nil
}

// Pick returns the partition of the stream for a topic published by client. A topic has one partition (of one client,
// when partitioned by client), so that order holds. The hash is part of the on-disk contract.
func (s *Stream) Pick(name, client string) *Partition {
	if len(s.Partitions) == 1 {
		return s.Partitions[0]
	}
	key := name
	switch {
	case s.ByClient:
		key = client
	case s.ByLevel > 0:
		key = firstLevels(name, s.ByLevel)
	}
	return s.Partitions[topic.Hash([]byte(key))%uint64(len(s.Partitions))]
}

// firstLevels is the part of name before its n-th separator.
func firstLevels(name string, n int) string {
	for i := range len(name) {
		if name[i] == '/' {
			if n--; n == 0 {
				return name[:i]
			}
		}
	}
	return name
}

// Stream returns the stream of that name.
func (s *Set) Stream(name string) (*Stream, error) {
	for _, st := range s.Streams {
		if st.Name == name {
			return st, nil
		}
	}
	return nil, fmt.Errorf("%w: %q", ErrUnknown, name)
}

// Partition returns the partition with that name ("telemetry/0-0"), or nil.
func (s *Set) Partition(name string) *Partition {
	for _, p := range s.Partitions {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// Start runs the background work: syncing and retention. onSynced is called on the syncer's goroutine with the offset
// below which a partition is synced, each time that it has advanced.
func (s *Set) Start(onSynced func(p *Partition, synced int64), hooks RetentionHooks) {
	s.sync.start(onSynced)
	s.retention.start(hooks)
	s.summaries.start()
}

// Close stops the background work, syncs and closes every log. No append may run any more.
func (s *Set) Close() error {
	s.retention.stop()
	s.summaries.stop()
	s.sync.stop()
	var errs []error
	for _, p := range s.Partitions {
		if p.Log.Synced() < p.Log.Next() {
			if _, err := p.Log.Sync(); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(append(errs, s.closeLogs())...)
}

func (s *Set) closeLogs() error {
	var errs []error
	for _, p := range s.Partitions {
		if p.Log != nil { // else it did not open
			errs = append(errs, p.Log.Close())
		}
	}
	return errors.Join(errs...)
}
