package seglog

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"edgehub/internal/vfs"
)

const (
	segmentExt   = ".log"
	preparedName = "prepared.tmp" // the next segment's file before it has a name
	rewriteName  = "rewrite.tmp"  // a segment in the making after a failed fsync
)

// timeUnknown is the highest timestamp of a segment that nothing has told us yet.
const timeUnknown = -1

// segment is one file of a log.
type segment struct {
	fs   vfs.FS
	dir  string
	name string // file name
	base int64
	gen  uint32
	salt uint32
	flag int // to open the file with

	// Published by the committer while the segment is active, length before end; constant once sealed.
	length atomic.Int64 // bytes that hold whole batches: readers never look beyond
	end    atomic.Int64 // offset after the last record: base of the next segment once there is one
	maxMs  atomic.Int64 // highest timestamp, or timeUnknown
	sealed atomic.Bool

	firstMs atomic.Int64 // timestamp of the first record, or timeUnknown until somebody asked

	index   sparse
	loading sync.Mutex  // one goroutine loads or rebuilds the index of a sealed segment
	noIndex atomic.Bool // the index pointed astray: rebuild it, or do without while the segment is active

	mu     sync.Mutex
	file   vfs.File // guarded by mu; nil while closed
	refs   int      // guarded by mu: users of file
	dead   bool     // guarded by mu: removed from the disk, closed by its last user
	hints  [4]hint  // guarded by mu: where recent reads ended
	hintAt int      // guarded by mu
	bad    []Damage // guarded by mu: found once and stepped over ever after
	lruElement
}

// hint maps an offset, where a reader stopped, to its position, so that the reader's next call needs no search.
type hint struct{ offset, pos int64 }

func newSegment(o *Options, base int64, gen uint32) *segment {
	s := &segment{
		fs: o.FS, dir: o.Dir, name: segmentName(base, gen), base: base, gen: gen,
		salt: segmentSalt(o.Salt, base, gen), flag: os.O_RDWR,
	}
	if o.ReadOnly {
		s.flag = os.O_RDONLY
	}
	s.end.Store(base)
	s.maxMs.Store(timeUnknown)
	s.firstMs.Store(timeUnknown)
	return s
}

func (s *segment) path() string { return filepath.Join(s.dir, s.name) }

// segmentName is the base offset in 20 digits; a generation above 0 follows it.
func segmentName(base int64, gen uint32) string {
	if gen == 0 {
		return fmt.Sprintf("%020d%s", base, segmentExt)
	}
	return fmt.Sprintf("%020d.%d%s", base, gen, segmentExt)
}

// parseSegmentName is the strict inverse of segmentName.
func parseSegmentName(name string) (base int64, gen uint32, ok bool) {
	stem, found := strings.CutSuffix(name, segmentExt)
	if !found || len(stem) < 20 {
		return 0, 0, false
	}
	base, err := strconv.ParseInt(stem[:20], 10, 64)
	if err != nil || base < 0 || base > 1<<62 { // far beyond any log; leaves room for arithmetic
		return 0, 0, false
	}
	if len(stem) > 20 {
		g, err := strconv.ParseUint(strings.TrimPrefix(stem[20:], "."), 10, 31)
		if err != nil {
			return 0, 0, false
		}
		gen = uint32(g)
	}
	return base, gen, segmentName(base, gen) == name
}

// acquire returns the open file and keeps it open until release.
func (s *segment) acquire() (vfs.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		f, err := s.fs.OpenFile(s.path(), s.flag)
		if err != nil {
			return nil, err
		}
		s.file = f
	}
	s.refs++
	return s.file, nil
}

// release ends an acquire. An unused file stays open for a while, in the process-wide least-recently-used list.
func (s *segment) release() {
	s.mu.Lock()
	s.refs--
	idle, dead := s.refs == 0, s.dead
	s.mu.Unlock()
	switch {
	case idle && dead:
		_ = s.closeIdle() // an error of closing a removed file is no news
	case idle:
		openFiles.touch(s)
	}
}

// closeIdle closes the file unless somebody uses it, and forgets the index of a sealed segment.
func (s *segment) closeIdle() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refs > 0 {
		return nil
	}
	if s.sealed.Load() {
		s.index.table.Store(nil)
	}
	if s.file == nil {
		return nil
	}
	f := s.file
	s.file = nil
	return f.Close()
}

// bury gives the file's space back as soon as its last reader is done. The name is gone already.
func (s *segment) bury() {
	s.mu.Lock()
	s.dead = true
	s.mu.Unlock()
	openFiles.drop(s)
}

// setHint remembers where a read ended.
func (s *segment) setHint(offset, pos int64) {
	s.mu.Lock()
	s.hints[s.hintAt] = hint{offset, pos}
	s.hintAt = (s.hintAt + 1) % len(s.hints)
	s.mu.Unlock()
}

// takeHint returns the position of an offset where a read ended.
func (s *segment) takeHint(offset int64) (int64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.hints {
		if s.hints[i].offset == offset && s.hints[i].pos > 0 {
			return s.hints[i].pos, true
		}
	}
	return 0, false
}

// knownBad returns the damaged stretch at pos, if that was met before.
func (s *segment) knownBad(pos int64) (Damage, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.bad {
		if d.Position == pos {
			return d, true
		}
	}
	return Damage{}, false
}

func (s *segment) setBad(d Damage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.bad) < damageMax {
		s.bad = append(s.bad, d)
	}
}
