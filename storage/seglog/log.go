// Package seglog is the log of one partition: a directory of append-only segment files of Kafka record batches.
//
// It is the truth of the hub: what Append returned for survives the death of the process, what Sync returned for
// survives a power cut, and everything else is an index of it. docs/FORMAT.md describes the bytes.
//
// # Who may do what
//
// One committer at a time calls Append and Roll; any number of readers call Read, SeekTime and the accessors; one
// goroutine at a time gets through Sync, others wait for it. Readers take no lock that the committer holds while it
// does I/O: they see the segments through an immutable view and the active segment through its published length.
//
// Lock order: dropMu → syncMu → wmu → mu → segment.loading → segment.mu → lru.mu; prepMu comes before mu.
package seglog

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"edgehub/internal/vfs"
)

// Errors that callers tell apart.
var (
	ErrTrimmed = errors.New("seglog: offset is before the first record kept")
	ErrClosed  = errors.New("seglog: log is closed")
	ErrBase    = errors.New("seglog: batch does not continue the log")
	ErrInDoubt = errors.New("seglog: an fsync failed, nothing is appended until what it covered is written again")
	ErrActive  = errors.New("seglog: only sealed segments can be dropped")
	// ErrReadOnly means that the log was opened with Options.ReadOnly.
	ErrReadOnly = errors.New("seglog: log is open for reading only")
)

// Defaults of Options.
const (
	SegmentBytesDefault = 64 << 20
	IndexBytesDefault   = 4 << 10
)

// Options of Open.
type Options struct {
	FS            vfs.FS
	Dir           string
	Name          string     // "telemetry/0-0": in errors, in the index store, and in every header CRC: it cannot change
	Salt          uint32     // of the data directory: tells this hub's batches from all others
	SegmentBytes  int64      // roll when the active segment would grow beyond it; 0 means SegmentBytesDefault
	IndexBytes    int        // distance of index entries; 0 means IndexBytesDefault
	Index         IndexStore // may be nil: indexes of sealed segments are then rebuilt when needed
	QuarantineDir string     // where unusable files go; "" means Dir/quarantine
	Codec         Codec      // of new batches; all codecs are read whatever it is
	ReadOnly      bool       // change nothing on the disk: for a directory that no hub has open
	// WholeOrNothing has Open fail when the disk cannot read the end of the log. Otherwise the log opens without it, goes
	// on behind it, and has it again once the disk can read it.
	WholeOrNothing bool
}

// SegmentInfo describes a segment. Next is the offset after its last record. MaxTimeMs is its highest timestamp; for
// a sealed segment whose index is lost it is the time of the record after it; −1 when it has no record.
type SegmentInfo struct {
	Base, Next, Bytes, MaxTimeMs int64
	Sealed                       bool
}

// Log is an open log. See the package comment for who may call what.
type Log struct {
	o Options

	// view is what readers see. It is replaced, never changed; mu serialises those who replace it.
	view   atomic.Pointer[view]
	next   atomic.Int64 // first offset not yet appended
	synced atomic.Int64 // everything below is durable
	lastMs atomic.Int64 // highest timestamp
	closed atomic.Bool
	parked atomic.Bool // nothing was appended since Open or Park

	// Owned by the holder of wmu: the committer, or a repair after a failed fsync.
	wmu       sync.Mutex
	active    *segment
	file      vfs.File // the active segment's file, acquired; nil while parked
	gen       uint32   // generation of new segments
	dirtyTail bool     // a failed write left bytes beyond length that could not be cut yet
	doubt     error    // a failed fsync that has not been repaired; changed under syncMu as well
	packer    packer

	syncMu sync.Mutex // one syncer at a time
	saved  int64      // owned by syncMu: position up to which the active segment's index is stored

	mu       sync.Mutex
	unsynced []*segment // guarded by mu: sealed since the last Sync, each acquired
	dirDirty bool       // guarded by mu: names in the directory are not durable yet

	prepMu   sync.Mutex
	prepared vfs.File // guarded by mu: empty file named preparedName
	ready    atomic.Bool

	dropMu sync.Mutex

	damage damageList
	away   []Damage // set by Open: what was lost with whole files, which no scan of a segment meets
	stats  counters

	// unread is the last read that the disk refused, until a read of the same place has succeeded.
	unread atomic.Pointer[unread]
}

