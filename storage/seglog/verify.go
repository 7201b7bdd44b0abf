package seglog

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// Checked is what Check looked at.
type Checked struct {
	Segments, Batches int
	Records, Bytes    int64
	Void              int64 // offsets that a repair has declared lost
}

// Verify proves every batch of every segment and tells fn of each damaged stretch. It reads the whole log.
func (l *Log) Verify(fn func(Damage)) error {
	_, err := l.Check(context.Background(), fn)
	return err
}

// Check is Verify, decodes every record besides, counts, and ends early with ctx. It disturbs nobody but the disk.
func (l *Log) Check(ctx context.Context, fn func(Damage)) (Checked, error) {
	for _, d := range l.away {
		fn(d)
	}
	return l.checkSegments(ctx, fn)
}

// checkSegments is Check without what lies in no segment of the log.
func (l *Log) checkSegments(ctx context.Context, fn func(Damage)) (Checked, error) {
	var c Checked
	for _, s := range l.view.Load().segs {
		if err := l.checkSegment(ctx, s, &c, fn); err != nil {
			return c, fmt.Errorf("seglog: %s: %w", l.o.Name, err)
		}
	}
	return c, nil
}

func (l *Log) checkSegment(ctx context.Context, s *segment, c *Checked, fn func(Damage)) error {
	stop := s.end.Load() // before length: see publish
	f, err := s.acquire()
	if errors.Is(err, errNotExist) && l.First() > s.base {
		return nil // dropped meanwhile
	}
	if err != nil {
		return err
	}
	defer s.release()
	c.Segments++
	sc := newScan(s, f, 0, s.base, stop)
	defer sc.close()
	tell := l.tell(s, fn)
	sc.bad, sc.salvage = tell, true // what cannot be read is told, and the rest is looked at
	var plain []byte
	for sc.next() {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c.Batches++
		c.Bytes += int64(sc.header.size)
		if sc.header.count == 0 {
			c.Void += sc.header.last + 1 - sc.header.base
			continue
		}
		var n int64
		if plain, n, err = checkRecords(plain[:0], sc.batch, sc.header); err != nil {
			tell(sc.damageOf(err))
		}
		c.Records += n
	}
	return nil
}

// checkRecords decodes every record of a proven batch, using buf.
func checkRecords(buf, batch []byte, h batchHeader) (plain []byte, n int64, err error) {
	if plain, err = appendPlain(buf, batch, h); err != nil {
		return buf, 0, err
	}
	var r Scanner
	for r.Reset(plain); r.Next(); {
		n++
	}
	if r.Err() != nil {
		return plain, n, fmt.Errorf("%w: %w", ErrMalformed, r.Err())
	}
	return plain, n, nil
}

// Export syncs the log and hands out its segments as they are on the disk, up to the synced offset, the newest first:
// so retention, which takes the oldest, can only shorten what is exported, never make a hole in it. It returns the
// offset up to which the export goes. A segment that a failed fsync has rewritten meanwhile is an error.
func (l *Log) Export(fn func(name string, size int64, content io.Reader) error) (next int64, err error) {
	if next, err = l.Sync(); err != nil {
		return next, err
	}
	segs := l.view.Load().segs
	for i := len(segs) - 1; i >= 0; i-- {
		if segs[i].base > next {
			continue
		}
		err := l.exportSegment(segs[i], next, fn)
		if errors.Is(err, errNotExist) && l.First() > segs[i].base {
			break // dropped meanwhile, and so are those before it
		}
		if err != nil {
			return next, fmt.Errorf("seglog: %s: export %s: %w", l.o.Name, segs[i].name, err)
		}
	}
	return next, nil
}

func (l *Log) exportSegment(s *segment, next int64, fn func(string, int64, io.Reader) error) error {
	f, err := s.acquire()
	if err != nil {
		return err
	}
	defer s.release()
	size := s.length.Load()
	if end := s.end.Load(); end > next { // appended since the sync: it ends where a batch began
		sc := newScan(s, f, 0, s.base, next)
		at := sc.prove(l.seek(s, f, next))
		sc.pos, sc.expect = at.pos, at.offset
		size = at.pos
		for sc.next() {
			size = sc.pos
		}
		sc.close()
		if sc.err != nil {
			return sc.err
		}
	}
	return fn(s.name, size, io.NewSectionReader(f, 0, size))
}
