// Package mqttc is a tiny MQTT client for tests. It hides nothing: packet
// ids, acknowledgements and their order are the caller's, and any bytes may be
// sent. It shares no code with the hub, so that both cannot be wrong the same
// way.
package mqttc

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Control packet types.
const (
	CONNECT     = 1
	CONNACK     = 2
	PUBLISH     = 3
	PUBACK      = 4
	PUBREC      = 5
	PUBREL      = 6
	PUBCOMP     = 7
	SUBSCRIBE   = 8
	SUBACK      = 9
	UNSUBSCRIBE = 10
	UNSUBACK    = 11
	PINGREQ     = 12
	PINGRESP    = 13
	DISCONNECT  = 14
	AUTH        = 15
)

var kindNames = [16]string{"0", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP",
	"SUBSCRIBE", "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH"}

// KindName names a control packet type.
func KindName(kind byte) string { return kindNames[kind&15] }

// ErrMalformed is returned for bytes that are no packet of the version.
var ErrMalformed = errors.New("mqttc: malformed packet")

// Filter is one line of a SUBSCRIBE. Options is the whole options byte: the
// QoS for 3.1.1.
type Filter struct {
	Name    string
	Options byte
}

// Packet is any control packet but CONNECT, in either direction. Only the
// fields that its type has are used.
type Packet struct {
	Kind           byte
	Dup, Retain    bool
	QoS            byte
	ID             uint16
	Topic          string
	Payload        []byte
	Code           byte // return or reason code
	SessionPresent bool
	Codes          []byte   // SUBACK, UNSUBACK
	Filters        []Filter // SUBSCRIBE, UNSUBSCRIBE
	Props          Props
}

// String is short enough for test failures.
func (p Packet) String() string {
	s := KindName(p.Kind)
	if p.Kind == PUBLISH {
		s += fmt.Sprintf("(%s q%d dup=%t retain=%t %dB)", p.Topic, p.QoS, p.Dup, p.Retain, len(p.Payload))
	}
	return s + fmt.Sprintf(" id=%d code=0x%02X %v", p.ID, p.Code, p.Props)
}

// flags are the low four bits of the first byte.
func (p *Packet) flags() byte {
	switch p.Kind {
	case PUBLISH:
		return bit(p.Dup)<<3 | p.QoS<<1 | bit(p.Retain)
	case PUBREL, SUBSCRIBE, UNSUBSCRIBE:
		return 2
	}
	return 0
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// Append encodes p for the protocol version.
func (p *Packet) Append(dst []byte, version byte) []byte {
	var body []byte
	switch p.Kind {
	case CONNACK:
		body = p.Props.appendIf5([]byte{bit(p.SessionPresent), p.Code}, version)
	case PUBLISH:
		body = appendString(nil, p.Topic)
		if p.QoS > 0 {
			body = binary.BigEndian.AppendUint16(body, p.ID)
		}
		body = append(p.Props.appendIf5(body, version), p.Payload...)
	case PUBACK, PUBREC, PUBREL, PUBCOMP:
		body = binary.BigEndian.AppendUint16(nil, p.ID)
		if version == 5 && (p.Code != 0 || len(p.Props) > 0) {
			body = p.Props.append(append(body, p.Code))
		}
	case SUBSCRIBE, UNSUBSCRIBE:
		body = p.Props.appendIf5(binary.BigEndian.AppendUint16(nil, p.ID), version)
		for _, f := range p.Filters {
			body = appendString(body, f.Name)
			if p.Kind == SUBSCRIBE {
				body = append(body, f.Options)
			}
		}
	case SUBACK, UNSUBACK:
		body = p.Props.appendIf5(binary.BigEndian.AppendUint16(nil, p.ID), version)
		body = append(body, p.Codes...)
	case DISCONNECT, AUTH:
		if version == 5 && (p.Code != 0 || len(p.Props) > 0) {
			body = p.Props.append([]byte{p.Code})
		}
	}
	dst = appendVarint(append(dst, p.Kind<<4|p.flags()), len(body))
	return append(dst, body...)
}

// Decode reads the body of a packet whose first byte is first. The result
// aliases body.
func Decode(version, first byte, body []byte) (Packet, error) {
	p := Packet{Kind: first >> 4}
	r := reader{b: body}
	switch p.Kind {
	case CONNACK:
		p.SessionPresent = r.byte()&1 == 1
		p.Code = r.byte()
		p.Props = r.propsIf5(version)
	case PUBLISH:
		p.Dup, p.QoS, p.Retain = first&8 != 0, first>>1&3, first&1 == 1
		p.Topic = r.string()
		if p.QoS > 0 {
			p.ID = r.uint16()
		}
		p.Props = r.propsIf5(version)
		p.Payload = r.rest()
	case PUBACK, PUBREC, PUBREL, PUBCOMP:
		p.ID = r.uint16()
		r.codeAndProps(&p, version)
	case SUBSCRIBE, UNSUBSCRIBE:
		p.ID = r.uint16()
		p.Props = r.propsIf5(version)
		for len(r.b) > 0 && !r.bad {
			f := Filter{Name: r.string()}
			if p.Kind == SUBSCRIBE {
				f.Options = r.byte()
			}
			p.Filters = append(p.Filters, f)
		}
	case SUBACK, UNSUBACK:
		p.ID = r.uint16()
		p.Props = r.propsIf5(version)
		p.Codes = r.rest()
	case DISCONNECT, AUTH:
		r.codeAndProps(&p, version)
	}
	if r.bad || len(r.b) > 0 {
		return p, fmt.Errorf("%w: %s, version %d, % x", ErrMalformed, KindName(p.Kind), version, body)
	}
	return p, nil
}

// Connect is the CONNECT packet.
type Connect struct {
	Version       byte // 3 is MQTT 3.1; 0 means 4, MQTT 3.1.1
	ClientID      string
	Clean         bool
	KeepAlive     uint16 // seconds
	Username      string // "" leaves it out
	Password      string
	Will          *Will
	SessionExpiry uint32 // MQTT 5; 0 leaves it out
	Props         Props
}

// Will is the message that the server sends when the client is gone.
type Will struct {
	Topic   string
	Payload []byte
	QoS     byte
	Retain  bool
	Props   Props
}

// Append encodes the CONNECT packet.
func (c *Connect) Append(dst []byte) []byte {
	name, version := "MQTT", c.version()
	if version == 3 {
		name = "MQIsdp"
	}
	flags := bit(c.Clean) << 1
	if c.Will != nil {
		flags |= 4 | c.Will.QoS<<3 | bit(c.Will.Retain)<<5
	}
	flags |= bit(c.Password != "")<<6 | bit(c.Username != "")<<7
	body := append(appendString(nil, name), version, flags)
	body = binary.BigEndian.AppendUint16(body, c.KeepAlive)
	props := c.Props
	if c.SessionExpiry > 0 {
		props = append(Props{{ID: PropSessionExpiry, Num: c.SessionExpiry}}, props...)
	}
	body = props.appendIf5(body, version)
	body = appendString(body, c.ClientID)
	if c.Will != nil {
		body = c.Will.Props.appendIf5(body, version)
		body = appendString(body, c.Will.Topic)
		body = appendString(body, string(c.Will.Payload))
	}
	if c.Username != "" {
		body = appendString(body, c.Username)
	}
	if c.Password != "" {
		body = appendString(body, c.Password)
	}
	dst = appendVarint(append(dst, CONNECT<<4), len(body))
	return append(dst, body...)
}

func (c *Connect) version() byte {
	if c.Version == 0 {
		return 4
	}
	return c.Version
}
