package mqtt

import (
	"unicode/utf8"

	"edgehub/adapters/mqtt/packet"
	"edgehub/hub/broker"
)

// rate is what a client has left of its allowance, in thousandths of a message and of a byte. A client that was quiet
// has a second's worth; whoever overdraws waits until it is made up. Owned by the loop.
type rate struct {
	messages, bytes int64
	lastMs          int64
}

// allow takes a publish of n bytes out of the allowance; a limit of 0 is none.
func (r *rate) allow(now, messagesPerS, bytesPerS, n int64) bool {
	elapsed := min(max(now-r.lastMs, 0), 1000)
	r.lastMs = now
	r.messages = min(r.messages+elapsed*messagesPerS, 1000*messagesPerS)
	r.bytes = min(r.bytes+elapsed*bytesPerS, 1000*bytesPerS)
	if messagesPerS > 0 && r.messages < 1000 || bytesPerS > 0 && r.bytes <= 0 {
		return false
	}
	r.messages -= 1000
	r.bytes -= 1000 * n
	return true
}

// admit says whether a publish is within what the client may do: CodeOK, or the reason to refuse it.
func (c *Conn) admit(p *packet.Publish, now int64) byte {
	o := &c.l.s.o
	if o.ValidatePayload && p.Props.UTF8 && !utf8.Valid(p.Payload) {
		c.l.s.Stats.PayloadFormat.Add(1)
		return packet.CodePayloadFormatInvalid
	}
	if o.PublishMessages == 0 && o.PublishBytes == 0 {
		return broker.CodeOK
	}
	x := c.more()
	if x.rate == nil {
		x.rate = &rate{lastMs: now - 1000}
	}
	if !x.rate.allow(now, o.PublishMessages, o.PublishBytes, int64(len(p.Topic)+len(p.Payload))) {
		c.l.s.Stats.RateRefused.Add(1)
		return broker.CodeQuotaExceeded
	}
	return broker.CodeOK
}