// unread is a place that could not be read.
type unread struct {
	offset int64 // where the read began
	err    error
}

// Unread returns why the disk cannot read part of the log and the offset of the read that found out; nil once it can
// again. A log that was never asked for that part does not know.
func (l *Log) Unread() (offset int64, err error) {
	if u := l.unread.Load(); u != nil {
		return u.offset, u.err
	}
	return 0, nil
}

// view is an immutable list of segments by rising base. Only the last may be unsealed.
type view struct{ segs []*segment }

// find returns the index of the segment that holds an offset: the last with a base at or below it.
func (v *view) find(offset int64) int {
	return sort.Search(len(v.segs), func(i int) bool { return v.segs[i].base > offset }) - 1
}

// Stats counts what went wrong since Open.
type Stats struct {
	WriteFailures  int64 // appends refused because a write failed
	SyncFailures   int64 // fsyncs that failed
	ReadFailures   int64 // reads that the disk refused
	Rewrites       int64 // segments written again after a failed fsync
	DamagedBatches int64 // damaged stretches met, those of Recovery included
	IndexRebuilds  int64 // indexes of sealed segments rebuilt from the log
	IndexFailures  int64 // errors of the index store
}

type counters struct {
	writeFailures, syncFailures, readFailures, rewrites, indexRebuilds, indexFailures atomic.Int64
}

// Stats returns the counters.
func (l *Log) Stats() Stats {
	return Stats{
		WriteFailures: l.stats.writeFailures.Load(), SyncFailures: l.stats.syncFailures.Load(),
		ReadFailures: l.stats.readFailures.Load(), Rewrites: l.stats.rewrites.Load(),
		DamagedBatches: l.damage.count(), IndexRebuilds: l.stats.indexRebuilds.Load(), IndexFailures: l.stats.indexFailures.Load(),
	}
}

// Name returns Options.Name.
func (l *Log) Name() string { return l.o.Name }

// First returns the first offset that is kept; it equals Next when the log is empty.
func (l *Log) First() int64 {
	if segs := l.view.Load().segs; len(segs) > 0 {
		return segs[0].base
	}
	return l.next.Load()
}

// Next returns the first offset not yet appended.
func (l *Log) Next() int64 { return l.next.Load() }

// Synced returns the offset below which everything is durable.
func (l *Log) Synced() int64 { return l.synced.Load() }

// ActiveBase returns the base of the active segment, or Next when the log is empty.
func (l *Log) ActiveBase() int64 {
	if segs := l.view.Load().segs; len(segs) > 0 {
		return segs[len(segs)-1].base
	}
	return l.next.Load()
}

// LastTime returns the highest timestamp in the log, 0 when it never had a record. See Builder.Floor.
func (l *Log) LastTime() int64 { return l.lastMs.Load() }

// Bytes returns the size of the segments.
func (l *Log) Bytes() int64 {
	var n int64
	for _, s := range l.view.Load().segs {
		n += s.length.Load()
	}
	return n
}

// Segments describes the segments from the oldest to the active one. It may read the headers of segments.
func (l *Log) Segments() []SegmentInfo {
	segs := l.view.Load().segs
	out := make([]SegmentInfo, len(segs))
	for i, s := range segs {
		out[i] = SegmentInfo{Base: s.base, Next: s.end.Load(), Bytes: s.length.Load(), Sealed: s.sealed.Load()}
		out[i].MaxTimeMs = l.maxTime(segs, i)
	}
	return out
}

// maxTime returns the highest timestamp of a segment without scanning it: known, else from its stored index, else
// bounded by the first timestamp after it.
func (l *Log) maxTime(segs []*segment, i int) int64 {
	s := segs[i]
	if ms := s.maxMs.Load(); ms != timeUnknown || !s.sealed.Load() {
		return ms
	}
	if e := l.storedIndex(s); e != nil {
		s.maxMs.Store(e[len(e)-1].MaxTimeMs)
		return s.maxMs.Load()
	}
	for _, after := range segs[i+1:] {
		if ms, ok, _ := l.firstTime(after); ok {
			return ms // too late a time keeps the segment longer
		}
	}
	return l.lastMs.Load()
}

