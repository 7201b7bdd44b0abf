package mqttc

import (
	"encoding/binary"
	"fmt"
)

// Property identifiers of MQTT 5 that suites name.
const (
	PropPayloadFormat   = 0x01
	PropMessageExpiry   = 0x02
	PropContentType     = 0x03
	PropResponseTopic   = 0x08
	PropCorrelation     = 0x09
	PropSubscriptionID  = 0x0B
	PropSessionExpiry   = 0x11
	PropAssignedClient  = 0x12
	PropServerKeepAlive = 0x13
	PropWillDelay       = 0x18
	PropReceiveMaximum  = 0x21
	PropTopicAliasMax   = 0x22
	PropTopicAlias      = 0x23
	PropMaximumQoS      = 0x24
	PropRetainAvailable = 0x25
	PropUser            = 0x26
	PropMaxPacket       = 0x27
)

// Prop is one property: a number, a string (or bytes), or a pair of strings.
type Prop struct {
	ID   byte
	Num  uint32
	Str  string
	Pair string // the value of a user property whose name is Str
}

// String shows the property as id=value.
func (p Prop) String() string {
	switch propKind(p.ID) {
	case kindString:
		return fmt.Sprintf("%02X=%q", p.ID, p.Str)
	case kindPair:
		return fmt.Sprintf("%02X=%q:%q", p.ID, p.Str, p.Pair)
	}
	return fmt.Sprintf("%02X=%d", p.ID, p.Num)
}

// Props is the property list of a packet, in the order of the wire.
type Props []Prop

// Get returns the first property of that id.
func (ps Props) Get(id byte) (Prop, bool) {
	for _, p := range ps {
		if p.ID == id {
			return p, true
		}
	}
	return Prop{}, false
}

// All returns the properties of that id in order.
func (ps Props) All(id byte) Props {
	var out Props
	for _, p := range ps {
		if p.ID == id {
			out = append(out, p)
		}
	}
	return out
}

const (
	kindNone = iota
	kindByte
	kindUint16
	kindUint32
	kindVarint
	kindString // UTF-8 or binary: the same on the wire
	kindPair
)

func propKind(id byte) int {
	switch id {
	case 0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A:
		return kindByte
	case 0x13, 0x21, 0x22, 0x23:
		return kindUint16
	case 0x02, 0x11, 0x18, 0x27:
		return kindUint32
	case 0x0B:
		return kindVarint
	case 0x03, 0x08, 0x09, 0x12, 0x15, 0x16, 0x1A, 0x1C, 0x1F:
		return kindString
	case 0x26:
		return kindPair
	}
	return kindNone
}

func (ps Props) append(dst []byte) []byte {
	var b []byte
	for _, p := range ps {
		b = append(b, p.ID)
		switch propKind(p.ID) {
		case kindByte:
			b = append(b, byte(p.Num))
		case kindUint16:
			b = binary.BigEndian.AppendUint16(b, uint16(p.Num))
		case kindUint32:
			b = binary.BigEndian.AppendUint32(b, p.Num)
		case kindVarint:
			b = appendVarint(b, int(p.Num))
		case kindString:
			b = appendString(b, p.Str)
		case kindPair:
			b = appendString(appendString(b, p.Str), p.Pair)
		}
	}
	return append(appendVarint(dst, len(b)), b...)
}

func (ps Props) appendIf5(dst []byte, version byte) []byte {
	if version != 5 {
		return dst
	}
	return ps.append(dst)
}

func appendVarint(dst []byte, n int) []byte {
	for n > 127 {
		dst = append(dst, byte(n)|128)
		n >>= 7
	}
	return append(dst, byte(n))
}

func appendString(dst []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(dst, uint16(len(s))), s...)
}

// reader takes fields off the front of b; bad latches the first shortage.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if n > len(r.b) {
		r.bad, r.b = true, nil
		return make([]byte, min(n, 8)) // enough for the fixed-size callers
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *reader) byte() byte     { return r.take(1)[0] }
func (r *reader) uint16() uint16 { return binary.BigEndian.Uint16(r.take(2)) }
func (r *reader) uint32() uint32 { return binary.BigEndian.Uint32(r.take(4)) }
func (r *reader) string() string { return string(r.take(int(r.uint16()))) }

func (r *reader) rest() []byte {
	out := r.b
	r.b = nil
	return out
}

func (r *reader) varint() int {
	n, shift := 0, 0
	for range 4 {
		c := r.byte()
		n |= int(c&127) << shift
		if c < 128 {
			return n
		}
		shift += 7
	}
	r.bad = true
	return 0
}

// codeAndProps reads the optional tail of acknowledgements and DISCONNECT.
func (r *reader) codeAndProps(p *Packet, version byte) {
	if version != 5 || len(r.b) == 0 {
		return
	}
	p.Code = r.byte()
	if len(r.b) > 0 {
		p.Props = r.props()
	}
}

func (r *reader) propsIf5(version byte) Props {
	if version != 5 {
		return nil
	}
	return r.props()
}

func (r *reader) props() Props {
	sub := reader{b: r.take(r.varint())}
	var ps Props
	for len(sub.b) > 0 && !sub.bad && !r.bad {
		p := Prop{ID: sub.byte()}
		switch propKind(p.ID) {
		case kindByte:
			p.Num = uint32(sub.byte())
		case kindUint16:
			p.Num = uint32(sub.uint16())
		case kindUint32:
			p.Num = sub.uint32()
		case kindVarint:
			p.Num = uint32(sub.varint())
		case kindString:
			p.Str = sub.string()
		case kindPair:
			p.Str = sub.string()
			p.Pair = sub.string()
		default:
			sub.bad = true
		}
		ps = append(ps, p)
	}
	r.bad = r.bad || sub.bad
	return ps
}
