package meta

import (
	"errors"
	"fmt"
	"time"
)

// Flush commits and writes everything that is not in the index yet to it.
func (s *Store) Flush() error {
	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	if s.suspended.Load() || s.lacks(s.flushNeed()) {
		if err := s.commit(false); err != nil {
			return err
		}
		return ErrSuspended
	}
	return s.flush()
}

// flush is Flush; the caller holds flushMu.
func (s *Store) flush() error {
	if s.sealed != nil { // of a flush that failed; changed only under flushMu
		if err := s.flushSealed(); err != nil {
			return err
		}
	}
	if err := s.commit(true); err != nil {
		return err
	}
	return s.flushSealed()
}

// flushSealed writes the sealed generation to the index and lets go of it.
func (s *Store) flushSealed() error {
	s.mu.Lock()
	g, mark := s.sealed, s.sealMark
	s.mu.Unlock()
	lost := s.hintsLost.Load()
	err := s.index.apply(edits(g), func(st *state) {
		st.partial = lost
		st.salt = s.o.Salt
		st.watermark, st.mark = mark.offset, mark.mark
	})
	if err != nil {
		s.stats.flushFailures.Add(1)
		return err
	}
	s.mu.Lock()
	s.sealed = nil
	s.mu.Unlock()
	s.stats.flushes.Add(1)
	return nil
}

// settled is how long a run must last for the store to believe that its index
// is not what ends the runs; see starts.
const settled = 20 * time.Second

// run flushes behind the callers until the store is closed. An idle store
// sleeps without a timer once it has settled.
func (s *Store) run() {
	defer close(s.done)
	s.report("audit", s.audit())
	close(s.audited)
	settle := time.NewTimer(settled)
	defer settle.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-settle.C:
			s.report("starts", s.clearStarts())
			continue
		case <-s.wake:
		}
		if !s.pause(s.o.FlushEvery) {
			return
		}
		s.round()
	}
}

// pause waits d, or less when a flush is urgent; false means stop.
func (s *Store) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-s.stop:
		return false
	case <-s.urgent:
	case <-t.C:
	}
	return true
}

// round is one turn of the flusher.
func (s *Store) round() {
	if s.log.NeedsPrepare() {
		s.report("prepare", s.log.Prepare())
	}
	if s.suspended.Load() {
		return // Resume wakes the flusher
	}
	if err := s.Flush(); err != nil {
		s.report("flush", err)
		notify(s.wake) // try again, after FlushEvery
		return
	}
	if s.wantsCompaction() {
		s.report("compaction", s.Compact())
	}
	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	if now := s.o.Now(); now.Sub(s.collected).Abs() >= collectEvery {
		s.collected = now
		s.index.collect()
	}
}

// report logs what failed behind the callers' backs.
func (s *Store) report(what string, err error) {
	if err != nil && !errors.Is(err, ErrClosed) && !errors.Is(err, ErrSuspended) {
		s.o.Logger.Error("background work on the metadata failed", "work", what, "error", err)
	}
}

// Close flushes, syncs the log and closes everything. Calls after it fail
// with ErrClosed; no scan may be under way. Where the disk has no room for
// that the index is left as it is, see releaseIndex: the log has it all.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return nil
	}
	s.closing = true
	s.mu.Unlock()
	close(s.stop)
	<-s.done

	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	var err error
	leave := s.suspended.Load() || s.lacks(s.flushNeed()+s.index.closeNeed())
	if leave { // the next start applies the log instead
		err = s.commit(false)
	} else {
		err = s.flush()
	}
	if _, serr := s.log.Sync(); serr != nil {
		err = errors.Join(err, fmt.Errorf("meta: sync: %w", serr))
	}
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	err = errors.Join(err, s.releaseIndex(s.index, leave), s.log.Close())
	if err != nil {
		return err
	}
	return s.clearStarts()
}