// firstTime returns the timestamp of the first record of a segment, reading it once; false when there is none, or none
// that can be proven.
func (l *Log) firstTime(s *segment) (ms int64, ok bool, err error) {
	if ms := s.firstMs.Load(); ms != timeUnknown {
		return ms, true, nil
	}
	if s.length.Load() < headerSize {
		return 0, false, nil
	}
	f, err := s.acquire()
	if err != nil {
		return 0, false, err
	}
	defer s.release()
	b := make([]byte, headerSize)
	if _, err := f.ReadAt(b, 0); errors.Is(err, io.EOF) {
		return 0, false, nil
	} else if err != nil {
		return 0, false, &ReadError{Segment: s.name, Err: err}
	}
	h, err := checkHeader(b, s.salt, 0)
	if err != nil {
		return 0, false, nil
	}
	s.firstMs.Store(h.baseMs)
	return h.baseMs, true, nil
}

// BytesFrom estimates the bytes between an offset and Next, from what is in memory: exact to a step of the index where
// that is loaded, interpolated elsewhere.
func (l *Log) BytesFrom(offset int64) int64 {
	segs := l.view.Load().segs
	var n int64
	for i := len(segs) - 1; i >= 0; i-- {
		s := segs[i]
		length := s.length.Load()
		if offset <= s.base {
			n += length
			continue
		}
		if end := s.end.Load(); offset < end {
			n += length - min(length, s.estimate(offset, end, length))
		}
		break
	}
	return n
}

// estimate guesses the position of an offset inside a segment.
func (s *segment) estimate(offset, end, length int64) int64 {
	if pos, ok := s.takeHint(offset); ok {
		return pos
	}
	lo, hi := IndexEntry{Offset: s.base}, IndexEntry{Offset: end, Position: length}
	e := s.index.snapshot()
	i := sort.Search(len(e), func(i int) bool { return e[i].Offset > offset })
	if i > 0 {
		lo = e[i-1]
	}
	if i < len(e) {
		hi = e[i]
	}
	if hi.Offset <= lo.Offset || hi.Position <= lo.Position {
		return lo.Position
	}
	share := float64(offset-lo.Offset) / float64(hi.Offset-lo.Offset)
	return lo.Position + int64(share*float64(hi.Position-lo.Position))
}

// DropOldest removes the oldest segment, which must be sealed. Readers that are in it finish; its space is free when
// the last of them has. The removal is durable on return.
func (l *Log) DropOldest() (SegmentInfo, error) {
	l.dropMu.Lock()
	defer l.dropMu.Unlock()
	if l.o.ReadOnly {
		return SegmentInfo{}, ErrReadOnly
	}
	segs := l.view.Load().segs
	if len(segs) < 2 || !segs[0].sealed.Load() {
		return SegmentInfo{}, ErrActive
	}
	s := segs[0]
	info := SegmentInfo{Base: s.base, Next: s.end.Load(), Bytes: s.length.Load(), MaxTimeMs: l.maxTime(segs, 0), Sealed: true}
	// The names of the segments after it are what tells the next start where the log goes on: they must be durable
	// before the only other witness goes.
	if err := l.syncDir(); err != nil {
		return SegmentInfo{}, err
	}
	dropped := false
	l.replace(func(segs []*segment) []*segment {
		if dropped = len(segs) > 1 && segs[0] == s; dropped {
			return segs[1:]
		}
		return segs // a rewrite after a failed fsync replaced it meanwhile
	})
	if !dropped {
		return SegmentInfo{}, ErrActive
	}
	if err := l.o.FS.Remove(s.path()); err != nil {
		l.replace(func(segs []*segment) []*segment { return append([]*segment{s}, segs...) })
		return SegmentInfo{}, fmt.Errorf("seglog: %s: remove segment: %w", l.o.Name, err)
	}
	s.bury()
	l.mu.Lock()
	l.dirDirty = true
	l.mu.Unlock()
	l.dropIndex(s.base)
	return info, l.syncDir()
}

// replace swaps the view for one with the segments that f makes of the current ones. f must not change its argument.
func (l *Log) replace(f func(segs []*segment) []*segment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.view.Store(&view{segs: slices.Clone(f(l.view.Load().segs))})
}

// syncDir makes the names in the directory durable if they are not.
func (l *Log) syncDir() error {
	l.mu.Lock()
	dirty := l.dirDirty
	l.dirDirty = false
	l.mu.Unlock()
	if !dirty {
		return nil
	}
	if err := l.o.FS.SyncDir(l.o.Dir); err != nil {
		// Tried again by the next Sync. Journaling file systems stop for good when their journal fails, so a later
		// success is not a lie about this failure (unlike fdatasync of a file's pages, see repair).
		l.mu.Lock()
		l.dirDirty = true
		l.mu.Unlock()
		return fmt.Errorf("seglog: %s: sync directory: %w", l.o.Name, err)
	}
	return nil
}

