package seglog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"edgehub/internal/vfs"
)

// saveEvery is how far the active segment grows until its index is stored again, so that a start after a power cut
// proves no more than about this much.
const saveEvery = 8 << 20

// Sync makes everything appended before the call durable and returns the offset below which all is: data first, then
// the names of new segments. It runs concurrently with Append; one Sync runs at a time, others wait and then have
// little to do.
//
// When an fsync fails, the kernel may have dropped the pages that it could not write and would report success the next
// time. So everything since the last good Sync is in doubt: it is read back, proven, and written into a new segment of
// a higher generation. Only when that is durable, Sync returns without error. Otherwise Append refuses with ErrInDoubt
// and the next Sync tries again.
func (l *Log) Sync() (int64, error) {
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	if l.closed.Load() {
		return l.synced.Load(), ErrClosed
	}
	if l.o.ReadOnly {
		return l.synced.Load(), nil
	}
	// doubt changes under syncMu only, so it can be read without wmu, which an Append that takes long holds.
	if l.doubt != nil {
		if err := l.repair(nil); err != nil {
			return l.synced.Load(), err
		}
	}
	// The invariant of roll: with mu held, every offset below target is in a sealed segment listed here, in the active
	// one, or below synced.
	l.mu.Lock()
	target := l.next.Load()
	segs := l.view.Load().segs
	unsynced := l.unsynced
	l.mu.Unlock()
	if target > l.synced.Load() || len(unsynced) > 0 {
		files := unsynced
		if n := len(segs); n > 0 && !segs[n-1].sealed.Load() {
			files = append(files[:len(files):len(files)], segs[n-1])
		}
		if err := syncFiles(files); err != nil {
			l.stats.syncFailures.Add(1)
			if err := l.repair(err); err != nil {
				return l.synced.Load(), err
			}
			return l.synced.Load(), nil
		}
	}
	if err := l.syncDir(); err != nil {
		return l.synced.Load(), err
	}
	l.synced.Store(target)
	l.settle(unsynced, target)
	return target, nil
}

func syncFiles(segs []*segment) error {
	for _, s := range segs {
		f, err := s.acquire()
		if err != nil {
			return err
		}
		err = f.Sync()
		s.release()
		if err != nil {
			return err
		}
	}
	return nil
}

// settle stores the indexes of segments that are durable now and lets go of their files.
func (l *Log) settle(synced []*segment, target int64) {
	for _, s := range synced {
		if e := s.index.snapshot(); e != nil {
			l.saveIndex(s, s.ended(e, s.maxMs.Load()))
		}
		s.release()
	}
	if len(synced) > 0 {
		l.saved = 0
		l.mu.Lock()
		// A roll may have added more behind them; nobody else takes away (syncMu is held).
		l.unsynced = slices.Clone(l.unsynced[len(synced):])
		l.mu.Unlock()
	}
	segs := l.view.Load().segs
	if len(segs) == 0 {
		return
	}
	s := segs[len(segs)-1]
	if l.o.Index == nil || s.sealed.Load() || s.length.Load()-l.saved < saveEvery {
		return
	}
	// Only entries of batches that are durable, so that a start never finds one that points behind a torn tail.
	e := s.index.snapshot()
	for len(e) > 0 && e[len(e)-1].Offset >= target {
		e = e[:len(e)-1]
	}
	l.saveIndex(s, slices.Clone(e))
	l.saved = s.length.Load()
}

// repair writes everything since the last good Sync again, after an fsync that failed for cause (nil: repeat the last
// attempt). The caller holds syncMu.
func (l *Log) repair(cause error) error {
	l.wmu.Lock() // Append waits: where its records go is being decided
	defer l.wmu.Unlock()
	if cause != nil {
		l.doubt = cause
	}
	s, lost, err := l.rewrite()
	if err != nil {
		return fmt.Errorf("seglog: %s: sync: %w; writing it again: %w", l.o.Name, l.doubt, err)
	}
	l.stats.rewrites.Add(1)
	l.swapIn(s)
	for _, d := range lost {
		l.damage.add(d)
	}
	l.doubt = nil
	l.synced.Store(l.next.Load())
	return nil
}

