package meta

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"
)

// A $meta record: its key is the durable key, its value one byte that says
// what happened, then the new value.
//
//	+------+-----------+
//	| op 1 | value ... |
//	+------+-----------+
const (
	opPut    byte = 1
	opDelete byte = 2
)

// ErrRecord is a $meta record that cannot be read.
var ErrRecord = errors.New("meta: unreadable record")

// change is one decoded record; its slices alias the source.
type change struct {
	key, value []byte
	deleted    bool
}

// decodeRecord reads a $meta record.
func decodeRecord(key, value []byte) (change, error) {
	if len(value) == 0 {
		return change{}, fmt.Errorf("%w: key %q has no operation", ErrRecord, clip(key))
	}
	switch op := value[0]; {
	case op == opPut:
		return change{key: key, value: value[1:]}, nil
	case op == opDelete && len(value) == 1:
		return change{key: key, deleted: true}, nil
	case op == opDelete:
		return change{}, fmt.Errorf("%w: key %q is deleted with a value", ErrRecord, clip(key))
	default:
		return change{}, fmt.Errorf("%w: key %q has operation %d", ErrRecord, clip(key), op)
	}
}

// clip shortens a key for a message.
func clip(key []byte) []byte { return key[:min(len(key), 64)] }

// pending collects records between two commits, in the order of the calls.
//
//	(key length uvarint, value length uvarint, key, value)*   value as in a record
type pending struct {
	buf   []byte
	count int
}

// add appends the record of a change.
func (p *pending) add(key []byte, op byte, value []byte) {
	p.buf = binary.AppendUvarint(p.buf, uint64(len(key)))
	p.buf = binary.AppendUvarint(p.buf, uint64(1+len(value)))
	p.buf = append(p.buf, key...)
	p.buf = append(p.buf, op)
	p.buf = append(p.buf, value...)
	p.count++
}

// each calls fn for every record in order.
func (p *pending) each(fn func(key, value []byte)) {
	for b := p.buf; len(b) > 0; {
		kl, n := binary.Uvarint(b)
		vl, m := binary.Uvarint(b[max(n, 0):])
		if n <= 0 || m <= 0 || kl > uint64(len(b)-n-m) || vl > uint64(len(b)-n-m)-kl {
			panic("BUG: meta: pending records garbled")
		}
		b = b[n+m:]
		fn(b[:kl:kl], b[kl:kl+vl:kl+vl])
		b = b[kl+vl:]
	}
}

// fingerprint identifies a record (or an index entry) by content.
func fingerprint(key, value []byte) uint64 {
	// The two hashes are combined unevenly and mixed, so that neither moving a
	// byte from key to value nor swapping two entries' values goes unnoticed.
	h := xxhash.Sum64(key)*0x9e3779b97f4a7c15 + xxhash.Sum64(value)
	h ^= h >> 32
	h *= 0xd6e8feb86659fd93
	return h ^ h>>32
}
