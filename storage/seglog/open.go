package seglog

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"edgehub/internal/vfs"
)

// Recovery tells what Open found and did.
type Recovery struct {
	Segments    int           // segments in use
	TornBytes   int64         // bytes cut off the end: a write that a crash interrupted
	Torn        Damage        // where they were and what was wrong with them; offsets from From on are used again
	Damaged     []Damage      // damaged stretches met; the offsets in them are lost
	Quarantined []Quarantined // files moved away
	Scanned     int64         // bytes proven: independent of the size of the log
}

// Quarantined is a file that was moved out of the log because it cannot be used.
type Quarantined struct {
	Name   string // in the log's directory
	Path   string // where it is now, its reason beside it in Path + ".reason"; unmoved in a log that is read only
	Reason string
	Lost   bool // it was a segment, and what it held is lost: Damaged has it
}

// Reasons for quarantine, as they are told.
const (
	reasonForeign    = "not a file of this log"
	reasonContent    = "no batch of this log in it"
	reasonZero       = "filled with zeros"
	reasonEmpty      = "too short for a batch and not the last segment"
	reasonSuperseded = "superseded by a segment of a higher generation"
	reasonLeftover   = "left over from an interrupted rewrite"
)

// Open opens the log in a directory, creating that when it is missing. It proves the end of the log, from the last
// stored index entry on, cuts off what a crash left of an unfinished write, and moves what it cannot use to the
// quarantine directory; it deletes no record. What it found, it has made durable: Synced equals Next.
func Open(o Options) (*Log, Recovery, error) {
	if o.SegmentBytes <= 0 {
		o.SegmentBytes = SegmentBytesDefault
	}
	if o.IndexBytes <= 0 {
		o.IndexBytes = IndexBytesDefault
	}
	if o.FS == nil {
		o.FS = vfs.OS
	}
	if o.QuarantineDir == "" {
		o.QuarantineDir = filepath.Join(o.Dir, "quarantine")
	}
	o.Salt = logSalt(o.Salt, o.Name)
	l := &Log{o: o}
	l.parked.Store(true)
	l.view.Store(&view{})
	r := opening{l: l}
	if err := r.run(); err != nil {
		r.abandon()
		return nil, r.rec, fmt.Errorf("seglog: open %s: %w", o.Name, err)
	}
	if err := r.lookAway(); err != nil {
		r.abandon()
		return nil, r.rec, fmt.Errorf("seglog: open %s: %w", o.Name, err)
	}
	r.rec.Damaged = append(l.damage.list(), r.unread...)
	slices.SortFunc(r.rec.Damaged, func(a, b Damage) int { return cmp.Compare(a.From, b.From) })
	return l, r.rec, nil
}

// opening is the work of Open.
type opening struct {
	l     *Log
	rec   Recovery
	segs  []*segment
	floor int64 // offsets below were handed out, even if no record proves it
	moved bool  // files were moved: the directories need a sync

	unread []Damage // what the disk could not read
	unsure bool     // the gap between the end and the floor is among them
}

func (r *opening) run() error {
	l := r.l
	if !l.o.ReadOnly {
		if err := l.o.FS.MkdirAll(l.o.Dir); err != nil {
			return err
		}
	}
	for _, step := range []func() error{r.list, r.dropUnusable, r.recoverEnd, r.activate} {
		if err := step(); err != nil {
			return err
		}
	}
	if !l.o.ReadOnly {
		if err := r.makeDurable(); err != nil {
			return err
		}
	}
	l.dirDirty = false
	l.synced.Store(l.next.Load())
	r.rec.Segments = len(r.segs)
	return nil
}

// makeDurable syncs what Open found and did.
func (r *opening) makeDurable() error {
	l := r.l
	if r.moved {
		if err := l.o.FS.SyncDir(l.o.QuarantineDir); err != nil {
			return err
		}
	}
	// What a killed process wrote may still be on its way to the disk.
	if err := r.syncEnd(); err != nil {
		return err
	}
	return l.o.FS.SyncDir(l.o.Dir)
}

// abandon gives back what an Open that failed holds.
func (r *opening) abandon() {
	r.l.park()
	for _, s := range r.l.unsynced {
		s.release()
	}
	for _, s := range r.segs {
		openFiles.drop(s)
	}
}

