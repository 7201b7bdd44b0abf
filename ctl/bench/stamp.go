package bench

import "encoding/binary"

// stampBytes is the smallest payload: the stamp at its beginning.
const stampBytes = 16

// stamp is what a message says of itself. The first eight bytes are the time in nanoseconds since the run began (48
// bits: three days) and the run (16 bits), then come flow and number.
type stamp struct {
	sentNs int64
	run    uint16
	flow   uint32
	seq    uint32
}

func (s stamp) put(b []byte) {
	binary.BigEndian.PutUint64(b, uint64(s.sentNs)<<16|uint64(s.run))
	binary.BigEndian.PutUint32(b[8:], s.flow)
	binary.BigEndian.PutUint32(b[12:], s.seq)
}

// readStamp reports false for a payload that no load has written.
func readStamp(b []byte) (stamp, bool) {
	if len(b) < stampBytes {
		return stamp{}, false
	}
	first := binary.BigEndian.Uint64(b)
	return stamp{sentNs: int64(first >> 16), run: uint16(first), flow: binary.BigEndian.Uint32(b[8:]), seq: binary.BigEndian.Uint32(b[12:])}, true
}
