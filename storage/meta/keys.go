package meta

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// Spaces of the index. The state is one key, in front of all others.
const (
	spaceState   byte = 0
	spaceDurable byte = 'd'
	spaceHint    byte = 'h'
)

// foldBytes is the longest key that the index stores as it is. Badger takes no
// key above 65,000 bytes, and a client id alone may have 65,535; so a longer
// key is stored under its first foldBytes and its SHA-256, and in front of its
// value. Scans by prefix work as before.
const foldBytes = 1024

// indexKey appends the index's key of (space, key) to dst.
func indexKey(dst []byte, space byte, key []byte) []byte {
	dst = append(dst, space)
	if len(key) <= foldBytes {
		return append(dst, key...)
	}
	sum := sha256.Sum256(key)
	dst = append(dst, key[:foldBytes]...)
	return append(dst, sum[:]...)
}

// indexPrefix returns a prefix of the index keys of all keys with prefix.
func indexPrefix(space byte, prefix []byte) []byte {
	return append([]byte{space}, prefix[:min(len(prefix), foldBytes)]...)
}

// indexValue returns what the index stores for (key, value).
func indexValue(key, value []byte) []byte {
	if len(key) <= foldBytes {
		return value
	}
	b := make([]byte, 0, binary.MaxVarintLen32+len(key)+len(value))
	b = binary.AppendUvarint(b, uint64(len(key)))
	b = append(b, key...)
	return append(b, value...)
}

// splitEntry undoes indexKey and indexValue; the results alias the input.
func splitEntry(ikey, ivalue []byte) (key, value []byte, err error) {
	if len(ikey) <= 1+foldBytes {
		return ikey[1:], ivalue, nil
	}
	n, w := binary.Uvarint(ivalue)
	if w <= 0 || n > uint64(len(ivalue)-w) {
		return nil, nil, fmt.Errorf("%w: folded key %q", errIndexDamaged, clip(ikey))
	}
	return ivalue[w : w+int(n)], ivalue[w+int(n):], nil
}
