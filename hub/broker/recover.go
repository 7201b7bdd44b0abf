package broker

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"edgehub/hub/message"
	"edgehub/hub/session"
	"edgehub/internal/hubtime"
	"edgehub/storage/seglog"
)

// LastTime is the last moment of hub time that the metadata know; the zero Mark: none.
func LastTime(m Meta) (last hubtime.Mark, err error) {
	err = m.Scan([]byte(keyTime), func(key, v []byte) error {
		if string(key) == keyTime {
			last, _ = hubtime.ParseMark(v)
		}
		return nil
	})
	return last, err
}

// recovery gathers what the metadata say before it is put together.
type recovery struct {
	b        *Broker
	vector   []int64
	flights  map[*Client][]recovered
	known    map[*Client]*inboundKnown
	wills    []*Client
	badKeys  [][]byte              // to be deleted
	retained map[string]retainedAt // of streams partitioned by client, see latest
	ended    []endedFlight         // of shared subscriptions, see dropShares
	damaged  int
}

type endedFlight struct {
	record []byte // its key
	key    flightKey
	share  string
}

type recovered struct {
	key   flightKey
	share string // the shared subscription that it came from
	f     session.Flight
}

// Recover rebuilds sessions and retained messages from the metadata, and from the part of the log that the metadata
// may not cover yet. It must run before the first loop. Records that cannot be read are skipped and counted in the
// returned number: a session that is damaged is served as far as it is known.
func (b *Broker) Recover() (damaged int, err error) {
	r := &recovery{b: b, vector: make([]int64, len(b.parts)), flights: map[*Client][]recovered{}, known: map[*Client]*inboundKnown{},
		retained: map[string]retainedAt{}}
	for _, step := range []func() error{r.readVector, r.readSessions, r.readRetained, r.offline, r.scanLog} {
		if err := step(); err != nil {
			return r.damaged, fmt.Errorf("broker: recovery: %w", err)
		}
	}
	for _, key := range r.badKeys {
		b.o.Meta.Delete(key)
	}
	r.finish()
	if err := b.o.Meta.Commit(); err != nil {
		return r.damaged, err
	}
	return r.damaged, nil
}

func (r *recovery) readVector() error {
	return r.b.o.Meta.Scan([]byte(prefixVector), func(key, v []byte) error {
		p := r.b.o.Streams.Partition(string(key[len(prefixVector):]))
		if p != nil && len(v) == 8 {
			// A power cut can take back records that were counted: positions never lie beyond the end.
			r.vector[p.ID] = min(int64(binary.BigEndian.Uint64(v)), p.Log.Next())
		}
		return nil
	})
}

func (r *recovery) client(id string) *Client {
	return r.b.reg.shard(id).clients.get(id)
}

