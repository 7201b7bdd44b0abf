package inspect

import (
	"context"
	"fmt"

	"edgehub/storage/meta"
	"edgehub/storage/seglog"
)

// Finding is one thing that is not as it should be: a range of offsets that cannot be served (From ≤ offset < To), or,
// where both are equal, bytes or a file that hold no records.
type Finding struct {
	Partition string `json:"partition"` // "telemetry/0-0"
	Segment   string `json:"segment"`   // file name
	From      int64  `json:"from"`
	To        int64  `json:"to"`
	Position  int64  `json:"position"` // in the file
	Bytes     int64  `json:"bytes"`
	What      string `json:"what"`
}

// String tells the finding in one line.
func (f Finding) String() string {
	lost := "no offsets"
	if f.To > f.From {
		lost = fmt.Sprintf("offsets %d to %d", f.From, f.To-1)
	}
	return fmt.Sprintf("%s %s: %s (%d bytes at %d): %s", f.Partition, f.Segment, lost, f.Bytes, f.Position, f.What)
}

func finding(partition string, d seglog.Damage) Finding {
	return Finding{partition, d.Segment, d.From, d.To, d.Position, d.Bytes, d.Err.Error()}
}

// Summary is what was looked at.
type Summary struct {
	Stream     string `json:"stream"`
	Partitions int    `json:"partitions"`
	Segments   int    `json:"segments"`
	Batches    int    `json:"batches"`
	Records    int64  `json:"records"`
	Bytes      int64  `json:"bytes"`
	Void       int64  `json:"void"` // offsets that an earlier repair declared lost
	Findings   int    `json:"findings"`
}

func (s *Summary) add(c seglog.Checked) {
	s.Partitions++
	s.Segments += c.Segments
	s.Batches += c.Batches
	s.Records += c.Records
	s.Bytes += c.Bytes
	s.Void += c.Void
}

// Live verifies logs that a hub has open, while it uses them. fn is called for each finding.
func Live(ctx context.Context, stream string, logs []*seglog.Log, fn func(Finding)) (Summary, error) {
	s := Summary{Stream: stream}
	for _, l := range logs {
		if err := s.check(ctx, l, fn); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (s *Summary) check(ctx context.Context, l *seglog.Log, fn func(Finding)) error {
	c, err := l.Check(ctx, func(d seglog.Damage) {
		s.Findings++
		f := finding(l.Name(), d)
		if l.Name() == meta.LogName {
			if keys := meta.DamagedKeys(l, d); len(keys) > 0 {
				f.What += "; keys in it: " + meta.KeyList(keys)
			}
		}
		fn(f)
	})
	s.add(c)
	return err
}

// Verify verifies a stream of a directory that no hub changes meanwhile: every batch is proven, every record decoded.
// Besides damage it tells of an unfinished write at the end, which the next start cuts off, and of files that it moves
// away. fn is called for each finding.
func (d *Dir) Verify(ctx context.Context, stream string, fn func(Finding)) (Summary, error) {
	s := Summary{Stream: stream}
	parts, err := d.Partitions(stream)
	if err != nil {
		return s, err
	}
	for _, p := range parts {
		if err := d.verify(ctx, p, &s, fn); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (d *Dir) verify(ctx context.Context, p Partition, s *Summary, fn func(Finding)) error {
	o := d.options(p)
	o.ReadOnly = true
	l, rec, err := seglog.Open(o)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // open for reading only
	if err := s.check(ctx, l, fn); err != nil {
		return err
	}
	for _, f := range notes(p.Name, rec) {
		s.Findings++
		fn(f)
	}
	return nil
}

// notes are what opening found besides damage.
func notes(partition string, rec seglog.Recovery) []Finding {
	var list []Finding
	if rec.TornBytes > 0 {
		f := finding(partition, rec.Torn)
		f.What = "after the last whole batch: " + f.What
		list = append(list, f)
	}
	for _, q := range rec.Quarantined {
		if q.Lost { // among the damage
			continue
		}
		list = append(list, Finding{Partition: partition, Segment: q.Name, What: "not usable: " + q.Reason})
	}
	return list
}
