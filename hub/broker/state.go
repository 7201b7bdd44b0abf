package broker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"

	"edgehub/hub/session"
)

// The durable state of sessions, as keys of the metadata. A client id holds no NUL (no MQTT string does), so NUL ends
// it. Partitions are named, since their ids differ from run to run.
//
//	s/CLIENT            the session: whether it was connected, expiry, last number of an inbound QoS 2 publish
//	b/CLIENT NUL FILTER a subscription
//	c/CLIENT            positions in partitions where it is not simply live, and QoS 1 messages in flight
//	f/CLIENT NUL PART NUL OFFSET ID [SHARE]  a QoS 2 message in flight to the client, from that shared subscription
//	q/CLIENT            QoS 2 messages from the client that it has not released
//	w/CLIENT NUL SEQ    the will of a connection, or a delayed one of an offline session; each has a number of its own,
//	                    since the record of one that is being published goes when its successor may be there already
//	o/OFFSET            an entry of the index of copies for sessions (see offline.go)
//	r/TOPIC             where the retained message of a topic is
//	v/PART              position that every connected session has reached (see checkpoint.go)
//	t                   last hub time
const (
	prefixSession  = "s/"
	prefixSub      = "b/"
	prefixPosition = "c/"
	prefixFlight   = "f/"
	prefixInbound  = "q/"
	prefixWill     = "w/"
	prefixRetained = "r/"
	prefixVector   = "v/"
	keyTime        = "t"
)

func sessionKey(id string) []byte  { return append([]byte(prefixSession), id...) }
func positionKey(id string) []byte { return append([]byte(prefixPosition), id...) }
func retainedKey(n string) []byte  { return append([]byte(prefixRetained), n...) }
func vectorKey(part string) []byte { return append([]byte(prefixVector), part...) }

func subKey(id, filter string) []byte {
	return append(append(append([]byte(prefixSub), id...), 0), filter...)
}

func inboundKey(id string) []byte { return append([]byte(prefixInbound), id...) }

func willKey(id string, seq uint64) []byte {
	return binary.BigEndian.AppendUint64(append(append([]byte(prefixWill), id...), 0), seq)
}

// flightKey is a record of the log.
type flightKey struct {
	part   uint32
	offset int64
}

// flightRecordKey names the packet id too: one record can be in flight as it was published and, retained, for new
// subscriptions.
func (b *Broker) flightRecordKey(id string, f *session.Flight) []byte {
	v := append(append([]byte(prefixFlight), id...), 0)
	v = append(append(v, b.parts[f.Part].Name...), 0)
	v = binary.BigEndian.AppendUint64(v, uint64(f.Offset))
	v = binary.BigEndian.AppendUint16(v, f.ID)
	if m, _ := f.Share.(*member); m != nil {
		v = append(v, m.key...)
	}
	return v
}

// cutClient splits a key behind its prefix into the client id and the rest.
func cutClient(key []byte, prefix string) (id string, rest []byte, ok bool) {
	before, rest, ok := bytes.Cut(key[len(prefix):], []byte{0})
	return string(before), rest, ok
}

var errState = errors.New("broker: stored session state is malformed")

// decoder reads the fields of a value and remembers the first failure.
type decoder struct {
	v   []byte
	bad bool
}

func (d *decoder) uvarint() uint64 {
	n, k := binary.Uvarint(d.v)
	if k <= 0 {
		d.bad, d.v = true, nil
		return 0
	}
	d.v = d.v[k:]
	return n
}

func (d *decoder) byte() byte {
	if len(d.v) == 0 {
		d.bad = true
		return 0
	}
	x := d.v[0]
	d.v = d.v[1:]
	return x
}

func (d *decoder) string() string {
	n := d.uvarint()
	if n > uint64(len(d.v)) {
		d.bad, d.v = true, nil
		return ""
	}
	s := string(d.v[:n])
	d.v = d.v[n:]
	return s
}

