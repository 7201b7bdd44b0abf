package packet

import (
	"bytes"
	"encoding/binary"
	"unicode/utf8"
)

// reader walks over the fields of a packet. The first error stays and every later read returns zero values, so that a decoder checks
// err where it matters, not after each field.
type reader struct {
	rest []byte
	err  error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
	r.rest = nil
}

func (r *reader) byte() byte {
	if len(r.rest) < 1 {
		r.fail(ErrTruncated)
		return 0
	}
	v := r.rest[0]
	r.rest = r.rest[1:]
	return v
}

func (r *reader) uint16() uint16 {
	if len(r.rest) < 2 {
		r.fail(ErrTruncated)
		return 0
	}
	v := binary.BigEndian.Uint16(r.rest)
	r.rest = r.rest[2:]
	return v
}

func (r *reader) uint32() uint32 {
	if len(r.rest) < 4 {
		r.fail(ErrTruncated)
		return 0
	}
	v := binary.BigEndian.Uint32(r.rest)
	r.rest = r.rest[4:]
	return v
}

// varint reads a variable byte integer, which must be in its shortest form.
func (r *reader) varint() uint32 {
	var v uint32
	for i := 0; i < 4; i++ {
		if i >= len(r.rest) {
			r.fail(ErrTruncated)
			return 0
		}
		c := r.rest[i]
		v |= uint32(c&0x7f) << (7 * i)
		if c < 0x80 {
			if c == 0 && i > 0 {
				r.fail(ErrLengthForm)
				return 0
			}
			r.rest = r.rest[i+1:]
			return v
		}
	}
	r.fail(ErrLength)
	return 0
}

// data reads binary data; nil only after an error.
func (r *reader) data() []byte {
	n := int(r.uint16())
	if len(r.rest) < n {
		r.fail(ErrTruncated)
		return nil
	}
	if r.err != nil {
		return nil
	}
	v := r.rest[:n:n]
	r.rest = r.rest[n:]
	return v
}

// text reads a UTF-8 string; nil only after an error.
func (r *reader) text() []byte {
	v := r.data()
	if err := checkText(v); err != nil {
		r.fail(err)
		return nil
	}
	return v
}

// end returns the reader's error, or an error when something is left.
func (r *reader) end() error {
	if r.err == nil && len(r.rest) > 0 {
		return ErrTrailing
	}
	return r.err
}

// packetID reads a packet identifier, which is never 0.
func (r *reader) packetID() uint16 {
	id := r.uint16()
	if id == 0 {
		r.fail(ErrPacketID)
	}
	return id
}

// checkText checks a UTF-8 string. Most strings are short and ASCII: for those one loop settles both rules.
func checkText(b []byte) error {
	for i, c := range b {
		if c-1 >= utf8.RuneSelf-1 {
			return checkUnicode(b[i:])
		}
	}
	return nil
}

func checkUnicode(b []byte) error {
	if !utf8.Valid(b) {
		return ErrUTF8
	}
	if bytes.IndexByte(b, 0) >= 0 {
		return ErrNUL
	}
	return nil
}
