package packet

import "encoding/binary"

// DecodeAck decodes a PUBACK, PUBREC, PUBREL or PUBCOMP; first says which. Before version 5 the code is always CodeSuccess.
//
//	packet id      2 bytes
//	reason code    1 byte, version 5 only; absent means success
//	properties     variable byte integer length, properties; version 5 only; absent means none
func DecodeAck(version, first byte, body []byte) (Ack, error) {
	if first>>4 == TypePubrel {
		if err := checkFlags2(version, first); err != nil {
			return Ack{}, err
		}
	} else if first&15 != 0 {
		return Ack{}, ErrFlags
	}
	if len(body) < 2 {
		return Ack{}, ErrTruncated
	}
	a := Ack{ID: binary.BigEndian.Uint16(body)}
	if a.ID == 0 {
		return Ack{}, ErrPacketID
	}
	if len(body) == 2 {
		return a, nil
	}
	if version < V5 {
		return Ack{}, ErrTrailing
	}
	a.Code = body[2]
	if !ackCode(first>>4, a.Code) {
		return Ack{}, ErrReasonCode
	}
	if len(body) == 3 || len(body) == 4 && body[3] == 0 {
		return a, nil
	}
	r := reader{rest: body[3:]}
	props := r.properties(ackProps)
	var v property
	for props.next(&v) { // a reason and user properties: checked, of no use to a server
	}
	if props.err != nil {
		return Ack{}, props.err
	}
	if err := r.end(); err != nil {
		return Ack{}, err
	}
	return a, nil
}

// ackCode reports whether the standard has the code for this type of acknowledgement.
func ackCode(kind, code byte) bool {
	if kind == TypePubrel || kind == TypePubcomp {
		return code == CodeSuccess || code == CodePacketIDNotFound
	}
	switch code {
	case CodeSuccess, CodeNoMatchingSubscribers, CodeUnspecified, CodeImplementationSpecific, CodeNotAuthorized,
		CodeTopicNameInvalid, CodePacketIDInUse, CodeQuotaExceeded, CodePayloadFormatInvalid:
		return true
	}
	return false
}