// count reads a number of entries that each take at least one byte.
func (d *decoder) count() int {
	n := d.uvarint()
	if n > uint64(len(d.v)) {
		d.bad = true
		return 0
	}
	return int(n)
}

func (d *decoder) err() error {
	if d.bad {
		return errState
	}
	return nil
}

func appendString(v []byte, s string) []byte {
	return append(binary.AppendUvarint(v, uint64(len(s))), s...)
}

// putSession stores the session record; with attached its subscriptions too, if it has not been stored yet.
func (b *Broker) putSession(c *Client, attached bool) {
	if !c.Persistent() { // it ends with its connection now, and goes on until then
		b.unstore(c)
		return
	}
	v := []byte{0}
	if attached {
		v[0] = 1
	}
	v = binary.AppendUvarint(v, uint64(c.Expiry))
	v = binary.AppendUvarint(v, uint64(c.ExpiresMs))
	v = binary.AppendUvarint(v, c.Inbound.Last())
	if c.user != nil {
		v = appendString(v, *c.user)
	}
	b.o.Meta.Put(sessionKey(c.ClientID), v)
	c.stored, c.lastStored = true, true
}

func (b *Broker) putSub(c *Client, s *session.Sub) {
	v := []byte{s.QoS, s.RetainHandling, flags(s.NoLocal, s.RetainAsPublished)}
	v = binary.AppendUvarint(v, uint64(s.ID))
	v = binary.AppendUvarint(v, uint64(len(s.Starts)))
	for _, at := range s.Starts {
		v = appendString(v, b.parts[at.Part].Name)
		v = binary.AppendUvarint(v, uint64(at.Offset))
	}
	b.o.Meta.Put(subKey(c.ClientID, s.Filter), v)
}

func flags(bits ...bool) byte {
	var f byte
	for i, b := range bits {
		if b {
			f |= 1 << i
		}
	}
	return f
}

func (b *Broker) decodeSub(filter string, v []byte) (*session.Sub, error) {
	d := &decoder{v: v}
	s := &session.Sub{Filter: filter, Shared: isShared(filter), QoS: d.byte(), RetainHandling: d.byte()}
	f := d.byte()
	s.NoLocal, s.RetainAsPublished = f&1 != 0, f&2 != 0
	s.ID = uint32(d.uvarint())
	for range d.count() {
		name, offset := d.string(), int64(d.uvarint())
		if p := b.o.Streams.Partition(name); p != nil && !d.bad {
			s.Starts = append(s.Starts, session.Position{Part: p.ID, Offset: offset})
		}
	}
	if s.QoS > 2 {
		d.bad = true
	}
	return s, d.err()
}

func appendFlight(v []byte, f *session.Flight) []byte {
	v = binary.AppendUvarint(v, uint64(f.ID))
	v = append(v, byte(f.State), f.QoS, flags(f.RetainAsPublished, f.Retained, f.Kept))
	v = binary.AppendUvarint(v, uint64(f.Seq))
	v = binary.AppendUvarint(v, uint64(len(f.SubIDs)))
	for _, id := range f.SubIDs {
		v = binary.AppendUvarint(v, uint64(id))
	}
	return v
}

// decodeFlight reads what appendFlight wrote. A group's messages are Released while a member has them, whatever the QoS,
// and can be Finished.
func decodeFlight(d *decoder, ofGroup bool) session.Flight {
	f := session.Flight{ID: uint16(d.uvarint()), State: session.State(d.byte()), QoS: d.byte()}
	x := d.byte()
	f.RetainAsPublished, f.Retained, f.Kept = x&1 != 0, x&2 != 0, x&4 != 0
	f.Seq = uint32(d.uvarint())
	for range d.count() {
		f.SubIDs = append(f.SubIDs, uint32(d.uvarint()))
	}
	sent := f.State == session.Sent || f.State == session.Released && (f.QoS == 2 || ofGroup) || f.State == session.Finished && ofGroup
	if f.ID == 0 || f.QoS < 1 || f.QoS > 2 || !sent {
		d.bad = true
	}
	return f
}

