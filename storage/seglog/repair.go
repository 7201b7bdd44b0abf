package seglog

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"edgehub/internal/vfs"
)

// Repaired is one thing that Repair did, or with dry would do.
type Repaired struct {
	Damage Damage // what was wrong; Segment names the file
	Action string
	Aside  string // where the bytes as they were are now; "" with dry
}

// Repair makes a log whole that nobody has open. A damaged segment is copied to the quarantine directory first, then
// replaced by one in which a void batch stands for what cannot be proven: the loss stays on record, and is not met by
// every reader again. Bytes after the last whole batch are set aside and cut; files that are no segments are moved
// away, as Open does. Each step is durable before the next, and a crash between two leaves the old or the new segment.
// tell is called for everything that is done. With dry nothing is changed.
func Repair(o Options, dry bool, tell func(Repaired)) (Recovery, error) {
	ro := o
	ro.ReadOnly = true
	l, rec, err := Open(ro)
	if err != nil {
		return rec, err
	}
	defer func() { _ = l.Close() }() // open for reading only
	r := repairer{l: l, dry: dry, tell: tell}
	if err := r.segments(); err != nil {
		return rec, fmt.Errorf("seglog: repair %s: %w", o.Name, err)
	}
	if rec.TornBytes > 0 {
		if err := r.tail(rec.Torn); err != nil {
			return rec, fmt.Errorf("seglog: repair %s: %w", o.Name, err)
		}
	}
	for _, q := range rec.Quarantined {
		tell(Repaired{Damage: Damage{Segment: q.Name, Err: errors.New(q.Reason)}, Action: "moved to quarantine"})
	}
	if dry {
		return rec, l.o.acknowledge(dry, tell)
	}
	w, rec, err := Open(o)
	if err != nil {
		return rec, err
	}
	return rec, errors.Join(w.o.acknowledge(dry, tell), w.Close())
}

type repairer struct {
	l    *Log
	dry  bool
	tell func(Repaired)
}

// segments rewrites every segment in which something cannot be proven or decoded.
func (r *repairer) segments() error {
	bad := map[string][]Damage{}
	if _, err := r.l.checkSegments(context.Background(), func(d Damage) { bad[d.Segment] = append(bad[d.Segment], d) }); err != nil {
		return err
	}
	for _, s := range r.l.view.Load().segs {
		list := bad[s.name]
		if len(list) == 0 {
			continue
		}
		aside := ""
		if !r.dry {
			var err error
			if aside, err = r.setAside(s, ".damaged", 0, s.length.Load(), list[0].String()); err != nil {
				return err
			}
			if err := r.rewrite(s); err != nil {
				return err
			}
		}
		for _, d := range list {
			action := "cut out"
			if d.To > d.From {
				action = "replaced by a void batch"
			}
			r.tell(Repaired{d, action, aside})
		}
	}
	return nil
}

// rewrite replaces a segment by one of its provable batches and void ones.
func (r *repairer) rewrite(s *segment) error {
	o := &r.l.o
	in, err := s.acquire()
	if err != nil {
		return err
	}
	defer s.release()
	tmp := filepath.Join(o.Dir, rewriteName)
	out, err := o.FS.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	w := mender{out: out, salt: s.salt}
	sc := newScan(s, in, 0, s.base, s.end.Load())
	defer sc.close()
	sc.bad, sc.salvage = w.void, true // the operator has said so: what the disk cannot read now is given up
	var plain []byte
	for sc.next() && w.err == nil {
		var err error
		if plain, _, err = checkRecords(plain[:0], sc.batch, sc.header); err != nil && sc.header.count > 0 {
			w.void(sc.damageOf(err))
			continue
		}
		w.ms = max(w.ms, sc.header.maxMs)
		w.write(append(w.buf[:0], sc.batch...))
	}
	if err := errors.Join(w.err, out.Sync(), out.Close()); err != nil {
		return err
	}
	if err := o.FS.Rename(tmp, s.path()); err != nil {
		return err
	}
	return o.FS.SyncDir(o.Dir)
}

// mender writes the batches of a repaired segment.
type mender struct {
	out  vfs.File
	salt uint32
	pos  int64
	ms   int64 // highest timestamp so far
	buf  []byte
	err  error
}

func (w *mender) write(b []byte) {
	w.buf = b
	if w.err != nil {
		return
	}
	binary.BigEndian.PutUint32(b[posHeaderCRC:], headerCRC(w.salt, w.pos, b))
	_, w.err = w.out.WriteAt(b, w.pos)
	w.pos += int64(len(b))
}

// void writes what stands for a damaged stretch.
func (w *mender) void(d Damage) {
	for from := d.From; from < d.To; {
		to := min(d.To, from+math.MaxInt32)
		w.write(voidBatch(w.buf[:0], from, to, w.ms))
		from = to
	}
}

// tail sets the bytes after the last whole batch aside; Open cuts them.
func (r *repairer) tail(d Damage) error {
	aside := ""
	if !r.dry {
		segs := r.l.view.Load().segs
		var err error
		if aside, err = r.setAside(segs[len(segs)-1], ".torn", d.Position, d.Bytes, d.String()); err != nil {
			return err
		}
	}
	r.tell(Repaired{d, "cut off", aside})
	return nil
}

// setAside copies bytes of a segment to the quarantine directory, durably, with the reason beside them.
func (r *repairer) setAside(s *segment, ext string, pos, n int64, reason string) (string, error) {
	o := &r.l.o
	if err := o.FS.MkdirAll(o.QuarantineDir); err != nil {
		return "", err
	}
	in, err := s.acquire()
	if err != nil {
		return "", err
	}
	defer s.release()
	target, err := freeName(o.FS, filepath.Join(o.QuarantineDir, o.asidePrefix()+s.name+ext))
	if err != nil {
		return "", err
	}
	if err := writeFile(o.FS, target, io.NewSectionReader(readable{in}, pos, n)); err != nil {
		return "", err
	}
	if err := writeFile(o.FS, target+".reason", strings.NewReader(reason+"\n")); err != nil {
		return "", err
	}
	return target, o.FS.SyncDir(o.QuarantineDir)
}

// readable reads zeros where the disk cannot read.
type readable struct{ f vfs.File }

// ReadAt implements io.ReaderAt.
func (r readable) ReadAt(p []byte, off int64) (int, error) {
	n, err := r.f.ReadAt(p, off)
	if n == len(p) || errors.Is(err, io.EOF) {
		return n, err
	}
	for done := 0; done < len(p); {
		at := off + int64(done)
		part := p[done:min(len(p), done+int(salvageBlock-at%salvageBlock))]
		n, err := r.f.ReadAt(part, at)
		if errors.Is(err, io.EOF) {
			return done + n, err
		}
		clear(part[n:])
		done += len(part)
	}
	return len(p), nil
}

// freeName returns path, or path with a number behind it that nothing has yet.
func freeName(fsys vfs.FS, path string) (string, error) {
	target := path
	for i := 1; ; i++ {
		if _, err := fsys.Stat(target); errors.Is(err, errNotExist) {
			return target, nil
		} else if err != nil {
			return "", err
		}
		target = fmt.Sprintf("%s.%d", path, i)
	}
}

// writeFile makes a durable file of what r gives.
func writeFile(fsys vfs.FS, path string, r io.Reader) error {
	f, err := fsys.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return err
	}
	buf := make([]byte, 256<<10)
	for pos := int64(0); err == nil; {
		var n int
		n, err = io.ReadFull(r, buf)
		if n > 0 {
			if _, werr := f.WriteAt(buf[:n], pos); werr != nil {
				err = werr
			}
			pos += int64(n)
		}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
