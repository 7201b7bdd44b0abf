package seglog

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"

	"edgehub/internal/vfs"
)

// Append writes the batches of b with one write and makes them visible to readers. b must continue the log at Next.
// It returns when the write has: the records survive the death of the process, and a power cut once Sync has passed
// them. On an error nothing is visible, the offsets are not used, and the file is cut back to where it was; b may be
// given again or reset. Append waits while a failed fsync is repaired, and returns ErrInDoubt when that did not work.
func (l *Log) Append(b *Builder) error {
	if b.Count() == 0 {
		return nil
	}
	l.wmu.Lock()
	defer l.wmu.Unlock()
	if err := l.writable(b); err != nil {
		return err
	}
	s := l.active
	pos := s.length.Load()
	out := l.wire(b, s.salt, pos)
	if _, err := l.file.WriteAt(out, pos); err != nil {
		l.stats.writeFailures.Add(1)
		// Part of the batches may be in the file, whole and provable: they must go before anything else is written
		// after them, or a restart would find records whose publishers were told that they failed.
		l.dirtyTail = true
		_ = l.cutTail()
		return fmt.Errorf("seglog: %s: append %d bytes at offset %d: %w", l.o.Name, b.Len(), b.base, err)
	}
	l.publish(s, b, pos, len(out))
	if l.parked.Load() {
		l.parked.Store(false)
	}
	return nil
}

// writable prepares the active segment for the batches of b.
func (l *Log) writable(b *Builder) error {
	if err := l.usable(); err != nil {
		return err
	}
	if next := l.next.Load(); b.base != next {
		return fmt.Errorf("%w: %s: batch begins at %d, log ends at %d", ErrBase, l.o.Name, b.base, next)
	}
	if s := l.active; s == nil || s.length.Load() > 0 && s.length.Load()+int64(b.Len()) > l.o.SegmentBytes {
		if err := l.roll(); err != nil {
			return err
		}
	}
	if l.file == nil {
		f, err := l.active.acquire()
		if err != nil {
			return fmt.Errorf("seglog: %s: %w", l.o.Name, err)
		}
		l.file = f
	}
	return l.cutTail()
}

// usable tells why nothing can be written at all.
func (l *Log) usable() error {
	switch {
	case l.closed.Load():
		return ErrClosed
	case l.o.ReadOnly:
		return ErrReadOnly
	case l.doubt != nil:
		return fmt.Errorf("%w (%s: %w)", ErrInDoubt, l.o.Name, l.doubt)
	}
	return nil
}

// cutTail removes what a failed write left behind. Until it has, nothing is appended.
func (l *Log) cutTail() error {
	if !l.dirtyTail {
		return nil
	}
	if err := l.file.Truncate(l.active.length.Load()); err != nil {
		return fmt.Errorf("seglog: %s: cut back after a failed write: %w", l.o.Name, err)
	}
	l.dirtyTail = false
	return nil
}

// publish makes written batches visible.
//
// Invariant: index, length, end and next are stored in this order, after the write. Readers load them in the opposite
// order; so whatever offset a reader may ask for lies below the length it sees, and every byte below length has been
// written whole. A published batch stays where it is until its segment
// is dropped, or rewritten after a failed fsync.
func (l *Log) publish(s *segment, b *Builder, pos int64, size int) {
	last := s.maxMs.Load()
	for i := range b.batches {
		x := &b.batches[i]
		s.index.add(IndexEntry{Offset: x.base, Position: pos + int64(l.packer.at(b, i)), MaxTimeMs: last})
		last = max(last, x.maxMs)
	}
	s.maxMs.Store(last)
	if last > l.lastMs.Load() {
		l.lastMs.Store(last)
	}
	s.length.Store(pos + int64(size))
	s.end.Store(b.next)
	l.next.Store(b.next)
}

// seal completes the batches for the place where they will be written.
func (b *Builder) seal(salt uint32, pos int64) {
	b.finish(&b.batches[len(b.batches)-1])
	for i := range b.batches {
		at := int64(b.batches[i].pos)
		batch := b.buf[at:]
		binary.BigEndian.PutUint32(batch[posHeaderCRC:], headerCRC(salt, pos+at, batch))
	}
}

// Roll seals the active segment and begins the next one. It does nothing when the active segment is empty.
func (l *Log) Roll() error {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	if l.active == nil || l.active.length.Load() == 0 {
		return nil
	}
	return l.roll()
}

// roll creates the next segment and makes it the active one. The caller holds wmu. On an error nothing has changed.
func (l *Log) roll() error {
	if l.active != nil && l.file == nil {
		f, err := l.active.acquire()
		if err != nil {
			return fmt.Errorf("seglog: %s: %w", l.o.Name, err)
		}
		l.file = f
	}
	if l.active != nil {
		if err := l.cutTail(); err != nil { // a sealed segment must end where its records do
			return err
		}
	}
	s := newSegment(&l.o, l.next.Load(), l.gen)
	f, err := l.create(s)
	if err != nil {
		return fmt.Errorf("seglog: %s: new segment: %w", l.o.Name, err)
	}
	s.index.reset(l.o.IndexBytes)
	s.file, s.refs = f, 1 // the committer's

	// Sync captures next, the active segment and the unsynced ones under mu. The roll changes them under mu and before
	// the first write to the new segment; so a Sync that sees an offset of the new segment also sees that segment, and
	// the sealed one stays in unsynced until a Sync has covered it.
	l.mu.Lock()
	segs := l.view.Load().segs
	if l.active != nil {
		l.active.sealed.Store(true)
		l.unsynced = append(l.unsynced, l.active) // takes over the committer's reference
	}
	l.view.Store(&view{segs: append(segs[:len(segs):len(segs)], s)})
	l.dirDirty = true
	l.mu.Unlock()
	l.active, l.file = s, f
	return nil
}

// create makes the file of a segment, out of the prepared one if there is one.
func (l *Log) create(s *segment) (vfs.File, error) {
	l.mu.Lock()
	f := l.prepared
	l.prepared = nil
	l.mu.Unlock()
	if f != nil {
		err := l.o.FS.Rename(filepath.Join(l.o.Dir, preparedName), s.path())
		// Only now: a Prepare that ran before the rename would open the very file that becomes the segment.
		l.ready.Store(false)
		if err == nil {
			return f, nil
		}
		_ = f.Close() // empty: there is nothing to lose in it
	}
	return l.o.FS.OpenFile(s.path(), os.O_RDWR|os.O_CREATE|os.O_EXCL)
}

// NeedsPrepare reports whether Prepare would help: the active segment is more than half full, in use, and
// no file is ready.
func (l *Log) NeedsPrepare() bool {
	if l.ready.Load() || l.parked.Load() {
		return false
	}
	segs := l.view.Load().segs
	return len(segs) > 0 && segs[len(segs)-1].length.Load() > l.o.SegmentBytes/2
}

// Prepare makes the file of the next segment ready, so that the roll inside Append costs no more than a rename. It is
// called off the committer's path, by any goroutine.
func (l *Log) Prepare() error {
	l.prepMu.Lock()
	defer l.prepMu.Unlock()
	if l.closed.Load() {
		return ErrClosed
	}
	if l.o.ReadOnly {
		return ErrReadOnly
	}
	if l.ready.Load() {
		return nil
	}
	f, err := l.o.FS.OpenFile(filepath.Join(l.o.Dir, preparedName), os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return fmt.Errorf("seglog: %s: prepare segment: %w", l.o.Name, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed.Load() { // Close has taken away what there was
		_ = f.Close()
		return ErrClosed
	}
	l.prepared = f
	l.ready.Store(true)
	return nil
}
