package inspect

import (
	"errors"
	"path/filepath"

	"edgehub/storage/datadir"
	"edgehub/storage/seglog"
)

// Mended is something that a repair did, or would do.
type Mended struct {
	Finding
	Action string `json:"action"`
	Aside  string `json:"aside"` // where the bytes as they were are kept; "" when nothing was done yet
}

// Repair mends the partitions of a stream, see seglog.Repair. It refuses while a hub owns the directory. With dry it
// only tells what it would do.
func (d *Dir) Repair(stream string, dry bool, fn func(Mended)) error {
	parts, err := d.Partitions(stream)
	if err != nil {
		return err
	}
	release, err := datadir.Lock(d.Path)
	if err != nil {
		return err
	}
	for _, p := range parts {
		_, rerr := seglog.Repair(d.options(p), dry, func(r seglog.Repaired) {
			fn(Mended{finding(p.Name, r.Damage), r.Action, r.Aside})
		})
		if rerr != nil {
			return errors.Join(rerr, release())
		}
	}
	return release()
}

// Deleted is what a deletion removed.
type Deleted struct {
	Stream  string `json:"stream"`
	Records int64  `json:"records"` // offsets, those without a record included
	Bytes   int64  `json:"bytes"`
}

// Delete removes all records of a stream from a directory that no hub owns. See Clear.
func (d *Dir) Delete(stream string) (Deleted, error) {
	out := Deleted{Stream: stream}
	parts, err := d.Partitions(stream)
	if err != nil {
		return out, err
	}
	release, err := datadir.Lock(d.Path)
	if err != nil {
		return out, err
	}
	for _, p := range parts {
		l, _, err := seglog.Open(d.options(p))
		if err != nil {
			return out, errors.Join(err, release())
		}
		if err := errors.Join(out.clear(l), l.Close()); err != nil {
			return out, errors.Join(err, release())
		}
	}
	return out, release()
}

// Clear removes all records of logs to which nothing is appended. What stays of each is an empty segment whose name is
// the next offset: should the stream come back, its offsets go on, so that a remote never sees one twice.
func Clear(stream string, logs []*seglog.Log) (Deleted, error) {
	out := Deleted{Stream: stream}
	for _, l := range logs {
		if err := out.clear(l); err != nil {
			return out, err
		}
	}
	return out, nil
}

func (x *Deleted) clear(l *seglog.Log) error {
	if err := l.Roll(); err != nil {
		return err
	}
	for {
		seg, err := l.DropOldest()
		if errors.Is(err, seglog.ErrActive) {
			return nil
		}
		if err != nil {
			return err
		}
		x.Records += seg.Next - seg.Base
		x.Bytes += seg.Bytes
	}
}

// idOf finds the data directory that a segment file lies in, and the log that it belongs to; nil when there is none.
func (d *Dir) idOf(path string) *seglog.SegmentID {
	rel, err := filepath.Rel(d.Path, path)
	if err != nil {
		return nil
	}
	part := filepath.Dir(rel)
	stream := filepath.Dir(part)
	name, ok := logName(filepath.Base(stream), filepath.Base(part))
	if !ok || filepath.Dir(stream) != streamsDir {
		return nil
	}
	return &seglog.SegmentID{Salt: d.Info.Salt, Log: name}
}
