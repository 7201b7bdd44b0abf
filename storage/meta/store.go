package meta

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"edgehub/internal/vfs"
	"edgehub/storage/seglog"
)

// Sentinels.
var (
	ErrClosed = errors.New("meta: store is closed")
	// ErrSuspended means that the index is not written now, see Suspend.
	ErrSuspended = errors.New("meta: the index is not written while the disk is nearly full")
	// ErrOverflow: the disk did not take what was put for so long that records
	// had to be dropped. No Commit succeeds any more, so none is acknowledged.
	ErrOverflow = errors.New("meta: changes could not be written and exceeded their memory; restart hubd once the disk works again")
)

// ValueBytesMax is the longest value; to put a longer one is a bug.
const ValueBytesMax = 8 << 20

// Bounds of memory, in bytes.
const (
	// overlaySoft wakes the flusher.
	overlaySoft = 2 << 20
	// overlayFull makes Commit and PutHint flush themselves before they go on.
	overlayFull = 8 << 20
	// overlayMax drops what is put, see ErrOverflow.
	overlayMax = 32 << 20
	// spareMax is the largest buffer that is kept for the next commit.
	spareMax = 1 << 20
)

// Options of Open. FS, DataDir and Salt are required.
type Options struct {
	FS      vfs.FS
	DataDir string
	Salt    uint32 // of the data directory; an index of another one is not believed
	Logger  *slog.Logger

	// FlushEvery is how far the index may be behind; 0 means one second.
	FlushEvery time.Duration
	// SegmentBytes is the size of a $meta segment; 0 means 4 MiB.
	SegmentBytes int64
	// CompactBytes is the size below which $meta is not compacted; 0 means 8 MiB.
	CompactBytes int64
	// IndexBytes is the memory that Badger may use, about; 0 means 20 MiB. Below 10 MiB a flush no longer fits its tables.
	IndexBytes int64
	// Now is the clock of record times; nil means time.Now.
	Now func() time.Time
	// Free tells the free bytes of the disk that holds a directory, as they are now; nil, or an error, means enough.
	Free func(dir string) (int64, error)
}

// compactFactor: $meta is compacted when it is larger than so many times its
// live keys. A lower one costs writes, a higher one space and time to rebuild.
const compactFactor = 4

func (o *Options) setDefaults() {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.FlushEvery == 0 {
		o.FlushEvery = time.Second
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = 4 << 20
	}
	if o.CompactBytes == 0 {
		o.CompactBytes = 8 << 20
	}
	if o.IndexBytes == 0 {
		o.IndexBytes = 20 << 20
	}
	o.IndexBytes = max(o.IndexBytes, indexBytesMin)
	if o.Now == nil {
		o.Now = time.Now
	}
}

// Store is an open metadata store. All methods are safe for concurrent use.
//
// Lock order: compactMu, flushMu, commitMu, mu.
type Store struct {
	o   Options
	log *seglog.Log

	// flushMu guards the index's writing side: flushes and compaction steps.
	flushMu   sync.Mutex
	index     *index
	collected time.Time

	// commitMu guards the log's committer side.
	commitMu sync.Mutex
	builder  seglog.Builder
	spare    []byte
	lastMark uint64 // fingerprint of the newest record in the log

	mu       sync.Mutex
	live     *generation // what was put since the last seal
	sealed   *generation // what a flush is writing, or failed to write; nil when done
	sealMark watermark   // up to where the log is in the index once sealed is
	pending  pending     // the records of live that no commit has taken yet
	lost     error       // ErrOverflow once something was dropped
	closing  bool        // Close was called
	closed   bool

	put       atomic.Uint64 // changes put so far
	committed atomic.Uint64 // of them, those known to be in the log
	backlog   atomic.Int64  // bytes of them that are not
	hintsLost atomic.Bool   // a hint was dropped: the rest is not of one moment
	compactMu sync.Mutex    // one compaction or export at a time; before flushMu in the lock order
	stats     counters
	suspended atomic.Bool // see Suspend

	wake   chan struct{} // something to flush
	urgent chan struct{} // flush without waiting
	stop   chan struct{}
	done   chan struct{}

	audited chan struct{} // closed once the whole log has been proven

	// onStep is called between the steps of a compaction, by tests.
	onStep func(step string)
}

