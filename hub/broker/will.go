package broker

import (
	"encoding/binary"
	"errors"

	"edgehub/hub/message"
	"edgehub/hub/stream"
	"edgehub/storage/seglog"
)

// setWill gives the client another will, or none, and makes that durable. Wills of sessions that were connected when the hub was
// killed are found by it and fired after the restart.
func (b *Broker) setWill(c *Client, w *Will) {
	if c.will != nil { // of the connection before, whose session goes on
		b.o.Meta.Delete(willKey(c.ClientID, c.will.seq))
	}
	if c.will = w; w != nil {
		w.seq = b.willSeq.Add(1)
		b.o.Meta.Put(willKey(c.ClientID, w.seq), encodeWill(w))
	}
}

// fireWill publishes the client's will and forgets it. l is the calling loop, which commits in its round; nil on another
// goroutine.
func (b *Broker) fireWill(c *Client, l *Loop) {
	w := c.will
	c.will = nil
	b.publishWill(c.ClientID, userName(c.user), w, l)
}

// publishWill publishes a will and deletes its record once it is committed: a kill in between fires it again, which is
// better than never.
func (b *Broker) publishWill(client, user string, w *Will, l *Loop) {
	if !b.willAllowed(client, user, w) {
		b.o.Meta.Delete(willKey(client, w.seq))
		return
	}
	w.Msg.TimeMs = b.o.Clock.NowMs()
	if w.Msg.ExpiresMs > 0 { // kept as an interval until now
		w.Msg.ExpiresMs += w.Msg.TimeMs
	}
	b.publishDirect(&w.Msg, l, func(_ *stream.Partition, _ int64, code byte) {
		if code != CodeOK {
			b.log.Warn("a will could not be published", "client", client, "topic", string(w.Msg.Topic), "code", code)
		}
		b.Stats.WillsFired.Add(1)
		b.o.Meta.Delete(willKey(client, w.seq))
	})
}

// encodeWill: delay (4 bytes), lengths and bytes of topic and payload, number of headers, headers.
func encodeWill(w *Will) []byte {
	var h seglog.Headers
	w.Msg.AppendHeaders(&h)
	v := binary.BigEndian.AppendUint32(nil, w.DelayS)
	v = binary.AppendUvarint(v, uint64(len(w.Msg.Topic)))
	v = append(v, w.Msg.Topic...)
	v = binary.AppendUvarint(v, uint64(len(w.Msg.Payload)))
	v = append(v, w.Msg.Payload...)
	v = binary.AppendUvarint(v, uint64(h.Count))
	return append(v, h.Raw...)
}

var errWill = errors.New("broker: stored will is malformed")

func decodeWill(v []byte) (*Will, error) {
	if len(v) < 4 {
		return nil, errWill
	}
	w := &Will{DelayS: binary.BigEndian.Uint32(v)}
	v = v[4:]
	var parts [2][]byte
	for i := range parts {
		n, k := binary.Uvarint(v)
		if k <= 0 || n > uint64(len(v)-k) {
			return nil, errWill
		}
		parts[i], v = v[k:k+int(n)], v[k+int(n):]
	}
	count, k := binary.Uvarint(v)
	if k <= 0 || count > uint64(len(v)) {
		return nil, errWill
	}
	var m message.Message
	err := m.Decode(seglog.Record{Key: parts[0], Value: parts[1], Headers: seglog.Headers{Count: int(count), Raw: v[k:]}})
	if err != nil {
		return nil, errors.Join(errWill, err)
	}
	w.Msg = m
	return w, nil
}
