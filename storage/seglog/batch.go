package seglog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
)

// A batch on disk is a Kafka record batch, format v2, big endian:
//
//	 0  base offset            int64   ┐ covered by the header CRC,
//	 8  length of what follows int32   ┘ with salt and position
//	12  header CRC             uint32  (Kafka: partition leader epoch)
//	16  magic                  int8    2
//	17  CRC-32C of 21…end      uint32
//	21  attributes             int16   ┐
//	23  last offset delta      int32   │
//	27  base timestamp, ms     int64   │
//	35  max timestamp, ms      int64   │ covered by the CRC
//	43  producer id            int64   │
//	51  producer epoch         int16   │
//	53  base sequence          int32   │
//	57  number of records      int32   │
//	61  records                        ┘
const (
	posLength    = 8
	posHeaderCRC = 12
	posMagic     = 16
	posCRC       = 17
	posAttrs     = 21
	posLastDelta = 23
	posBaseTime  = 27
	posMaxTime   = 35
	posProducer  = 43
	posEpoch     = 51
	posSequence  = 53
	posCount     = 57
	headerSize   = 61

	lengthFrom = 12 // the length field counts the bytes after itself
	magicV2    = 2
)

// BatchBytesMax is where a batch is cut: the most that one damaged byte can take away. Only a record that is larger
// than this makes a larger batch, which then holds nothing else.
const BatchBytesMax = 64 << 10

// RecordBytesMax bounds key, value and headers of one record together.
const RecordBytesMax = 256 << 20

const batchSizeMax = RecordBytesMax + BatchBytesMax

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Causes of damage, wrapped in the Err of a Damage.
var (
	ErrHeader    = errors.New("batch header does not match its checksum")
	ErrChecksum  = errors.New("batch content does not match its checksum")
	ErrTruncated = errors.New("batch is cut off")
	ErrOrder     = errors.New("batch offsets are out of order")
	ErrMissing   = errors.New("records are missing")
	ErrMalformed = errors.New("batch is malformed")
)

// batchHeader is what the log itself needs to know of a batch.
type batchHeader struct {
	base   int64
	last   int64 // offset of the last record
	size   int   // bytes on disk, header included
	baseMs int64
	maxMs  int64
	count  int32
	attrs  uint16
}

// logSalt derives the salt of a log, so that the segments of two partitions cannot be mistaken for each other.
func logSalt(salt uint32, name string) uint32 { return crc32.Update(salt, castagnoli, []byte(name)) }

// segmentSalt derives the salt of a segment's header CRCs. It differs between hubs, segments and generations, so a
// batch is only ever valid in the file it was written to.
func segmentSalt(salt uint32, base int64, gen uint32) uint32 {
	var b [12]byte
	binary.BigEndian.PutUint64(b[:], uint64(base))
	binary.BigEndian.PutUint32(b[8:], gen)
	return crc32.Update(salt, castagnoli, b[:])
}

// headerCRC covers what Kafka's CRC leaves out: base offset and length. The position is part of it, so that a copy of
// a batch inside somebody's payload (which cannot sit where the original does) is never taken for a batch: below 4 GiB
// no two positions give the same start value, whatever the salt.
func headerCRC(salt uint32, pos int64, b []byte) uint32 {
	start := salt ^ uint32(pos)*0x9e3779b1 ^ uint32(pos>>32)*0x85ebca77
	return crc32.Update(start, castagnoli, b[:posHeaderCRC])
}

// checkHeader decodes the first headerSize bytes of a batch at a position of a segment. Base offset and size are
// proven by the header CRC; the other fields only once checkBatch has seen the whole batch.
func checkHeader(b []byte, salt uint32, pos int64) (batchHeader, error) {
	if len(b) < headerSize {
		return batchHeader{}, ErrTruncated
	}
	if b[posMagic] != magicV2 || binary.BigEndian.Uint32(b[posHeaderCRC:]) != headerCRC(salt, pos, b) {
		return batchHeader{}, ErrHeader
	}
	return parseHeader(b)
}

