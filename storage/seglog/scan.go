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

// scan walks the batches of a segment in order and proves each. What it cannot prove it steps over, finding the next
// batch by its salted header checksum, and tells bad about.
type scan struct {
	s      *segment
	f      vfs.File
	pos    int64 // of the next batch
	limit  int64 // end of the bytes that may hold batches
	expect int64 // the next batch does not begin below this offset
	stop   int64 // batches from this offset on belong to the next segment
	tail   bool  // the end is where a torn write is expected: it is left to the caller, pos stays before it
	bad    func(Damage)

	header batchHeader
	at     int64  // position of the batch
	batch  []byte // the batch, valid until the next call
	torn   error  // with tail: what is wrong with the bytes from pos on

	pooled *[scanWindow]byte
	window []byte // bytes of the file from windowAt on
	from   int64
	ioErr  error // the last read error, for the report
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

// next proves the next batch. It returns false at the end.
func (c *scan) next() bool {
	for c.pos < c.limit {
		if c.expect >= c.stop { // whatever follows was moved to a later segment, or came after the scan began
			c.pos = c.limit
			break
		}
		if d, ok := c.s.knownBad(c.pos); ok && c.pos+d.Bytes <= c.limit {
			c.step(d)
			continue
		}
		h, b, err := c.check(c.pos)
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
	if c.expect < c.stop && c.s.sealed.Load() && !c.tail {
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

// resync steps over what is at the current position to the next batch that can be proven, if there is one. Not even a
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
		pos = q + 1
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
	if c.ioErr != nil {
		d.Err = fmt.Errorf("%w (%w)", cause, c.ioErr)
	} else {
		c.s.setBad(d) // what could not be read may be readable later: only what was read is remembered
	}
	c.step(d)
}

// step tells a damaged stretch and goes on after it.
func (c *scan) step(d Damage) {
	if c.bad != nil {
		c.bad(d)
	}
	c.pos, c.expect, c.ioErr = d.Position+d.Bytes, max(c.expect, d.To), nil
}

// damageOf describes the current batch as one whose checksums hold and whose content makes no sense.
func (c *scan) damageOf(err error) Damage {
	return Damage{Segment: c.s.name, Position: c.at, Bytes: int64(c.header.size), From: c.header.base, To: c.header.last + 1, Err: err}
}

// candidate returns the first position from pos on where a proven header is, whatever is after it.
func (c *scan) candidate(pos int64) (int64, bool) {
	for pos+headerSize <= c.limit {
		b, err := c.read(pos, int(min(scanWindow, c.limit-pos)))
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

// read returns at least n bytes at pos, or ErrTruncated when the limit is before. What the disk cannot read is zeros.
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
	if err := c.fill(buf, pos); err != nil {
		return nil, err
	}
	c.window, c.from = buf, pos
	return buf, nil
}

// salvageBlock is the unit in which a failing disk is read around the bad spot.
const salvageBlock = 4096

// fill reads buf at pos. When the disk cannot read all of it, what it can read is still used.
func (c *scan) fill(buf []byte, pos int64) error {
	n, err := c.f.ReadAt(buf, pos)
	if n == len(buf) {
		return nil
	}
	if errors.Is(err, io.EOF) { // shorter than it was: the rest is missing
		clear(buf[n:])
		return nil
	}
	c.ioErr = err
	for len(buf) > 0 {
		part := buf[:min(int64(len(buf)), salvageBlock-pos%salvageBlock)]
		if n, err := c.f.ReadAt(part, pos); n < len(part) && err != nil {
			clear(part[n:])
		}
		buf, pos = buf[len(part):], pos+int64(len(part))
	}
	return nil
}
