package stream

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"edgehub/storage/inspect"
	"edgehub/storage/seglog"
)

// ErrConfigured means that a stream that the configuration has is not deleted.
var ErrConfigured = errors.New("stream: it is in the configuration")

// Gone reports that the stream is no more than its name and its next offsets: it is not configured and has no records.
func (s *Stream) Gone() bool {
	if s.Configured {
		return false
	}
	for _, p := range s.Partitions {
		if p.Log.First() < p.Log.Next() {
			return false
		}
	}
	return true
}

// Logs returns the logs of the partitions.
func (s *Stream) Logs() []*seglog.Log {
	var logs []*seglog.Log
	for _, p := range s.Partitions {
		logs = append(logs, p.Log)
	}
	return logs
}

// Delete removes the records of a stream that the configuration no longer has. Readers that are in it find its records
// trimmed. Its offsets go on should it be configured again.
func (s *Set) Delete(st *Stream) (inspect.Deleted, error) {
	if st.Configured {
		return inspect.Deleted{}, fmt.Errorf("%w: %q", ErrConfigured, st.Name)
	}
	return inspect.Clear(st.Name, st.Logs())
}

// holdsNothing tells whether the first n partitions of a stream have no record on disk, as Delete leaves them.
func (s *Set) holdsNothing(name string, n int) (bool, error) {
	for i := range n {
		entries, err := s.o.FS.ReadDir(partitionDir(s.o.Dir, name, i))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("stream %s/%s: %w", name, strconv.Itoa(i), err)
		}
		for _, e := range entries {
			info, err := e.Info()
			if err != nil {
				return false, fmt.Errorf("stream %s/%s: %w", name, strconv.Itoa(i), err)
			}
			if strings.HasSuffix(e.Name(), ".log") && info.Size() > 0 {
				return false, nil
			}
		}
	}
	return true, nil
}