// parseHeader decodes a header without proving it.
func parseHeader(b []byte) (batchHeader, error) {
	if len(b) < headerSize {
		return batchHeader{}, ErrTruncated
	}
	length := int64(binary.BigEndian.Uint32(b[posLength:]))
	h := batchHeader{
		base:   int64(binary.BigEndian.Uint64(b)),
		baseMs: int64(binary.BigEndian.Uint64(b[posBaseTime:])),
		maxMs:  int64(binary.BigEndian.Uint64(b[posMaxTime:])),
		count:  int32(binary.BigEndian.Uint32(b[posCount:])),
		attrs:  binary.BigEndian.Uint16(b[posAttrs:]),
	}
	if length < headerSize-lengthFrom || length > batchSizeMax-lengthFrom {
		return batchHeader{}, ErrMalformed
	}
	h.size = int(length) + lengthFrom
	delta := int64(int32(binary.BigEndian.Uint32(b[posLastDelta:])))
	// Sums below may not overflow, and a batch has at most one record per offset; without any it is void, see voidBatch.
	if h.base < 0 || h.base > math.MaxInt64-math.MaxInt32 {
		return batchHeader{}, ErrMalformed
	}
	if delta < 0 || h.count < 0 || int64(h.count) > delta+1 || h.count == 0 && h.size != headerSize {
		return h, ErrMalformed
	}
	h.last = h.base + delta
	return h, nil
}

// checkBatch proves the batch at the start of b. With ErrTruncated and a size in the header returned, b is good so far
// but does not hold the whole batch.
func checkBatch(b []byte, salt uint32, pos int64) (batchHeader, error) {
	h, err := checkHeader(b, salt, pos)
	if h.size == 0 {
		return h, err
	}
	if len(b) < h.size {
		return h, ErrTruncated
	}
	if crc32.Checksum(b[posAttrs:h.size], castagnoli) != binary.BigEndian.Uint32(b[posCRC:]) {
		return h, ErrChecksum
	}
	return h, err
}

// voidBatch appends a batch that has no records: it says that the offsets from…to−1 are known to be lost, so that a
// repaired segment is whole again. Readers step over it. Its header CRC is left to the caller.
func voidBatch(dst []byte, from, to, ms int64) []byte {
	start := len(dst)
	dst = append(dst, make([]byte, headerSize)...)
	b := dst[start:]
	finishHeader(b, from, 0, ms, ms)
	binary.BigEndian.PutUint32(b[posLastDelta:], uint32(to-from-1))
	binary.BigEndian.PutUint32(b[posCRC:], crc32.Checksum(b[posAttrs:], castagnoli))
	return dst
}

// finishHeader fills in everything but the header CRC, which depends on where the batch will be written.
func finishHeader(b []byte, base int64, count int32, baseMs, maxMs int64) {
	be := binary.BigEndian
	be.PutUint64(b, uint64(base))
	be.PutUint32(b[posLength:], uint32(len(b)-lengthFrom))
	b[posMagic] = magicV2
	be.PutUint16(b[posAttrs:], 0)
	be.PutUint32(b[posLastDelta:], uint32(count-1))
	be.PutUint64(b[posBaseTime:], uint64(baseMs))
	be.PutUint64(b[posMaxTime:], uint64(maxMs))
	be.PutUint64(b[posProducer:], math.MaxUint64) // −1: no producer id
	be.PutUint16(b[posEpoch:], math.MaxUint16)
	be.PutUint32(b[posSequence:], math.MaxUint32)
	be.PutUint32(b[posCount:], uint32(count))
	be.PutUint32(b[posCRC:], crc32.Checksum(b[posAttrs:], castagnoli))
}

// Damage is a range of offsets that the log cannot serve, and why.
type Damage struct {
	Segment  string // file name
	Position int64  // where in the file the damage begins
	Bytes    int64  // how much of the file it takes
	From, To int64  // the offsets lost: From ≤ offset < To
	Err      error
}

// Unread reports that the disk could not read the range: it may be whole.
func (d Damage) Unread() bool {
	var e *ReadError
	return errors.As(d.Err, &e)
}

// String tells the damage in one line.
func (d Damage) String() string {
	lost := "no offsets lost"
	switch {
	case d.Unread() && d.To > d.From:
		lost = fmt.Sprintf("offsets %d to %d cannot be read", d.From, d.To-1)
	case d.To > d.From:
		lost = fmt.Sprintf("offsets %d to %d lost", d.From, d.To-1)
	}
	return fmt.Sprintf("%s: %s (%d bytes at %d): %v", d.Segment, lost, d.Bytes, d.Position, d.Err)
}
