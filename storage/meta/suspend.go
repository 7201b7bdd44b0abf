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

// lacks tells whether less than need is free now. What the guard of the disk saw last may be a second old.
func (s *Store) lacks(need int64) bool {
	if s.o.Free == nil {
		return false
	}
	free, err := s.o.Free(s.o.DataDir)
	return err == nil && free < need
}

// flushNeed is what a flush can write, about: the journal, twice what is put for what Badger adds, and the table that
// was being filled.
func (s *Store) flushNeed() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return 2*int64(s.held()) + s.index.memTable
}

// closeNeed is at most what closing the index writes: a table of each one in memory, and all tables anew when those
// set off a compaction, which removes what it replaces at its end.
func (x *index) closeNeed() int64 {
	need := (memTables + 1) * x.memTable
	for _, l := range x.db.Levels() {
		need += l.Size
	}
	return need
}

// releaseIndex closes Badger, or leaves it as it is when told so or when the disk has no room for the tables which Badger then writes
// through mappings: that would end the process with everything else still to be closed. What is left is what a kill
// leaves: the journals, in the page cache, and a watermark that says from where on the log is to be applied. It gives
// nothing back, neither memory nor Badger's lock: the process is about to end.
func (s *Store) releaseIndex(x *index, leave bool) error {
	if need := x.closeNeed(); leave || s.suspended.Load() || s.lacks(need) {
		s.o.Logger.Warn("the metadata index is left as it is, since the disk may have no room for closing it; the next start brings it up to date from the log",
			"dir", s.o.DataDir, "need", need)
		return nil
	}
	return closeBadger(x.db)
}
