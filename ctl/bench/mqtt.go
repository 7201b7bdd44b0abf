package bench

import (
	"encoding/binary"
	"fmt"
)

// The versions of MQTT, by the number on the wire.
const (
	MQTT311 byte = 4
	MQTT5   byte = 5
)

// Control packet types.
const (
	mqttConnect    = 1
	mqttConnack    = 2
	mqttPublish    = 3
	mqttPuback     = 4
	mqttPubrec     = 5
	mqttPubrel     = 6
	mqttPubcomp    = 7
	mqttSubscribe  = 8
	mqttSuback     = 9
	mqttPingreq    = 12
	mqttPingresp   = 13
	mqttDisconnect = 14
)

// Properties that matter to a load.
const (
	propSessionExpiry  = 0x11
	propReceiveMaximum = 0x21
)

// mqtt is the Codec of both versions. It keeps nothing: every connection uses the same one.
type mqtt struct{ version byte }

// NewMQTT returns the Codec of a version.
func NewMQTT(version byte) Codec { return mqtt{version} }

func (m mqtt) AppendOpen(dst []byte, o *Open) []byte {
	flags := byte(0)
	body := append(appendText(nil, "MQTT"), m.version, 0)
	body = binary.BigEndian.AppendUint16(body, o.KeepAliveS)
	if m.version == MQTT5 {
		if o.ExpiryS > 0 {
			body = append(body, 5, propSessionExpiry)
			body = binary.BigEndian.AppendUint32(body, o.ExpiryS)
		} else {
			body = append(body, 0)
		}
	}
	body = appendText(body, o.ClientID)
	if o.Fresh {
		flags |= 2
	}
	if o.User != "" {
		flags |= 0x80
		body = appendText(body, o.User)
	}
	if o.Password != "" {
		flags |= 0x40
		body = appendText(body, o.Password)
	}
	body[7] = flags
	dst = appendVarint(append(dst, mqttConnect<<4), len(body))
	return append(dst, body...)
}

func (m mqtt) AppendSubscribe(dst []byte, id uint16, filter string, qos byte) []byte {
	size := 2 + 2 + len(filter) + 1
	if m.version == MQTT5 {
		size++
	}
	dst = appendVarint(append(dst, mqttSubscribe<<4|2), size)
	dst = binary.BigEndian.AppendUint16(dst, id)
	if m.version == MQTT5 {
		dst = append(dst, 0)
	}
	return append(appendText(dst, filter), qos)
}

func (m mqtt) AppendMessage(dst []byte, x *Message) []byte {
	size := 2 + len(x.Topic) + len(x.Payload)
	if x.QoS > 0 {
		size += 2
	}
	if m.version == MQTT5 {
		size++
	}
	first := byte(mqttPublish<<4) | x.QoS<<1
	if x.Retain {
		first |= 1
	}
	dst = appendText(appendVarint(append(dst, first), size), x.Topic)
	if x.QoS > 0 {
		dst = binary.BigEndian.AppendUint16(dst, x.ID)
	}
	if m.version == MQTT5 {
		dst = append(dst, 0)
	}
	return append(dst, x.Payload...)
}

func (m mqtt) AppendAnswer(dst []byte, e *Event) []byte {
	answer := byte(0)
	switch {
	case e.packet == mqttPublish && e.QoS == 1:
		answer = mqttPuback << 4
	case e.packet == mqttPublish && e.QoS == 2:
		answer = mqttPubrec << 4
	case e.packet == mqttPubrec && e.Kind == Step:
		answer = mqttPubrel<<4 | 2
	case e.packet == mqttPubrel:
		answer = mqttPubcomp << 4
	default:
		return dst
	}
	return append(dst, answer, 2, byte(e.ID>>8), byte(e.ID))
}

func (m mqtt) AppendPing(dst []byte) []byte { return append(dst, mqttPingreq<<4, 0) }

func (m mqtt) AppendClose(dst []byte) []byte { return append(dst, mqttDisconnect<<4, 0) }

func (m mqtt) Next(b []byte, e *Event) (int, error) {
	if len(b) < 2 {
		return 0, nil
	}
	n, used, err := varint(b[1:])
	if err != nil || used == 0 || len(b) < 1+used+n {
		return 0, err
	}
	size := 1 + used + n
	if err := m.decode(b[0], b[1+used:size], e); err != nil {
		return 0, err
	}
	return size, nil
}

func (m mqtt) decode(first byte, body []byte, e *Event) error {
	*e = Event{packet: first >> 4}
	ok := true
	switch e.packet {
	case mqttPublish:
		ok = m.publish(first, body, e)
	case mqttPuback, mqttPubrec, mqttPubrel, mqttPubcomp:
		ok = m.ack(body, e)
	case mqttConnack:
		ok = m.connack(body, e)
	case mqttSuback:
		ok = m.suback(body, e)
	case mqttPingresp:
		e.Kind = Pong
	case mqttDisconnect:
		e.Kind = Closed
		e.Refused = fmt.Errorf("the broker closed the connection: %s", m.reason(append(body, 0)[0]))
	}
	if !ok {
		return fmt.Errorf("the broker sent a malformed packet of type %d: % x", e.packet, body[:min(len(body), 16)])
	}
	return nil
}

