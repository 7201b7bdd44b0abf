package meta

import (
	"fmt"

	"github.com/dgraph-io/badger/v4"
)

// A compaction step copies so many keys or bytes while it holds flushMu.
const (
	stepKeys  = 256
	stepBytes = 64 << 10
)

// wantsCompaction tells whether $meta is much larger than what lives in it.
func (s *Store) wantsCompaction() bool {
	s.flushMu.Lock()
	live := s.index.state.live
	s.flushMu.Unlock()
	size := s.log.Bytes()
	return size > s.o.CompactBytes && size > compactFactor*live
}

// Compact rewrites $meta to its live keys; see the package comment for why it
// may be interrupted anywhere. It does nothing while another one, or an export, runs.
func (s *Store) Compact() error {
	if !s.compactMu.TryLock() {
		return nil
	}
	defer s.compactMu.Unlock()
	if err := s.compact(); err != nil {
		s.stats.compactFailures.Add(1)
		return fmt.Errorf("meta: compact: %w", err)
	}
	s.stats.compactions.Add(1)
	return nil
}

func (s *Store) compact() error {
	low, err := s.rollLog()
	if err != nil {
		return err
	}
	s.step("rolled")
	// After this flush the overlay holds only changes whose records are behind
	// the roll, which is why copyLive may leave them out.
	if err := s.Flush(); err != nil {
		return err
	}
	s.step("flushed")
	if err := s.copyLive(); err != nil {
		return err
	}
	s.step("copied")
	if err := s.Sync(); err != nil {
		return err
	}
	// Without this a power cut could leave an index that lacks what the removed
	// segments had. It would be noticed and rebuilt; this spares that.
	if err := s.index.db.Sync(); err != nil {
		return err
	}
	s.step("synced")
	for {
		segs := s.log.Segments()
		if len(segs) == 0 || !segs[0].Sealed || segs[0].Next > low {
			return nil
		}
		if _, err := s.log.DropOldest(); err != nil {
			return err
		}
		s.step("dropped")
	}
}

func (s *Store) step(name string) {
	if s.onStep != nil {
		s.onStep(name)
	}
}

// rollLog seals the log and returns the offset that begins the new segment.
func (s *Store) rollLog() (int64, error) {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	if err := s.log.Roll(); err != nil {
		return 0, err
	}
	return s.log.Next(), nil
}

// copyLive appends every key of the index that has no newer change to the log.
func (s *Store) copyLive() error {
	for from := []byte{spaceDurable}; from != nil; {
		var err error
		if from, err = s.copyStep(from); err != nil {
			return err
		}
		s.step("copying")
		if err := s.Commit(); err != nil {
			return err
		}
		select {
		case <-s.stop:
			return ErrClosed
		default:
		}
	}
	return nil
}

// copyStep copies some keys from the index key from on and returns where to go
// on, nil at the end. Nothing flushes meanwhile, so that a key is either in the
// overlay, with a newer record, or has in the index its newest value.
func (s *Store) copyStep(from []byte) (next []byte, err error) {
	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	type entry struct{ key, value []byte }
	var list []entry
	size := 0
	err = s.index.iterateFrom(from, []byte{spaceDurable}, func(item *badger.Item) error {
		if len(list) >= stepKeys || size >= stepBytes {
			next = item.KeyCopy(nil)
			return errStop
		}
		ikey := item.KeyCopy(nil)
		ivalue, err := item.ValueCopy(nil)
		if err != nil {
			return err
		}
		key, value, err := splitEntry(ikey, ivalue)
		if err != nil {
			return err
		}
		list = append(list, entry{key, value})
		size += len(key) + len(value)
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refuse(); err != nil {
		return nil, err
	}
	o := s.overlays(spaceDurable)
	for _, e := range list {
		if o[0].get(e.key) == nil && (o[1] == nil || o[1].get(e.key) == nil) {
			queued := len(s.pending.buf)
			s.pending.add(e.key, opPut, e.value)
			s.put.Add(1)
			s.backlog.Add(int64(len(s.pending.buf) - queued))
		}
	}
	return next, nil
}