// list reads the directory into segments by base and generation, and moves away what is not one.
func (r *opening) list() error {
	o := &r.l.o
	entries, err := o.FS.ReadDir(o.Dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		base, gen, ok := parseSegmentName(name)
		switch {
		case filepath.Join(o.Dir, name) == o.QuarantineDir:
		case name == preparedName || name == rewriteName:
			if err := r.leftover(name); err != nil {
				return err
			}
		case !ok || !e.Type().IsRegular():
			if err := r.quarantine(name, reasonForeign); err != nil {
				return err
			}
		default:
			info, err := o.FS.Stat(filepath.Join(o.Dir, name))
			if err != nil {
				return err
			}
			s := newSegment(o, base, gen)
			s.length.Store(info.Size())
			r.segs = append(r.segs, s)
		}
	}
	slices.SortFunc(r.segs, func(a, b *segment) int {
		return cmp.Or(cmp.Compare(a.base, b.base), cmp.Compare(b.gen, a.gen))
	})
	return nil
}

// leftover deals with a file that was not a segment yet: removed when empty, else kept for whoever wants to look.
func (r *opening) leftover(name string) error {
	path := filepath.Join(r.l.o.Dir, name)
	info, err := r.l.o.FS.Stat(path)
	if err != nil {
		return err
	}
	if info.Size() == 0 {
		if r.l.o.ReadOnly {
			return nil
		}
		return r.l.o.FS.Remove(path)
	}
	return r.quarantine(name, reasonLeftover)
}

// dropUnusable takes out superseded and empty segments and tells the others where they end.
func (r *opening) dropUnusable() error {
	void, err := r.superseded()
	if err != nil {
		return err
	}
	keep, err := r.sift(void, reasonSuperseded)
	if err != nil {
		return err
	}
	r.segs = keep
	if err := r.dropShort(); err != nil {
		return err
	}
	for i, s := range r.segs {
		r.l.gen = max(r.l.gen, s.gen)
		if i < len(r.segs)-1 {
			s.sealed.Store(true)
			s.end.Store(r.segs[i+1].base)
		}
	}
	for _, s := range r.segs[:max(0, len(r.segs)-1)] {
		if s.length.Load() < headerSize {
			r.met(s.short())
		}
	}
	return nil
}

// sift returns the segments without the bad ones, which go to quarantine.
func (r *opening) sift(bad map[*segment]bool, reason string) ([]*segment, error) {
	keep := make([]*segment, 0, len(r.segs))
	for _, s := range r.segs {
		if !bad[s] {
			keep = append(keep, s)
		} else if err := r.quarantine(s.name, reason); err != nil {
			return nil, err
		}
	}
	return keep, nil
}

// superseded returns the segments that a rewrite made void: those of a lower generation at or after the base of one
// that was rewritten, which holds all that was worth keeping of them. A file that only has the name of a rewritten
// segment, without a batch to prove it, makes nothing void that has content.
func (r *opening) superseded() (map[*segment]bool, error) {
	void := make(map[*segment]bool)
	var proven, any uint32     // highest generation so far: of a proven segment, and of any
	for _, s := range r.segs { // by base, and higher generations first
		if s.gen < proven || s.gen < any && s.length.Load() == 0 {
			void[s] = true
			continue
		}
		any = max(any, s.gen)
		if s.gen > proven {
			_, ok, err := r.l.firstTime(s)
			if err != nil { // it may void others or not: going on would be a guess
				return nil, err
			}
			if ok {
				proven = s.gen
			}
		}
	}
	return void, nil
}

// recoverEnd finds the end of the log: in the last segment that has a batch.
func (r *opening) recoverEnd() error {
	for len(r.segs) > 0 {
		s := r.segs[len(r.segs)-1]
		s.sealed.Store(false)
		reason, err := r.recoverTail(s)
		if err != nil {
			return err
		}
		if reason == "" {
			break
		}
		// Its name says that the offsets below were in use, and a power cut can make anything of a file that was never
		// synced. A gap in the offsets costs nothing; using offsets again that a remote may have would.
		r.floor = max(r.floor, s.base)
		openFiles.drop(s)
		if err := r.quarantine(s.name, reason); err != nil {
			return err
		}
		r.segs = r.segs[:len(r.segs)-1]
	}
	// An empty last segment proves nothing about the one before it, whose end may be torn as well. That one stays
	// sealed: what it lacks is told, not cut.
	if n := len(r.segs); n > 1 && r.segs[n-1].length.Load() == 0 {
		return r.proveSealed(r.segs[n-2])
	}
	return nil
}

