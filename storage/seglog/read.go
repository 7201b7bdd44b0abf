package seglog

import (
	"errors"
	"fmt"
	"slices"
	"sort"

	"edgehub/internal/vfs"
)

// Read appends whole, proven batches to dst and returns it, compressed ones as if they had not been. The first batch contains the record at from, or is the
// first after it where records are missing; after it come as many as fit into maxBytes together, never beyond Next.
// Nothing is appended when from is at or beyond Next, or when all that is left is damaged: wait for Next to rise.
// ErrTrimmed means that from was dropped: go on at First. Damaged batches are stepped over and told by Damage.
func (l *Log) Read(from int64, maxBytes int, dst []byte) ([]byte, error) {
	start := len(dst)
	for {
		if l.closed.Load() {
			return dst, ErrClosed
		}
		next := l.next.Load() // before the view and the lengths: see publish
		v := l.view.Load()
		if len(v.segs) > 0 && from < v.segs[0].base {
			return dst, fmt.Errorf("%w: %s: offset %d, first %d", ErrTrimmed, l.o.Name, from, v.segs[0].base)
		}
		if from >= next || len(v.segs) == 0 {
			return dst, nil
		}
		s := v.segs[v.find(from)]
		out, err := l.readSegment(s, from, s.boundary(next), maxBytes, dst)
		if err != nil {
			if l.view.Load() != v {
				continue // dropped or rewritten meanwhile
			}
			l.refused(from, err)
			return dst, fmt.Errorf("seglog: %s: read at offset %d: %w", l.o.Name, from, err)
		}
		if u := l.unread.Load(); u != nil && from <= u.offset && (from == u.offset || passes(out[start:], u.offset)) {
			l.unread.CompareAndSwap(u, nil)
		}
		if len(out) > start || !s.sealed.Load() {
			return out, nil
		}
		dst, from = out, max(from, s.end.Load())
	}
}

// refused notes that the disk could not read.
func (l *Log) refused(offset int64, err error) {
	l.stats.readFailures.Add(1)
	l.unread.Store(&unread{offset, err})
}

// passes reports whether a chunk goes beyond an offset.
func passes(chunk []byte, offset int64) bool {
	for len(chunk) > 0 {
		h, err := parseHeader(chunk)
		if err != nil || h.last >= offset {
			return err == nil
		}
		chunk = chunk[h.size:]
	}
	return false
}

// boundary returns the offset where the records of a segment end for a reader that saw next.
func (s *segment) boundary(next int64) int64 {
	if s.sealed.Load() {
		return min(next, s.end.Load())
	}
	return next
}

// place is where a read begins: no batch at or after pos begins below offset.
type place struct {
	pos, offset int64
	indexed     bool // an index says so: the batch at pos must begin at offset, else the index lies
}

// readSegment is Read within one segment, whose records end at stop.
func (l *Log) readSegment(s *segment, from, stop int64, maxBytes int, dst []byte) ([]byte, error) {
	f, err := s.acquire()
	if err != nil {
		return dst, err
	}
	defer s.release()
	sealed := s.sealed.Load() // before the length, which is final then
	limit := s.length.Load()
	at := l.seek(s, f, from)
	start, need, trusting := len(dst), headerSize, true
	for at.pos < limit {
		room := maxBytes - (len(dst) - start)
		if len(dst) == start {
			room = max(room, need) // the first batch is served whatever its size
		}
		if room < headerSize {
			break
		}
		size := int(min(int64(room), limit-at.pos))
		dst = slices.Grow(dst, size)
		block := dst[len(dst) : len(dst)+size]
		t := take{from: from, stop: stop}
		if n, err := f.ReadAt(block, at.pos); n < size {
			t.bad = err
		} else if t.run(block, s.salt, at); trusting && t.refutes(at, limit) {
			l.distrust(s)
			at, trusting = l.seek(s, f, from), false // once: if it is not the index, it is the disk
			continue
		}
		dst = dst[:len(dst)+t.kept]
		if t.packed {
			var whole bool
			if dst, whole = unpack(dst, start, len(dst)-t.kept, maxBytes); !whole {
				return l.readUnpacked(s, f, at, from, stop, dst, start)
			}
		}
		at, from = place{pos: at.pos + int64(t.used), offset: max(at.offset, t.offset), indexed: at.indexed && t.used == 0}, t.from
		tooLong := t.need > 0 && at.pos+int64(t.need) > limit
		if len(dst) == start && (t.bad != nil || tooLong) {
			return l.readAround(s, f, at, from, stop, dst)
		}
		if t.isLast(len(dst) > start) {
			break
		}
		need = max(t.need, headerSize)
	}
	if len(dst) > start {
		s.setHint(from, at.pos)
		return dst, nil
	}
	l.tellShort(s, at, limit, sealed)
	return dst, nil
}

