package seglog

import (
	"encoding/binary"
	"math/bits"
)

// Kafka's record fields are zigzag varints: the helpers below are the append, size and read of those.

// varintLen returns the number of bytes of x as a zigzag varint.
func varintLen(x int64) int {
	u := uint64(x<<1) ^ uint64(x>>63)
	return (9*bits.Len64(u) + 64) / 64
}

// putVarint writes x at b[i:] and returns the position after it. The caller made room.
func putVarint(b []byte, i int, x int64) int {
	u := uint64(x<<1) ^ uint64(x>>63)
	for u >= 0x80 {
		b[i] = byte(u) | 0x80
		u >>= 7
		i++
	}
	b[i] = byte(u)
	return i + 1
}

// getVarint reads a zigzag varint at b[i:]. It returns the position after it, or -1 when it is cut off or too long.
func getVarint(b []byte, i int) (int64, int) {
	if i < len(b) && b[i] < 0x80 { // one byte: lengths below 64, almost every field
		u := uint64(b[i])
		return int64(u>>1) ^ -int64(u&1), i + 1
	}
	if i > len(b) {
		return 0, -1
	}
	u, n := binary.Uvarint(b[i:])
	if n <= 0 {
		return 0, -1
	}
	return int64(u>>1) ^ -int64(u&1), i + n
}

// getLen reads a varint that is a length within b: -1 (absent) to the bytes that are left.
func getLen(b []byte, i int) (int, int) {
	v, i := getVarint(b, i)
	if i < 0 || v < -1 || v > int64(len(b)-i) {
		return 0, -1
	}
	return int(v), i
}
