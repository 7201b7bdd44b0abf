package tlsconn

import (
	"bytes"
	"crypto/tls"
	"reflect"
	"unsafe"
)

// A tls.Conn keeps the buffers of the largest records it has seen, up to 16 KiB and more, for as long as it lives. For
// connections that are idle most of the time those are nearly all of its memory, so they are given back. The library
// has no call for that; the fields are found by name and type, and where they are not as expected nothing is trimmed.
var (
	canTrim          bool
	rawInput, inHand uintptr
)

func init() {
	t, buffer := reflect.TypeFor[tls.Conn](), reflect.TypeFor[bytes.Buffer]()
	raw, ok1 := t.FieldByName("rawInput")
	hand, ok2 := t.FieldByName("hand")
	canTrim = ok1 && ok2 && raw.Type == buffer && hand.Type == buffer
	rawInput, inHand = raw.Offset, hand.Offset
}

// trim gives back buffers that are empty. Only for a connection whose handshake is done, on its loop, between reads:
// then nothing refers into them.
func trim(tc *tls.Conn) {
	if !canTrim {
		return
	}
	for _, offset := range [...]uintptr{rawInput, inHand} {
		if b := (*bytes.Buffer)(unsafe.Add(unsafe.Pointer(tc), offset)); b.Len() == 0 && b.Cap() > 0 {
			*b = bytes.Buffer{}
		}
	}
}