// recoverTail proves the last segment from its last stored index entry on and cuts off a torn end. It returns a
// reason when the segment has no batch and is not just empty or torn in its first.
func (r *opening) recoverTail(s *segment) (reason string, err error) {
	f, err := s.acquire()
	if err != nil {
		return "", err
	}
	defer s.release()
	size, err := f.Size()
	if err != nil {
		return "", err
	}
	s.length.Store(size)
	sc := r.startScan(s, f)
	defer sc.close()
	sc.tail = true
	start := sc.pos
	ms := s.maxMs.Load()
	for sc.next() {
		s.index.add(IndexEntry{Offset: sc.header.base, Position: sc.at, MaxTimeMs: ms})
		ms = max(ms, sc.header.maxMs)
	}
	r.rec.Scanned += size - start
	s.maxMs.Store(ms)
	s.end.Store(sc.expect)
	if sc.torn != nil {
		if h := sc.holeIn(sc.pos, size); h != nil {
			return "", r.unreadable(s, sc, size, h.err)
		}
	}
	if sc.pos == 0 && size > 0 {
		if reason, err := r.classify(s, f, size); reason != "" || err != nil {
			return reason, err
		}
	}
	if sc.pos == 0 && size > 0 && size < headerSize {
		r.cutShort(s, size)
	}
	if sc.pos < size {
		if !r.l.o.ReadOnly {
			if err := f.Truncate(sc.pos); err != nil {
				return "", fmt.Errorf("cut torn tail of %s: %w", s.name, err)
			}
		}
		r.rec.TornBytes += size - sc.pos
		r.rec.Torn = Damage{Segment: s.name, Position: sc.pos, Bytes: size - sc.pos, From: sc.expect, To: sc.expect, Err: sc.torn}
	}
	s.length.Store(sc.pos)
	return "", nil
}

// unreadable deals with an end that the disk cannot read: that is no torn write, so nothing is cut. The log goes on in
// a new segment, behind all the offsets that the unread bytes can hold: a record takes more than a byte.
func (r *opening) unreadable(s *segment, sc *scan, size int64, cause error) error {
	if r.l.o.WholeOrNothing {
		return cause
	}
	lost := size - sc.pos
	r.unsure = true
	r.floor = max(r.floor, sc.expect+lost)
	r.met(Damage{
		Segment: s.name, Position: sc.pos, Bytes: lost, From: sc.expect, To: r.floor, Err: fmt.Errorf("%w (%w)", sc.torn, cause),
	})
	return nil
}

// met remembers damage; what could not be read is none as far as the log goes, see Log.Unread.
func (r *opening) met(d Damage) {
	if !d.Unread() {
		r.l.damage.add(d)
		return
	}
	r.unread = append(r.unread, d)
	if _, err := r.l.Unread(); err == nil {
		r.l.refused(d.From, d.Err)
	}
}

// startScan begins to prove a segment at its last stored index entry, if that points to a batch, else at its start.
// The index and the highest timestamp before that place are set.
func (r *opening) startScan(s *segment, f vfs.File) *scan {
	l := r.l
	s.index.reset(l.o.IndexBytes)
	sc := newScan(s, f, 0, s.base, maxOffset)
	sc.bad, sc.salvage = r.met, true
	if e := l.provenIndex(sc); e != nil {
		last := e[len(e)-1]
		s.index.load(e, l.o.IndexBytes)
		s.maxMs.Store(last.MaxTimeMs)
		sc.pos, sc.expect = last.Position, last.Offset
	}
	return sc
}

// provenIndex returns the stored index of the segment of a scan when its last entry points to a batch, else nil.
func (l *Log) provenIndex(sc *scan) []IndexEntry {
	e := l.loadIndex(sc.s)
	if n := len(e); n > 0 && e[n-1].Position == sc.s.length.Load() {
		e = e[:n-1] // the end of what was a sealed segment
	}
	if len(e) == 0 {
		return nil
	}
	last := e[len(e)-1]
	// The time is checked like the place: it becomes the floor of all timestamps to come.
	if h, _, err := sc.check(last.Position); err != nil || h.base != last.Offset || h.baseMs < last.MaxTimeMs {
		return nil
	}
	return e
}

// maxOffset is beyond any offset.
const maxOffset = 1<<63 - 1