// rewrite copies what is in doubt into a new segment and makes that durable. Nothing else changes until it is.
func (l *Log) rewrite() (s *segment, lost []Damage, err error) {
	segs := l.view.Load().segs
	from := l.synced.Load()
	if len(segs) > 0 {
		from = max(from, segs[0].base)
	}
	s = newSegment(&l.o, from, l.gen+1)
	s.index.reset(l.o.IndexBytes)
	tmp := filepath.Join(l.o.Dir, rewriteName)
	f, err := l.o.FS.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return nil, nil, err
	}
	c := copier{s: s, f: f, ms: timeUnknown}
	for _, old := range segs[max(0, (&view{segs}).find(from)):] {
		if err = l.copyFrom(&c, old, from); err != nil {
			break
		}
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		// With its name the new segment supersedes all of lower generations from its base on; see superseded. So it
		// gets the name only when it is whole and durable.
		err = l.o.FS.Rename(tmp, s.path())
	}
	if err == nil {
		err = l.o.FS.SyncDir(l.o.Dir)
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	s.maxMs.Store(c.ms)
	s.end.Store(l.next.Load())
	s.file, s.refs = f, 1
	return s, c.lost, nil
}

// copier collects batches in a new segment.
type copier struct {
	s    *segment
	f    vfs.File
	buf  []byte
	ms   int64 // highest timestamp so far
	lost []Damage
}

// copyFrom copies the batches of old from an offset on. What cannot be proven any more is lost, and told.
func (l *Log) copyFrom(c *copier, old *segment, from int64) error {
	in, err := old.acquire()
	if err != nil {
		return err
	}
	defer old.release()
	sc := newScan(old, in, 0, old.base, old.boundary(l.next.Load()))
	defer sc.close()
	at := sc.prove(l.seek(old, in, from))
	sc.pos, sc.expect = at.pos, at.offset
	sc.bad = func(d Damage) {
		if d.From = max(d.From, from); d.From < d.To {
			d.Segment, d.Position, d.Bytes = c.s.name, c.s.length.Load(), 0
			c.lost = append(c.lost, d)
		}
	}
	for sc.next() {
		if sc.header.base < from {
			continue
		}
		pos := c.s.length.Load()
		c.buf = append(c.buf[:0], sc.batch...)
		binary.BigEndian.PutUint32(c.buf[posHeaderCRC:], headerCRC(c.s.salt, pos, c.buf))
		if _, err := c.f.WriteAt(c.buf, pos); err != nil {
			return err
		}
		c.s.index.add(IndexEntry{Offset: sc.header.base, Position: pos, MaxTimeMs: c.ms})
		c.ms = max(c.ms, sc.header.maxMs)
		c.s.length.Store(pos + int64(len(c.buf)))
	}
	return sc.err // what cannot be read is not lost yet: it stays in doubt
}

// swapIn makes a rewritten segment the active one, in place of everything from its base on.
func (l *Log) swapIn(s *segment) {
	if l.file != nil {
		l.file = nil
		l.active.release()
	}
	l.mu.Lock()
	old := l.view.Load().segs
	keep := len(old)
	for keep > 0 && old[keep-1].base >= s.base {
		keep--
	}
	unsynced := l.unsynced
	l.unsynced = nil
	if keep > 0 {
		old[keep-1].end.Store(s.base) // before sealed and before the file is cut: see tell
		old[keep-1].sealed.Store(true)
	}
	l.view.Store(&view{segs: append(slices.Clone(old[:keep]), s)})
	l.mu.Unlock()
	l.active, l.file, l.gen, l.dirtyTail, l.saved = s, s.file, s.gen, false, 0
	for _, u := range unsynced {
		u.release()
	}
	for _, dead := range old[keep:] {
		// Superseded: what stays behind after a failure here goes to quarantine at the next start.
		if err := l.o.FS.Remove(dead.path()); err == nil || errors.Is(err, errNotExist) {
			dead.bury()
		}
		l.dropIndex(dead.base)
		l.damage.forget(dead.name, 0)
	}
	if keep > 0 {
		l.endAt(old[keep-1], s.base)
	}
}

// endAt cuts the bytes in doubt off the segment before a rewritten one.
func (l *Log) endAt(s *segment, end int64) {
	l.dropIndex(s.base)
	f, err := s.acquire()
	if err != nil {
		return
	}
	defer s.release()
	sc := newScan(s, f, 0, s.base, end)
	if e, ok := floorOffset(s.index.snapshot(), end-1); ok {
		at := sc.prove(place{pos: e.Position, offset: e.Offset, indexed: true})
		sc.pos, sc.expect = at.pos, at.offset
	}
	good := int64(0)
	for sc.next() {
		good = sc.pos
	}
	sc.close()
	if good == 0 || sc.err != nil {
		return
	}
	s.length.Store(good) // the one place where a length falls; what is beyond it has moved to the new segment
	_ = f.Truncate(good) // readers and the next start ignore what is behind it anyway
	s.index.table.Store(nil)
	s.noIndex.Store(true)
	l.damage.forget(s.name, good)
}
