package meta

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"edgehub/storage/seglog"
)

// Names below the data directory.
const (
	logDir        = "streams/$meta/0"
	logName       = "$meta/0"
	indexDir      = "meta"
	quarantineDir = "quarantine"
)

// Recovery tells what Open found and did.
type Recovery struct {
	// Log is what the log's own recovery found.
	Log seglog.Recovery
	// Empty: there was neither index nor log before; in a directory that has
	// run, all metadata are gone.
	Empty bool
	// Rebuilt: there was no usable index, so it was built from the log. Reason
	// says why ("" for a new directory), Quarantined where the old one is.
	Rebuilt     bool
	Reason      string
	Quarantined string
	// HintsLost: hints may be missing; their owners derive them again.
	HintsLost bool
	// Rewritten is how many offsets of the log were lost while the index still
	// had their keys; all keys were written to the log again.
	Rewritten int64
	// Replayed is how many records the index lacked.
	Replayed int64
	// Unreadable is how many records of the log had no meaning (ErrRecord).
	Unreadable int64
	// Damaged are the stretches of the log that were lost, among what was read.
	Damaged []seglog.Damage
	// Lost are the keys in them whose newest value may be gone, as far as they
	// can be read: nothing later in the log sets them.
	Lost []string
}

// Open opens the metadata store below o.DataDir, creating it when it is
// missing, and brings the index up to the log. What cannot be used is moved to
// quarantine/. The caller owns the directory (see datadir).
func Open(o Options) (*Store, Recovery, error) {
	o.setDefaults()
	var rec Recovery
	var err error
	if rec.Empty, err = o.holdsNothing(); err != nil {
		return nil, rec, fmt.Errorf("meta: %w", err)
	}
	log, lrec, err := seglog.Open(seglog.Options{
		FS: o.FS, Dir: filepath.Join(o.DataDir, filepath.FromSlash(logDir)), Name: logName,
		Salt: o.Salt, SegmentBytes: o.SegmentBytes, QuarantineDir: filepath.Join(o.DataDir, quarantineDir),
		WholeOrNothing: true, // sessions that the disk cannot read now must not be taken for ones that never were
	})
	if err != nil {
		return nil, rec, fmt.Errorf("meta: open log: %w", err)
	}
	rec.Log = lrec
	s := &Store{
		o: o, log: log, live: new(generation), collected: o.Now(),
		wake: make(chan struct{}, 1), urgent: make(chan struct{}, 1),
		stop: make(chan struct{}), done: make(chan struct{}), audited: make(chan struct{}),
	}
	if err := s.openIndex(&rec); err != nil {
		return nil, rec, errors.Join(err, log.Close())
	}
	if err := s.heal(&rec); err != nil {
		return nil, rec, errors.Join(err, s.releaseIndex(s.index, false), log.Close())
	}
	go s.run()
	return s, rec, nil
}

// holdsNothing reports whether there is no file of the log and none of the
// index. A run leaves files of the index from its very beginning.
func (o *Options) holdsNothing() (bool, error) {
	for _, dir := range []string{indexDir, filepath.FromSlash(logDir)} {
		path := filepath.Join(o.DataDir, dir)
		info, err := o.FS.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil || !info.IsDir() {
			return false, err
		}
		if entries, err := o.FS.ReadDir(path); err != nil || len(entries) > 0 {
			return false, err
		}
	}
	return true, nil
}

// openIndex opens the index, or builds it, and applies what it lacks.
func (s *Store) openIndex(rec *Recovery) error {
	err := s.tryIndex()
	if errors.Is(err, errIndexDamaged) {
		rec.Reason = err.Error()
		s.o.Logger.Warn("the metadata index is unusable and is built again from the log", "reason", rec.Reason)
		if rec.Quarantined, err = s.quarantine(rec.Reason); err != nil {
			return err
		}
		err = s.tryIndex()
	}
	if err != nil {
		return err
	}
	x := s.index
	rec.Rebuilt = rec.Quarantined != "" || x.state == (state{}) && s.log.Next() > s.log.First()
	rec.HintsLost = rec.Rebuilt || x.state.partial
	if x.state.partial {
		err = x.dropHints()
	}
	if err == nil && x.state.watermark <= s.log.Next() {
		from := x.state.watermark
		err = s.replay(rec)
		if rec.Damaged = s.log.Damage(); err == nil && len(rec.Damaged) > 0 {
			rec.Lost, err = s.lostKeys(rec.Damaged, from)
			s.tellLost(rec.Damaged, rec.Lost)
		}
	}
	if err != nil {
		return errors.Join(err, s.releaseIndex(x, false))
	}
	return nil
}

// tryIndex opens the index and checks that it belongs to the log.
func (s *Store) tryIndex() error {
	dir := filepath.Join(s.o.DataDir, indexDir)
	if info, err := s.o.FS.Stat(dir); err == nil && !info.IsDir() {
		return fmt.Errorf("%w: it is not a directory", errIndexDamaged)
	}
	if err := s.o.FS.MkdirAll(dir); err != nil {
		return fmt.Errorf("meta: %w", err)
	}
	if err := s.beginStart(); err != nil {
		return err
	}
	x, err := openIndex(dir, s.o.IndexBytes, s.o.Logger)
	if err != nil {
		return err
	}
	if err := errors.Join(s.opened(), s.belongs(x)); err != nil {
		return errors.Join(err, closeBadger(x.db))
	}
	s.index = x
	return nil
}

