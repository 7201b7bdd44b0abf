package mqtt

import (
	"unsafe"

	"edgehub/adapters/mqtt/packet"
	"edgehub/hub/broker"
	"edgehub/hub/message"
)

// onPublish handles PUBLISH. Nothing is acknowledged here: the broker calls Ack once the message is in the log.
func (c *Conn) onPublish(first byte, body []byte) error {
	p := &c.l.pub
	if err := p.Decode(c.version, first, body); err != nil {
		return err
	}
	name, err := c.topic(p)
	switch {
	case err != nil:
		return err
	case p.QoS > c.l.s.o.QoSMax:
		return errQoS
	case p.Retain && c.l.s.o.NoRetain:
		return errRetain
	}
	c.in++
	m := &c.l.msg
	now := c.l.nowMs
	*m = message.Message{Topic: name, Payload: p.Payload, TimeMs: now, QoS: p.QoS, Retain: p.Retain, Props: p.Props}
	if p.HasExpiry {
		m.ExpiresMs = max(now+int64(p.ExpiryS)*1000, 1)
	}
	if c.client.HasNoLocal() {
		m.Origin = message.Origin{Client: clientID(c.client), NoLocal: true}
	}
	c.l.dirty = true
	if p.QoS == 0 {
		if code := c.admit(p, now); code != broker.CodeOK {
			if code == packet.CodePayloadFormatInvalid {
				return errPayload
			}
			return nil
		}
		if code := c.l.b.Publish(c.client, nil, 0, m); code != broker.CodeOK {
			c.l.s.o.Logger.Debug("QoS 0 message refused", "client", c.client.ClientID, "topic", string(name), "code", code)
		}
		return nil
	}
	return c.publishAcked(p, m)
}

func clientID(c *broker.Client) []byte {
	return unsafe.Slice(unsafe.StringData(c.ClientID), len(c.ClientID))
}

// topic resolves topic aliases and judges the name.
func (c *Conn) topic(p *packet.Publish) ([]byte, error) {
	name := p.Topic
	if p.Alias > 0 {
		if p.Alias > aliasMax {
			return nil, errAlias
		}
		x := c.more()
		if x.topics == nil {
			x.topics = &aliases{}
		}
		if len(name) > 0 {
			if x.topics[p.Alias] != string(name) {
				x.topics[p.Alias] = string(name)
			}
		} else if s := x.topics[p.Alias]; s != "" {
			name = unsafe.Slice(unsafe.StringData(s), len(s))
		} else {
			return nil, errAliasUnset
		}
	}
	if c.l.levels(name) {
		return nil, errTopicLevels
	}
	return name, nil
}

// levels reports whether a topic has too many levels.
func (l *loop) levels(name []byte) bool {
	limit := l.s.o.TopicLevels
	if limit <= 0 || len(name) <= limit {
		return false
	}
	n := 1
	for _, x := range name {
		if x == '/' {
			n++
		}
	}
	return n > limit
}

func (c *Conn) publishAcked(p *packet.Publish, m *message.Message) error {
	if c.version >= packet.V5 {
		if c.acks.qos1()+c.client.Inbound.Len() >= c.l.s.o.ReceiveMaximum && (p.QoS != 2 || !c.client.Inbound.Pending(p.ID)) {
			return errReceiveMax
		}
	} else if c.acks.len() >= 65535 {
		return errBacklog
	}
	if p.QoS == 2 {
		if c.client.Inbound.Pending(p.ID) {
			// Taken before: acknowledged again, not published again [MQTT-4.3.3-10]. It waits behind whatever the log
			// has not committed yet, in case the first copy is among that.
			seq := c.acks.add(p.ID, 2)
			c.l.b.Barrier(c, seq, c.client, p.ID)
			return nil
		}
		m.Origin.QoS2Seq = c.l.b.Take(c.client, p.ID)
		if c.client.Persistent() { // the record says whose publish it is
			m.Origin.PacketID, m.Origin.Client = p.ID, clientID(c.client)
		}
	}
	seq := c.acks.add(p.ID, p.QoS)
	code := c.admit(p, m.TimeMs)
	if code == broker.CodeOK {
		code = c.l.b.Publish(c.client, c, seq, m)
	}
	if code != broker.CodeOK {
		c.Ack(seq, code)
	}
	return nil
}

// Ack implements broker.Conn. Answers leave in the order of the publishes.
func (c *Conn) Ack(seq uint32, code byte) {
	if e := c.acks.done(seq, code); e.qos == 2 && code < 0x80 && c.client != nil {
		c.l.b.Taken(c.client, e.id)
	}
	if c.phase != phaseConnected || c.client == nil {
		return
	}
	b := c.buffer()
	for {
		e, ok := c.acks.next()
		if !ok {
			break
		}
		kind := packet.TypePuback
		if e.qos == 2 {
			kind = packet.TypePubrec
			if e.code >= 0x80 {
				c.l.b.Forget(c.client, e.id)
			}
		}
		if e.code >= 0x80 && e.code != broker.CodeNotAuthorized && c.version < packet.V5 {
			// Older versions cannot refuse: without an acknowledgement the client repeats it after reconnecting. A topic
			// that the hub does not take now it will not take then either: that is acknowledged, and counted [MQTT-3.3.5-2].
			c.grown(b)
			c.end(0)
			return
		}
		b = packet.AppendAck(b, c.version, kind, e.id, c.told(e.code))
		c.l.wire.packetsOut++
	}
	c.grown(b)
}

// onAck handles PUBACK, PUBREC, PUBREL and PUBCOMP.
func (c *Conn) onAck(first byte, body []byte) error {
	a, err := packet.DecodeAck(c.version, first, body)
	if err != nil {
		return err
	}
	c.l.dirty = true
	switch kind := first >> 4; kind {
	case packet.TypePuback:
		c.l.b.Acked(c.client, a.ID)
	case packet.TypePubrec:
		c.onPubrec(a)
	case packet.TypePubcomp:
		c.l.b.Completed(c.client, a.ID)
	case packet.TypePubrel:
		code := broker.CodeOK
		if !c.l.b.Release(c.client, a.ID) {
			code = packet.CodePacketIDNotFound
		}
		c.queue(packet.AppendAck(c.buffer(), c.version, packet.TypePubcomp, a.ID, code))
	}
	return nil
}

func (c *Conn) onPubrec(a packet.Ack) {
	if a.Code >= 0x80 { // the client refuses the message: it is done with [MQTT-4.3.3-4]
		c.l.b.Acked(c.client, a.ID)
		return
	}
	code := broker.CodeOK
	if !c.l.b.Received(c.client, a.ID) {
		code = packet.CodePacketIDNotFound
	}
	c.queue(packet.AppendAck(c.buffer(), c.version, packet.TypePubrel, a.ID, code))
}

// SendRelease implements broker.Conn.
func (c *Conn) SendRelease(id uint16) {
	if c.phase == phaseConnected {
		c.queue(packet.AppendAck(c.buffer(), c.version, packet.TypePubrel, id, broker.CodeOK))
	}
}
