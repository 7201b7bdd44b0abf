package meta

import (
	"encoding/binary"
	"fmt"
)

// stateVersion is the layout of the index; another one is rebuilt.
const stateVersion = 1

// state describes the index as it is in Badger, in one value:
//
//	version 1 | flags 1 | salt 4 | watermark 8 | mark 8 | keys 8 | live 8 | sum 8   (big endian)
type state struct {
	// partial: a flush of several transactions is under way.
	partial bool
	// rewrite: the log lost its end; every key must be written to it again.
	rewrite bool
	salt    uint32
	// watermark: all records of $meta below this offset are in the index.
	watermark int64
	// mark is the fingerprint of the record below the watermark, 0 if unknown.
	mark uint64
	keys int64 // entries, without the state itself
	live int64 // bytes of durable entries, about as they take in the log
	sum  uint64
}

const stateBytes = 2 + 4 + 5*8

const (
	flagPartial byte = 1 << iota
	flagRewrite
)

func (s state) encode() []byte {
	var flags byte
	if s.partial {
		flags |= flagPartial
	}
	if s.rewrite {
		flags |= flagRewrite
	}
	b := make([]byte, 0, stateBytes)
	b = append(b, stateVersion, flags)
	b = binary.BigEndian.AppendUint32(b, s.salt)
	b = binary.BigEndian.AppendUint64(b, uint64(s.watermark))
	b = binary.BigEndian.AppendUint64(b, s.mark)
	b = binary.BigEndian.AppendUint64(b, uint64(s.keys))
	b = binary.BigEndian.AppendUint64(b, uint64(s.live))
	return binary.BigEndian.AppendUint64(b, s.sum)
}

func decodeState(b []byte) (state, error) {
	if len(b) != stateBytes || b[0] != stateVersion || b[1]&^(flagPartial|flagRewrite) != 0 {
		return state{}, fmt.Errorf("%w: state of %d bytes", errIndexDamaged, len(b))
	}
	n := func(at int) uint64 { return binary.BigEndian.Uint64(b[at:]) }
	s := state{
		partial: b[1]&flagPartial != 0, rewrite: b[1]&flagRewrite != 0,
		salt: binary.BigEndian.Uint32(b[2:]), watermark: int64(n(6)), mark: n(14),
		keys: int64(n(22)), live: int64(n(30)), sum: n(38),
	}
	if s.watermark < 0 || s.keys < 0 || s.live < 0 {
		return state{}, fmt.Errorf("%w: state has negative counts", errIndexDamaged)
	}
	return s, nil
}

// count takes an index entry in or out of the digest and the sums.
func (s *state) count(ikey, ivalue []byte, sign int64) {
	if sign > 0 {
		s.sum += fingerprint(ikey, ivalue)
	} else {
		s.sum -= fingerprint(ikey, ivalue)
	}
	s.keys += sign
	if ikey[0] == spaceDurable {
		s.live += sign * int64(len(ikey)+len(ivalue)+recordOverhead)
	}
}

// recordOverhead is about what a record costs in a batch beside key and value.
const recordOverhead = 12
