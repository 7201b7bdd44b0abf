package seglog

import "iter"

// Headers are the headers of a record in their encoded form: (varint key length, key, varint value length, value)*.
// The zero value means none. Order and duplicates are kept.
type Headers struct {
	Count int
	Raw   []byte
}

// Reset empties h and keeps its buffer.
func (h *Headers) Reset() { h.Count, h.Raw = 0, h.Raw[:0] }

// Append adds a header. A nil value is stored as absent, an empty one as empty.
func (h *Headers) Append(key string, value []byte) {
	h.Raw = appendVarint(h.Raw, int64(len(key)))
	h.Raw = append(h.Raw, key...)
	n := int64(len(value))
	if value == nil {
		n = -1
	}
	h.Raw = appendVarint(h.Raw, n)
	h.Raw = append(h.Raw, value...)
	h.Count++
}

// All iterates over keys and values, which alias h.Raw. It stops early at malformed input; records that came out of
// a Scanner without error are well formed.
func (h Headers) All() iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		for i, n := 0, 0; n < h.Count; n++ {
			key, value, next := header(h.Raw, i)
			if next < 0 || !yield(key, value) {
				return
			}
			i = next
		}
	}
}

// header decodes the header at b[i:]; the position after it is -1 when it is malformed.
func header(b []byte, i int) (key, value []byte, next int) {
	n, i := getLen(b, i)
	if i < 0 || n < 0 { // Kafka: a header key is never null
		return nil, nil, -1
	}
	key = b[i : i+n : i+n]
	n, i = getLen(b, i+n)
	if i < 0 {
		return nil, nil, -1
	}
	if n >= 0 {
		value = b[i : i+n : i+n]
		i += n
	}
	return key, value, i
}

// valid reports whether Raw holds exactly Count headers.
func (h Headers) valid() bool {
	i := 0
	for range h.Count {
		if _, _, i = header(h.Raw, i); i < 0 {
			return false
		}
	}
	return i == len(h.Raw)
}

func appendVarint(b []byte, x int64) []byte {
	var tmp [10]byte
	return append(b, tmp[:putVarint(tmp[:], 0, x)]...)
}
