package message

import "slices"

// Pair is one user property. Name and Value alias the bytes that they were decoded from.
type Pair struct {
	Name, Value []byte
}

// Props are the properties of an application message that travel from the publisher to every receiver unaltered
// [MQTT-3.3.2-17], [MQTT-3.3.2-20]. All slices alias their source: whoever keeps Props longer than the source copies them.
// For the byte strings nil means absent, and empty but not nil means present and empty.
type Props struct {
	UTF8          bool // the publisher says that the payload is UTF-8 text (payload format indicator 1)
	ContentType   []byte
	ResponseTopic []byte
	Correlation   []byte
	User          []Pair // in the publisher's order, duplicates kept
}

// Empty reports whether there is nothing in p, so that neither a record header nor a packet property is needed.
func (p *Props) Empty() bool {
	return !p.UTF8 && p.ContentType == nil && p.ResponseTopic == nil && p.Correlation == nil && len(p.User) == 0
}

// userCapKept bounds the memory that a reused Props keeps after one message with very many user properties.
const userCapKept = 256

// Reset empties p and keeps the capacity of User for the next message.
func (p *Props) Reset() {
	user := p.User[:0]
	if cap(user) > userCapKept {
		user = nil
	}
	*p = Props{User: user}
}

// Clone returns a copy of p that shares nothing with p's source.
func (p *Props) Clone() Props {
	c := Props{
		UTF8:          p.UTF8,
		ContentType:   slices.Clone(p.ContentType),
		ResponseTopic: slices.Clone(p.ResponseTopic),
		Correlation:   slices.Clone(p.Correlation),
		User:          slices.Clone(p.User),
	}
	for i := range c.User {
		c.User[i] = Pair{slices.Clone(c.User[i].Name), slices.Clone(c.User[i].Value)}
	}
	return c
}
