package seglog

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"iter"
)

// Record is a decoded record. Its slices alias the chunk that it was read from.
type Record struct {
	Offset, TimeMs int64
	Key, Value     []byte // nil when absent
	Headers        Headers
}

// Scanner decodes the records of a chunk that Log.Read returned (or of Builder.Bytes after Log.Append). It does not
// allocate. It does not prove checksums, Log.Read has done that, but it never reads out of bounds whatever it is given.
//
//	var s seglog.Scanner
//	for s.Reset(chunk); s.Next(); {
//		use(s.Record())
//	}
//	if err := s.Err(); err != nil { … }
type Scanner struct {
	buf    []byte // the rest of the chunk, from the next batch on
	batch  []byte // the rest of the current batch
	header batchHeader
	left   int32 // records left in the current batch
	prev   int64 // offset of the last record, for the check that they rise
	rec    Record
	err    error
}

// Reset starts over with a chunk.
func (s *Scanner) Reset(chunk []byte) { *s = Scanner{buf: chunk, prev: -1} }

// Next decodes the next record. It returns false at the end of the chunk and at an error.
func (s *Scanner) Next() bool {
	for s.left == 0 {
		if !s.nextBatch() {
			return false
		}
	}
	if !s.decode() {
		s.fail(ErrMalformed)
		return false
	}
	s.left--
	if s.left == 0 && len(s.batch) != 0 {
		s.fail(ErrMalformed)
		return false
	}
	return true
}

// Record returns the record that Next decoded.
func (s *Scanner) Record() Record { return s.rec }

// Err returns why Next stopped before the end of the chunk.
func (s *Scanner) Err() error { return s.err }

// SkipTo makes the next record the first with an offset of at least offset, stepping over whole batches before it
// without decoding them. It only moves forward.
func (s *Scanner) SkipTo(offset int64) {
	for s.err == nil {
		if s.left > 0 {
			if s.header.last >= offset {
				s.skipRecords(offset)
				return
			}
			s.left, s.batch = 0, nil
		}
		if !s.nextBatch() {
			return
		}
	}
}

// skipRecords steps over the records of the current batch below offset, reading only their length and offset.
func (s *Scanner) skipRecords(offset int64) {
	for s.left > 0 {
		n, i := getLen(s.batch, 0)
		if i < 0 || n < 1 {
			break
		}
		_, j := getVarint(s.batch, i+1)
		if j < 0 {
			break
		}
		delta, j := getVarint(s.batch, j)
		if j < 0 {
			break
		}
		if s.header.base+delta >= offset {
			return
		}
		s.batch = s.batch[i+n:]
		s.left--
	}
	if s.left > 0 {
		s.fail(ErrMalformed)
	}
}

// nextBatch begins the next batch of the chunk.
func (s *Scanner) nextBatch() bool {
	if s.err != nil || len(s.buf) == 0 {
		return false
	}
	h, err := parseHeader(s.buf)
	switch {
	case err != nil:
		s.fail(err)
		return false
	case h.size > len(s.buf):
		s.fail(ErrTruncated)
		return false
	case s.buf[posMagic] != magicV2 || h.attrs&attrsUnsupported != 0:
		s.fail(ErrMalformed)
		return false
	case h.base <= s.prev:
		s.fail(ErrOrder)
		return false
	}
	s.header, s.left = h, h.count
	s.batch = s.buf[headerSize:h.size]
	s.buf = s.buf[h.size:]
	return true
}

// attrsUnsupported are the attribute bits that change how a batch is to be read: codec and control batches.
const attrsUnsupported = 0x07 | 0x20

// decode takes one record off the current batch.
func (s *Scanner) decode() bool {
	n, i := getLen(s.batch, 0)
	if i < 0 || n < 1 {
		return false
	}
	b := s.batch[:i+n]
	s.batch = s.batch[i+n:]
	tdelta, i := getVarint(b, i+1) // the attributes byte is not used
	if i < 0 {
		return false
	}
	odelta, i := getVarint(b, i)
	if i < 0 || odelta < 0 || odelta > s.header.last-s.header.base {
		return false
	}
	r := &s.rec
	r.Offset, r.TimeMs = s.header.base+odelta, s.header.baseMs+tdelta
	if r.Offset <= s.prev {
		return false
	}
	s.prev = r.Offset
	if r.Key, i = field(b, i); i < 0 {
		return false
	}
	if r.Value, i = field(b, i); i < 0 {
		return false
	}
	count, i := getVarint(b, i)
	if i < 0 || count < 0 || count > int64(len(b)-i) {
		return false
	}
	r.Headers = Headers{Count: int(count), Raw: b[i:len(b):len(b)]}
	return r.Headers.valid()
}

// field decodes a length and so many bytes, nil for length −1.
func field(b []byte, i int) ([]byte, int) {
	n, i := getLen(b, i)
	if i < 0 || n < 0 {
		return nil, i
	}
	return b[i : i+n : i+n], i + n
}

func (s *Scanner) fail(err error) {
	s.err = fmt.Errorf("seglog: after offset %d: %w", s.prev, err)
	s.left, s.batch, s.buf = 0, nil, nil
}

// Records iterates over the records of a proven chunk. It stops at the first malformed one; use a Scanner to tell.
func Records(chunk []byte) iter.Seq[Record] {
	return func(yield func(Record) bool) {
		var s Scanner
		for s.Reset(chunk); s.Next(); {
			if !yield(s.rec) {
				return
			}
		}
	}
}

// VerifyChunk proves the content checksums of the batches of a chunk and decodes all records: for chunks that came
// over a wire or out of a file that no Log serves.
func VerifyChunk(chunk []byte) error {
	for rest := chunk; len(rest) > 0; {
		h, err := parseHeader(rest)
		if err != nil {
			return fmt.Errorf("seglog: %w", err)
		}
		if h.size > len(rest) {
			return fmt.Errorf("seglog: batch %d: %w", h.base, ErrTruncated)
		}
		if crc32.Checksum(rest[posAttrs:h.size], castagnoli) != binary.BigEndian.Uint32(rest[posCRC:]) {
			return fmt.Errorf("seglog: batch %d: %w", h.base, ErrChecksum)
		}
		rest = rest[h.size:]
	}
	var s Scanner
	for s.Reset(chunk); s.Next(); {
	}
	return s.Err()
}
