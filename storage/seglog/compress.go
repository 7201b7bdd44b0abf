package seglog

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// Codec says how the records of a batch are compressed. The values are Kafka's.
type Codec uint8

// The codecs.
const (
	CodecNone Codec = 0
	CodecZstd Codec = 4
)

// String returns the codec's name in a configuration.
func (c Codec) String() string {
	switch c {
	case CodecNone:
		return "none"
	case CodecZstd:
		return "zstd"
	}
	return fmt.Sprintf("codec %d", uint8(c))
}

// attrsCodec are the attribute bits that hold the codec.
const attrsCodec = 0x07

// ErrCodec means that a batch is compressed in a way that this program does not know.
var ErrCodec = fmt.Errorf("%w: unknown compression", ErrMalformed)

// zstdWindow bounds what an encoder looks back, and so its memory: a batch is hardly ever larger than 64 KiB.
const zstdWindow = 128 << 10

// Both are made on first use: a hub without compressed streams does not pay for them. They are safe for concurrent use.
var (
	zstdEncoder = sync.OnceValue(func() *zstd.Encoder {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(2),
			zstd.WithWindowSize(zstdWindow), zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false))
		if err != nil {
			panic("BUG: seglog: " + err.Error())
		}
		return e
	})
	zstdDecoder = sync.OnceValue(func() *zstd.Decoder {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(2), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(batchSizeMax))
		if err != nil {
			panic("BUG: seglog: " + err.Error())
		}
		return d
	})
)

// packer compresses the batches of a builder into a buffer of its own. Owned by the holder of Log.wmu.
type packer struct {
	buf []byte
	pos []int32 // of each batch in buf; empty: as in the builder
}

// at returns the position of a batch in what wire returned last.
func (p *packer) at(b *Builder, i int) int32 {
	if len(p.pos) > 0 {
		return p.pos[i]
	}
	return b.batches[i].pos
}

// wire completes the batches of b and returns them as they go to the disk, at a position of a segment.
func (l *Log) wire(b *Builder, salt uint32, pos int64) []byte {
	p := &l.packer
	p.pos = p.pos[:0]
	b.seal(salt, pos)
	if l.o.Codec == CodecNone {
		return b.buf
	}
	if cap(p.buf) > builderKeep {
		p.buf = nil
	}
	p.buf = p.buf[:0]
	for i := range b.batches {
		end := len(b.buf)
		if i+1 < len(b.batches) {
			end = int(b.batches[i+1].pos)
		}
		at := len(p.buf)
		p.pos = append(p.pos, int32(at))
		p.buf = packBatch(p.buf, b.buf[b.batches[i].pos:end])
		out := p.buf[at:]
		binary.BigEndian.PutUint32(out[posHeaderCRC:], headerCRC(salt, pos+int64(at), out))
	}
	return p.buf
}

// packBatch appends a finished batch compressed, or as it is where that is not smaller. The header CRC is left to the
// caller.
func packBatch(dst, batch []byte) []byte {
	start := len(dst)
	dst = append(dst, batch[:headerSize]...)
	dst = zstdEncoder().EncodeAll(batch[headerSize:], dst)
	if len(dst)-start >= len(batch) {
		return append(dst[:start], batch...)
	}
	b := dst[start:]
	binary.BigEndian.PutUint16(b[posAttrs:], binary.BigEndian.Uint16(b[posAttrs:])|uint16(CodecZstd))
	setLength(b)
	return dst
}

// setLength makes length and CRC right for a batch that is b.
func setLength(b []byte) {
	binary.BigEndian.PutUint32(b[posLength:], uint32(len(b)-lengthFrom))
	binary.BigEndian.PutUint32(b[posCRC:], crc32.Checksum(b[posAttrs:], castagnoli))
}

// appendPlain appends a proven batch to dst, decompressed if need be.
func appendPlain(dst, batch []byte, h batchHeader) ([]byte, error) {
	switch Codec(h.attrs & attrsCodec) {
	case CodecNone:
		return append(dst, batch...), nil
	case CodecZstd:
	default:
		return dst, ErrCodec
	}
	start := len(dst)
	out := append(dst, batch[:headerSize]...)
	out, err := zstdDecoder().DecodeAll(batch[headerSize:], out)
	if err != nil {
		return dst, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if len(out)-start > batchSizeMax {
		return dst, ErrMalformed
	}
	b := out[start:]
	binary.BigEndian.PutUint16(b[posAttrs:], h.attrs&^attrsCodec)
	setLength(b)
	return out, nil
}

// unpack replaces the batches in dst from at on by decompressed ones. It stops before one that would go beyond maxBytes
// (counted from start), unless it is the first, and before one that does not decompress; whole says that it did not.
func unpack(dst []byte, start, at, maxBytes int) (out []byte, whole bool) {
	scratch := windows.Get().(*[scanWindow]byte)
	defer windows.Put(scratch)
	packed := append(scratch[:0], dst[at:]...)
	dst = dst[:at]
	for len(packed) > 0 {
		h, err := parseHeader(packed)
		if err != nil {
			panic("BUG: seglog: a proven batch does not parse: " + err.Error())
		}
		if len(dst) > start && len(dst)-start+h.size > maxBytes {
			return dst, false
		}
		plain, err := appendPlain(dst, packed[:h.size], h)
		if err != nil {
			return dst, false
		}
		dst = plain
		packed = packed[h.size:]
	}
	return dst, true
}