// Damage returns the damaged stretches met so far, by offset. At most damageMax are kept; Stats counts all.
func (l *Log) Damage() []Damage { return l.damage.list() }

// tell returns a function that remembers damage to a segment, and tells the functions given.
//
// A reader may be in a segment whose end is being moved to another one after a failed fsync (see swapIn). The end
// falls before the bytes behind it go; so whoever misses these bytes sees the new end here, and what was at or behind
// it is no damage.
func (l *Log) tell(s *segment, also ...func(Damage)) func(Damage) {
	return func(d Damage) {
		if s.sealed.Load() {
			end := s.end.Load()
			if d.From >= end && d.To > d.From {
				return
			}
			d.To = min(d.To, max(end, d.From))
		}
		if !d.Unread() { // the next read may succeed
			l.damage.add(d)
		}
		for _, f := range also {
			f(d)
		}
	}
}

// Close syncs and closes the log. Reads in progress finish.
func (l *Log) Close() error {
	if l.closed.Load() {
		return nil
	}
	_, err := l.Sync()
	l.dropMu.Lock()
	defer l.dropMu.Unlock()
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	l.wmu.Lock()
	defer l.wmu.Unlock()
	if l.closed.Swap(true) {
		return err
	}
	if l.active != nil && err == nil {
		l.saveIndex(l.active, l.active.index.snapshot())
	}
	l.park()
	l.mu.Lock()
	unsynced, prepared := l.unsynced, l.prepared
	l.unsynced, l.prepared = nil, nil
	l.mu.Unlock()
	for _, s := range unsynced {
		s.release()
	}
	if prepared != nil {
		_ = prepared.Close()
		_ = l.o.FS.Remove(filepath.Join(l.o.Dir, preparedName)) // empty; the next start would remove it
	}
	for _, s := range l.view.Load().segs {
		openFiles.drop(s)
	}
	return err
}

// Park closes the active segment's file and a prepared one when everything is synced, so that an idle partition holds
// no descriptor. The next Append opens it again. It reports whether it did. A log that was just opened is parked.
func (l *Log) Park() bool {
	if l.synced.Load() != l.next.Load() {
		return false
	}
	if _, err := l.Sync(); err != nil { // lets go of sealed segments, too
		return false
	}
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	l.wmu.Lock()
	defer l.wmu.Unlock()
	if l.synced.Load() != l.next.Load() || l.doubt != nil || l.dirtyTail {
		return false
	}
	s := l.active
	l.park()
	if s != nil {
		openFiles.drop(s)
	}
	l.mu.Lock()
	prepared := l.prepared
	l.prepared = nil
	l.mu.Unlock()
	if prepared != nil {
		_ = prepared.Close() // empty: Prepare makes it anew when it is needed
		l.ready.Store(false)
	}
	return true
}

func (l *Log) park() {
	l.parked.Store(true)
	if l.file != nil {
		l.file = nil
		l.active.release()
	}
}

// damageMax bounds the list of damaged stretches in memory.
const damageMax = 1024

// damageList remembers damaged stretches, each once.
type damageList struct {
	mu sync.Mutex
	m  map[damageKey]Damage
	n  int64
}

type damageKey struct {
	segment string
	pos     int64
}

func (d *damageList) add(x Damage) {
	d.mu.Lock()
	defer d.mu.Unlock()
	k := damageKey{x.Segment, x.Position}
	if _, known := d.m[k]; known {
		return
	}
	d.n++
	if d.m == nil {
		d.m = make(map[damageKey]Damage)
	}
	if len(d.m) < damageMax {
		d.m[k] = x
	}
}

func (d *damageList) count() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.n
}

func (d *damageList) list() []Damage {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]Damage, 0, len(d.m))
	for _, x := range d.m {
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b Damage) int { return cmp.Compare(a.From, b.From) })
	return out
}

// forget drops what was told of a segment from a position on: it was rewritten elsewhere.
func (d *damageList) forget(segment string, pos int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for k := range d.m {
		if k.segment == segment && k.pos >= pos {
			delete(d.m, k)
		}
	}
}