// isLast reports whether a read ends with this block: found says that it has found something.
func (t *take) isLast(found bool) bool {
	return t.end || t.bad != nil || t.need > 0 && found
}

// refutes reports whether the index that led to a place lies: no whole batch begins there.
func (t *take) refutes(at place, limit int64) bool {
	return t.used == 0 && at.indexed && (t.bad != nil || at.pos+int64(t.need) > limit)
}

// tellShort tells when a read came to the end of a sealed segment before its last offset.
func (l *Log) tellShort(s *segment, at place, limit int64, sealed bool) {
	if end := s.end.Load(); sealed && at.pos >= limit && at.offset < end {
		l.tell(s)(Damage{Segment: s.name, Position: limit, From: at.offset, To: end, Err: ErrMissing})
	}
}

// readUnpacked ends a read whose batches do not all fit, or do not decompress.
func (l *Log) readUnpacked(s *segment, f vfs.File, at place, from, stop int64, dst []byte, start int) ([]byte, error) {
	if len(dst) > start {
		return dst, nil
	}
	return l.readAround(s, f, at, from, stop, dst)
}

// take picks the wanted batches out of a block of a segment.
type take struct {
	from, stop int64

	offset int64 // after the last batch passed
	used   int   // bytes passed
	kept   int   // bytes at the start of the block that are wanted batches
	need   int   // size of the batch at used, which the block does not hold whole
	end    bool  // the batch at used is beyond stop
	bad    error // the batch at used cannot be proven
	packed bool  // some of the wanted batches are compressed
}

func (t *take) run(block []byte, salt uint32, at place) {
	for t.used < len(block) {
		rest := block[t.used:]
		h, err := checkBatch(rest, salt, at.pos+int64(t.used))
		switch {
		case errors.Is(err, ErrTruncated):
			t.need = max(h.size, headerSize)
			return
		case err == nil && h.base >= t.stop:
			t.end = true
			return
		case err == nil && (h.base < max(at.offset, t.offset) || t.used == 0 && at.indexed && h.base != at.offset):
			err = ErrOrder
		}
		if err != nil {
			t.bad = err
			return
		}
		if h.last >= t.from {
			if h.count > 0 {
				copy(block[t.kept:], rest[:h.size])
				t.kept += h.size
				t.packed = t.packed || h.attrs&attrsCodec != 0
			}
			t.from = h.last + 1
		}
		t.used += h.size
		t.offset = h.last + 1
	}
}

// readAround serves the first provable batch at or after a place where the fast path met damage.
func (l *Log) readAround(s *segment, f vfs.File, at place, from, stop int64, dst []byte) ([]byte, error) {
	sc := newScan(s, f, 0, s.base, stop)
	defer sc.close()
	sc.bad = l.tell(s)
	at = sc.prove(at)
	sc.pos, sc.expect = at.pos, at.offset
	for sc.next() {
		if sc.header.last >= from && sc.header.count > 0 {
			out, err := appendPlain(dst, sc.batch, sc.header)
			if err != nil {
				sc.bad(sc.damageOf(err))
				continue
			}
			s.setHint(sc.expect, sc.pos)
			return out, nil
		}
	}
	return dst, sc.err
}

