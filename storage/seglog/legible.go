package seglog

import (
	"errors"
	"fmt"
	"io"
)

// legibleMax bounds how much of a damaged stretch is looked at: sixteen batches.
const legibleMax = 16 * BatchBytesMax

// Legible calls fn with what can still be read in a damaged stretch as a record, though nothing proves it: one wrong bit
// makes a whole batch worthless as data, and says little against the names in it. It is for telling what was lost and
// for nothing else. What makes no sense to fn (it returns false) is not taken for a record. Compressed batches are
// illegible. The record is valid during the call; its offset is within the stretch's range, or guessed to be.
func (l *Log) Legible(d Damage, fn func(Record) bool) error {
	for _, s := range l.view.Load().segs {
		if s.name != d.Segment {
			continue
		}
		f, err := s.acquire()
		if err != nil {
			return fmt.Errorf("seglog: %s: %w", l.o.Name, err)
		}
		defer s.release()
		raw := make([]byte, min(d.Bytes, legibleMax))
		n, err := readable{f}.ReadAt(raw, d.Position)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("seglog: %s: %w", l.o.Name, err)
		}
		legible(raw[:n], d, fn)
	}
	return nil
}

// legible tries every position as the beginning of a record; one that is makes the next begin behind it.
func legible(raw []byte, d Damage, fn func(Record) bool) {
	for at := 0; at < len(raw); {
		n, i := getLen(raw, at)
		if i < 0 || n < 1 || raw[i] != 0 {
			at++
			continue
		}
		// The scanner checks the record's shape; a header that allows any offset of the stretch goes before it.
		s := Scanner{batch: raw[at : i+n], header: batchHeader{base: d.From, last: max(d.To-1, d.From) + BatchBytesMax}, prev: -1}
		if s.decode() && fn(s.rec) {
			at = i + n
		} else {
			at++
		}
	}
}