func (m mqtt) publish(first byte, body []byte, e *Event) bool {
	e.Kind, e.QoS = Received, first>>1&3
	if len(body) < 2 {
		return false
	}
	at := 2 + int(binary.BigEndian.Uint16(body))
	if e.QoS > 0 {
		if len(body) < at+2 {
			return false
		}
		e.ID = binary.BigEndian.Uint16(body[at:])
		at += 2
	}
	if len(body) < at {
		return false
	}
	if m.version == MQTT5 {
		n, used, err := varint(body[at:])
		if at += used + n; err != nil || used == 0 || len(body) < at {
			return false
		}
	}
	e.Payload = body[at:]
	return true
}

func (m mqtt) ack(body []byte, e *Event) bool {
	if len(body) < 2 {
		return false
	}
	e.ID = binary.BigEndian.Uint16(body)
	e.Kind = Step
	if e.packet == mqttPuback || e.packet == mqttPubcomp {
		e.Kind = Acked
	}
	if m.version == MQTT5 && len(body) > 2 && body[2] >= 0x80 {
		if e.packet == mqttPubrec {
			e.Kind = Acked // refused: it ends here
		}
		e.Refused = fmt.Errorf("the broker refused a publish: %s", m.reason(body[2]))
	}
	return true
}

func (m mqtt) connack(body []byte, e *Event) bool {
	if len(body) < 2 {
		return false
	}
	e.Kind, e.Present = Opened, body[0]&1 == 1
	if body[1] != 0 {
		e.Refused = fmt.Errorf("the broker refused the connection: %s", m.reason(body[1]))
	}
	if m.version == MQTT5 {
		e.Window = receiveMaximum(body[2:])
	}
	return true
}

func (m mqtt) suback(body []byte, e *Event) bool {
	if len(body) < 3 {
		return false
	}
	e.Kind, e.ID = Subscribed, binary.BigEndian.Uint16(body)
	if code := body[len(body)-1]; code >= 0x80 {
		e.Refused = fmt.Errorf("the broker refused the subscription: %s", m.reason(code))
	}
	return true
}

// receiveMaximum finds the property among those of a CONNACK; 0 when it is not there or cannot be found.
func receiveMaximum(b []byte) int {
	n, used, err := varint(b)
	if err != nil || used == 0 || len(b) < used+n {
		return 0
	}
	for b = b[used : used+n]; len(b) > 0; {
		skip := 0
		switch id := b[0]; id {
		case propReceiveMaximum, 0x13, 0x22: // and server keep alive, topic alias maximum: two bytes
			if len(b) >= 3 && id == propReceiveMaximum {
				return int(binary.BigEndian.Uint16(b[1:]))
			}
			skip = 3
		case 0x24, 0x25, 0x28, 0x29, 0x2A: // one byte
			skip = 2
		case propSessionExpiry, 0x27: // four bytes
			skip = 5
		case 0x12, 0x15, 0x16, 0x1A, 0x1C, 0x1F: // text or binary
			skip = 1 + textSize(b[1:])
		case 0x26: // two texts
			skip = 1 + textSize(b[1:])
			skip += textSize(b[min(skip, len(b)):])
		default:
			return 0
		}
		b = b[min(skip, len(b)):]
	}
	return 0
}

func textSize(b []byte) int {
	if len(b) < 2 {
		return 2
	}
	return 2 + int(binary.BigEndian.Uint16(b))
}

// reasons are those that a load meets, of both versions: their numbers do not collide.
var reasons = map[byte]string{1: "protocol version not supported", 2: "client id not accepted", 3: "not available", 4: "bad user name or password",
	5: "not authorised", 0x84: "protocol version not supported", 0x85: "client id not accepted", 0x86: "bad user name or password",
	0x87: "not authorised", 0x88: "not available", 0x8B: "shutting down", 0x8D: "keep alive timeout", 0x8E: "session taken over",
	0x8F: "topic filter not accepted", 0x93: "receive maximum exceeded", 0x95: "packet too large", 0x96: "message rate too high",
	0x97: "quota exceeded", 0x9B: "QoS not supported", 0x9E: "shared subscriptions not supported", 0x9F: "connection rate exceeded"}

func (m mqtt) reason(code byte) string {
	if text, ok := reasons[code]; ok {
		return fmt.Sprintf("%s (0x%02x)", text, code)
	}
	return fmt.Sprintf("reason 0x%02x", code)
}

func appendText(dst []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(dst, uint16(len(s))), s...)
}

func appendVarint(dst []byte, n int) []byte {
	for ; n > 127; n >>= 7 {
		dst = append(dst, byte(n)|128)
	}
	return append(dst, byte(n))
}

// varint returns used 0 when b ends too early.
func varint(b []byte) (n, used int, err error) {
	for i := 0; i < len(b) && i < 4; i++ {
		n |= int(b[i]&127) << (7 * i)
		if b[i] < 128 {
			return n, i + 1, nil
		}
	}
	if len(b) >= 4 {
		return 0, 0, fmt.Errorf("the broker sent a packet length of more than four bytes")
	}
	return 0, 0, nil
}
