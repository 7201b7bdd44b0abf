package message

import (
	"encoding/binary"

	"edgehub/storage/seglog"
)

// Place is where a record was before it was copied: a copy stands for the record there, and goes by that offset.
type Place struct {
	Partition []byte // name
	Offset    int64
	TimeMs    int64
}

// placeMin is an offset and a time.
const placeMin = 16

// AppendPlace appends to h where the record comes from.
func AppendPlace(h *seglog.Headers, p Place) {
	var small [64]byte
	b := binary.BigEndian.AppendUint64(small[:0], uint64(p.Offset))
	b = binary.BigEndian.AppendUint64(b, uint64(p.TimeMs))
	h.Append(keyPlace, append(b, p.Partition...))
}

// Size is what AppendPlace adds to the headers.
func (p Place) Size() int {
	var h seglog.Headers
	AppendPlace(&h, p)
	return len(h.Raw)
}

// PeekPlace returns where a copy comes from; false: it is no copy. Partition aliases h.
func PeekPlace(h seglog.Headers) (p Place, ok bool) {
	for key, value := range h.All() {
		if string(key) == keyPlace && len(value) > placeMin {
			p = Place{Partition: value[placeMin:], Offset: int64(binary.BigEndian.Uint64(value)), TimeMs: int64(binary.BigEndian.Uint64(value[8:]))}
			ok = p.Offset >= 0
		}
	}
	return p, ok
}