// seek finds where to begin to look for an offset in a segment. The caller has the file acquired.
func (l *Log) seek(s *segment, f vfs.File, offset int64) place {
	if offset <= s.base {
		return place{offset: s.base}
	}
	if pos, ok := s.takeHint(offset); ok {
		return place{pos: pos, offset: offset}
	}
	if e, ok := floorOffset(l.indexOf(s, f), offset); ok {
		return place{pos: e.Position, offset: e.Offset, indexed: true}
	}
	return place{offset: s.base}
}

// prove returns p, or the start of the segment when p is from an index that lies.
func (c *scan) prove(p place) place {
	if p.indexed {
		if h, _, err := c.check(p.pos); err != nil || h.base != p.offset {
			return place{offset: c.s.base}
		}
	}
	return p
}

// indexOf returns the index of a segment, loading or rebuilding that of a sealed one.
func (l *Log) indexOf(s *segment, f vfs.File) []IndexEntry {
	if s.noIndex.Load() && !s.sealed.Load() {
		return nil
	}
	if e := s.index.snapshot(); e != nil && !s.noIndex.Load() || !s.sealed.Load() {
		return e
	}
	s.loading.Lock()
	defer s.loading.Unlock()
	if e := s.index.snapshot(); e != nil && !s.noIndex.Load() {
		return e
	}
	if !s.noIndex.Load() {
		if e := l.storedIndex(s); e != nil {
			return s.useIndex(e)
		}
	}
	e := l.rebuildIndex(s, f)
	s.noIndex.Store(false)
	return s.useIndex(e)
}

// useIndex makes e the index of a sealed segment.
func (s *segment) useIndex(e []IndexEntry) []IndexEntry {
	s.maxMs.Store(e[len(e)-1].MaxTimeMs)
	t := &indexTable{entries: e}
	t.n.Store(int64(len(e)))
	s.index.table.Store(t)
	return e
}

// distrust throws away an index that pointed to something that is not the batch it promised. A sealed segment's is
// rebuilt from the log; the active segment is searched from its start until it is sealed.
func (l *Log) distrust(s *segment) {
	s.noIndex.Store(true)
	l.stats.indexFailures.Add(1)
}

// storedIndex loads the index of a sealed segment from the store. It returns nil unless the index ends exactly where
// the segment does, and not before the segment's first record in time: retention goes by that.
func (l *Log) storedIndex(s *segment) []IndexEntry {
	e := l.loadIndex(s)
	if len(e) == 0 || e[len(e)-1].Offset != s.end.Load() || e[len(e)-1].Position != s.length.Load() {
		return nil
	}
	if first, ok, _ := l.firstTime(s); !ok || e[len(e)-1].MaxTimeMs < first {
		return nil
	}
	return e
}

// loadIndex loads what the store has for a segment, nil when that cannot be its index.
func (l *Log) loadIndex(s *segment) []IndexEntry {
	if l.o.Index == nil {
		return nil
	}
	e, err := l.o.Index.LoadIndex(l.o.Name, s.base)
	if err != nil {
		l.stats.indexFailures.Add(1)
		return nil
	}
	if len(e) > indexEntriesMax+1 || !plausible(e, s.base, s.length.Load()) {
		return nil
	}
	return e
}

// saveIndex gives the store an index: that of a sealed segment with its end. A store that fails costs a rebuild later.
func (l *Log) saveIndex(s *segment, e []IndexEntry) {
	if l.o.Index == nil || l.o.ReadOnly {
		return
	}
	if err := l.o.Index.SaveIndex(l.o.Name, s.base, e); err != nil {
		l.stats.indexFailures.Add(1)
	}
}

func (l *Log) dropIndex(base int64) {
	if l.o.Index == nil {
		return
	}
	if err := l.o.Index.DropIndex(l.o.Name, base); err != nil {
		l.stats.indexFailures.Add(1)
	}
}

