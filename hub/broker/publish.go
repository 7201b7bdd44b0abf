package broker

import (
	"sync/atomic"

	"edgehub/hub/message"
	"edgehub/hub/stream"
	"edgehub/storage/seglog"
)

// topicEntry is what the hub knows of one topic: where it goes and, cached, who wants it. Entries are shared between
// loops through the records that point to them.
type topicEntry struct {
	name   string
	raw    []byte         // name
	stream *stream.Stream // nil: no stream captures it
	part   *partition     // nil: the partition depends on the client
	match  atomic.Pointer[matchSet]
}

// entry returns the loop's entry for a topic.
func (l *Loop) entry(name []byte) *topicEntry {
	if e, ok := l.topics[string(name)]; ok {
		return e
	}
	if len(l.topics) >= topicCacheMax {
		clear(l.topics)
	}
	e := l.b.newEntry(string(name))
	l.topics[e.name] = e
	return e
}

func (b *Broker) newEntry(name string) *topicEntry {
	e := &topicEntry{name: name, raw: []byte(name)}
	if !Reserved(name) {
		e.stream = b.o.Streams.Route(name)
	}
	if e.stream != nil && !e.stream.ByClient {
		e.part = b.parts[e.stream.Pick(name, "").ID]
	}
	return e
}

// Publish takes a message from a client. CodeOK means that conn.Ack(seq, …) follows after the commit (for any QoS;
// conn nil: no acknowledgement); any other code means that the message was refused and nothing follows.
// m and what it points to are read during the call only.
func (l *Loop) Publish(from *Client, conn Conn, seq uint32, m *message.Message) byte {
	if !from.mayPublish(m.Topic) {
		l.b.Stats.DeniedPublish.Add(1)
		from.refuse(m.Origin.QoS2Seq)
		return CodeNotAuthorized
	}
	e := l.entry(m.Topic)
	if from.access != nil {
		from.access.okTopic = e.name
	}
	p, code := l.b.choose(e, from)
	if code == CodeOK && l.b.diskRefuses(m.QoS) {
		code = CodeQuotaExceeded
	}
	if code == CodeOK && m.Retain && l.metaFull() { // each puts its place in the log
		l.b.Stats.RefusedBusy.Add(1)
		code = CodeQuotaExceeded
	}
	if code == CodeOK && m.Retain && l.b.retained.isFull(&l.b.o.Limits, e.name, len(m.Payload)) {
		l.b.Stats.RefusedRetained.Add(1)
		code = CodeQuotaExceeded
	}
	if code == CodeOK {
		l.headers.Reset()
		m.AppendHeaders(&l.headers)
		code = l.b.append(p, e, m, l.headers, pending{from: from, conn: conn, loop: l, seq: seq, qos2: m.Origin.QoS2Seq})
	}
	if code == CodeOK {
		l.touch(p)
		if m.Origin.PacketID > 0 {
			from.Inbound.Place(m.Origin.PacketID, p.ID)
		}
	} else if from != nil {
		from.refuse(m.Origin.QoS2Seq)
	}
	return code
}

// PublishDirect takes a message from the hub itself (an operator, a will) on any goroutine. done is called once, on
// any goroutine, after the commit or the refusal; part is nil when the message reached no partition.
func (b *Broker) PublishDirect(m *message.Message, done func(part *stream.Partition, offset int64, code byte)) {
	b.publishDirect(m, nil, done)
}

// publishDirect is PublishDirect; on a loop, which must not write by itself, the commit is its round's.
func (b *Broker) publishDirect(m *message.Message, l *Loop, done func(part *stream.Partition, offset int64, code byte)) {
	e := b.newEntry(string(m.Topic))
	p, code := b.choose(e, nil)
	if code == CodeOK && b.diskRefuses(m.QoS) {
		code = CodeQuotaExceeded
	}
	if code == CodeOK {
		var headers seglog.Headers
		m.AppendHeaders(&headers)
		code = b.append(p, e, m, headers, pending{done: done})
	}
	if code != CodeOK {
		if done != nil {
			done(nil, 0, code)
		}
		return
	}
	if l != nil {
		l.touch(p)
		l.Schedule()
		return
	}
	b.commit(p, nil)
}

