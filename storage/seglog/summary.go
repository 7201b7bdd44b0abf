package seglog

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
)

// A summary says which keys a sealed segment has, and from where to where, so that a reader that wants few of them can
// step over the segment without reading it. It is a hint, like the index: one that is missing costs a read, and one
// that is not of this very segment is not believed.

// SummaryStore is implemented by an IndexStore that keeps summaries as well. DropIndex drops both.
type SummaryStore interface {
	SaveSummary(log string, base int64, b []byte) error
	// LoadSummary returns nil, nil when there is none.
	LoadSummary(log string, base int64) ([]byte, error)
}

// KeyRange is one key of a segment: the offsets of its first and last record, and how many there are.
type KeyRange struct {
	Key         []byte
	First, Last int64
	Count       int64
}

// Bounds of a summary: a segment with more keys than that has an empty one, which skips nothing.
const (
	summaryKeysMax  = 8192
	summaryBytesMax = 512 << 10
)

const summaryVersion = 1

// Summarize makes and stores the summaries that the sealed segments with a base from from on lack, and returns where to
// go on the next time: at the base of the active segment, or earlier once it has read maxBytes; it reads a segment to
// its end. Without a SummaryStore it does nothing.
func (l *Log) Summarize(from, maxBytes int64) (next int64, err error) {
	store, ok := l.o.Index.(SummaryStore)
	if !ok || l.o.ReadOnly {
		return from, nil
	}
	for _, s := range l.view.Load().segs {
		if s.base < from {
			continue
		}
		if !s.sealed.Load() || maxBytes <= 0 {
			return s.base, nil
		}
		if l.storedSummary(s) != nil {
			from = s.end.Load()
			continue
		}
		maxBytes -= s.length.Load()
		b, err := l.summarize(s)
		if err != nil {
			if l.First() > s.base {
				continue // dropped meanwhile
			}
			return s.base, fmt.Errorf("seglog: %s: summarize %s: %w", l.o.Name, s.name, err)
		}
		if err := store.SaveSummary(l.o.Name, s.base, b); err != nil {
			l.stats.indexFailures.Add(1)
		}
		from = s.end.Load()
	}
	return from, nil
}

// summarize reads a sealed segment.
func (l *Log) summarize(s *segment) ([]byte, error) {
	f, err := s.acquire()
	if err != nil {
		return nil, err
	}
	defer s.release()
	sc := newScan(s, f, 0, s.base, s.end.Load())
	defer sc.close()
	sc.bad = l.tell(s)
	keys, size := map[string]*KeyRange{}, 0
	var plain []byte
	for sc.next() {
		if plain, err = appendPlain(plain[:0], sc.batch, sc.header); err != nil {
			continue // told by whoever reads it
		}
		for r := range Records(plain) {
			k := keys[string(r.Key)]
			if k == nil {
				if size += len(r.Key); len(keys) >= summaryKeysMax || size > summaryBytesMax {
					return l.sealSummary(s, nil), nil
				}
				k = &KeyRange{Key: slices.Clone(r.Key), First: r.Offset}
				keys[string(r.Key)] = k
			}
			k.Last = r.Offset
			k.Count++
		}
	}
	if sc.err != nil {
		return nil, sc.err
	}
	return l.sealSummary(s, keys), nil
}

// sealSummary encodes keys, sorted, each as the difference to the one before:
//
//	version 1 | count uvarint | (shared, length, bytes, first − base, last − first, count)* | CRC-32C 4
//
// The checksum begins with what the segment is, so that a summary is good for that one only.
func (l *Log) sealSummary(s *segment, keys map[string]*KeyRange) []byte {
	b := []byte{summaryVersion}
	b = binary.AppendUvarint(b, uint64(len(keys)))
	prev := ""
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		k := keys[key]
		shared := 0
		for shared < len(prev) && shared < len(key) && prev[shared] == key[shared] {
			shared++
		}
		b = binary.AppendUvarint(b, uint64(shared))
		b = binary.AppendUvarint(b, uint64(len(key)-shared))
		b = append(b, key[shared:]...)
		b = binary.AppendUvarint(b, uint64(k.First-s.base))
		b = binary.AppendUvarint(b, uint64(k.Last-k.First))
		b = binary.AppendUvarint(b, uint64(k.Count))
		prev = key
	}
	return binary.BigEndian.AppendUint32(b, s.summarySum(b))
}

func (s *segment) summarySum(b []byte) uint32 {
	var id [20]byte
	binary.BigEndian.PutUint32(id[:], s.salt)
	binary.BigEndian.PutUint64(id[4:], uint64(s.end.Load()))
	binary.BigEndian.PutUint64(id[12:], uint64(s.length.Load()))
	return crc32.Update(crc32.Checksum(id[:], castagnoli), castagnoli, b)
}

// summaryOf calls fn with every key of a segment's stored summary; false: there is none that can be believed. The key
// is valid during the call only.
func (l *Log) summaryOf(s *segment, fn func(KeyRange)) bool {
	b := l.storedSummary(s)
	return b != nil && readSummary(b[1:len(b)-4], s.base, fn)
}

// storedSummary loads the summary of a sealed segment; nil: there is none that can be believed.
func (l *Log) storedSummary(s *segment) []byte {
	store, ok := l.o.Index.(SummaryStore)
	if !ok || !s.sealed.Load() {
		return nil
	}
	b, err := store.LoadSummary(l.o.Name, s.base)
	if err != nil {
		l.stats.indexFailures.Add(1)
		return nil
	}
	if len(b) < 6 || b[0] != summaryVersion || binary.BigEndian.Uint32(b[len(b)-4:]) != s.summarySum(b[:len(b)-4]) {
		return nil
	}
	return b
}

// readSummary decodes what is between version and checksum. An empty one says nothing.
func readSummary(b []byte, base int64, fn func(KeyRange)) bool {
	next := func() uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			b = nil
			return 1 << 63
		}
		b = b[n:]
		return v
	}
	count := next()
	var key []byte
	for i := uint64(0); i < count; i++ {
		shared, length := next(), next()
		if shared > uint64(len(key)) || length > uint64(len(b)) {
			return false
		}
		key = append(key[:shared], b[:length]...)
		b = b[length:]
		first, span, n := next(), next(), next()
		if first >= 1<<62 || span >= 1<<62 || n >= 1<<62 {
			return false
		}
		fn(KeyRange{key, base + int64(first), base + int64(first) + int64(span), int64(n)})
	}
	return count > 0 && len(b) == 0
}

// NextMatch returns the first offset at or after from where a record can be whose key match takes, going by summaries:
// whole segments without one are stepped over. No match lies between from and next. Below until, asking again tells
// nothing new. A summary that is missing makes the answer next = from.
func (l *Log) NextMatch(from int64, match func(key []byte) bool) (next, until int64) {
	for {
		v := l.view.Load()
		i := v.find(from)
		if i < 0 {
			return from, from + 1
		}
		s := v.segs[i]
		if !s.sealed.Load() || from >= s.end.Load() {
			return from, 1<<63 - 1
		}
		first, last := int64(1<<63-1), int64(-1)
		if !l.summaryOf(s, func(k KeyRange) {
			if k.Last >= from && match(k.Key) {
				first, last = min(first, max(k.First, from)), max(last, k.Last)
			}
		}) {
			return from, s.end.Load()
		}
		if last >= 0 {
			return first, last + 1
		}
		from = s.end.Load()
	}
}
