package meta

import (
	"io"

	"edgehub/storage/seglog"
)

// Name of the metadata's log, and its directory below the data directory.
const (
	LogName = logName
	LogDir  = logDir
)

// Export commits and hands out the segments of $meta, as seglog.Log.Export does. No compaction runs meanwhile: it would
// move keys behind the end of the export.
func (s *Store) Export(fn func(name string, size int64, content io.Reader) error) (next int64, err error) {
	s.compactMu.Lock()
	defer s.compactMu.Unlock()
	if err := s.Commit(); err != nil {
		return 0, err
	}
	return s.log.Export(fn)
}

// Log returns the log, for reading.
func (s *Store) Log() *seglog.Log { return s.log }
