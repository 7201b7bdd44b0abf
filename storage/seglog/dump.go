package seglog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"path/filepath"
)

// BatchInfo is what Dump tells of a batch, or of a stretch that is none.
type BatchInfo struct {
	Position   int64
	Bytes      int64
	Base, Last int64 // offsets of its first and last record
	Records    int
	Codec      Codec
	BaseMs     int64
	MaxMs      int64
	HeaderCRC  string // HeaderOK, HeaderWrong, or HeaderUnknown without a salt
}

// What Dump says of header checksums.
const (
	HeaderOK      = "ok"
	HeaderWrong   = "wrong"
	HeaderUnknown = "unknown"
)

// SegmentID is what the header checksums of a segment rest on besides its file name.
type SegmentID struct {
	Salt uint32 // of the data directory
	Log  string // Options.Name
}

// Dump walks the batches of a segment file, whether a log has it open or not, and calls fn with each: what it is, and
// its content decompressed, for a Scanner. A stretch that cannot be proven comes with an error and no content. Without
// an id the header checksums are not judged, so a copy of a batch inside a payload could be taken for one after damage.
// Dump ends with the first error of fn.
func Dump(r io.ReaderAt, size int64, path string, id *SegmentID, fn func(b BatchInfo, plain []byte, err error) error) error {
	d := dumper{r: r, size: size, fn: fn}
	if base, gen, ok := parseSegmentName(filepath.Base(path)); ok && id != nil {
		d.salt, d.salted = segmentSalt(logSalt(id.Salt, id.Log), base, gen), true
	}
	return d.run()
}

type dumper struct {
	r      io.ReaderAt
	size   int64
	salt   uint32
	salted bool
	fn     func(BatchInfo, []byte, error) error

	buf   []byte
	plain []byte
}

func (d *dumper) run() error {
	for pos := int64(0); pos < d.size; {
		h, b, err := d.check(pos)
		info := BatchInfo{Position: pos, Bytes: int64(h.size), Base: h.base, Last: h.last, Records: int(h.count),
			Codec: Codec(h.attrs & attrsCodec), BaseMs: h.baseMs, MaxMs: h.maxMs, HeaderCRC: HeaderUnknown}
		if err != nil {
			next := d.resync(pos + 1)
			if err := d.fn(BatchInfo{Position: pos, Bytes: next - pos, HeaderCRC: HeaderUnknown}, nil, err); err != nil {
				return err
			}
			pos = next
			continue
		}
		if d.salted {
			info.HeaderCRC = HeaderOK
			if binary.BigEndian.Uint32(b[posHeaderCRC:]) != headerCRC(d.salt, pos, b) {
				info.HeaderCRC = HeaderWrong
			}
		}
		d.plain, err = appendPlain(d.plain[:0], b, h)
		if err := d.fn(info, d.plain, err); err != nil {
			return err
		}
		pos += int64(h.size)
	}
	return nil
}

// check proves the content of the batch at pos.
func (d *dumper) check(pos int64) (batchHeader, []byte, error) {
	head, err := d.read(pos, headerSize)
	if err != nil {
		return batchHeader{}, nil, err
	}
	h, err := parseHeader(head)
	if err == nil && head[posMagic] != magicV2 {
		err = ErrHeader
	}
	if err != nil {
		return batchHeader{}, nil, err
	}
	b, err := d.read(pos, h.size)
	if err != nil {
		return batchHeader{}, nil, err
	}
	if crc32.Checksum(b[posAttrs:], castagnoli) != binary.BigEndian.Uint32(b[posCRC:]) {
		return batchHeader{}, nil, ErrChecksum
	}
	return h, b, nil
}

func (d *dumper) read(pos int64, n int) ([]byte, error) {
	if pos+int64(n) > d.size {
		return nil, ErrTruncated
	}
	if cap(d.buf) < n {
		d.buf = make([]byte, max(n, 2*BatchBytesMax))
	}
	b := d.buf[:n]
	if _, err := d.r.ReadAt(b, pos); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return b, nil
}

// resync returns the first position from pos on where a batch is proven, or the end.
func (d *dumper) resync(pos int64) int64 {
	window := make([]byte, scanWindow)
	for pos+headerSize <= d.size {
		n, _ := d.r.ReadAt(window[:min(scanWindow, d.size-pos)], pos)
		if n < headerSize {
			break
		}
		for i := 0; i+headerSize <= n; i++ {
			j := bytes.IndexByte(window[i+posMagic:n-headerSize+posMagic+1], magicV2)
			if j < 0 {
				break
			}
			i += j
			at := pos + int64(i)
			if d.salted && binary.BigEndian.Uint32(window[i+posHeaderCRC:]) != headerCRC(d.salt, at, window[i:]) {
				continue
			}
			if _, _, err := d.check(at); err == nil {
				return at
			}
		}
		pos += int64(n - headerSize + 1)
	}
	return d.size
}
