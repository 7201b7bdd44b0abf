package meta

import (
	"encoding/binary"
	"errors"
	"fmt"

	"edgehub/storage/seglog"
)

// SegmentIndex keeps the sparse indexes of segments as hints.
type SegmentIndex struct{ store *Store }

var _ seglog.IndexStore = SegmentIndex{}

// SegmentIndex returns the store for the indexes of all logs but $meta.
func (s *Store) SegmentIndex() SegmentIndex { return SegmentIndex{s} }

// segmentKey is "x/", the log's name, a zero byte, the base offset.
func segmentKey(log string, base int64) []byte {
	b := make([]byte, 0, 2+len(log)+1+8)
	b = append(b, "x/"...)
	b = append(b, log...)
	b = append(b, 0)
	return binary.BigEndian.AppendUint64(b, uint64(base))
}

// SaveIndex stores a segment's index in place of an earlier one.
func (x SegmentIndex) SaveIndex(log string, base int64, e []seglog.IndexEntry) error {
	x.store.PutHint(segmentKey(log, base), encodeEntries(e))
	return nil
}

// LoadIndex returns a segment's index, nil when there is none that can be read.
func (x SegmentIndex) LoadIndex(log string, base int64) ([]seglog.IndexEntry, error) {
	b, found, err := x.store.GetHint(segmentKey(log, base))
	if err != nil || !found {
		return nil, err
	}
	e, err := decodeEntries(b)
	if err != nil {
		return nil, nil // a hint: the log builds the index again
	}
	return e, nil
}

// DropIndex forgets a segment's index.
func (x SegmentIndex) DropIndex(log string, base int64) error {
	x.store.DeleteHint(segmentKey(log, base))
	x.store.DeleteHint(summaryKey(log, base))
	return nil
}

// Index entries are stored as differences, which are small:
//
//	version 1 | count uvarint | (offset varint, position varint, time varint)*
const entriesVersion = 1

var errEntries = errors.New("meta: segment index unreadable")

func encodeEntries(entries []seglog.IndexEntry) []byte {
	b := make([]byte, 0, 1+binary.MaxVarintLen64+8*len(entries))
	b = append(b, entriesVersion)
	b = binary.AppendUvarint(b, uint64(len(entries)))
	var last seglog.IndexEntry
	for _, e := range entries {
		b = binary.AppendVarint(b, e.Offset-last.Offset)
		b = binary.AppendVarint(b, e.Position-last.Position)
		b = binary.AppendVarint(b, e.MaxTimeMs-last.MaxTimeMs)
		last = e
	}
	return b
}

func decodeEntries(b []byte) ([]seglog.IndexEntry, error) {
	if len(b) == 0 || b[0] != entriesVersion {
		return nil, errEntries
	}
	count, n := binary.Uvarint(b[1:])
	if n <= 0 || count > uint64(len(b)-1-n)/3 {
		return nil, fmt.Errorf("%w: %d entries in %d bytes", errEntries, count, len(b))
	}
	b = b[1+n:]
	out := make([]seglog.IndexEntry, 0, count)
	var last seglog.IndexEntry
	for range count {
		for _, field := range []*int64{&last.Offset, &last.Position, &last.MaxTimeMs} {
			d, n := binary.Varint(b)
			if n <= 0 {
				return nil, fmt.Errorf("%w: cut", errEntries)
			}
			*field += d
			b = b[n:]
		}
		out = append(out, last)
	}
	if len(b) > 0 {
		return nil, fmt.Errorf("%w: %d bytes too many", errEntries, len(b))
	}
	return out, nil
}

var _ seglog.SummaryStore = SegmentIndex{}

// summaryKey is "y/", the log's name, a zero byte, the base offset.
func summaryKey(log string, base int64) []byte {
	b := segmentKey(log, base)
	b[0] = 'y'
	return b
}

// SaveSummary stores the summary of a segment's keys.
func (x SegmentIndex) SaveSummary(log string, base int64, b []byte) error {
	x.store.PutHint(summaryKey(log, base), b)
	return nil
}

// LoadSummary returns a segment's summary, nil when there is none.
func (x SegmentIndex) LoadSummary(log string, base int64) ([]byte, error) {
	b, _, err := x.store.GetHint(summaryKey(log, base))
	return b, err
}