// What of a session is written at the end of a round.
const (
	unsavedInbound byte = 1 << iota
	unsavedPositions
)

// markUnsaved has records of a persistent session written before anything of this round leaves: many messages of a
// round, one record.
func (l *Loop) markUnsaved(c *Client, what byte) {
	if !c.Persistent() {
		return
	}
	l.rest(c)
	a := c.att
	if a.unsaved == 0 {
		l.unsaved = append(l.unsaved, a)
	}
	a.unsaved |= what
}

// save writes the marked records.
func (l *Loop) save() {
	for i, a := range l.unsaved {
		if c := a.client; c != nil {
			if a.unsaved&unsavedInbound != 0 {
				l.b.putInbound(c)
			}
			if a.unsaved&unsavedPositions != 0 {
				l.b.putPositions(c, nil)
			}
		}
		a.unsaved = 0
		l.unsaved[i] = nil
	}
	l.unsaved = l.unsaved[:0]
	for i, key := range l.unrecord { // after the positions of the groups
		l.b.o.Meta.Delete(key)
		l.unrecord[i] = nil
	}
	l.unrecord = l.unrecord[:0]
}

// noteFlight records a QoS 2 message to a persistent session before the packet that rests on it leaves: a packet id
// that a kill made the hub forget would have the client take the message twice. With it goes the position behind the
// message, so that once it is completed its record can simply be deleted.
func (l *Loop) noteFlight(c *Client, f *session.Flight) {
	if f.QoS == 2 && c.Persistent() {
		key, v := l.b.flightRecordKey(c.ClientID, f), appendFlight(nil, f)
		if f.State == session.Sent {
			l.b.o.Meta.PutNew(key, v)
		} else {
			l.b.o.Meta.Put(key, v)
		}
		l.markUnsaved(c, unsavedPositions)
	}
}

// forgetFlight deletes the record of a QoS 2 message that is done.
func (l *Loop) forgetFlight(c *Client, f *session.Flight) {
	if f.QoS == 2 && c.Persistent() && f.Share == nil { // a shared one is the group's to delete
		l.b.o.Meta.Delete(l.b.flightRecordKey(c.ClientID, f))
	}
}

// reached notes a position in a live partition.
func (c *Client) reached(part uint32, next int64) {
	if !c.Persistent() {
		return
	}
	o := c.owe()
	for i := range o.exact {
		if o.exact[i].Part == part {
			o.exact[i].Offset = max(o.exact[i].Offset, next)
			return
		}
	}
	o.exact = append(o.exact, session.Position{Part: part, Offset: next})
}

// exact is what of the position record says more than the vector does; see owed.
func (c *Client) exact() []session.Position {
	if c.owed == nil {
		return nil
	}
	return c.owed.exact
}

// putInbound stores what the client has published at QoS 2 and not released. Numbers up to the first field that are
// not listed are released, or were refused; a number that is listed as uncommitted counts only if the log has it.
func (b *Broker) putInbound(c *Client) {
	if c.Inbound.Len() == 0 && !c.inboundStored && c.stored && c.lastStored {
		return
	}
	v := binary.AppendUvarint(nil, c.Inbound.Last())
	v = binary.AppendUvarint(v, uint64(c.Inbound.Len()))
	for id, e := range c.Inbound.All() {
		v = binary.AppendUvarint(v, uint64(id))
		v = binary.AppendUvarint(v, e.Seq)
		v = append(v, flags(e.Committed))
	}
	b.o.Meta.Put(inboundKey(c.ClientID), v)
	c.inboundStored = true
}

// wipe forgets the state of a session: in memory, and in the metadata if there is any.
func (b *Broker) wipe(c *Client) {
	b.dropShares(c)
	b.unstore(c)
	b.endInbound(&c.Inbound)
	b.offline.end(c.ClientID)
	if c.inboxOf() == nil {
		b.subTotal.Add(int64(-len(c.Subs)))
	}
	c.Clear()
	if c.owed != nil {
		c.owed.skip, c.owed.exact = nil, nil
	}
}

