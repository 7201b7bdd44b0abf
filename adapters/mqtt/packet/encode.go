package packet

import (
	"encoding/binary"

	"edgehub/hub/message"
)

// appendVarint appends a variable byte integer in its shortest form.
func appendVarint(dst []byte, x uint32) []byte {
	for x >= 0x80 {
		dst = append(dst, byte(x)|0x80)
		x >>= 7
	}
	return append(dst, byte(x))
}

// appendData appends bytes, or a string, with their length before them.
func appendData[T []byte | string](dst []byte, v T) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(v)))
	return append(dst, v...)
}

func appendPropByte(dst []byte, id, v byte) []byte { return append(dst, id, v) }

func appendProp16(dst []byte, id byte, v uint16) []byte {
	return append(dst, id, byte(v>>8), byte(v))
}

func appendProp32(dst []byte, id byte, v uint32) []byte {
	return binary.BigEndian.AppendUint32(append(dst, id), v)
}

func appendPropData[T []byte | string](dst []byte, id byte, v T) []byte {
	return appendData(append(dst, id), v)
}

// appendPropText appends a string property unless the string is empty.
func appendPropText(dst []byte, id byte, v string) []byte {
	if v == "" {
		return dst
	}
	return appendPropData(dst, id, v)
}

func appendUser(dst []byte, user []message.Pair) []byte {
	for i := range user {
		dst = appendPropData(dst, propUser, user[i].Name)
		dst = appendData(dst, user[i].Value)
	}
	return dst
}

func userLen(user []message.Pair) int {
	n := 0
	for i := range user {
		n += 5 + len(user[i].Name) + len(user[i].Value)
	}
	return n
}

// propsLen returns the length of the encoded properties of p, without their length field.
func (p *PublishOut) propsLen() int {
	n := 0
	if p.Alias != 0 {
		n += 3
	}
	if p.HasExpiry {
		n += 5
	}
	for _, id := range p.SubIDs {
		n += 1 + varintLen(id)
	}
	m := p.Props
	if m == nil {
		return n
	}
	if m.UTF8 {
		n += 2
	}
	if m.ContentType != nil {
		n += 3 + len(m.ContentType)
	}
	if m.ResponseTopic != nil {
		n += 3 + len(m.ResponseTopic)
	}
	if m.Correlation != nil {
		n += 3 + len(m.Correlation)
	}
	return n + userLen(m.User)
}

func (p *PublishOut) appendProps(dst []byte) []byte {
	m := p.Props
	if m != nil && m.UTF8 {
		dst = appendPropByte(dst, propPayloadFormat, 1)
	}
	if p.HasExpiry {
		dst = appendProp32(dst, propMessageExpiry, p.ExpiryS)
	}
	if p.Alias != 0 {
		dst = appendProp16(dst, propTopicAlias, p.Alias)
	}
	for _, id := range p.SubIDs {
		dst = appendVarint(append(dst, propSubID), id)
	}
	if m == nil {
		return dst
	}
	if m.ContentType != nil {
		dst = appendPropData(dst, propContentType, m.ContentType)
	}
	if m.ResponseTopic != nil {
		dst = appendPropData(dst, propResponseTopic, m.ResponseTopic)
	}
	if m.Correlation != nil {
		dst = appendPropData(dst, propCorrelation, m.Correlation)
	}
	return appendUser(dst, m.User)
}

// lengths returns the remaining length of p and the length of its properties.
func (p *PublishOut) lengths(version byte) (remaining, props int) {
	remaining = 2 + len(p.Topic) + len(p.Payload)
	if p.QoS > 0 {
		remaining += 2
	}
	if version >= V5 {
		props = p.propsLen()
		remaining += varintLen(uint32(props)) + props
	}
	return remaining, props
}

// PublishSize returns the size of the packet that AppendPublish appends, to be held against the receiver's Maximum Packet Size.
func PublishSize(version byte, p *PublishOut) int {
	n, _ := p.lengths(version)
	return 1 + varintLen(uint32(n)) + n
}

