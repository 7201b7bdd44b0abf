package broker

import (
	"edgehub/hub/auth"
	"edgehub/hub/session"
)

// matchSet is who wants a topic, as of a version of the subscriptions: one row of targets per loop. Immutable.
type matchSet struct {
	version uint64
	rows    [][]granted
}

// granted is one connected session and what its matching subscriptions amount to.
type granted struct {
	to     *attachment
	rights *auth.Rights // that allow it
	session.Grant
}

// match returns who wants the topic now. The version is read after the records were published as committed: whoever
// subscribed before that sees them here, whoever subscribes later finds them in the log. That is what lets a session
// switch from the log to the live flow without a gap (see catchup.go).
func (b *Broker) match(e *topicEntry) *matchSet {
	version := b.version.Load()
	if m := e.match.Load(); m != nil && m.version == version {
		return m
	}
	loops := *b.loops.Load()
	m := &matchSet{version: version, rows: make([][]granted, len(loops))}
	b.subs.RLock()
	targets := b.subs.tree.Match(e.name, nil)
	b.subs.RUnlock()
	bySession := map[*attachment][]*session.Sub{}
	var order []*attachment
	for _, t := range targets {
		if bySession[t.to] == nil {
			order = append(order, t.to)
		}
		bySession[t.to] = append(bySession[t.to], t.sub)
	}
	for _, a := range order {
		rights := a.rights.Load()
		if !rights.MayReceive(e.name) {
			continue
		}
		row := a.loop.ID
		if row >= len(m.rows) {
			m.rows = append(m.rows, make([][]granted, row+1-len(m.rows))...)
		}
		m.rows[row] = append(m.rows[row], granted{a, rights, session.Merge(bySession[a])})
	}
	e.match.Store(m)
	return m
}

// committed hands a committed batch out: first to everybody who wants it, then the acknowledgements. It is the only
// place from which a publish is acknowledged, and it runs once per batch, in offset order.
func (b *Broker) committed(p *partition, bt *batch, l *Loop) {
	b.handOut(p, bt.pend, bt.b.Base(), bt.b.Bytes(), l)
	b.Stats.InBytes.Add(bt.bytes)
	b.settleBatch(p, bt)
}

// handOut is committed for records whose offsets begin at base.
func (b *Broker) handOut(p *partition, pend []pending, base int64, bytes []byte, l *Loop) {
	next := base + int64(len(pend))
	p.SetCommitted(next) // before the matches below are made: see match
	for i := range pend {
		pd := &pend[i]
		offset := base + int64(i)
		if pd.quiet {
			continue
		}
		if pd.retain {
			b.retained.update(b, p, offset, pd.entry.name, int(pd.loc.ValueEnd-pd.loc.Value))
		}
		b.fanOut(p, pd, offset, bytes, l)
	}
	p.posted.Store(next)
	b.acknowledge(p, pend, base, l, CodeOK)
}

func (b *Broker) fanOut(p *partition, pd *pending, offset int64, bytes []byte, l *Loop) {
	m := b.match(pd.entry)
	for id, row := range m.rows {
		if len(row) == 0 {
			continue
		}
		payload := bytes[pd.loc.Value:pd.loc.ValueEnd]
		headers := bytes[pd.loc.Headers:pd.loc.HeadersEnd]
		if l != nil && id == l.ID && l.inMail[p.ID].Load() == 0 {
			l.setMessage(pd.entry, pd.timeMs, payload, headers, int(pd.loc.HeaderCount))
			l.deliverAll(p, offset, row, pd.from)
			l.handled[p.ID] = offset + 1
			continue
		}
		to := (*b.loops.Load())[id]
		to.mail.mu.Lock()
		if to.mail.gap[p.ID] {
			to.mail.mu.Unlock()
			continue
		}
		in := &to.mail.in
		to.inMail[p.ID].Add(1)
		at := len(in.buf)
		if len(in.items) >= mailItemsMax || at > mailBytesMax {
			to.mail.gap[p.ID] = true
			in.items = append(in.items, mailItem{kind: mailGap, part: p, offset: offset})
			to.wakeLocked()
			continue
		}
		in.buf = append(append(in.buf, payload...), headers...)
		in.items = append(in.items, mailItem{kind: mailDeliver, part: p, match: m,
			entry: pd.entry, from: pd.from, offset: offset, timeMs: pd.timeMs,
			a: at, b: at + len(payload), c: at + len(payload) + len(headers), headerCount: int(pd.loc.HeaderCount)})
		to.wakeLocked()
	}
}

// acknowledge answers every publish, in order: directly on the committer's own loop, by mail elsewhere.
func (b *Broker) acknowledge(p *partition, pend []pending, base int64, l *Loop, code byte) {
	hold := l != nil && code == CodeOK && b.holds(p)
	for i := 0; i < len(pend); {
		pd := &pend[i]
		switch {
		case pd.done != nil:
			pd.done(p.Partition, base+int64(i), code)
			i++
		case pd.conn == nil:
			i++
		case pd.loop == l && hold:
			l.hold(p, mailAck{pd.conn, pd.seq, code})
			i++
		case pd.loop == l:
			pd.conn.Ack(pd.seq, code)
			i++
		default:
			i = postAcks(p, pend, i, code)
		}
	}
	if code == CodeOK && p.Stream.Name[0] != '$' { // copies did not come in
		b.Stats.In.Add(int64(len(pend)))
	}
}

// settleBatch ends the account of a batch whose publishes have been answered.
func (b *Broker) settleBatch(p *partition, bt *batch) {
	p.mu.Lock()
	if p.writing == bt {
		p.writing = nil
	}
	p.bytes -= bt.bytes
	bt.bytes = 0
	after := bt.after
	bt.after = nil
	p.mu.Unlock()
	for _, fn := range after {
		fn()
	}
}

// postAcks posts the run of acknowledgements for one loop that begins at i and returns where it ends.
func postAcks(p *partition, pend []pending, i int, code byte) int {
	to := pend[i].loop
	to.mail.mu.Lock()
	in := &to.mail.in
	at := len(in.acks)
	for ; i < len(pend) && pend[i].loop == to && pend[i].done == nil; i++ {
		if pend[i].conn != nil {
			in.acks = append(in.acks, mailAck{pend[i].conn, pend[i].seq, code})
		}
	}
	in.items = append(in.items, mailItem{kind: mailAcks, part: p, a: at, b: len(in.acks)})
	to.wakeLocked()
	return i
}
