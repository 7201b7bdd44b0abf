package mqtt

import "edgehub/adapters/mqtt/packet"

const (
	// aliasesGiven is how many topic aliases the hub gives a client at most, whatever the client allows.
	aliasesGiven = 64
	// Topics outside these lengths get no alias: it would save nothing, or hold too much memory.
	aliasTopicMin, aliasTopicMax = 4, 256
	// aliasMisses: when this many messages in a row had no alias, the topics have changed, and are given anew.
	aliasMisses = 1024
	// aliasBytes is what an alias adds to a packet at most.
	aliasBytes = 8
)

// given are the topic aliases that the hub has given a client: the first topics that it was sent. Owned by the loop.
type given struct {
	max    int
	names  map[string]uint16
	misses int
}

// alias gives the topic of a packet its alias, when the client takes aliases [MQTT-3.3.2-8]. Packets leave in the order
// in which they are encoded, so the one that sets an alias comes first; out buffers are dropped only with the
// connection.
func (c *Conn) alias(out *packet.PublishOut) {
	if c.extra == nil {
		return
	}
	g := c.extra.given
	if g == nil || len(out.Topic) < aliasTopicMin || len(out.Topic) > aliasTopicMax {
		return
	}
	if n, ok := g.names[string(out.Topic)]; ok {
		out.Alias, out.Topic = n, nil
		g.misses = 0
		return
	}
	if len(g.names) == g.max {
		if g.misses++; g.misses < aliasMisses {
			return
		}
		clear(g.names)
		g.misses = 0
	}
	out.Alias = uint16(len(g.names) + 1)
	g.names[string(out.Topic)] = out.Alias
}