// unstore forgets what the metadata have of a session, but for its will.
func (b *Broker) unstore(c *Client) {
	if c.stored {
		b.o.Meta.Delete(sessionKey(c.ClientID))
		for _, s := range c.Subs {
			b.o.Meta.Delete(subKey(c.ClientID, s.Filter))
		}
		for _, id := range c.Flights.Ordered() {
			if f := c.Flights.Get(id); f.QoS == 2 && f.Share == nil {
				b.o.Meta.Delete(b.flightRecordKey(c.ClientID, f))
			}
		}
		c.stored = false
	}
	if c.inboundStored {
		b.o.Meta.Delete(inboundKey(c.ClientID))
		c.inboundStored = false
	}
	if c.positioned {
		b.o.Meta.Delete(positionKey(c.ClientID))
		c.positioned = false
	}
}

// encodePositions is the value of a position record: positions, then QoS 1 messages in flight. A partition without a
// position is one where the session is live and the vector says enough. With below, the vector about to be stored,
// messages at or above it are left out: the session will be given them again anyway.
func (b *Broker) encodePositions(c *Client, below []int64) []byte {
	var cursors, flights []byte
	nc, nf := 0, 0
	position := func(part uint32, next int64) {
		cursors = appendString(cursors, b.parts[part].Name)
		cursors = binary.AppendUvarint(cursors, uint64(next))
		nc++
	}
	for i := range c.Cursors {
		if cur := &c.Cursors[i]; cur.Behind {
			position(cur.Part, cur.Next)
		}
	}
	for _, at := range c.exact() {
		if cur := c.Cursor(at.Part); cur == nil || !cur.Behind {
			position(at.Part, at.Offset)
		}
	}
	if c.Flights.Len() > 0 {
		for _, id := range c.Flights.Ordered() {
			f := c.Flights.Get(id)
			if f.QoS == 2 && c.inboxOf() == nil || f.Share != nil || below != nil && !f.Kept && f.Offset >= below[f.Part] && !c.positionedIn(f.Part) {
				continue
			}
			flights = appendString(flights, b.parts[f.Part].Name)
			flights = binary.AppendUvarint(flights, uint64(f.Offset))
			flights = appendFlight(flights, f)
			nf++
		}
	}
	if nc == 0 && nf == 0 {
		return nil
	}
	v := binary.AppendUvarint(nil, uint64(nc))
	v = binary.AppendUvarint(append(v, cursors...), uint64(nf))
	return append(v, flights...)
}

// decodePositions restores cursors and QoS 1 flights.
func (b *Broker) decodePositions(c *Client, v []byte) error {
	d := &decoder{v: v}
	for range d.count() {
		name, next := d.string(), int64(d.uvarint())
		if p := b.o.Streams.Partition(name); p != nil && !d.bad {
			c.FallBehind(p.ID, next)
		}
	}
	for range d.count() {
		name, offset := d.string(), int64(d.uvarint())
		f := decodeFlight(d, strings.HasPrefix(c.ClientID, shareMark))
		p := b.o.Streams.Partition(name)
		if d.bad || p == nil {
			continue
		}
		f.Part, f.Offset = p.ID, offset
		c.Flights.Restore(f)
	}
	return d.err()
}

// parseFlightKey takes the key of a flight's record apart; share is the group that the message came from, if any.
func (b *Broker) parseFlightKey(rest []byte) (k flightKey, share string, ok bool) {
	name, off, ok := strings.Cut(string(rest), "\x00")
	p := b.o.Streams.Partition(name)
	if !ok || len(off) < 10 || p == nil {
		return flightKey{}, "", false
	}
	return flightKey{p.ID, int64(binary.BigEndian.Uint64([]byte(off[:8])))}, off[10:], true
}

// positionedIn reports whether the position record names the partition.
func (c *Client) positionedIn(part uint32) bool {
	if cur := c.Cursor(part); cur != nil && cur.Behind {
		return true
	}
	for _, at := range c.exact() {
		if at.Part == part {
			return true
		}
	}
	return false
}