func (r *recovery) readSessions() error {
	m := r.b.o.Meta
	steps := []struct {
		prefix string
		fn     func(key, v []byte) bool
	}{
		{prefixSession, r.session},
		{prefixSub, r.sub},
		{prefixPosition, r.positions},
		{prefixFlight, r.flight},
		{prefixInbound, r.inbound},
		{prefixWill, r.will},
	}
	for _, s := range steps {
		err := m.Scan([]byte(s.prefix), func(key, v []byte) error {
			if !s.fn(key, v) {
				r.drop(key)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// drop has a damaged key deleted once no scan is under way.
func (r *recovery) drop(key []byte) {
	r.damaged++
	r.leave(key)
}

// leave has a key deleted once no scan is under way.
func (r *recovery) leave(key []byte) { r.badKeys = append(r.badKeys, slices.Clone(key)) }

// orphan passes over a record whose session is gone: a kill in the middle of its end has left it behind. Only a
// malformed key is damage.
func (r *recovery) orphan(key []byte, wellFormed bool) bool {
	if wellFormed {
		r.leave(key)
	}
	return wellFormed
}

func (r *recovery) session(key, v []byte) bool {
	id := string(key[len(prefixSession):])
	d := &decoder{v: v}
	attached := d.byte() == 1
	c := &Client{Session: session.Session{ClientID: id, Expiry: uint32(d.uvarint()), ExpiresMs: int64(d.uvarint())}}
	last := d.uvarint()
	c.Inbound.SkipTo(last)
	if len(d.v) > 0 {
		c.user = keepUser(d.string())
		c.holder = c.user
	}
	if d.bad || !c.Persistent() {
		return false
	}
	c.stored, c.crashed, c.lastStored = true, attached, true
	r.known[c] = &inboundKnown{last: last}
	r.b.reg.shard(id).clients.put(c)
	return true
}

func (r *recovery) sub(key, v []byte) bool {
	id, filter, ok := cutClient(key, prefixSub)
	c := r.client(id)
	if !ok || c == nil {
		return r.orphan(key, ok)
	}
	s, err := r.b.decodeSub(string(filter), v)
	if err != nil {
		return false
	}
	c.Subs = append(c.Subs, s)
	r.b.subTotal.Add(1)
	return true
}

func (r *recovery) positions(key, v []byte) bool {
	c := r.client(string(key[len(prefixPosition):]))
	if c == nil {
		return r.orphan(key, true)
	}
	c.positioned = true
	return r.b.decodePositions(c, v) == nil
}

func (r *recovery) flight(key, v []byte) bool {
	id, rest, ok := cutClient(key, prefixFlight)
	if ok && id == shareMark {
		k, share, ok := r.b.parseFlightKey(rest)
		r.ended = append(r.ended, endedFlight{slices.Clone(key), k, share})
		return ok
	}
	c := r.client(id)
	if !ok || c == nil {
		return r.orphan(key, ok)
	}
	k, share, ok := r.b.parseFlightKey(rest)
	d := &decoder{v: v}
	f := decodeFlight(d, false)
	if !ok || d.bad {
		return false
	}
	f.Part, f.Offset = k.part, k.offset
	r.flights[c] = append(r.flights[c], recovered{k, share, f})
	return true
}

func (r *recovery) inbound(key, v []byte) bool {
	c := r.client(string(key[len(prefixInbound):]))
	if c == nil {
		return r.orphan(key, true)
	}
	d := &decoder{v: v}
	known := &inboundKnown{last: max(d.uvarint(), c.Inbound.Last()), maybe: map[uint64]bool{}}
	c.Inbound.SkipTo(known.last)
	c.lastStored = false
	for range d.count() {
		id, seq := uint16(d.uvarint()), d.uvarint()
		if d.byte() == 1 && !d.bad {
			c.Inbound.Restore(id, seq)
		} else {
			known.maybe[seq] = true
		}
	}
	c.inboundStored = true
	r.known[c] = known
	return d.err() == nil
}

// inboundKnown is what the metadata say of a client's QoS 2 publishes: all numbers up to last are settled, except
// those of which it was not known whether the log has them.
type inboundKnown struct {
	last  uint64
	maybe map[uint64]bool
}

// will: those of sessions that were connected are fired, delayed ones wait on, counted from now.
func (r *recovery) will(key, v []byte) bool {
	id, seq, ok := cutClient(key, prefixWill)
	if !ok || len(seq) != 8 {
		return false
	}
	w, err := decodeWill(slices.Clone(v))
	if err != nil {
		return false
	}
	c := r.client(id)
	if c == nil || c.will != nil { // of a session that ended with its connection, or one that was about to be published
		c = &Client{Session: session.Session{ClientID: id}, user: keepUser(unknownUser)}
	}
	w.seq = binary.BigEndian.Uint64(seq)
	c.will = w
	r.b.willSeq.Store(max(r.b.willSeq.Load(), w.seq)) // still single-threaded
	r.wills = append(r.wills, c)
	return true
}

func (r *recovery) readRetained() error {
	m := r.b.o.Meta
	return m.Scan([]byte(prefixRetained), func(key, v []byte) error {
		name := string(key[len(prefixRetained):])
		part, offset, size, ok := decodeRef(v)
		p := r.b.o.Streams.Partition(part)
		if !ok || p == nil || offset < p.Log.First() || offset >= p.Log.Next() {
			r.drop(key)
			return nil
		}
		r.b.retained.set(name, retRef{r.b.parts[p.ID], offset, size})
		return nil
	})
}

// scanLog reads what lies above the vector: records whose effects on the metadata may not have been written when the
// hub was killed. Their publisher got no answer, and will repeat them.
func (r *recovery) scanLog() error {
	var buf []byte
	for _, p := range r.b.parts {
		if !p.Stream.Configured || p.Stream.Name[0] == '$' { // copies say nothing new
			continue
		}
		for at := max(r.vector[p.ID], p.Log.First()); at < p.Log.Next(); {
			var err error
			if buf, err = p.Log.Read(at, readBytes, buf[:0]); err != nil {
				// The hub serves the rest. What is not seen here are repeats of QoS 2 publishes that had no answer yet, and
				// retained messages of the last second.
				r.b.log.Error("the end of the log could not be read at the start", "partition", p.Name, "offset", at, "err", err)
				r.damaged++
				break
			}
			next := at
			for rec := range seglog.Records(buf) {
				if rec.Offset >= at {
					next = rec.Offset + 1
					r.apply(p, &rec)
				}
			}
			if next == at { // damage up to the end
				break
			}
			at = next
		}
	}
	return nil
}

func (r *recovery) apply(p *partition, rec *seglog.Record) {
	if rec.Headers.Count == 0 {
		return
	}
	_, retain, from := message.Peek(rec.Headers)
	if retain && r.latest(p, rec) {
		r.b.retained.update(r.b, p, rec.Offset, string(rec.Key), len(rec.Value))
	}
	if from.PacketID == 0 {
		return
	}
	c := r.client(string(from.Client))
	if c == nil {
		return
	}
	c.Inbound.SkipTo(from.QoS2Seq)
	c.lastStored = false
	if k := r.known[c]; from.QoS2Seq > k.last || k.maybe[from.QoS2Seq] {
		c.Inbound.Restore(from.PacketID, from.QoS2Seq)
	}
}

// latest reports whether a retained record is news. Where a topic has one partition, the order of its log says so;
// where clients have partitions, the partitions are scanned one after the other, and time decides.
func (r *recovery) latest(p *partition, rec *seglog.Record) bool {
	if !p.Stream.ByClient {
		return true
	}
	name := string(rec.Key)
	last, ok := r.retained[name]
	if ref, has := r.b.retained.get(name); !ok && has { // as the metadata have it
		last = retainedAt{ref.part, r.b.timeOf(ref)}
	}
	if rec.TimeMs < last.ms || rec.TimeMs == last.ms && last.part != p { // within a millisecond what is known stays
		return false
	}
	r.retained[name] = retainedAt{p, rec.TimeMs}
	return true
}

// retainedAt is where and when a topic was last set or cleared.
type retainedAt struct {
	part *partition
	ms   int64
}

// timeOf is when a retained message was published, 0 when that cannot be read.
func (b *Broker) timeOf(ref retRef) int64 {
	buf, err := ref.part.Log.Read(ref.offset, 1, nil)
	if err != nil {
		return 0
	}
	for rec := range seglog.Records(buf) {
		if rec.Offset == ref.offset {
			return rec.TimeMs
		}
	}
	return 0
}

// finish puts the sessions together: all are offline now.
func (r *recovery) finish() {
	now := r.b.o.Clock.NowMs()
	for i := range r.b.reg.shards {
		for c := range r.b.reg.shards[i].clients.all() {
			r.finishClient(c, now)
		}
	}
	r.shares()
	for _, c := range r.wills {
		if c.stored && (!c.crashed || c.will.DelayS > 0) {
			continue // delayed: scheduled with its session
		}
		r.b.fireWill(c, nil)
	}
	for i := range r.b.reg.shards {
		for c := range r.b.reg.shards[i].clients.all() {
			c.crashed = false
			r.b.timers.scheduleAt(c, now)
		}
	}
}

func (r *recovery) finishClient(c *Client, now int64) {
	if c.crashed { // was connected: live wherever it had no position of its own
		for _, p := range r.b.parts {
			if concerns(c.Subs, p) && c.Cursor(p.ID) == nil {
				c.FallBehind(p.ID, r.vector[p.ID])
			}
		}
		if c.Expiry != session.NeverExpires {
			c.ExpiresMs = now + int64(c.Expiry)*1000
		}
	}
	for i := range c.Cursors {
		c.Cursors[i].Next = min(c.Cursors[i].Next, r.b.parts[c.Cursors[i].Part].Log.Next())
	}
	r.finishFlights(c)
	for _, id := range c.Flights.Ordered() {
		if f := c.Flights.Get(id); f.Offset >= r.b.parts[f.Part].Log.Next() {
			c.Flights.Remove(id)
		}
	}
	for _, s := range c.Subs {
		for i := range s.Starts {
			s.Starts[i].Offset = min(s.Starts[i].Offset, r.b.parts[s.Starts[i].Part].Log.Next())
		}
	}
	r.b.putInbound(c)
	r.b.putPositions(c, nil)
	r.b.putSession(c, false)
}

// finishFlights restores the QoS 2 messages in flight.
//
// One that does not lie below the session's position has never left: the packet would have waited for both records.
// It is read again, in its place among the others; unless every subscription is younger: it left because of one that has
// ended since, and with that ended the position.
func (r *recovery) finishFlights(c *Client) {
	fl := r.flights[c]
	slices.SortFunc(fl, func(a, b recovered) int { return cmp.Compare(a.f.Seq, b.f.Seq) })
	for _, x := range fl {
		if x.share != "" {
			x.f.Share = &member{id: c.ClientID, key: x.share}
		}
		cur := c.Cursor(x.key.part)
		toCome := x.share == "" && !x.f.Retained && !x.f.Kept && cur != nil && x.key.offset >= cur.Next
		// A power cut may have taken the record back; its offset is given to another one.
		if toCome || x.key.offset >= r.b.parts[x.key.part].Log.Next() {
			r.b.o.Meta.Delete(r.b.flightRecordKey(c.ClientID, &x.f))
			continue
		}
		c.Flights.Restore(x.f)
	}
}
