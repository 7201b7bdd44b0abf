package seglog

import "math"

// builderKeep is the largest buffer that Reset keeps: a burst must not pin its memory for ever.
const builderKeep = 1 << 20

// builderMax bounds a builder's buffer, whose positions are 32-bit. Callers bound what they append long before.
const builderMax = 1 << 30

// Builder collects the records that a partition will commit next, as complete record batches in one contiguous buffer:
// the one copy between a connection's input and the disk. Offsets are dense from the base given to Reset.
//
// A Builder is owned by whoever holds the partition's lock. It does not allocate once its buffer has grown.
type Builder struct {
	buf     []byte
	batches []openBatch
	base    int64 // offset of the first record
	next    int64 // offset of the record to come
	last    int64 // highest timestamp so far; survives Reset
}

// openBatch is a batch in the buffer. The last one grows, the others are finished.
type openBatch struct {
	pos    int32 // start in buf
	count  int32
	base   int64
	baseMs int64
	maxMs  int64
}

// Loc tells where the parts of a record are in Builder.Bytes, until Reset. An absent part is empty.
type Loc struct {
	Offset              int64
	TimeMs              int64 // the record's timestamp, after clamping
	Key, KeyEnd         int32
	Value, ValueEnd     int32
	Headers, HeadersEnd int32
	HeaderCount         int32
}

// Reset empties the builder. The next record gets the offset base.
func (b *Builder) Reset(base int64) {
	if cap(b.buf) > builderKeep {
		b.buf = nil
	}
	b.buf, b.batches = b.buf[:0], b.batches[:0]
	b.base, b.next = base, base
}

// Floor makes later timestamps not less than ms. A partition's builders are started with Log.LastTime, so that its
// timestamps never decrease, over restarts and steps of the clock.
func (b *Builder) Floor(ms int64) { b.last = max(b.last, ms) }

// Len returns the number of bytes to be written.
func (b *Builder) Len() int { return len(b.buf) }

// Count returns the number of records.
func (b *Builder) Count() int { return int(b.next - b.base) }

// Base returns the offset of the first record.
func (b *Builder) Base() int64 { return b.base }

// Next returns the offset that the next record will get.
func (b *Builder) Next() int64 { return b.next }

// LastTime returns the highest timestamp appended, or the floor.
func (b *Builder) LastTime() int64 { return b.last }

// Bytes returns the batches. They are only complete (length, checksums) once Log.Append has been given the builder, but
// keys, values and headers are in place. The slice is valid until the next Append or Reset.
func (b *Builder) Bytes() []byte { return b.buf }

// Append adds a record and returns where it is. Timestamps in a partition never decrease: one that is earlier than
// the last becomes the last. A nil key or value is stored as absent.
func (b *Builder) Append(ms int64, key, value []byte, h Headers) Loc {
	if len(key)+len(value)+len(h.Raw) > RecordBytesMax || len(b.buf) > builderMax-RecordBytesMax-BatchBytesMax {
		panic("BUG: seglog: record or builder beyond its bound")
	}
	b.last = max(b.last, ms)
	keyLen, valueLen := int64(len(key)), int64(len(value))
	if key == nil {
		keyLen = -1
	}
	if value == nil {
		valueLen = -1
	}
	fixed := 1 + varintLen(keyLen) + len(key) + varintLen(valueLen) + len(value) + varintLen(int64(h.Count)) + len(h.Raw)
	batch, body := b.place(fixed)
	delta, index := b.last-batch.baseMs, int64(batch.count)

	total := varintLen(int64(body)) + body
	i := len(b.buf)
	b.grow(total)
	buf := b.buf
	loc := Loc{Offset: b.next, TimeMs: b.last, HeaderCount: int32(h.Count)}
	i = putVarint(buf, i, int64(body))
	buf[i] = 0 // record attributes: none are defined
	i = putVarint(buf, i+1, delta)
	i = putVarint(buf, i, index)
	i = putVarint(buf, i, keyLen)
	loc.Key = int32(i)
	i += copy(buf[i:], key)
	loc.KeyEnd = int32(i)
	i = putVarint(buf, i, valueLen)
	loc.Value = int32(i)
	i += copy(buf[i:], value)
	loc.ValueEnd = int32(i)
	i = putVarint(buf, i, int64(h.Count))
	loc.Headers = int32(i)
	i += copy(buf[i:], h.Raw)
	loc.HeadersEnd = int32(i)

	batch.count++
	batch.maxMs = b.last
	b.next++
	return loc
}

// place returns the batch that takes the next record, and the record's body size in it: the open batch, or a new one
// when there is none or the record would take it beyond BatchBytesMax.
func (b *Builder) place(fixed int) (*openBatch, int) {
	if n := len(b.batches); n > 0 {
		batch := &b.batches[n-1]
		body := fixed + varintLen(b.last-batch.baseMs) + varintLen(int64(batch.count))
		if len(b.buf)-int(batch.pos)+varintLen(int64(body))+body <= BatchBytesMax && batch.count < math.MaxInt32 {
			return batch, body
		}
		b.finish(batch)
	}
	pos := len(b.buf)
	b.grow(headerSize)
	b.batches = append(b.batches, openBatch{pos: int32(pos), base: b.next, baseMs: b.last, maxMs: b.last})
	return &b.batches[len(b.batches)-1], fixed + 2
}

// grow lengthens the buffer by n bytes of undefined content.
func (b *Builder) grow(n int) {
	if n <= cap(b.buf)-len(b.buf) {
		b.buf = b.buf[:len(b.buf)+n]
		return
	}
	bigger := make([]byte, len(b.buf)+n, max(2*cap(b.buf), len(b.buf)+n, 4096))
	copy(bigger, b.buf)
	b.buf = bigger
}

// finish completes the last batch, which ends where the buffer does. Appending to it and finishing it again is fine.
func (b *Builder) finish(batch *openBatch) {
	finishHeader(b.buf[batch.pos:], batch.base, batch.count, batch.baseMs, batch.maxMs)
}
