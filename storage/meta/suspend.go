package meta

// Suspend stops all writing to the index, until Resume: Badger maps its files, and a write into a mapping for which
// the disk has no room ends the process. Durable keys go on being written to $meta, which only fails. What changes
// meanwhile stays in memory, one entry for each key that lives. A flush that is under way finishes; it is small.
func (s *Store) Suspend() { s.suspended.Store(true) }

// Resume ends Suspend; what has changed is written behind.
func (s *Store) Resume() {
	s.suspended.Store(false)
	notify(s.wake)
	notify(s.urgent)
}

// undo takes a key out of the overlay that is about to be deleted and that nothing below has, so that keys which come
// and go while the index is not written do not gather. The caller holds mu. It reports whether it did.
func (s *Store) undo(key []byte) bool {
	if s.sealed != nil && s.sealed.durable.get(key) != nil {
		return false
	}
	if _, found, err := s.index.get(spaceDurable, key); found || err != nil {
		return false
	}
	if n := s.live.durable.get(key); n != nil {
		s.live.durable.unlink(key, n)
	}
	return true
}
