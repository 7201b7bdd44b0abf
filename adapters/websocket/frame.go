package websocket

import (
	"encoding/binary"

	"github.com/gobwas/ws"
)

// A frame's header:
//
//	byte 0      FIN (0x80), RSV1-3 (0x70), opcode (0x0f)
//	byte 1      MASK (0x80), length (0x7f): 0-125, 126: 2 bytes follow, 127: 8 bytes follow
//	[2 or 8]    length, big-endian, in the shortest form
//	[4]         mask
const (
	finBit   = 0x80
	rsvBits  = 0x70
	maskBit  = 0x80
	lengthIn = 0x7f
	length16 = 126
	length64 = 127
)

// parseHeader reads the header at the start of b and returns its size, 0 when it is not whole. A length that is not in
// its shortest form is against the rules; it is answered like reserved bits.
func parseHeader(b []byte) (h ws.Header, size int) {
	if len(b) < 2 {
		return h, 0
	}
	h.Fin, h.Rsv, h.OpCode = b[0]&finBit != 0, b[0]&rsvBits>>4, ws.OpCode(b[0]&0x0f)
	h.Masked = b[1]&maskBit != 0
	size = 2
	switch n := b[1] & lengthIn; n {
	case length16:
		size += 2
	case length64:
		size += 8
	default:
		h.Length = int64(n)
	}
	length := b[2:]
	if h.Masked {
		size += 4
	}
	if len(b) < size {
		return h, 0
	}
	shortest := true
	switch b[1] & lengthIn {
	case length16:
		h.Length = int64(binary.BigEndian.Uint16(length))
		shortest = h.Length >= length16
	case length64:
		n := binary.BigEndian.Uint64(length)
		h.Length = int64(n & (1<<63 - 1))
		shortest = n > 1<<16-1 && n>>63 == 0
	}
	if !shortest {
		h.Rsv |= 0x4
	}
	if h.Masked {
		copy(h.Mask[:], b[size-4:size])
	}
	return h, size
}

// appendHeader appends the header of an unfragmented frame from a server, which is not masked.
func appendHeader(dst []byte, op ws.OpCode, length int) []byte {
	dst = append(dst, finBit|byte(op))
	switch {
	case length < length16:
		return append(dst, byte(length))
	case length < 1<<16:
		return binary.BigEndian.AppendUint16(append(dst, length16), uint16(length))
	default:
		return binary.BigEndian.AppendUint64(append(dst, length64), uint64(length))
	}
}