// watermark says up to where of the log something reaches.
type watermark struct {
	offset int64
	mark   uint64
}

type counters struct {
	commits, records, flushes, flushFailures, compactions, compactFailures atomic.Int64
}

// Stats are counters since Open and sizes now.
type Stats struct {
	Commits, Records       int64 // writes to $meta and records in them
	Flushes, FlushFailures int64 // of the index
	Compactions            int64 // of $meta
	CompactFailures        int64
	Keys                   int64 // entries in the index, hints included
	LiveBytes              int64 // of durable keys, about as in the log
	LogBytes               int64 // of $meta
	IndexBytes             int64 // of Badger's files
	OverlayBytes           int64 // not yet in the index
	Log                    seglog.Stats
}

// Put sets a durable key; Commit makes it survive. It copies both slices.
func (s *Store) Put(key, value []byte) {
	if len(value) > ValueBytesMax {
		panic(fmt.Sprintf("BUG: meta: value of %d bytes put", len(value)))
	}
	s.change(key, clone(value), opPut)
}

// PutNew is Put for a key that is not there. When it is deleted again before the index has caught up, the index never
// hears of it: for keys that live for moments. A key that is there after all would come back with that Delete.
func (s *Store) PutNew(key, value []byte) {
	if len(value) > ValueBytesMax {
		panic(fmt.Sprintf("BUG: meta: value of %d bytes put", len(value)))
	}
	s.change(key, clone(value), opPutNew)
}

// Delete removes a durable key.
func (s *Store) Delete(key []byte) { s.change(key, nil, opDelete) }

// opPutNew is opPut in the log.
const opPutNew byte = 0xff

func (s *Store) change(key, value []byte, op byte) {
	s.mu.Lock()
	was := s.live.bytes()
	if s.held() > overlayMax || len(s.pending.buf) > overlayMax {
		s.lost = ErrOverflow
		s.put.Add(1)
		s.mu.Unlock()
		return
	}
	queued := len(s.pending.buf)
	switch op {
	case opDelete:
		if !s.suspended.Load() || !s.undo(key) {
			s.live.durable.put(key, nil, true)
		}
		s.pending.add(key, opDelete, nil)
	case opPutNew:
		s.live.durable.putNew(key, value)
		s.pending.add(key, opPut, value)
	default:
		s.live.durable.put(key, value, false)
		s.pending.add(key, opPut, value)
	}
	s.put.Add(1)
	s.backlog.Add(int64(len(s.pending.buf) - queued))
	is := s.live.bytes()
	s.mu.Unlock()
	s.signal(was, is)
}

// held returns the bytes that the index does not have yet; the caller holds mu.
func (s *Store) held() int {
	n := s.live.bytes()
	if s.sealed != nil {
		n += s.sealed.bytes()
	}
	return n
}

// signal wakes the flusher when the overlay stops being empty or small.
func (s *Store) signal(was, is int) {
	if was == 0 {
		notify(s.wake)
	}
	if was < overlaySoft && is >= overlaySoft {
		notify(s.urgent)
	}
}

// notify sends without blocking.
func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Commit writes all that was put before the call to the log: on return it
// survives a kill of the process. It costs nothing when that is done already.
func (s *Store) Commit() error {
	if s.put.Load() == s.committed.Load() {
		return nil
	}
	s.mu.Lock()
	full := s.live.bytes() > overlayFull
	s.mu.Unlock()
	if full && !s.suspended.Load() {
		if err := s.Flush(); err != nil && !errors.Is(err, ErrSuspended) {
			return err
		}
	}
	return s.commit(false)
}

// Backlog is how many bytes of changes are not committed, about; 0 means that all are.
func (s *Store) Backlog() int {
	if s.put.Load() == s.committed.Load() {
		return 0
	}
	return int(max(s.backlog.Load(), 1))
}

// Sync is Commit and fdatasync: on return all survives a power cut.
func (s *Store) Sync() error {
	if err := s.Commit(); err != nil {
		return err
	}
	if _, err := s.log.Sync(); err != nil {
		return fmt.Errorf("meta: sync: %w", err)
	}
	return nil
}