// belongs tells whether an index is one of this log.
func (s *Store) belongs(x *index) error {
	st := x.state
	switch {
	case st == (state{}):
		return nil
	case st.salt != s.o.Salt:
		return fmt.Errorf("%w: it belongs to another data directory", errIndexDamaged)
	case st.watermark < s.log.First():
		return fmt.Errorf("%w: it ends at offset %d, before the log's first, %d", errIndexDamaged, st.watermark, s.log.First())
	case st.watermark > s.log.Next() || st.watermark == s.log.First() || st.mark == 0:
		return nil // nothing to compare
	}
	mark, err := s.markBelow(st.watermark)
	if err != nil {
		return err
	}
	if mark != 0 && mark != st.mark {
		return fmt.Errorf("%w: the log has another record at offset %d", errIndexDamaged, st.watermark-1)
	}
	return nil
}

// markBelow returns the fingerprint of the record below offset, 0 when it is not there.
func (s *Store) markBelow(offset int64) (uint64, error) {
	chunk, err := s.log.Read(offset-1, 1, nil)
	if err != nil {
		return 0, fmt.Errorf("meta: read log: %w", err)
	}
	for r := range seglog.Records(chunk) {
		if r.Offset == offset-1 {
			return fingerprint(r.Key, r.Value), nil
		}
	}
	return 0, nil
}

// Replay reads chunks of the log and applies them when so much came together.
const (
	replayRead  = 256 << 10
	replayBytes = 1 << 20
)

// replay applies the log from the index's watermark to its end. After each
// part the index is whole up to there, so that replay may be interrupted.
func (s *Store) replay(rec *Recovery) error {
	x := s.index
	g := new(generation)
	at := watermark{x.state.watermark, x.state.mark}
	if first := s.log.First(); at.offset < first { // an empty index
		at.offset = first
	}
	var chunk []byte
	for at.offset < s.log.Next() {
		var err error
		if chunk, err = s.log.Read(at.offset, replayRead, chunk[:0]); err != nil {
			return fmt.Errorf("meta: read log: %w", err)
		}
		if len(chunk) == 0 { // the rest is damaged
			at.offset = s.log.Next()
			break
		}
		if err := s.collectChanges(chunk, g, &at, rec); err != nil {
			return err
		}
		if g.bytes() >= replayBytes {
			if err := s.advance(g, at); err != nil {
				return err
			}
			g = new(generation)
		}
	}
	s.lastMark = at.mark
	return s.advance(g, at)
}

// collectChanges decodes a chunk's records from at on into g.
func (s *Store) collectChanges(chunk []byte, g *generation, at *watermark, rec *Recovery) error {
	before := at.offset
	var sc seglog.Scanner
	sc.Reset(chunk)
	for sc.Next() {
		r := sc.Record()
		if r.Offset < at.offset {
			continue // the batch begins below the watermark
		}
		at.offset, at.mark = r.Offset+1, fingerprint(r.Key, r.Value)
		c, err := decodeRecord(r.Key, r.Value)
		if err != nil {
			rec.Unreadable++
			s.o.Logger.Error("a metadata record is skipped", "offset", r.Offset, "error", err)
			continue
		}
		rec.Replayed++
		g.durable.put(c.key, clone(c.value), c.deleted)
	}
	if err := sc.Err(); err != nil {
		return fmt.Errorf("meta: read log: %w", err)
	}
	if at.offset == before {
		panic("BUG: meta: the log returned a chunk without the records asked for")
	}
	return nil
}

// advance brings the index up to a watermark.
func (s *Store) advance(g *generation, to watermark) error {
	return s.index.apply(edits(g), func(st *state) {
		st.partial = false
		st.salt = s.o.Salt
		st.watermark, st.mark = to.offset, to.mark
	})
}

// heal writes all keys to the log again when the log ends before what the
// (whole) index has seen of it. The state remembers that until it is done.
func (s *Store) heal(rec *Recovery) error {
	x := s.index
	if ahead := x.state.watermark - s.log.Next(); ahead > 0 {
		rec.Rewritten = ahead
		s.o.Logger.Warn("the metadata log lost its end and is written again from its index", "offsets", ahead)
		mark, err := s.markBelow(max(s.log.Next(), s.log.First()+1))
		if err != nil {
			return err
		}
		s.lastMark = mark
		if err := x.apply(nil, func(st *state) {
			st.rewrite = true
			st.watermark, st.mark = s.log.Next(), mark
		}); err != nil {
			return err
		}
	}
	if !x.state.rewrite {
		return nil
	}
	if err := s.copyLive(); err != nil {
		return err
	}
	if err := s.Sync(); err != nil {
		return err
	}
	return x.apply(nil, func(st *state) {
		st.rewrite = false
		st.watermark, st.mark = s.log.Next(), s.lastMark
	})
}
