package broker

import (
	"fmt"
	"sync"

	"edgehub/hub/message"
	"edgehub/hub/stream"
	"edgehub/storage/seglog"
)

// overrunShare is the part of a stream's hard limit by which it may exceed it while copies are made; overrunBytes and
// overrunRecords are what that is at least: a deletion waits for the disk, too, and while it does records go on coming.
// Beyond it segments go without copies: the limit is the harder promise.
const (
	overrunShare   = 4
	overrunBytes   = 64 << 20
	overrunRecords = 1 << 20
)

// KeepOffline copies what sessions still have to receive of a segment that is about to be deleted. The segment may go
// only when it has returned nil.
func (b *Broker) KeepOffline(sp *stream.Partition, seg seglog.SegmentInfo) error {
	return b.keepOffline(b.parts[sp.ID], seg, b.ask)
}

func (b *Broker) keepOffline(p *partition, seg seglog.SegmentInfo, ask asker) error {
	o := &b.offline
	if !o.isKept(p) {
		return nil
	}
	if err := b.countCopies(ask); err != nil {
		return err
	}
	s, err := b.needed(p.ID, seg.Next, ask)
	if err != nil {
		if o.overrun(p) && !b.isStopping() { // nobody could say what is lost: readers count what they miss
			return nil
		}
		return fmt.Errorf("broker: keep messages for sessions: %w", err)
	}
	if !s.quiet(p.ID, seg.Base, seg.Next) {
		if err := b.copySegment(p, seg, s); err != nil {
			return fmt.Errorf("broker: keep messages for sessions: %w", err)
		}
	}
	o.mu.Lock()
	o.judged[p.ID] = max(o.judged[p.ID], seg.Next)
	o.mu.Unlock()
	// Who has published what at QoS 2 must not be known from a segment that goes.
	if v := b.vector.stored.Load(); v == nil || (*v)[p.ID] < seg.Next {
		return b.o.Meta.Commit()
	}
	return nil
}

// isStopping reports that nobody answers any more: what is not done by now is for the next start.
func (b *Broker) isStopping() bool {
	select {
	case <-b.stop:
		return true
	default:
		return false
	}
}

// overrun reports that a stream is so far above its limit that its segments have to go at once.
func (o *offline) overrun(p *partition) bool {
	lim := p.Stream.Limits()
	var bytes, records int64
	for _, x := range p.Stream.Partitions {
		bytes += x.Log.Bytes()
		records += x.Log.Next() - x.Log.First()
	}
	return lim.MaxBytes > 0 && bytes > lim.MaxBytes+max(lim.MaxBytes/overrunShare, o.slack.bytes) ||
		lim.MaxRecords > 0 && records > lim.MaxRecords+max(lim.MaxRecords/overrunShare, o.slack.records)
}

// copySegment goes through a segment once.
func (b *Broker) copySegment(p *partition, seg seglog.SegmentInfo, s *snapshot) error {
	w := &copier{b: b, p: p, late: b.offline.overrun(p)}
	defer s.forget()
	defer w.abandon()
	err := b.scanSegment(p, seg, s, func(rec *seglog.Record) error {
		size := copySize(rec)
		wanted := s.judge(b, p.ID, rec.Offset, rec, func(n *need) bool {
			if w.late {
				b.lose(n, 1)
				b.Stats.OfflineLate.Add(1)
				return false
			}
			return n.take(b, p, rec.Offset, rec.TimeMs, size)
		})
		if !wanted || w.late {
			return nil
		}
		return w.add(rec, rec.Offset, rec.Headers)
	})
	if err == nil {
		err = w.finish()
	}
	if err != nil {
		if !b.offline.overrun(p) {
			return err
		}
		b.log.Error("messages for absent sessions could not be copied, and their segment has to go", "partition", p.Name, "base", seg.Base, "err", err)
		b.loseFresh(s)
		return nil
	}
	if len(w.runs) > 0 {
		b.addRuns(p.ID, seg.Base, seg.Next, w.runs)
	}
	b.enterFresh(s, p.ID)
	if err := b.lookAhead(p, seg.Next, s); err != nil { // the next time
		b.log.Warn("the log could not be looked through for what sessions have in it", "partition", p.Name, "err", err)
	}
	if len(w.runs) == 0 {
		return nil
	}
	if err := b.o.Meta.Sync(); err != nil {
		return err
	}
	return b.fitCopies(s)
}

// copySize is what a copy counts for: the same for the record and for each copy of it.
func copySize(rec *seglog.Record) int64 {
	n := len(rec.Key) + len(rec.Value) + len(rec.Headers.Raw)
	if p, ok := message.PeekPlace(rec.Headers); ok {
		n -= p.Size()
	}
	return int64(n)
}