// choose picks the partition of a publish, or the reason to refuse it.
func (b *Broker) choose(e *topicEntry, from *Client) (*partition, byte) {
	if e.stream == nil {
		b.Stats.Unroutable.Add(1)
		if n, say := b.said.unroutable.next(b.o.Clock.NowMs()); say {
			b.log.Warn("publish refused: no stream captures the topic; one that begins with $ needs a stream with a filter that names it",
				"topic", e.name, "not_said", n)
		}
		return nil, CodeNotAuthorized
	}
	if e.stream.Full() {
		e.stream.Refused.Add(1)
		b.Stats.RefusedFull.Add(1)
		return nil, CodeQuotaExceeded
	}
	if e.part != nil {
		return e.part, CodeOK
	}
	client := ""
	if from != nil {
		client = from.ClientID
	}
	return b.parts[e.stream.Pick(e.name, client).ID], CodeOK
}

// append copies the message into the partition's open batch: the one copy between the socket and the disk.
func (b *Broker) append(p *partition, e *topicEntry, m *message.Message, headers seglog.Headers, pd pending) byte {
	pd.entry, pd.retain = e, m.Retain

	n := int64(len(m.Topic) + len(m.Payload) + len(headers.Raw))
	st := p.Stream
	if most := st.Limits().MaxBytes; most > 0 && n > most/4 { // it would push out nearly everything else
		st.Refused.Add(1)
		b.Stats.RefusedFull.Add(1)
		return CodeQuotaExceeded
	}
	p.mu.Lock()
	if p.bytes > b.o.Limits.InboundBytes || p.Stalled() {
		p.mu.Unlock()
		b.Stats.RefusedBusy.Add(1)
		return CodeQuotaExceeded
	}
	pd.loc = p.open.b.Append(m.TimeMs, m.Topic, m.Payload, headers)
	pd.timeMs = pd.loc.TimeMs
	p.open.pend = append(p.open.pend, pd)
	p.open.urgent = p.open.urgent || pd.retain
	p.open.bytes += n
	p.bytes += n
	p.mu.Unlock()
	return CodeOK
}

// commitPasses bounds how long one committer serves a partition that others keep filling.
const commitPasses = 8

// commit writes what the partition's open batch holds, fans it out and acknowledges it. l is the calling loop, nil
// on another goroutine. When another goroutine is the committer already, it will take these records too: a batch is
// left open only after it was seen empty under the lock.
func (b *Broker) commit(p *partition, l *Loop) {
	p.mu.Lock()
	if p.committing {
		p.mu.Unlock()
		return
	}
	p.committing = true
	p.mu.Unlock()
	b.serve(p, l)
}