// commit writes the pending records. With seal it also seals the overlay, in
// the same moment, so that what is sealed is exactly what the log then holds.
func (s *Store) commit(seal bool) error {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	s.mu.Lock()
	if err := s.refuse(); err != nil {
		s.mu.Unlock()
		return err
	}
	taken, upTo := s.pending, s.put.Load()
	s.pending = pending{buf: s.spare[:0]}
	s.spare = nil
	if seal {
		s.sealed, s.live = s.live, new(generation)
	}
	s.mu.Unlock()

	err := s.write(taken)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.untake(taken, seal)
		return err
	}
	s.committed.Store(upTo)
	s.backlog.Add(-int64(len(taken.buf)))
	if seal {
		s.sealMark = watermark{s.log.Next(), s.lastMark}
	}
	if cap(taken.buf) <= spareMax {
		s.spare = taken.buf[:0]
	}
	return nil
}

// refuse tells why nothing can be committed; the caller holds mu.
func (s *Store) refuse() error {
	if s.closed {
		return ErrClosed
	}
	return s.lost
}

// write appends records to the log with one write; the caller holds commitMu.
func (s *Store) write(p pending) error {
	if p.count == 0 {
		return nil
	}
	s.builder.Reset(s.log.Next())
	s.builder.Floor(s.log.LastTime())
	now := s.o.Now().UnixMilli()
	var key, value []byte
	p.each(func(k, v []byte) {
		key, value = k, v
		s.builder.Append(now, k, v, seglog.Headers{})
	})
	if err := s.log.Append(&s.builder); err != nil {
		return fmt.Errorf("meta: commit: %w", err)
	}
	s.lastMark = fingerprint(key, value)
	s.stats.commits.Add(1)
	s.stats.records.Add(int64(p.count))
	if s.log.NeedsPrepare() {
		notify(s.wake) // the flusher prepares the next segment
	}
	return nil
}

// untake puts records that could not be written back in front of later ones;
// the caller holds mu and commitMu.
func (s *Store) untake(taken pending, seal bool) {
	later := s.pending
	s.pending = pending{buf: append(taken.buf, later.buf...), count: taken.count + later.count}
	if seal {
		s.sealed.absorb(s.live)
		s.live, s.sealed = s.sealed, nil
	}
}

// PutHint sets a hint: a key that its owner can derive again. It reaches the
// index with a later flush. After a crash the hints are those of one earlier
// moment, or none.
func (s *Store) PutHint(key, value []byte) {
	if len(value) > ValueBytesMax {
		panic(fmt.Sprintf("BUG: meta: hint of %d bytes put", len(value)))
	}
	s.changeHint(key, clone(value), false)
}

// DeleteHint removes a hint.
func (s *Store) DeleteHint(key []byte) { s.changeHint(key, nil, true) }

func (s *Store) changeHint(key, value []byte, deleted bool) {
	s.mu.Lock()
	was := s.live.bytes()
	full := was > overlayFull
	s.mu.Unlock()
	if full && s.Flush() != nil {
		// Dropping one makes the others lie, so they are dropped at the next Open.
		s.hintsLost.Store(true)
		return
	}
	s.mu.Lock()
	was = s.live.bytes()
	s.live.hints.put(key, value, deleted)
	is := s.live.bytes()
	s.mu.Unlock()
	s.signal(was, is)
}

// Bytes returns the bytes on disk: $meta and its index.
func (s *Store) Bytes() int64 {
	tables, values := s.index.db.Size()
	return s.log.Bytes() + tables + values
}

// Stats returns counters and sizes.
func (s *Store) Stats() Stats {
	s.flushMu.Lock()
	st := s.index.state
	s.flushMu.Unlock()
	s.mu.Lock()
	overlay := s.held()
	s.mu.Unlock()
	tables, values := s.index.db.Size()
	return Stats{
		Commits: s.stats.commits.Load(), Records: s.stats.records.Load(),
		Flushes: s.stats.flushes.Load(), FlushFailures: s.stats.flushFailures.Load(),
		Compactions: s.stats.compactions.Load(), CompactFailures: s.stats.compactFailures.Load(),
		Keys: st.keys, LiveBytes: st.live, LogBytes: s.log.Bytes(), IndexBytes: tables + values,
		OverlayBytes: int64(overlay), Log: s.log.Stats(),
	}
}
