package mqtt

import (
	"encoding/binary"

	"edgehub/adapters/mqtt/packet"
	"edgehub/hub/broker"
	"edgehub/hub/message"
)

// earlyBytes: when the connections of a loop have this much queued, a fan-out is under way that would otherwise hold a
// copy of its messages for every receiver until the end of the round.
const earlyBytes = 8 << 20

// Send implements broker.Conn.
func (c *Conn) Send(d *broker.Delivery) bool {
	if c.phase != phaseConnected {
		return true // it stays in flight, and is sent again after the reconnect
	}
	c.sent++
	if d.Shared != nil && len(d.SubIDs) == 0 && !d.Dup {
		return c.sendShared(d)
	}
	out := c.packet(d)
	room := 1 << 30
	if c.maxPacket > 0 {
		if room = int(c.maxPacket) - packet.PublishSize(c.version, &out); room < 0 {
			return false
		}
	}
	if room >= aliasBytes {
		c.alias(&out)
	}
	c.queue(packet.AppendPublish(c.buffer(), c.version, &out))
	c.early()
	return true
}

func (c *Conn) packet(d *broker.Delivery) packet.PublishOut {
	m := d.Msg
	out := packet.PublishOut{Dup: d.Dup, Retain: d.Retain, QoS: d.QoS, ID: d.ID, Topic: m.Topic, Payload: m.Payload, SubIDs: d.SubIDs}
	if c.version >= packet.V5 {
		c.l.addProps(&out, m)
	}
	return out
}

func (l *loop) addProps(out *packet.PublishOut, m *message.Message) {
	if !m.Props.Empty() {
		out.Props = &m.Props
	}
	if m.ExpiresMs > 0 {
		out.HasExpiry = true
		out.ExpiryS, _ = m.Remaining(l.s.o.Clock.NowMs())
	}
}

// sendShared copies the encoded form that all receivers of the same version, QoS and flags have, and sets the packet
// id.
func (c *Conn) sendShared(d *broker.Delivery) bool {
	i := int(d.QoS) * 4
	if d.Retain {
		i += 2
	}
	if c.version >= packet.V5 {
		i++
	}
	v := &d.Shared.Variants[i]
	if !v.Valid {
		out := c.packet(d)
		v.Bytes = packet.AppendPublish(v.Bytes[:0], c.version, &out)
		v.IDAt = 0
		if d.QoS > 0 {
			v.IDAt = packet.PublishIDOffset(len(v.Bytes), len(out.Topic))
		}
		v.Valid = true
	}
	if c.maxPacket > 0 && len(v.Bytes) > int(c.maxPacket) {
		return false
	}
	if c.extra != nil && c.extra.given != nil && (c.maxPacket == 0 || len(v.Bytes)+aliasBytes <= int(c.maxPacket)) {
		out := packet.PublishOut{Topic: d.Msg.Topic}
		if c.alias(&out); out.Alias > 0 {
			c.queue(packet.AppendAliased(c.buffer(), v.Bytes, len(d.Msg.Topic), d.ID, out.Alias, out.Topic != nil))
			c.early()
			return true
		}
	}
	b := c.buffer()
	at := len(b)
	b = append(b, v.Bytes...)
	if v.IDAt > 0 {
		binary.BigEndian.PutUint16(b[at+v.IDAt:], d.ID)
	}
	c.queue(b)
	c.early()
	return true
}

// early writes a connection's queue before the end of the round when much is queued on the loop. What the packets
// rest on is committed first, as it is in the round.
func (c *Conn) early() {
	if c.l.queued > earlyBytes && c.client != nil && c.l.b.CommitMeta(c.client) {
		c.Flush()
	}
}
