package packet

import (
	"encoding/binary"
	"errors"

	"edgehub/hub/topic"
)

// subIDCapKept bounds the memory that a reused Publish keeps after one packet with very many subscription identifiers.
const subIDCapKept = 64

// Decode decodes a PUBLISH that a client sent to a server.
func (p *Publish) Decode(version, first byte, body []byte) error {
	if err := p.DecodeDelivery(version, first, body); err != nil {
		return err
	}
	if len(p.SubIDs) > 0 {
		return ErrSubIDSent
	}
	return nil
}

// DecodeDelivery decodes a PUBLISH that a server sent to a client: only there are subscription identifiers allowed.
//
//	topic name     2 bytes length, UTF-8
//	packet id      2 bytes, for QoS 1 and 2 only
//	properties     variable byte integer length, properties; version 5 only
//	payload        the rest
func (p *Publish) DecodeDelivery(version, first byte, body []byte) error {
	p.Dup, p.QoS, p.Retain = first&8 != 0, first>>1&3, first&1 != 0
	if p.QoS == 3 {
		return ErrPublishQoS
	}
	if p.Dup && p.QoS == 0 {
		return ErrPublishDup
	}
	if len(body) < 2 {
		return ErrTruncated
	}
	n := int(binary.BigEndian.Uint16(body)) + 2
	if len(body) < n {
		return ErrTruncated
	}
	p.Topic = body[2:n:n]
	rest := body[n:]
	if n > 2 {
		if err := topic.ValidateName(p.Topic); err != nil {
			return nameError(err)
		}
	} else if version < V5 {
		return ErrTopicEmpty
	}
	p.ID = 0
	if p.QoS > 0 {
		if len(rest) < 2 {
			return ErrTruncated
		}
		if p.ID = binary.BigEndian.Uint16(rest); p.ID == 0 {
			return ErrPacketID
		}
		rest = rest[2:]
	}
	p.Alias, p.HasExpiry, p.ExpiryS = 0, false, 0
	p.Props.Reset()
	if p.SubIDs = p.SubIDs[:0]; cap(p.SubIDs) > subIDCapKept {
		p.SubIDs = nil
	}
	if version < V5 {
		p.Payload = rest
		return nil
	}
	return p.properties(rest)
}

// properties decodes what MQTT 5 has between packet id and payload, and the payload.
func (p *Publish) properties(rest []byte) error {
	if len(rest) > 0 && rest[0] == 0 {
		p.Payload = rest[1:]
		if len(p.Topic) == 0 {
			return ErrTopicEmpty
		}
		return nil
	}
	r := reader{rest: rest}
	props := r.properties(publishProps)
	var v property
	for props.next(&v) {
		switch v.id {
		case propTopicAlias:
			if v.num == 0 {
				return ErrAlias
			}
			p.Alias = uint16(v.num)
		case propSubID:
			p.SubIDs = append(p.SubIDs, v.num)
		default:
			if err := messageProp(&v, &p.Props, &p.HasExpiry, &p.ExpiryS); err != nil {
				return err
			}
		}
	}
	if props.err != nil {
		return props.err
	}
	if len(p.Topic) == 0 && p.Alias == 0 {
		return ErrTopicEmpty
	}
	p.Payload = r.rest
	return nil
}

// nameError turns what is wrong with a topic name into the reason for closing the connection.
func nameError(err error) error {
	switch {
	case errors.Is(err, topic.ErrUTF8):
		return ErrUTF8
	case errors.Is(err, topic.ErrNUL):
		return ErrNUL
	}
	return ErrTopicName
}
