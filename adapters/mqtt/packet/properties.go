package packet

import (
	"bytes"
	"errors"

	"edgehub/hub/message"
)

// Property identifiers (table 2-4 of the standard).
const (
	propPayloadFormat      = 0x01
	propMessageExpiry      = 0x02
	propContentType        = 0x03
	propResponseTopic      = 0x08
	propCorrelation        = 0x09
	propSubID              = 0x0B
	propSessionExpiry      = 0x11
	propAssignedClientID   = 0x12
	propServerKeepAlive    = 0x13
	propAuthMethod         = 0x15
	propAuthData           = 0x16
	propRequestProblemInfo = 0x17
	propWillDelay          = 0x18
	propRequestResponse    = 0x19
	propResponseInfo       = 0x1A
	propServerReference    = 0x1C
	propReason             = 0x1F
	propReceiveMax         = 0x21
	propTopicAliasMax      = 0x22
	propTopicAlias         = 0x23
	propMaxQoS             = 0x24
	propRetainAvailable    = 0x25
	propUser               = 0x26
	propMaxPacket          = 0x27
	propWildcards          = 0x28
	propSubIDs             = 0x29
	propShared             = 0x2A
)

// What each packet that a server receives may carry, as sets of property identifiers. All identifiers are below 64.
const (
	messageProps = 1<<propPayloadFormat | 1<<propMessageExpiry | 1<<propContentType | 1<<propResponseTopic |
		1<<propCorrelation | 1<<propUser
	publishProps = messageProps | 1<<propTopicAlias | 1<<propSubID
	willProps    = messageProps | 1<<propWillDelay
	connectProps = 1<<propSessionExpiry | 1<<propAuthMethod | 1<<propAuthData | 1<<propRequestProblemInfo |
		1<<propRequestResponse | 1<<propReceiveMax | 1<<propTopicAliasMax | 1<<propUser | 1<<propMaxPacket
	ackProps         = 1<<propReason | 1<<propUser
	subscribeProps   = 1<<propSubID | 1<<propUser
	unsubscribeProps = 1 << propUser
	disconnectProps  = 1<<propSessionExpiry | 1<<propReason | 1<<propUser
	authProps        = 1<<propAuthMethod | 1<<propAuthData | 1<<propReason | 1<<propUser
)

// property is one decoded property: numbers of every width in num, strings and binary data in data, the name of a user property
// in name.
type property struct {
	id         byte
	num        uint32
	name, data []byte
}

// propReader walks over the properties of a packet.
type propReader struct {
	reader
	allowed, seen uint64
}

// properties cuts the property block off r and returns a reader for it; allowed is the set of properties that may be there.
func (r *reader) properties(allowed uint64) propReader {
	if r.err != nil {
		return propReader{reader: reader{err: r.err}}
	}
	n := int(r.varint())
	if errors.Is(r.err, ErrTruncated) || n > len(r.rest) {
		r.err = ErrPropertyLen
	}
	if r.err != nil {
		r.rest = nil
		return propReader{reader: reader{err: r.err}}
	}
	p := propReader{reader: reader{rest: r.rest[:n:n]}, allowed: allowed}
	r.rest = r.rest[n:]
	return p
}

// next decodes the next property into p. It returns false at the end and on an error, which is in r.err.
func (r *propReader) next(p *property) bool {
	if len(r.rest) == 0 {
		return false
	}
	id := r.byte()
	bit := uint64(1) << (id & 63)
	if id >= 64 || r.allowed&bit == 0 {
		r.fail(ErrProperty)
		return false
	}
	if r.seen&bit != 0 && id != propUser && id != propSubID {
		r.fail(ErrPropertyDup)
		return false
	}
	r.seen |= bit
	p.id = id
	r.value(p)
	if r.err == nil {
		return true
	}
	if errors.Is(r.err, ErrTruncated) {
		r.err = ErrPropertyLen
	}
	return false
}

// value reads the value of property p.id in the type that table 2-4 gives it.
func (r *propReader) value(p *property) {
	switch p.id {
	case propPayloadFormat, propRequestProblemInfo, propRequestResponse:
		if p.num = uint32(r.byte()); p.num > 1 {
			r.fail(ErrPropertyBool)
		}
	case propReceiveMax, propTopicAliasMax, propTopicAlias:
		p.num = uint32(r.uint16())
	case propMessageExpiry, propSessionExpiry, propWillDelay, propMaxPacket:
		p.num = r.uint32()
	case propSubID:
		if p.num = r.varint(); r.err == nil && p.num == 0 {
			r.fail(ErrSubID)
		}
	case propCorrelation, propAuthData:
		p.data = r.data()
	case propContentType, propResponseTopic, propAuthMethod, propReason:
		p.data = r.text()
	case propUser:
		p.name = r.text()
		p.data = r.text()
	default:
		panic("BUG: a property is allowed somewhere but has no type")
	}
}

// messageProp stores p when it is one of the properties that a PUBLISH and a will share.
func messageProp(p *property, props *message.Props, hasExpiry *bool, expiryS *uint32) error {
	switch p.id {
	case propPayloadFormat:
		props.UTF8 = p.num == 1
	case propMessageExpiry:
		*hasExpiry, *expiryS = true, p.num
	case propContentType:
		props.ContentType = p.data
	case propResponseTopic:
		if len(p.data) == 0 || bytes.IndexByte(p.data, '+') >= 0 || bytes.IndexByte(p.data, '#') >= 0 {
			return ErrResponseTopic
		}
		props.ResponseTopic = p.data
	case propCorrelation:
		props.Correlation = p.data
	case propUser:
		props.User = append(props.User, message.Pair{Name: p.name, Value: p.data})
	}
	return nil
}
