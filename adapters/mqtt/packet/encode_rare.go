package packet

import "encoding/binary"

// begin appends a first byte and leaves room for a remaining length of one byte; finish puts the length in and makes room for a
// longer one when it must. Rare packets are encoded this way, without computing their lengths before.
func begin(dst []byte, first byte) (out []byte, start int) {
	return append(dst, first, 0), len(dst) + 1
}

// finish completes the length field at start, which is what begin or beginProps returned.
func finish(dst []byte, start int) []byte {
	n := uint32(len(dst) - start - 1)
	if w := varintLen(n); w > 1 {
		dst = append(dst, make([]byte, w-1)...)
		copy(dst[start+w:], dst[start+1:])
	}
	appendVarint(dst[:start], n)
	return dst
}

// AppendConnack appends a CONNACK. For MQTT 3.1 and 3.1.1 it appends nothing when these have no return code for c.Code: the
// connection is then closed without one.
func AppendConnack(dst []byte, version byte, c *Connack) []byte {
	present := byte(0)
	if c.SessionPresent && c.Code == CodeSuccess {
		present = 1
	}
	if version < V5 {
		rc, ok := ConnackV3(c.Code)
		if !ok {
			return dst
		}
		if version < V311 {
			present = 0 // reserved in MQTT 3.1
		}
		return append(dst, TypeConnack<<4, 2, present, rc)
	}
	dst, start := begin(dst, TypeConnack<<4)
	dst = append(dst, present, c.Code)
	dst, props := append(dst, 0), len(dst)
	dst = c.appendProps(dst)
	return finish(finish(dst, props), start)
}

func (c *Connack) appendProps(dst []byte) []byte {
	if c.HasSessionExpiry {
		dst = appendProp32(dst, propSessionExpiry, c.SessionExpiryS)
	}
	if c.ReceiveMax != 0 {
		dst = appendProp16(dst, propReceiveMax, c.ReceiveMax)
	}
	if c.HasMaxQoS && c.MaxQoS < 2 { // 2 is said by saying nothing
		dst = appendPropByte(dst, propMaxQoS, c.MaxQoS)
	}
	if c.NoRetain {
		dst = appendPropByte(dst, propRetainAvailable, 0)
	}
	if c.MaxPacket != 0 {
		dst = appendProp32(dst, propMaxPacket, c.MaxPacket)
	}
	if len(c.AssignedClientID) > 0 {
		dst = appendPropData(dst, propAssignedClientID, c.AssignedClientID)
	}
	if c.TopicAliasMax != 0 {
		dst = appendProp16(dst, propTopicAliasMax, c.TopicAliasMax)
	}
	dst = appendPropText(dst, propReason, clip(c.Reason))
	dst = appendUser(dst, c.User)
	if c.NoWildcards {
		dst = appendPropByte(dst, propWildcards, 0)
	}
	if c.NoSubIDs {
		dst = appendPropByte(dst, propSubIDs, 0)
	}
	if c.NoShared {
		dst = appendPropByte(dst, propShared, 0)
	}
	if c.HasServerKeepAlive {
		dst = appendProp16(dst, propServerKeepAlive, c.ServerKeepAlive)
	}
	dst = appendPropText(dst, propResponseInfo, c.ResponseInfo)
	dst = appendPropText(dst, propServerReference, c.ServerReference)
	if c.AuthMethod != nil {
		dst = appendPropData(dst, propAuthMethod, c.AuthMethod)
	}
	if c.AuthData != nil {
		dst = appendPropData(dst, propAuthData, c.AuthData)
	}
	return dst
}

// AppendSuback appends a SUBACK: one code for each filter of the SUBSCRIBE, in its order. codes are reason codes of MQTT 5; for older
// versions every failure becomes 0x80. The reason is left out when it is empty.
func AppendSuback(dst []byte, version byte, id uint16, codes []byte, reason string) []byte {
	dst, start := beginReply(dst, TypeSuback, version, id, reason)
	for _, c := range codes {
		if version < V5 && c >= CodeUnspecified {
			c = V3FailureCode
		}
		dst = append(dst, c)
	}
	return finish(dst, start)
}

// AppendUnsuback appends an UNSUBACK: in MQTT 5 with one code for each filter of the UNSUBSCRIBE.
func AppendUnsuback(dst []byte, version byte, id uint16, codes []byte, reason string) []byte {
	dst, start := beginReply(dst, TypeUnsuback, version, id, reason)
	if version >= V5 {
		dst = append(dst, codes...)
	}
	return finish(dst, start)
}

// beginReply appends what SUBACK and UNSUBACK have in common.
func beginReply(dst []byte, kind, version byte, id uint16, reason string) (out []byte, start int) {
	dst, start = begin(dst, kind<<4)
	dst = binary.BigEndian.AppendUint16(dst, id)
	if version >= V5 {
		var props int
		dst, props = append(dst, 0), len(dst)
		dst = finish(appendPropText(dst, propReason, clip(reason)), props)
	}
	return dst, start
}

// AppendDisconnect appends the DISCONNECT of a server, which exists in MQTT 5 only. The reason is left out when it is empty.
func AppendDisconnect(dst []byte, code byte, reason string) []byte {
	return AppendDisconnectTo(dst, code, reason, "")
}

// AppendDisconnectTo is AppendDisconnect with a server reference, for CodeUseAnotherServer and CodeServerMoved.
func AppendDisconnectTo(dst []byte, code byte, reason, server string) []byte {
	if reason == "" && server == "" {
		return append(dst, TypeDisconnect<<4, 1, code)
	}
	dst, start := begin(dst, TypeDisconnect<<4)
	dst, props := append(dst, code, 0), len(dst)+1
	dst = appendPropText(dst, propReason, clip(reason))
	dst = appendPropText(dst, propServerReference, server)
	return finish(finish(dst, props), start)
}

// AppendAuth appends an AUTH of MQTT 5. data is left out when it is nil, the reason when it is empty.
func AppendAuth(dst []byte, code byte, method, data []byte, reason string) []byte {
	dst, start := begin(dst, TypeAuth<<4)
	dst, props := append(dst, code, 0), len(dst)+1
	dst = appendPropData(dst, propAuthMethod, method)
	if data != nil {
		dst = appendPropData(dst, propAuthData, data)
	}
	dst = appendPropText(dst, propReason, clip(reason))
	return finish(finish(dst, props), start)
}
