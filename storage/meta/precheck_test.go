package meta

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"testing"
)

// walRecord builds an entry as Badger writes it.
func walRecord(key, value []byte) []byte {
	b := []byte{0, 0}
	b = binary.AppendUvarint(b, uint64(len(key)))
	b = binary.AppendUvarint(b, uint64(len(value)))
	b = binary.AppendUvarint(b, 0)
	b = append(append(b, key...), value...)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

func walk(b []byte) (entries int, err error) {
	r := bufio.NewReader(bytes.NewReader(b))
	for left := uint64(len(b)); ; entries++ {
		n, err := walEntry(r, left)
		if n == 0 || err != nil {
			return entries, err
		}
		left -= n
	}
}

func TestWALWalk(t *testing.T) {
	two := append(walRecord([]byte("a"), []byte("1")), walRecord([]byte("b"), make([]byte, 70_000))...)
	torn := append(bytes.Clone(two), walRecord([]byte("c"), []byte("3"))[:5]...)
	flipped := append(bytes.Clone(two), walRecord([]byte("c"), []byte("3"))...)
	flipped[len(flipped)-1] ^= 1
	claims := append(bytes.Clone(two), 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0x0f, 0, 'k')
	for _, c := range []struct {
		name    string
		b       []byte
		entries int
		bad     bool
	}{
		{"nothing", nil, 0, false},
		{"zeros", make([]byte, 4096), 0, false},
		{"two", two, 2, false},
		{"two and zeros", append(bytes.Clone(two), make([]byte, 100)...), 2, false},
		{"torn, then zeros", append(torn, make([]byte, 100)...), 2, false},
		{"wrong sum", flipped, 2, false},
		{"claims 4 GiB", claims, 2, true},
		{"endless varint", append(bytes.Clone(two), bytes.Repeat([]byte{0xff}, 60)...), 2, true},
	} {
		n, err := walk(c.b)
		if n != c.entries || (err != nil) != c.bad {
			t.Errorf("%s: %d entries, %v", c.name, n, err)
		}
	}
}

func FuzzWALWalk(f *testing.F) {
	f.Add(append(walRecord([]byte("a"), []byte("1")), make([]byte, 40)...))
	f.Add([]byte{0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0x0f, 0, 'k'})
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := walk(b)
		if errors.Is(err, bufio.ErrBufferFull) || n > len(b)/9 {
			t.Fatalf("%d entries in %d bytes, %v", n, len(b), err)
		}
	})
}
