package seglog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"

	"edgehub/internal/vfs"
)

// errNotExist is what opening a segment gives that was dropped meanwhile.
var errNotExist = fs.ErrNotExist

// scanWindow is how much a scan reads at once; it holds any batch but those of one oversized record.
const scanWindow = 4 * BatchBytesMax

var windows = sync.Pool{New: func() any { return new([scanWindow]byte) }}

// ReadError means that the disk could not read part of a segment. That is no damage: nothing is skipped, moved or cut
// because of it, and the next read tries again.
type ReadError struct {
	Segment  string // file name
	Position int64  // of the first byte that could not be read
	Err      error
}

// Error implements error.
func (e *ReadError) Error() string {
	return fmt.Sprintf("%s cannot be read at byte %d: %v", e.Segment, e.Position, e.Err)
}

// Unwrap returns the disk's own error.
func (e *ReadError) Unwrap() error { return e.Err }

// scan walks the batches of a segment in order and proves each. What it cannot prove it steps over, finding the next
// batch by its salted header checksum, and tells bad about. Where the disk does not read it stops, with err; unless it
// is to salvage: then it goes around the spot, as around damage, for a report or at an operator's word.
type scan struct {
	s      *segment
	f      vfs.File
	pos    int64 // of the next batch
	limit  int64 // end of the bytes that may hold batches
	expect int64 // the next batch does not begin below this offset
	stop   int64 // batches from this offset on belong to the next segment
	tail   bool  // the end is where a torn write is expected: it is left to the caller, pos stays before it
	bad    func(Damage)

	salvage bool // go around what the disk cannot read
	err     error

	header batchHeader
	at     int64  // position of the batch
	batch  []byte // the batch, valid until the next call
	torn   error  // with tail: what is wrong with the bytes from pos on

	pooled *[scanWindow]byte
	window []byte // bytes of the file from windowAt on
	from   int64
	holed  bool   // with salvage: something could not be read
	holes  []hole // with salvage: what could not be read, as far as it may still matter
}

// hole is a stretch of a segment that the disk could not read.
type hole struct {
	from, to int64
	err      error
}

// newScan begins a walk at pos, where no batch below expect is. The caller has the file acquired.
func newScan(s *segment, f vfs.File, pos, expect, stop int64) *scan {
	return &scan{s: s, f: f, pos: pos, limit: s.length.Load(), expect: expect, stop: stop, pooled: windows.Get().(*[scanWindow]byte)}
}

func (c *scan) close() {
	if c.pooled != nil {
		windows.Put(c.pooled)
		c.pooled, c.window, c.batch = nil, nil, nil
	}
}

// next proves the next batch. It returns false at the end, and where the disk cannot read: then err says so, pos is the
// place, and what follows is as if it had never been looked at.
func (c *scan) next() bool {
	for c.pos < c.limit && c.err == nil {
		if c.expect >= c.stop { // whatever follows was moved to a later segment, or came after the scan began
			c.pos = c.limit
			break
		}
		if d, ok := c.s.knownBad(c.pos); ok && c.pos+d.Bytes <= c.limit {
			c.step(d)
			continue
		}
		h, b, err := c.check(c.pos)
		if c.err != nil {
			return false
		}
		if err == nil && h.base >= c.stop {
			c.pos = c.limit
			break
		}
		if err == nil && h.base < c.expect {
			err = ErrOrder
		}
		if err == nil {
			c.header, c.at, c.batch = h, c.pos, b
			c.pos += int64(h.size)
			c.expect = h.last + 1
			return true
		}
		if !c.resync(err) {
			return false
		}
	}
	if c.err == nil && c.expect < c.stop && c.s.sealed.Load() && !c.tail {
		// The names of the segments say that there were more: a power cut took a tail that was never synced.
		c.step(Damage{Segment: c.s.name, Position: c.limit, From: c.expect, To: c.stop, Err: ErrMissing})
	}
	return false
}

// check proves the batch at pos.
func (c *scan) check(pos int64) (batchHeader, []byte, error) {
	b, err := c.read(pos, headerSize)
	if err != nil {
		return batchHeader{}, nil, err
	}
	h, err := checkHeader(b, c.s.salt, pos)
	if h.size == 0 {
		return h, nil, err
	}
	if pos+int64(h.size) > c.limit {
		return batchHeader{}, nil, ErrTruncated
	}
	if b, err = c.read(pos, h.size); err != nil {
		return h, nil, err
	}
	h, err = checkBatch(b, c.s.salt, pos)
	return h, b[:h.size], err
}

// resync steps over what is at the current position to the next batch that can be proven, if there is one; when the disk
// cannot read on the way, nothing is known of what follows and nothing is stepped over. Not even a
// proven header tells where that is: it may be left of a write that was refused or lost, with good batches written over
// the rest of it. So the search begins right behind; what it finds is a batch that was written there, since no payload
// can hold a header that is valid at its position. It returns false when the scan ends here.
func (c *scan) resync(cause error) bool {
	start := c.pos
	for pos := c.pos + 1; pos < c.limit; {
		q, ok := c.candidate(pos)
		if !ok {
			break
		}
		if h, _, err := c.check(q); err == nil && h.base >= c.expect {
			c.damaged(start, q, min(h.base, c.stop), cause)
			return true
		}
		if c.err != nil {
			return false
		}
		pos = q + 1
	}
	if c.err != nil {
		return false
	}
	if c.tail {
		c.torn = cause
		return false
	}
	c.damaged(start, c.limit, c.stop, cause)
	return true // to the end of the loop in next, which finds nothing more
}

