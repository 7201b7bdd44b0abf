package meta

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/dgraph-io/badger/v4"
)

// Get returns a copy of a durable key's value; it sees every Put.
func (s *Store) Get(key []byte) (value []byte, found bool, err error) {
	return s.get(spaceDurable, key)
}

// GetHint returns a copy of a hint's value.
func (s *Store) GetHint(key []byte) (value []byte, found bool, err error) {
	return s.get(spaceHint, key)
}

func (s *Store) get(space byte, key []byte) ([]byte, bool, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, false, ErrClosed
	}
	for _, o := range s.overlays(space) {
		if o == nil {
			continue
		}
		if n := o.get(key); n != nil {
			value, deleted := n.value, n.deleted // taken under the lock, never changed in place
			s.mu.Unlock()
			if deleted {
				return nil, false, nil
			}
			return clone(value), true, nil
		}
	}
	s.mu.Unlock()
	return s.index.get(space, key)
}

// overlays returns the overlays of a space, newest first; the caller holds mu.
func (s *Store) overlays(space byte) [2]*overlay {
	pick := func(g *generation) *overlay {
		switch {
		case g == nil:
			return nil
		case space == spaceHint:
			return &g.hints
		}
		return &g.durable
	}
	return [2]*overlay{pick(s.live), pick(s.sealed)}
}

// Scan calls fn for every durable key with prefix, as of the moment of the
// call. Keys come in order, but for keys above 1 KiB that share their first
// 1 KiB. The slices are valid during the call of fn only. fn may use the store.
func (s *Store) Scan(prefix []byte, fn func(key, value []byte) error) error {
	return s.scan(spaceDurable, prefix, fn)
}

// ScanHints is Scan over the hints.
func (s *Store) ScanHints(prefix []byte, fn func(key, value []byte) error) error {
	return s.scan(spaceHint, prefix, fn)
}

// recent is a change that a scan found in the overlays.
type recent struct {
	ikey, key, value []byte
	deleted          bool
}

func (s *Store) scan(space byte, prefix []byte, fn func(key, value []byte) error) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return ErrClosed
	}
	o := s.overlays(space)
	nodes := merged(prefix, o[0], o[1])
	changes := make([]recent, len(nodes))
	for i, n := range nodes {
		key := []byte(n.key)
		changes[i] = recent{indexKey(nil, space, key), key, n.value, n.deleted}
	}
	// A flush drops its generation under mu once it is in the index, so a
	// transaction begun here has all that the overlays do not have.
	txn := s.index.db.NewTransaction(false)
	s.mu.Unlock()
	defer txn.Discard()
	slices.SortFunc(changes, func(a, b recent) int { return bytes.Compare(a.ikey, b.ikey) }) // folded keys may be out of order

	opt := badger.DefaultIteratorOptions
	opt.PrefetchValues = false
	opt.Prefix = indexPrefix(space, prefix)
	it := txn.NewIterator(opt)
	defer it.Close()
	for it.Seek(opt.Prefix); it.Valid(); it.Next() {
		ikey := it.Item().Key()
		var err error
		if changes, err = emitBefore(changes, ikey, fn); err != nil {
			return err
		}
		if len(changes) > 0 && bytes.Equal(changes[0].ikey, ikey) {
			continue // the next round emits the newer value
		}
		if err := emitItem(it.Item(), prefix, fn); err != nil {
			return err
		}
	}
	_, err := emitBefore(changes, nil, fn)
	return err
}

// emitBefore passes on the changes in front of ikey (all when nil) and returns the rest.
func emitBefore(changes []recent, ikey []byte, fn func(key, value []byte) error) ([]recent, error) {
	for len(changes) > 0 && (ikey == nil || bytes.Compare(changes[0].ikey, ikey) < 0) {
		c := changes[0]
		changes = changes[1:]
		if c.deleted {
			continue
		}
		if err := fn(c.key, c.value); err != nil {
			return nil, err
		}
	}
	return changes, nil
}

// emitItem passes on an entry of the index.
func emitItem(item *badger.Item, prefix []byte, fn func(key, value []byte) error) error {
	ikey := item.Key()
	var fnErr error
	err := item.Value(func(ivalue []byte) error {
		key, value, err := splitEntry(ikey, ivalue)
		if err == nil && bytes.HasPrefix(key, prefix) { // a folded prefix is not all of it
			fnErr = fn(key, value)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("meta: scan: %w", err)
	}
	return fnErr
}
