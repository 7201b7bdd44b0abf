package broker

import (
	"time"

	"edgehub/hub/stream"
	"edgehub/storage/seglog"
)

// Streams that linger.
//
// A stream may ask that its messages wait for others to be written with: compression is worth little on batches of one,
// and so are writes to flash. Its open batch is then written when it is large enough, or when its oldest message has
// waited long enough.
//
// With durability memory they are handed out and acknowledged in the round that took them, before that write. What a
// kill then takes is bounded by the linger in time, and by lingerBytes and Limits.InboundBytes in size. Retained
// messages are the exception: they are an index into the log, so a batch that has one is written first. A write that
// fails is tried again, in order, for as long as there is memory for what waits behind it; then publishes are refused.

// lingerBytes of records are written however young they are: as many as a batch of the log takes.
const lingerBytes = seglog.BatchBytesMax

// retryBehind is when a write behind that failed is tried again.
const retryBehind = 200 * time.Millisecond

// ripe returns the batch that is to be written now, nil: none. Of a stream with durability memory it first hands out what
// is new. Called by the committer, with p.mu held; it may give that up for a while.
func (b *Broker) ripe(p *partition, l *Loop) *batch {
	st := p.Stream
	if st.Linger <= 0 {
		if len(p.open.pend) == 0 {
			return nil
		}
		return p.take()
	}
	if p.stuck != nil && p.due && !p.stuckBusy {
		p.due = false
		return p.stuck
	}
	if st.Durability == stream.Memory && !p.open.urgent {
		b.handOutEarly(p, l)
	}
	switch {
	case p.stuck != nil || len(p.open.pend) == 0:
		return nil
	case p.due || p.open.urgent || p.open.b.Len() >= lingerBytes:
		return p.take()
	}
	p.arm(b, st.Linger)
	return nil
}

// handOutEarly hands the records of the open batch out that have not been. Appends go on meanwhile: they write behind
// the bytes taken here, or into another array.
func (b *Broker) handOutEarly(p *partition, l *Loop) {
	for bt := p.open; bt.acked < len(bt.pend) && !bt.urgent; {
		from, to := bt.acked, len(bt.pend)
		pend, bytes, base := bt.pend[from:to:to], bt.b.Bytes(), bt.b.Base()+int64(from)
		p.mu.Unlock()
		b.handOut(p, pend, base, bytes, l)
		p.mu.Lock()
		bt.acked = to
	}
}

// arm has the partition committed after d, once. Called with p.mu held.
func (p *partition) arm(b *Broker, d time.Duration) {
	if p.armed {
		return
	}
	p.armed = true
	time.AfterFunc(d, func() { b.commitDue(p) })
}

// commitDue writes what lingers, whatever its age.
func (b *Broker) commitDue(p *partition) {
	p.mu.Lock()
	p.armed = false
	p.due = len(p.open.pend) > 0 || p.stuck != nil // seen by the committer, if there is one now
	p.mu.Unlock()
	b.commit(p, nil)
}

// setBehind notes that a batch is being written of which everything has been handed out. What comes meanwhile may be
// handed out too, so that the role of the committer is free until the write is over; but nothing else is written.
func (p *partition) setBehind(bt *batch) {
	p.mu.Lock()
	p.stuck, p.stuckBusy = bt, true
	p.mu.Unlock()
}

// writeBehind does that on a goroutine that is no loop, which is the committer when it is called, and not after.
func (b *Broker) writeBehind(p *partition, t *task) {
	p.setBehind(t.bt)
	p.mu.Lock()
	p.committing = false
	p.mu.Unlock()
	b.writers.here(t)
	b.wroteBehind(p, t.bt, nil, t.err)
	b.commit(p, nil)
}

// wroteBehind goes on with a batch of a stream with durability memory, or keeps it to be tried again.
func (b *Broker) wroteBehind(p *partition, bt *batch, l *Loop, err error) {
	if err != nil {
		b.Stats.WriteBehindFailed.Add(1)
		if n, say := b.said.refused.next(b.o.Clock.NowMs()); say {
			b.log.Error("write failed; acknowledged messages of a stream with durability memory wait in memory", "partition", p.Name, "records", len(bt.pend), "err", err, "not_said", n)
		}
		p.mu.Lock()
		p.stuck, p.stuckBusy = bt, false
		p.arm(b, retryBehind)
		p.mu.Unlock()
		return
	}
	b.countWrite(p, bt)
	if bt.acked < len(bt.pend) {
		b.handOut(p, bt.pend[bt.acked:], bt.b.Base()+int64(bt.acked), bt.b.Bytes(), l)
	}
	b.Stats.InBytes.Add(bt.bytes)
	b.settleBatch(p, bt)
	p.mu.Lock()
	if p.stuck == bt {
		p.stuck, p.stuckBusy = nil, false
		p.due = len(p.open.pend) > 0
	}
	p.mu.Unlock()
	p.recycle(bt)
}

// readable is the offset below which a partition can be read from the log. With durability memory more is committed
// than written: a reader that wants more has it written, and waits a little for that.
func (b *Broker) readable(p *partition, from int64) int64 {
	for range readTries {
		if from < p.Readable() || from >= p.Committed() {
			break
		}
		b.commitDue(p)
		if from < p.Readable() {
			break
		}
		time.Sleep(retryBehind / readTries)
	}
	return p.Readable()
}

// readTries bounds how often a reader has a partition written.
const readTries = 100

// flushBehind writes what lingers, at a stop. The loops have ended; a timer may still be at it.
func (b *Broker) flushBehind() {
	for _, p := range b.parts {
		if p.Stream.Linger <= 0 {
			continue
		}
		for range flushTries {
			b.commitDue(p)
			if n, busy := p.behind(); n == 0 && !busy {
				break
			}
			time.Sleep(retryBehind / 20)
		}
		if n, _ := p.behind(); n > 0 {
			b.Stats.LostBehind.Add(int64(n))
			b.log.Error("messages that were not written yet are lost, since the disk does not take them", "partition", p.Name, "records", n)
		}
	}
}

// flushTries bounds how long a stop waits for a disk that does not take what lingers.
const flushTries = 50

// behind is how many records are not written, and whether somebody is committing.
func (p *partition) behind() (records int, busy bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	records = len(p.open.pend)
	if p.stuck != nil {
		records += len(p.stuck.pend)
	}
	return records, p.committing
}
