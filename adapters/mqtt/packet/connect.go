package packet

import (
	"bytes"

	"edgehub/hub/message"
	"edgehub/hub/topic"
)

// Bits of the connect flags.
const (
	connectReserved   = 1 << 0
	connectClean      = 1 << 1
	connectWill       = 1 << 2
	connectWillRetain = 1 << 5
	connectPassword   = 1 << 6
	connectUsername   = 1 << 7
)

// Decode decodes a CONNECT. When the version is not supported it returns ErrVersion or ErrProtocolName; c.Version is then what the
// packet asked for (0 if it did not come that far), which decides in what form the refusal is sent.
//
//	protocol name  2 bytes length, "MQTT" ("MQIsdp" in MQTT 3.1)
//	version        1 byte
//	flags          1 byte
//	keep alive     2 bytes, seconds
//	properties     variable byte integer length, properties; version 5 only
//	client id      2 bytes length, UTF-8
//	will           properties (version 5 only), topic, payload; only with the will flag
//	user name      2 bytes length, UTF-8; only with its flag
//	password       2 bytes length, bytes; only with its flag
func (c *Connect) Decode(body []byte) error {
	*c = Connect{ReceiveMax: 65535, RequestProblemInfo: true}
	r := reader{rest: body}
	if err := c.version(&r); err != nil {
		return err
	}
	flags := r.byte()
	if r.err == nil {
		if err := c.flags(flags); err != nil {
			return err
		}
	}
	c.KeepAlive = r.uint16()
	if c.Version >= V5 {
		if err := c.properties(&r); err != nil {
			return err
		}
	}
	c.ClientID = r.text()
	if r.err == nil && len(c.ClientID) == 0 && c.Version < V5 && (!c.Clean || c.Version == V31) {
		return ErrClientID
	}
	if flags&connectWill != 0 {
		c.will = Will{QoS: flags >> 3 & 3, Retain: flags&connectWillRetain != 0}
		if err := c.will.decode(c.Version, &r); err != nil {
			return err
		}
		c.Will = &c.will
	}
	c.credentials(flags, &r)
	return r.end()
}

// version reads protocol name and version. A reader that has not come to the version yet leaves c.Version at 0.
func (c *Connect) version(r *reader) error {
	name := r.data()
	v := r.byte()
	if r.err != nil {
		return r.err
	}
	c.Version = v
	switch {
	case bytes.Equal(name, []byte("MQTT")):
		if v != V311 && v != V5 {
			return ErrVersion
		}
	case bytes.Equal(name, []byte("MQIsdp")):
		if v != V31 {
			return ErrVersion
		}
	default:
		return ErrProtocolName
	}
	return nil
}

// flags checks the connect flags against each other.
func (c *Connect) flags(f byte) error {
	qos := f >> 3 & 3
	switch {
	case f&connectReserved != 0:
		return ErrConnectFlags
	case f&connectWill == 0 && (qos != 0 || f&connectWillRetain != 0):
		return ErrWillFlags
	case qos == 3:
		return ErrWillQoS
	case c.Version < V5 && f&connectPassword != 0 && f&connectUsername == 0:
		return ErrPasswordAlone
	}
	c.Clean = f&connectClean != 0
	return nil
}

func (c *Connect) properties(r *reader) error {
	props := r.properties(connectProps)
	var v property
	for props.next(&v) {
		switch v.id {
		case propSessionExpiry:
			c.HasSessionExpiry, c.SessionExpiryS = true, v.num
		case propReceiveMax:
			if v.num == 0 {
				return ErrReceiveMax
			}
			c.ReceiveMax = uint16(v.num)
		case propMaxPacket:
			if v.num == 0 {
				return ErrMaxPacket
			}
			c.MaxPacket = v.num
		case propTopicAliasMax:
			c.TopicAliasMax = uint16(v.num)
		case propRequestResponse:
			c.RequestResponseInfo = v.num == 1
		case propRequestProblemInfo:
			c.RequestProblemInfo = v.num == 1
		case propAuthMethod:
			c.HasAuthMethod, c.AuthMethod = true, v.data
		case propAuthData:
			c.AuthData = v.data
		case propUser:
			c.User = append(c.User, message.Pair{Name: v.name, Value: v.data})
		}
	}
	if props.err != nil {
		return props.err
	}
	if c.AuthData != nil && !c.HasAuthMethod {
		return ErrAuthData
	}
	return nil
}

// decode reads the will's part of the payload.
func (w *Will) decode(version byte, r *reader) error {
	if version >= V5 {
		props := r.properties(willProps)
		var v property
		for props.next(&v) {
			if v.id == propWillDelay {
				w.DelayS = v.num
			} else if err := messageProp(&v, &w.Props, &w.HasExpiry, &w.ExpiryS); err != nil {
				return err
			}
		}
		if props.err != nil {
			return props.err
		}
	}
	w.Topic = r.text()
	w.Payload = r.data()
	if r.err == nil && topic.ValidateName(w.Topic) != nil {
		return ErrWillTopic
	}
	return r.err
}

// credentials reads user name and password. In MQTT 3.1 a flag may be set while the string is missing: there the remaining length
// takes precedence over the flags.
func (c *Connect) credentials(flags byte, r *reader) {
	gone := func() bool { return c.Version == V31 && r.err == nil && len(r.rest) == 0 }
	if flags&connectUsername != 0 && !gone() {
		c.HasUsername, c.Username = true, r.text()
	}
	if flags&connectPassword != 0 && !gone() {
		c.HasPassword, c.Password = true, r.data()
	}
}