// AppendPublish appends a PUBLISH.
func AppendPublish(dst []byte, version byte, p *PublishOut) []byte {
	n, props := p.lengths(version)
	if len(p.Topic) > 65535 || n > RemainingMax {
		panic("BUG: PUBLISH that no packet can hold")
	}
	first := TypePublish<<4 | p.QoS<<1
	if p.Dup {
		first |= 8
	}
	if p.Retain {
		first |= 1
	}
	dst = appendVarint(append(dst, first), uint32(n))
	dst = appendData(dst, p.Topic)
	if p.QoS > 0 {
		dst = append(dst, byte(p.ID>>8), byte(p.ID))
	}
	if version >= V5 {
		dst = appendVarint(dst, uint32(props))
		if props > 0 {
			dst = p.appendProps(dst)
		}
	}
	return append(dst, p.Payload...)
}

// AppendAliased appends the PUBLISH of version 5 that another receiver gets with a topic alias: full is what AppendPublish
// made without one, with a topic of topicLen bytes. The topic itself is left out unless withTopic, which sets the alias. What
// receivers have in common is so encoded once, and copied.
func AppendAliased(dst, full []byte, topicLen int, id, alias uint16, withTopic bool) []byte {
	at := 1 + remainingLen(len(full))
	props := at + 2 + topicLen
	ided := full[0]&6 != 0
	if ided {
		props += 2
	}
	// AppendPublish writes lengths in their shortest form, so this reads what it wrote.
	n, w := binary.Uvarint(full[props:])
	rest := full[props+w:]
	topic := full[at : at+2+topicLen]
	if !withTopic {
		topic = emptyTopic
	}
	longer := uint32(n) + aliasLen
	remaining := len(topic) + varintLen(longer) + aliasLen + len(rest)
	if ided {
		remaining += 2
	}
	dst = appendVarint(append(dst, full[0]), uint32(remaining))
	dst = append(dst, topic...)
	if ided {
		dst = append(dst, byte(id>>8), byte(id))
	}
	dst = appendProp16(appendVarint(dst, longer), propTopicAlias, alias)
	return append(dst, rest...)
}

// aliasLen is the length of the property.
const aliasLen = 3

var emptyTopic = []byte{0, 0}

// PublishIDOffset returns where the packet identifier is in a packet of QoS 1 or 2 that AppendPublish made with a topic of this
// length: with it one encoded packet serves many receivers.
func PublishIDOffset(packetSize, topicLen int) int {
	return 1 + remainingLen(packetSize) + 2 + topicLen
}

// remainingLen returns the length of the remaining length field of a packet of this size.
func remainingLen(packetSize int) int {
	for w := 1; w < 4; w++ {
		if packetSize-1-w < 1<<(7*w) {
			return w
		}
	}
	return 4
}

// AppendAck appends a PUBACK, PUBREC, PUBREL or PUBCOMP; kind is one of TypePuback to TypePubcomp. The code is left out where the
// version has none.
func AppendAck(dst []byte, version, kind byte, id uint16, code byte) []byte {
	first := kind << 4
	if kind == TypePubrel {
		first |= 2
	}
	if version < V5 || code == CodeSuccess {
		return append(dst, first, 2, byte(id>>8), byte(id))
	}
	return append(dst, first, 3, byte(id>>8), byte(id), code)
}

// AppendAckReason is AppendAck for version 5 with a reason string, which is left out when it is empty.
func AppendAckReason(dst []byte, kind byte, id uint16, code byte, reason string) []byte {
	if reason == "" {
		return AppendAck(dst, V5, kind, id, code)
	}
	reason = clip(reason)
	first := kind << 4
	if kind == TypePubrel {
		first |= 2
	}
	props := 3 + len(reason)
	dst = appendVarint(append(dst, first), uint32(3+varintLen(uint32(props))+props))
	dst = append(dst, byte(id>>8), byte(id), code)
	return appendPropText(appendVarint(dst, uint32(props)), propReason, reason)
}

// reasonMax bounds reason strings, which are for people.
const reasonMax = 1024

// clip cuts a reason string that is too long at the start of a character.
func clip(s string) string {
	if len(s) <= reasonMax {
		return s
	}
	n := reasonMax
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n]
}

// AppendPingresp appends a PINGRESP.
func AppendPingresp(dst []byte) []byte { return append(dst, TypePingresp<<4, 0) }
