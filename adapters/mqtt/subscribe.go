package mqtt

import (
	"edgehub/adapters/mqtt/packet"
	"edgehub/hub/broker"
)

func (c *Conn) onSubscribe(first byte, body []byte) error {
	p := &c.l.sub
	if err := p.Decode(c.version, first, body); err != nil {
		return err
	}
	reqs := c.l.reqs[:0]
	for _, f := range p.Filters {
		reqs = append(reqs, broker.SubRequest{Filter: string(f.Filter), QoS: min(f.QoS, c.l.s.o.QoSMax), NoLocal: f.NoLocal,
			RetainAsPublished: f.RetainAsPublished, RetainHandling: f.RetainHandling, ID: p.SubID})
	}
	c.l.code = c.l.b.Subscribe(c.client, reqs, c.l.code[:0])
	for i, code := range c.l.code {
		c.l.code[i] = c.told(code)
	}
	clear(reqs)
	c.l.reqs = reqs[:0]
	// Before the round, and so before any message of the new subscriptions.
	c.queue(packet.AppendSuback(c.buffer(), c.version, p.ID, c.l.code, ""))
	return nil
}

func (c *Conn) onUnsubscribe(first byte, body []byte) error {
	p := &c.l.unsb
	if err := p.Decode(c.version, first, body); err != nil {
		return err
	}
	filters := make([]string, len(p.Filters))
	for i, f := range p.Filters {
		filters[i] = string(f)
	}
	c.l.code = c.l.b.Unsubscribe(c.client, filters, c.l.code[:0])
	c.queue(packet.AppendUnsuback(c.buffer(), c.version, p.ID, c.l.code, ""))
	return nil
}
