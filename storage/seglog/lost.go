package seglog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"edgehub/internal/vfs"
)

// What is lost with a whole segment file must be told like a damaged batch in one: the names of the files say which
// offsets were in use. A file that is too short for a batch stays where it is, so that every start sees it, retention
// takes it and Repair mends it; one that was moved to quarantine is told as long as it lies there.

// Errors of whole segment files.
var (
	// ErrCutShort means that the last segment ends before its first batch does.
	ErrCutShort = errors.New("shorter than a batch: how many records it held, if any, is not known")
	// ErrQuarantined means that a segment file was moved to quarantine, so what it held is gone.
	ErrQuarantined = errors.New("moved to quarantine")
)

// short describes a sealed segment that is too short for a batch, as a scan of it does.
func (s *segment) short() Damage {
	d := Damage{Segment: s.name, Bytes: s.length.Load(), From: s.base, To: s.end.Load(), Err: ErrMissing}
	if d.Bytes > 0 {
		d.Err = ErrTruncated
	}
	return d
}

// dropShort moves the segments away that are too short for a batch and took no offsets: the one before goes on behind
// their base, or the one after begins there. What the others held is lost, and they stay as its witness. The last one
// may be short: see recoverEnd.
func (r *opening) dropShort() error {
	var keep []*segment
	for i, s := range r.segs {
		void := false
		if i < len(r.segs)-1 && s.length.Load() < headerSize {
			void = r.segs[i+1].base == s.base
			if n := len(keep); n > 0 && !void {
				var err error
				if void, err = r.covers(keep[n-1], s.base); err != nil {
					return err
				}
			}
		}
		if !void {
			keep = append(keep, s)
		} else if err := r.quarantine(s.name, reasonEmpty); err != nil {
			return err
		}
	}
	r.segs = keep
	return nil
}

// covers reports whether a segment has a record at or behind an offset.
func (r *opening) covers(s *segment, offset int64) (bool, error) {
	f, err := s.acquire()
	if err != nil {
		return false, err
	}
	defer s.release()
	sc := newScan(s, f, 0, s.base, maxOffset)
	defer sc.close()
	sc.tail, sc.salvage = true, true
	if e := r.l.provenIndex(sc); e != nil {
		sc.pos, sc.expect = e[len(e)-1].Position, e[len(e)-1].Offset
	}
	for sc.expect <= offset && sc.next() {
	}
	return sc.expect > offset, nil
}

// cutShort tells that the last segment has not even the beginning of a batch. It is cut to nothing and used again, so the
// next start knows nothing of it: a power cut can leave this of a first write that nobody was promised anything for.
func (r *opening) cutShort(s *segment, size int64) {
	d := Damage{Segment: s.name, Bytes: size, From: s.base, To: s.base, Err: ErrCutShort}
	r.met(d)
	r.l.away = append(r.l.away, d)
}

// lossy reports whether what was moved away for a reason took records with it.
func lossy(name, reason string) bool {
	_, _, ok := parseSegmentName(name)
	return ok && (reason == reasonContent || reason == reasonZero)
}

// asidePrefix begins the names of this log's files in quarantine.
func (o *Options) asidePrefix() string {
	return strings.NewReplacer("/", "_", string(filepath.Separator), "_").Replace(o.Name) + "_"
}

// lookAway tells of the segments in quarantine, those that this start has moved there included.
func (r *opening) lookAway() error {
	list, err := r.l.o.away()
	if err != nil {
		return err
	}
	for _, q := range r.rec.Quarantined {
		if r.l.o.ReadOnly && q.Lost {
			base, _, _ := parseSegmentName(q.Name)
			info, err := r.l.o.FS.Stat(q.Path)
			if err != nil {
				return err
			}
			list = append(list, Damage{Segment: q.Name, Bytes: info.Size(), From: base, Err: errors.New(q.Reason)})
		}
	}
	for i := range list {
		d := &list[i]
		d.To = r.endAway(d.From, list)
		if d.To > d.From {
			d.Err = fmt.Errorf("%w: %w", ErrQuarantined, d.Err)
		} else {
			d.Err = fmt.Errorf("%w: %w; it began at offset %d, and how many records it held is not known (a power cut can leave this of one that was never synced)", ErrQuarantined, d.Err, d.From)
		}
		r.met(*d)
	}
	r.l.away = append(r.l.away, list...)
	return nil
}

// endAway returns where the offsets of a segment in quarantine end: where the next file begins. When it was the last one,
// nothing says where, and the log may have gone on at its base: then it returns the base.
func (r *opening) endAway(base int64, list []Damage) int64 {
	end := r.l.First()
	if end <= base { // it was after the first one kept, so it was the last when it went
		end = base
	}
	for _, d := range list {
		if d.From > base {
			end = min(end, d.From)
		}
	}
	return max(end, base)
}

// away lists the segments of a log in quarantine; To is not set. Those whose reason says that they took nothing with
// them do not count. A reason that a crash has lost does not make a file go unnoticed.
func (o *Options) away() ([]Damage, error) {
	entries, err := o.FS.ReadDir(o.QuarantineDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []Damage
	for _, e := range entries {
		rest, mine := strings.CutPrefix(e.Name(), o.asidePrefix())
		name, number, ok := strings.Cut(rest, segmentExt)
		if base, _, valid := parseSegmentName(name + segmentExt); mine && ok && valid && asideNumber(number) {
			path := filepath.Join(o.QuarantineDir, e.Name())
			reason := readReason(o.FS, path)
			if reason != "" && !lossy(name+segmentExt, reason) {
				continue
			}
			info, err := o.FS.Stat(path)
			if err != nil {
				return nil, err
			}
			if reason == "" {
				reason = reasonContent
			}
			d := Damage{Segment: filepath.Base(o.QuarantineDir) + "/" + e.Name(), Bytes: info.Size(), From: base, Err: errors.New(reason)}
			list = append(list, d)
		}
	}
	return list, nil
}

// asideNumber reports whether what follows a segment's name in quarantine is nothing, or what freeName adds.
func asideNumber(s string) bool {
	digits, dot := strings.CutPrefix(s, ".")
	return s == "" || dot && digits != "" && strings.Trim(digits, "0123456789") == ""
}

// readReason returns the reason beside a file in quarantine, "" when there is none that can be read.
func readReason(fsys vfs.FS, path string) string {
	f, err := fsys.OpenFile(path+".reason", os.O_RDONLY)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }() // opened for reading only
	var b [4096]byte
	n, err := f.ReadAt(b[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	_, reason, _ := strings.Cut(strings.TrimSpace(string(b[:n])), ": ")
	return reason
}

// acknowledge renames the segments of a log in quarantine, so that starts no longer tell of them.
func (o *Options) acknowledge(dry bool, tell func(Repaired)) error {
	list, err := o.away()
	if err != nil || len(list) == 0 {
		return err
	}
	slices.SortFunc(list, func(a, b Damage) int { return strings.Compare(a.Segment, b.Segment) })
	for _, d := range list {
		d.To = d.From
		target := ""
		if !dry {
			path := filepath.Join(o.QuarantineDir, filepath.Base(d.Segment))
			if target, err = freeName(o.FS, path+".damaged"); err != nil {
				return err
			}
			if err := o.FS.Rename(path, target); err != nil {
				return err
			}
		}
		tell(Repaired{d, "no longer told of", target})
	}
	if dry {
		return nil
	}
	return o.FS.SyncDir(o.QuarantineDir)
}
