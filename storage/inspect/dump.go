package inspect

import (
	"os"
	"path/filepath"

	"edgehub/internal/vfs"
	"edgehub/storage/seglog"
)

// Batch describes a batch of a segment file, or with Error a stretch that is none.
type Batch = seglog.BatchInfo

// Record is a record of a segment file.
type Record = seglog.Record

// Dump reads a segment file, batch by batch: batch is called for each, with what is wrong if it cannot be proven or
// decoded, then record for each of its records. The header checksums are judged when the file lies where it belongs,
// in a data directory. Nothing is locked: a hub may own the file.
func Dump(fsys vfs.FS, path string, batch func(Batch, error) error, record func(Record) error) error {
	f, err := fsys.OpenFile(path, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // open for reading only
	size, err := f.Size()
	if err != nil {
		return err
	}
	var id *seglog.SegmentID
	if abs, err := filepath.Abs(path); err == nil {
		if d, ok := home(fsys, abs); ok {
			id = d.idOf(abs)
		}
	}
	return seglog.Dump(f, size, path, id, func(b Batch, plain []byte, err error) error {
		if err := batch(b, err); err != nil {
			return err
		}
		var s seglog.Scanner
		for s.Reset(plain); s.Next(); {
			if err := record(s.Record()); err != nil {
				return err
			}
		}
		if s.Err() != nil {
			return batch(b, s.Err())
		}
		return nil
	})
}

// home is the data directory of a segment file: DIR/streams/STREAM/PARTITION/FILE.
func home(fsys vfs.FS, abs string) (*Dir, bool) {
	root := abs
	for range 4 {
		root = filepath.Dir(root)
	}
	d, err := Open(fsys, root)
	return d, err == nil
}