// rebuildIndex makes the index of a sealed segment from its batches and stores it. Around a spot that the disk cannot
// read it leads all the same, so that what is behind the spot is served; such an index is not stored.
func (l *Log) rebuildIndex(s *segment, f vfs.File) []IndexEntry {
	l.stats.indexRebuilds.Add(1)
	var x sparse
	x.reset(l.o.IndexBytes)
	sc := newScan(s, f, 0, s.base, s.end.Load())
	defer sc.close()
	sc.bad, sc.salvage = l.tell(s), true
	ms := int64(timeUnknown)
	for sc.next() {
		x.add(IndexEntry{Offset: sc.header.base, Position: sc.at, MaxTimeMs: ms})
		ms = max(ms, sc.header.maxMs)
	}
	if sc.holed { // what it did not see may be later than what it saw
		return s.ended(x.snapshot(), max(ms, l.lastMs.Load()))
	}
	e := s.ended(x.snapshot(), ms)
	l.saveIndex(s, e)
	return e
}

// ended returns the index of a sealed segment with its end.
func (s *segment) ended(e []IndexEntry, ms int64) []IndexEntry {
	end := IndexEntry{Offset: s.end.Load(), Position: s.length.Load(), MaxTimeMs: ms}
	return append(e[:len(e):len(e)], end)
}

// SeekTime returns the first offset with a timestamp of at least ms, or Next when there is none.
func (l *Log) SeekTime(ms int64) (int64, error) {
	if l.closed.Load() {
		return 0, ErrClosed
	}
	next := l.next.Load() // before the view: see publish
	segs := l.view.Load().segs
	// Timestamps never decrease, so the answer is not before the last segment that begins earlier than ms.
	var failed error
	i := sort.Search(len(segs), func(i int) bool {
		for _, s := range segs[i:] { // an empty or damaged segment begins when the one after it does
			first, ok, err := l.firstTime(s)
			if err != nil && !errors.Is(err, errNotExist) {
				failed = err
				return true
			}
			if ok {
				return first >= ms
			}
		}
		return true
	})
	if failed != nil {
		l.stats.readFailures.Add(1)
		return 0, fmt.Errorf("seglog: %s: seek time: %w", l.o.Name, failed)
	}
	for _, s := range segs[max(i-1, 0):] {
		offset, ok, err := l.seekTimeIn(s, ms, s.boundary(next))
		if err != nil {
			return 0, fmt.Errorf("seglog: %s: seek time: %w", l.o.Name, err)
		}
		if ok {
			return offset, nil
		}
	}
	return next, nil
}

func (l *Log) seekTimeIn(s *segment, ms, stop int64) (int64, bool, error) {
	f, err := s.acquire()
	if err != nil {
		return 0, false, err
	}
	defer s.release()
	sc := newScan(s, f, 0, s.base, stop)
	defer sc.close()
	sc.bad = l.tell(s)
	at := l.placeBefore(sc, ms)
	sc.pos, sc.expect = at.pos, at.offset
	for sc.next() {
		if sc.header.maxMs < ms {
			continue
		}
		plain, err := appendPlain(nil, sc.batch, sc.header)
		if err != nil {
			sc.bad(sc.damageOf(err))
			continue
		}
		var r Scanner
		for r.Reset(plain); r.Next(); {
			if r.rec.TimeMs >= ms {
				return r.rec.Offset, true, nil
			}
		}
	}
	return 0, false, sc.err
}

// placeBefore finds a place in a segment before which every record is earlier than ms. An index entry is only used when
// the batch that it points to begins earlier than ms, for then so is everything before it, whatever the entry says.
func (l *Log) placeBefore(sc *scan, ms int64) place {
	for range 2 { // the stored index, and one rebuilt from the log if that lies
		e := l.indexOf(sc.s, sc.f)
		lied := false
		for i := floorTime(e, ms); i >= 0 && !lied; i-- {
			if e[i].Position >= sc.limit {
				continue // the end of a sealed segment
			}
			h, _, err := sc.check(e[i].Position)
			if sc.err != nil {
				return place{offset: sc.s.base} // the walk does not begin
			}
			lied = err != nil || h.base != e[i].Offset
			if !lied && h.baseMs < ms {
				return place{pos: e[i].Position, offset: e[i].Offset}
			}
		}
		if !lied {
			break
		}
		l.distrust(sc.s)
	}
	return place{offset: sc.s.base}
}