// damaged remembers a stretch, tells it and steps over it.
func (c *scan) damaged(start, end, to int64, cause error) {
	d := Damage{Segment: c.s.name, Position: start, Bytes: end - start, From: c.expect, To: max(to, c.expect), Err: cause}
	if h := c.holeIn(start, end); h != nil {
		d.Err = fmt.Errorf("%w (%w)", cause, h.err)
	} else {
		c.s.setBad(d) // what could not be read may be readable later: only what was read is remembered
	}
	c.step(d)
}

// holeIn returns a stretch between two positions that could not be read.
func (c *scan) holeIn(from, to int64) *hole {
	for i := range c.holes {
		if c.holes[i].from < to && c.holes[i].to > from {
			return &c.holes[i]
		}
	}
	return nil
}

// step tells a damaged stretch and goes on after it.
func (c *scan) step(d Damage) {
	if c.bad != nil {
		c.bad(d)
	}
	c.pos, c.expect = d.Position+d.Bytes, max(c.expect, d.To)
	n := 0
	for _, h := range c.holes { // the walk never comes back
		if h.to > c.pos {
			c.holes[n] = h
			n++
		}
	}
	c.holes = c.holes[:n]
}

// damageOf describes the current batch as one whose checksums hold and whose content makes no sense.
func (c *scan) damageOf(err error) Damage {
	return Damage{Segment: c.s.name, Position: c.at, Bytes: int64(c.header.size), From: c.header.base, To: c.header.last + 1, Err: err}
}

// candidate returns the first position from pos on where a proven header is, whatever is after it.
func (c *scan) candidate(pos int64) (int64, bool) {
	for pos+headerSize <= c.limit {
		b, err := c.read(pos, headerSize)
		if err != nil {
			return 0, false
		}
		for i := 0; i+headerSize <= len(b); i++ {
			j := bytes.IndexByte(b[i+posMagic:len(b)-headerSize+posMagic+1], magicV2)
			if j < 0 {
				break
			}
			i += j
			if h, _ := checkHeader(b[i:], c.s.salt, pos+int64(i)); h.size > 0 && pos+int64(i)+int64(h.size) <= c.limit {
				return pos + int64(i), true
			}
		}
		pos += int64(len(b) - headerSize + 1)
	}
	return 0, false
}

// read returns at least n bytes at pos, more where they are at hand, or ErrTruncated when the limit is before. What the
// disk cannot read is an error, which c.err keeps, or with salvage zeros.
func (c *scan) read(pos int64, n int) ([]byte, error) {
	if pos+int64(n) > c.limit {
		return nil, ErrTruncated
	}
	if pos >= c.from && pos+int64(n) <= c.from+int64(len(c.window)) {
		return c.window[pos-c.from:], nil
	}
	buf := c.pooled[:]
	if n > len(buf) {
		buf = make([]byte, n)
	}
	buf = buf[:min(int64(len(buf)), c.limit-pos)]
	good, err := c.fill(buf, pos)
	c.window, c.from = buf[:good], pos
	if good < n {
		c.err = err
		return nil, err
	}
	return c.window, nil
}

// addHole remembers a stretch that could not be read. Stretches that touch are one.
func (c *scan) addHole(from, to int64, err error) {
	c.holed = true
	if n := len(c.holes); n > 0 && c.holes[n-1].from <= from && from <= c.holes[n-1].to {
		c.holes[n-1].to = max(c.holes[n-1].to, to)
		return
	}
	c.holes = append(c.holes, hole{from, to, &ReadError{c.s.name, from, err}})
}

// salvageBlock is the unit in which a failing disk is read around the bad spot.
const salvageBlock = 4096

// fill reads buf at pos and returns how much of it is good. When the disk cannot read all of it, what it can read
// before the bad spot is still used; with salvage what is behind it, too.
func (c *scan) fill(buf []byte, pos int64) (good int, err error) {
	n, err := c.f.ReadAt(buf, pos)
	if n == len(buf) {
		return n, nil
	}
	if errors.Is(err, io.EOF) { // shorter than it was: the rest is missing
		clear(buf[n:])
		return len(buf), nil
	}
	for good < len(buf) {
		at := pos + int64(good)
		part := buf[good:min(len(buf), good+int(salvageBlock-at%salvageBlock))]
		n, err := c.f.ReadAt(part, at)
		switch {
		case n == len(part):
		case errors.Is(err, io.EOF):
			clear(buf[good+n:])
			return len(buf), nil
		case !c.salvage:
			return good + n, &ReadError{Segment: c.s.name, Position: at + int64(n), Err: err}
		default:
			clear(part[n:])
			c.addHole(at+int64(n), at+int64(len(part)), err)
		}
		good += len(part)
	}
	return good, nil
}