// classify tells what a segment without a batch is: "" for a first write that was interrupted.
func (r *opening) classify(s *segment, f vfs.File, size int64) (reason string, err error) {
	var b [4096]byte
	for pos := int64(0); pos < size; pos += int64(len(b)) {
		n := int(min(int64(len(b)), size-pos))
		if _, err := f.ReadAt(b[:n], pos); err != nil {
			return "", err
		}
		if pos == 0 {
			if h, err := checkHeader(b[:n], s.salt, 0); h.size > 0 || errors.Is(err, ErrTruncated) && !allZero(b[:n]) {
				return "", nil
			}
		}
		if !allZero(b[:n]) {
			return reasonContent, nil
		}
	}
	return reasonZero, nil
}

func allZero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}

// proveSealed tells what is wrong with the end of a sealed segment.
func (r *opening) proveSealed(s *segment) error {
	f, err := s.acquire()
	if err != nil {
		return err
	}
	defer s.release()
	sc := r.startScan(s, f)
	defer sc.close()
	start := sc.pos
	sc.stop = s.end.Load()
	ms := s.maxMs.Load()
	for sc.next() {
		s.index.add(IndexEntry{Offset: sc.header.base, Position: sc.at, MaxTimeMs: ms})
		ms = max(ms, sc.header.maxMs)
	}
	s.useIndex(s.ended(s.index.snapshot(), ms))
	r.rec.Scanned += s.length.Load() - start
	return nil
}

// activate makes the last segment the active one and publishes the view.
func (r *opening) activate() error {
	l := r.l
	for _, s := range r.segs[max(0, len(r.segs)-2):] {
		l.lastMs.Store(max(l.lastMs.Load(), s.maxMs.Load()))
	}
	next := r.floor
	if n := len(r.segs); n > 0 {
		l.active = r.segs[n-1]
		next = max(next, l.active.end.Load())
	}
	l.next.Store(next)
	l.view.Store(&view{segs: r.segs})
	if l.o.ReadOnly || l.active == nil && next == 0 || l.active != nil && l.active.end.Load() == next {
		return nil
	}
	// The floor is above the last record: a new segment says so to the starts to come. An active one that is empty stays
	// so for ever: its name and that of the new one say what is lost.
	if s := l.active; s != nil {
		if from := s.end.Swap(next); !r.unsure {
			r.met(Damage{Segment: s.name, Position: s.length.Load(), From: from, To: next, Err: ErrMissing})
		}
	}
	if err := l.roll(); err != nil {
		return err
	}
	r.segs = l.view.Load().segs
	return nil
}

// syncEndMax bounds the segments that Open syncs.
const syncEndMax = 64

// syncEnd makes the segments durable that a killed process may not have synced: from the last one back to one with a
// stored index, which is stored after the sync only.
func (r *opening) syncEnd() error {
	for i := len(r.segs) - 1; i >= max(0, len(r.segs)-syncEndMax); i-- {
		s := r.segs[i]
		if s.sealed.Load() && r.l.storedIndex(s) != nil {
			break
		}
		if err := syncFiles([]*segment{s}); err != nil {
			return fmt.Errorf("sync %s: %w", s.name, err)
		}
	}
	for _, s := range r.l.unsynced {
		s.release()
	}
	r.l.unsynced = nil
	return nil
}

// quarantine moves a file away and writes the reason beside it.
func (r *opening) quarantine(name, reason string) error {
	o := &r.l.o
	if o.ReadOnly {
		r.rec.Quarantined = append(r.rec.Quarantined, Quarantined{Name: name, Path: filepath.Join(o.Dir, name), Reason: reason, Lost: lossy(name, reason)})
		return nil
	}
	if err := o.FS.MkdirAll(o.QuarantineDir); err != nil {
		return err
	}
	target, err := freeName(o.FS, filepath.Join(o.QuarantineDir, o.asidePrefix()+name))
	if err != nil {
		return err
	}
	if err := o.FS.Rename(filepath.Join(o.Dir, name), target); err != nil {
		return err
	}
	r.moved = true
	r.rec.Quarantined = append(r.rec.Quarantined, Quarantined{Name: name, Path: target, Reason: reason, Lost: lossy(name, reason)})
	f, err := o.FS.OpenFile(target+".reason", os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(o.Name+"/"+name+": "+reason+"\n"), 0)
	return errors.Join(err, f.Close())
}