// loseFresh: what was noted for the sessions could not be copied.
func (b *Broker) loseFresh(s *snapshot) {
	for _, n := range s.needs {
		for _, x := range n.fresh {
			b.lose(n, x.n)
			b.Stats.OfflineLate.Add(x.n)
		}
	}
}

// scanSegment reads a segment where somebody may need something, stepping over what its summary rules out.
func (b *Broker) scanSegment(p *partition, seg seglog.SegmentInfo, s *snapshot, fn func(*seglog.Record) error) error {
	o := &b.offline
	flight := s.firstFlight(p.ID, seg.Base)
	at := max(seg.Base, min(s.low[p.ID], flight))
	until := int64(-1) // the summary has been asked up to here
	for at < seg.Next {
		if at >= until && flight >= seg.Next { // a summary does not know what is in flight
			at, until = p.Log.NextMatch(at, func(key []byte) bool { return len(s.matching(key)) > 0 })
			if until = max(until, at+1); at >= seg.Next {
				break
			}
		}
		var err error
		if o.buf, err = p.Log.Read(at, readBytes, o.buf[:0]); err != nil {
			return err
		}
		before := at
		for rec := range seglog.Records(o.buf) {
			if rec.Offset < at {
				continue
			}
			if rec.Offset >= seg.Next {
				return nil
			}
			at = rec.Offset + 1
			if err := fn(&rec); err != nil {
				return err
			}
		}
		if at == before { // damage up to the end
			break
		}
	}
	return nil
}

// copier appends copies to the internal stream, a run at a time.
type copier struct {
	b    *Broker
	p    *partition // where the records are from
	late bool       // the stream has run over its limit: no more copies
	runs []run
	cur  run

	mu   sync.Mutex
	wg   sync.WaitGroup
	code byte
	next int64
}

// add appends a copy of the record that stands for offset, and writes the run when it is long enough.
func (w *copier) add(rec *seglog.Record, offset int64, headers seglog.Headers) error {
	b, to := w.b, w.b.offline.to
	if w.cur.n == 0 {
		w.cur = run{from: offset, at: to.Log.Next()}
		w.code = CodeOK
	}
	if _, ok := message.PeekPlace(headers); !ok {
		headers = seglog.Headers{Count: headers.Count, Raw: append([]byte(nil), headers.Raw...)}
		message.AppendPlace(&headers, message.Place{Partition: []byte(w.p.Name), Offset: offset, TimeMs: rec.TimeMs})
	}
	m := message.Message{Topic: rec.Key, Payload: rec.Value, TimeMs: rec.TimeMs}
	w.wg.Add(1)
	code := b.append(to, copyEntry, &m, headers, pending{quiet: true, done: w.done})
	if code != CodeOK {
		w.wg.Done()
		return fmt.Errorf("a copy was refused with code %#x", code)
	}
	w.cur.to = offset + 1
	w.cur.n++
	w.cur.bytes += copySize(rec)
	if w.cur.n >= runCopies || w.cur.bytes >= runBytes {
		return w.flush()
	}
	return nil
}

// copyEntry stands for every topic: copies are not fanned out.
var copyEntry = &topicEntry{}

func (w *copier) done(_ *stream.Partition, offset int64, code byte) {
	w.mu.Lock()
	if code != CodeOK {
		w.code = code
	}
	w.next = offset + 1
	w.mu.Unlock()
	w.wg.Done()
}

// flush writes the run.
func (w *copier) flush() error {
	if w.cur.n == 0 {
		return nil
	}
	w.b.commit(w.b.offline.to, nil)
	w.wg.Wait()
	if w.code != CodeOK {
		return fmt.Errorf("copies were refused with code %#x", w.code)
	}
	w.cur.end = w.next
	w.runs = append(w.runs, w.cur)
	w.b.Stats.OfflineCopied.Add(int64(w.cur.n))
	w.cur = run{}
	w.late = w.late || w.b.offline.overrun(w.p)
	return nil
}

// abandon leaves nothing of a run that was not finished in the open batch: the next one begins where the log ends.
func (w *copier) abandon() {
	if w.cur.n > 0 {
		w.b.commit(w.b.offline.to, nil)
		w.wg.Wait()
	}
}

// finish writes what is left and makes all of it durable: the deletion of the segment survives a power cut, and what
// takes its place must, too.
func (w *copier) finish() error {
	if err := w.flush(); err != nil || len(w.runs) == 0 {
		return err
	}
	_, err := w.b.offline.to.Log.Sync()
	return err
}