// serve is the committer's work. It returns when the caller is not the committer any more: nothing is to be written, or
// a write is late and its writer goes on, or others keep filling the partition and it is committed again soon.
func (b *Broker) serve(p *partition, l *Loop) {
	p.mu.Lock()
	for range commitPasses {
		bt := b.ripe(p, l)
		if bt == nil {
			p.committing = false
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		if !b.write(p, bt, l) {
			return
		}
		p.mu.Lock()
	}
	p.committing = false
	more := len(p.open.pend) > 0 && (p.due || p.Stream.Linger <= 0 || p.open.acked < len(p.open.pend))
	p.mu.Unlock()
	if more { // hand over, so that this loop's own clients are served
		if l != nil {
			l.touch(p)
			return
		}
		go b.commit(p, nil)
	}
}

// Roll seals the active segment of a partition, so that retention can delete it. It does nothing while somebody
// commits: a partition in use rolls by size, and retention asks again.
func (b *Broker) Roll(sp *stream.Partition) error {
	p := b.parts[sp.ID]
	p.mu.Lock()
	if p.committing {
		p.mu.Unlock()
		return nil
	}
	p.committing = true
	p.mu.Unlock()
	err := p.Log.Roll()
	p.mu.Lock()
	p.committing = false
	p.mu.Unlock()
	b.commit(p, nil) // what was appended meanwhile
	return err
}

// take swaps the open batch. Under p.mu.
func (p *partition) take() *batch {
	bt := p.open
	next := p.spare
	p.spare = nil
	if next == nil {
		next = &batch{}
	}
	next.b.Reset(bt.b.Next())
	next.b.Floor(bt.b.LastTime())
	p.open, p.writing = next, bt
	p.due = false
	return bt
}

// recycle keeps one batch for the next swap.
func (p *partition) recycle(bt *batch) {
	clear(bt.pend)
	if cap(bt.pend) > 1<<14 {
		bt.pend = nil
	}
	bt.pend = bt.pend[:0]
	bt.acked, bt.urgent = 0, false
	p.mu.Lock()
	if p.spare == nil {
		p.spare = bt
	}
	p.mu.Unlock()
}

// write writes a batch that was taken and does what follows. False: the loop was to wait too long; the batch's writer
// does that, and is the committer.
func (b *Broker) write(p *partition, bt *batch, l *Loop) bool {
	behind := p.Stream.Durability == stream.Memory && bt.acked == len(bt.pend)
	if l == nil {
		t := &task{p: p, bt: bt}
		if behind {
			b.writeBehind(p, t)
			return false
		}
		b.writers.here(t)
		b.wrote(p, bt, nil, t.err)
		return true
	}
	t := l.newTask()
	t.p, t.bt = p, bt
	if behind {
		p.setBehind(bt)
	}
	switch {
	case l.do(t):
		b.wrote(p, bt, l, t.err)
		return true
	case behind:
		p.mu.Lock()
		p.committing = false
		p.mu.Unlock()
		l.touch(p) // the writer may have looked before that
	}
	return false
}

// wrote goes on with a batch after its write. By the committer.
func (b *Broker) wrote(p *partition, bt *batch, l *Loop, err error) {
	switch {
	case p.Stream.Durability == stream.Memory:
		b.wroteBehind(p, bt, l, err)
	case err != nil:
		b.refuse(p, bt, l, err)
	default:
		b.countWrite(p, bt)
		if p.Stream.Durability != stream.Synced {
			b.committed(p, bt, l)
			p.recycle(bt)
			break
		}
		// Committed, fanned out and acknowledged only when the group fdatasync has returned: see Synced.
		p.mu.Lock()
		p.awaiting = append(p.awaiting, bt)
		p.mu.Unlock()
		b.o.Streams.RequestSync(p.Partition)
	}
	p.mu.Lock()
	p.writing = nil
	p.mu.Unlock()
}

func (b *Broker) countWrite(p *partition, bt *batch) {
	n := bt.b.Len()
	b.Stats.Commits.Add(1)
	b.Stats.CommitBytes.Add(int64(n))
	p.noteSize(n, len(bt.pend))
	b.o.Streams.Appended(p.Partition, n)
}

// Synced completes the batches of a Synced stream that lie below the synced offset. It is called by the one syncer
// goroutine, which makes it the partition's only fan-out.
func (b *Broker) Synced(sp *stream.Partition, synced int64) {
	p := b.parts[sp.ID]
	if sp.Stream.Durability != stream.Synced {
		return
	}
	for {
		p.mu.Lock()
		if len(p.awaiting) == 0 || p.awaiting[0].b.Next() > synced {
			p.mu.Unlock()
			return
		}
		bt := p.awaiting[0]
		p.awaiting = p.awaiting[1:]
		p.mu.Unlock()
		b.committed(p, bt, nil)
		p.recycle(bt)
	}
}

// refuse tells everybody who waits for a batch that it could not be written, and for the records appended behind it
// too: their offsets depended on it and are given again.
func (b *Broker) refuse(p *partition, bt *batch, l *Loop, err error) {
	if n, say := b.said.refused.next(b.o.Clock.NowMs()); say {
		b.log.Error("append failed; the messages are refused", "partition", p.Name, "records", len(bt.pend), "err", err, "not_said", n)
	}
	p.mu.Lock()
	behind := p.open
	p.open = &batch{}
	p.open.b.Reset(p.Log.Next())
	p.open.b.Floor(behind.b.LastTime())
	for _, x := range []*batch{bt, behind} {
		for i := range x.pend {
			x.pend[i].from.refuse(x.pend[i].qos2)
		}
	}
	p.mu.Unlock()
	for _, x := range []*batch{bt, behind} {
		b.Stats.RefusedWrite.Add(int64(len(x.pend)))
		b.acknowledge(p, x.pend, x.b.Base(), l, CodeQuotaExceeded)
		b.settleBatch(p, x)
	}
}
