package broker

import (
	"errors"
	"slices"
	"sync"

	"edgehub/hub/message"
	"edgehub/hub/session"
	"edgehub/storage/seglog"
)

// Reading from the log.
//
// A session that could not take a record keeps its position. When it has room again, a reader goroutine reads on from
// there, keeps what concerns the session and posts it to the session's loop as one chunk; the loop delivers from it as
// the window and the connection allow. A session has one chunk at most, and all chunks together are bounded: a session
// that waits for memory is queued, and one that holds a chunk without progress while others wait loses it again (and
// nothing with it: positions move only when a record is really delivered).
//
// Back to the live flow: the loop hands a partition's records to its clients in offset order, and notes in handled
// what it has handed out. A session that is behind lets those pass. When its Next has reached both handled (nothing of
// interest at or above Next has passed by yet) and Floor (everything at or above was matched with all its
// subscriptions in place), every later record will come by on the loop, and the session goes live at Next; records
// below Next that are still in the mailbox are recognised and skipped.

const (
	chunkBytes   = 128 << 10 // a chunk is closed beyond this many bytes
	chunkItems   = 2048
	readBytes    = 256 << 10 // one read of the log
	scanBytes    = 8 << 20   // a job that finds little gives way after scanning this much
	readers      = 2
	jobsQueued   = 4096
	retainedStep = 256 // retained messages looked up by one job
)

type itemKind uint8

const (
	itemRecord       itemKind = iota // a record behind a cursor
	itemResend                       // a message in flight before the reconnect
	itemRelease                      // a PUBREL to send again
	itemRetained                     // a retained message for a new subscription
	itemRetainedGone                 // one that was cleared or has no record any more
	itemGone                         // a message in flight whose record is no more
)

type chunkItem struct {
	kind        itemKind
	id          uint16
	part        uint32
	offset      int64
	timeMs      int64
	grant       session.Grant
	t, a, b, c  int // topic is buf[t:a], payload buf[a:b], headers buf[b:c]
	headerCount int
}

type chunk struct {
	buf   []byte
	items []chunkItem
	pos   int
	next  []session.Position // where each cursor is after the chunk
	seen  int                // pos at the last tick
	// failed: the log could not be read further; it is tried again at the next checkpoint.
	failed bool
	size   int64 // accounted bytes
}

// retItem is a retained message to be sent because of a new subscription.
type retItem struct {
	topic string
	sub   *session.Sub
}

// flightRef is what a job needs to send a message again.
type flightRef struct {
	id     uint16
	state  session.State
	part   uint32
	offset int64
	grant  session.Grant
}

type job struct {
	to  *attachment
	id  string // client id
	gen uint32
	// persistent: what the session lost with a segment was counted when that went.
	persistent bool
	resend     []flightRef
	ret        []retItem
	cursors    []session.Cursor
	matcher    *session.Matcher
}

// catchup is the pool of readers and the bound on what they read ahead.
type catchup struct {
	b    *Broker
	jobs chan *job
	done chan struct{}
	wg   sync.WaitGroup

	mu      sync.Mutex
	inUse   int64
	waiting []*attachment // each once; it may be gone by now
	spare   []*chunk
}

// sparesMax chunks are kept for the next jobs.
const sparesMax = 8

func (k *catchup) init(b *Broker) {
	k.b, k.jobs, k.done = b, make(chan *job, jobsQueued), make(chan struct{})
}

func (k *catchup) start() {
	for range readers {
		k.wg.Add(1)
		go k.run()
	}
}

func (k *catchup) stop() {
	close(k.done)
	k.wg.Wait()
}

func (k *catchup) run() {
	defer k.wg.Done()
	r := &reader{b: k.b}
	for {
		select {
		case <-k.done:
			return
		case j := <-k.jobs:
			ch := r.read(j)
			k.account(ch)
			j.to.loop.Post(func() { j.to.loop.chunkRead(j, ch) })
		}
	}
}

// reserve takes a place for one more chunk. False: none is free, and the client will be pumped when one is its own.
// Places go round in the order of asking: whoever loses a chunk that it made no use of stands behind those that wait.
func (k *catchup) reserve(c *Client) bool {
	if c.att.granted {
		c.att.granted = false
		return true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.waiting) > 0 || k.inUse > 0 && k.inUse+chunkBytes > k.b.o.Limits.CatchupBytes {
		if !c.att.waiting {
			c.att.waiting = true
			k.waiting = append(k.waiting, c.att)
		}
		return false
	}
	k.inUse += chunkBytes
	return true
}

// account replaces the reservation by the chunk's real size.
func (k *catchup) account(ch *chunk) {
	ch.size = int64(cap(ch.buf))
	k.mu.Lock()
	k.inUse += ch.size - chunkBytes
	k.mu.Unlock()
}

func (k *catchup) free(ch *chunk) {
	if ch == nil {
		return
	}
	size := ch.size
	if cap(ch.buf) <= 2*chunkBytes {
		clear(ch.items) // grants point to sessions' subscriptions
		*ch = chunk{buf: ch.buf[:0], items: ch.items[:0], next: ch.next[:0]}
		k.mu.Lock()
		if len(k.spare) < sparesMax {
			k.spare = append(k.spare, ch)
		}
		k.mu.Unlock()
	}
	k.give(size)
}

// newChunk returns an empty chunk, one that was used before if there is one.
func (k *catchup) newChunk() *chunk {
	k.mu.Lock()
	defer k.mu.Unlock()
	if n := len(k.spare); n > 0 {
		ch := k.spare[n-1]
		k.spare = k.spare[:n-1]
		return ch
	}
	return &chunk{}
}

// give returns memory and reserves it for those that wait.
func (k *catchup) give(n int64) {
	k.mu.Lock()
	k.inUse -= n
	var next []*attachment
	for len(k.waiting) > 0 && (k.inUse <= 0 || k.inUse+chunkBytes <= k.b.o.Limits.CatchupBytes) {
		k.inUse += chunkBytes
		k.waiting[0].waiting = false
		next = append(next, k.waiting[0])
		k.waiting = k.waiting[1:]
	}
	k.mu.Unlock()
	for _, a := range next {
		a.loop.Post(func() {
			if c := a.client; c != nil && (c.owed == nil || c.owed.chunk == nil) && !c.reading && a.loop.wants(c) {
				a.granted = true
				a.loop.wantPump(c)
				return
			}
			k.give(chunkBytes) // no use for it any more: the next one's turn
		})
	}
}

func (k *catchup) contended() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.waiting) > 0
}

// wantPump has the client looked at in this round or the next.
func (l *Loop) wantPump(c *Client) {
	if a := c.att; !a.pumping {
		a.pumping = true
		l.pumps = append(l.pumps, a)
	}
}

func (l *Loop) pump() {
	for i := 0; i < len(l.pumps); i++ {
		a := l.pumps[i]
		l.pumps[i] = nil
		if a.pumping = false; a.client != nil {
			l.pumpClient(a.client)
		}
		if a.client != nil {
			l.repace(a.client)
		}
		if a.granted { // it had no use for its place
			a.granted = false
			l.b.catchup.give(chunkBytes)
		}
	}
	l.pumps = l.pumps[:0]
}

// pumpClient delivers from the client's chunk and has the next one read when it is used up.
func (l *Loop) pumpClient(c *Client) {
	if o := c.owed; o != nil && o.chunk != nil {
		if !l.deliverChunk(c, o.chunk) {
			l.markActive(c)
			return // an acknowledgement or the tick goes on
		}
		for _, n := range o.chunk.next {
			if cur := c.Cursor(n.Part); cur != nil && cur.Behind {
				cur.Next = max(cur.Next, n.Offset)
			}
		}
		failed := o.chunk.failed
		if failed {
			l.markActive(c)
		}
		l.b.catchup.free(o.chunk)
		if o.chunk = nil; failed {
			return
		}
	}
	l.goLive(c)
	if c.reading {
		return
	}
	if !l.wants(c) {
		if c.hasMore() { // should nobody say that there is room, the tick finds out
			l.markActive(c)
		}
		return
	}
	if !l.b.catchup.reserve(c) {
		return
	}
	j := l.newJob(c)
	select {
	case l.b.catchup.jobs <- j:
		c.reading = true
		l.b.Stats.CatchupJobs.Add(1)
	default: // the tick tries again
		l.b.catchup.give(chunkBytes)
		l.markActive(c)
	}
}

// wants reports whether the client has something to read and could take some of it. Who has no room asks again when it
// has: memory that it cannot use now is for others.
func (l *Loop) wants(c *Client) bool {
	if !c.conn.Room(packetOverhead) {
		return false
	}
	return c.owed.toRead() || c.IsBehind() && !c.isFull()
}

// goLive moves cursors that have arrived back to the live flow.
func (l *Loop) goLive(c *Client) {
	for i := range c.Cursors {
		cur := &c.Cursors[i]
		if cur.Behind && !c.owed.toRead() && cur.Next >= l.handled[cur.Part] && cur.Next >= cur.Floor {
			cur.Behind = false
			c.reached(cur.Part, cur.Next)
		}
	}
}

func (l *Loop) newJob(c *Client) *job {
	j := &job{to: c.att, id: c.ClientID, gen: c.gen, persistent: c.Persistent()}
	o := c.owed
	switch {
	case o != nil && len(o.resend) > 0:
		for _, id := range o.resend[:min(len(o.resend), chunkItems)] {
			if f := c.Flights.Get(id); f != nil {
				j.resend = append(j.resend, flightRef{f.ID, f.State, f.Part, f.Offset,
					session.Grant{QoS: f.QoS, RetainAsPublished: f.RetainAsPublished, SubIDs: f.SubIDs}})
			} else {
				j.resend = append(j.resend, flightRef{id: id})
			}
		}
	case o != nil && len(o.retq) > 0:
		j.ret = slices.Clone(o.retq[:min(len(o.retq), retainedStep)])
	default:
		// Each job begins with another partition: one that never comes to its end would keep the others waiting.
		c.turn++
		for i := range c.Cursors {
			if cur := c.Cursors[(int(c.turn)+i)%len(c.Cursors)]; cur.Behind {
				j.cursors = append(j.cursors, cur)
			}
		}
		j.matcher = c.Matcher()
	}
	return j
}

// chunkRead takes the outcome of a job, on the loop that asked for it.
func (l *Loop) chunkRead(j *job, ch *chunk) {
	c := j.to.client
	if c == nil || c.gen != j.gen {
		l.b.catchup.free(ch)
		return
	}
	c.reading = false
	c.owe().chunk = ch
	l.wantPump(c)
}

// deliverChunk delivers until the chunk is used up (true) or the client can take no more (false).
func (l *Loop) deliverChunk(c *Client, ch *chunk) bool {
	for ; ch.pos < len(ch.items); ch.pos++ {
		it := &ch.items[ch.pos]
		ok := true
		switch it.kind {
		case itemRecord:
			ok = l.deliverRecord(c, ch, it)
		case itemRetained, itemRetainedGone:
			ok = l.deliverRetained(c, ch, it)
		default:
			ok = l.resendFlight(c, ch, it)
		}
		if !ok {
			return false
		}
	}
	return true
}

// prepare makes the scratch message from an item; false when the message has expired or is none.
func (l *Loop) prepare(ch *chunk, it *chunkItem) bool {
	m := &l.msg
	err := m.Decode(seglog.Record{Offset: it.offset, TimeMs: it.timeMs, Key: ch.buf[it.t:it.a], Value: ch.buf[it.a:it.b],
		Headers: seglog.Headers{Count: it.headerCount, Raw: ch.buf[it.b:it.c]}})
	if err != nil {
		l.b.log.Warn("a record is not a message and is passed over", "partition", l.b.parts[it.part].Name, "err", err)
		return false
	}
	return m.ExpiresMs == 0 || m.ExpiresMs > l.b.o.Clock.NowMs()
}

func (l *Loop) deliverRecord(c *Client, ch *chunk, it *chunkItem) bool {
	cur := c.Cursor(it.part)
	if cur == nil || !cur.Behind || it.offset < cur.Next {
		return true
	}
	alive := l.prepare(ch, it)
	size := it.c - it.t + packetOverhead
	switch qos := min(l.msg.QoS, it.grant.QoS); {
	case !alive:
		l.b.Stats.DroppedExpired.Add(1)
	case !c.mayReceive(l.msg.Topic):
		l.b.Stats.DeniedDelivery.Add(1)
	case qos == 0 && it.offset < cur.Zero: // not queued for absent sessions
	case qos == 0 && l.b.o.Clock.NowMs()-it.timeMs > l.b.o.Limits.QoS0LagMs:
		l.b.Stats.DroppedQoS0.Add(1)
		c.owe().dropped++
	case qos == 0:
		if !c.conn.Room(size) {
			return false
		}
		l.send(c, Delivery{Msg: &l.msg, SubIDs: it.grant.SubIDs, Retain: l.msg.Retain && it.grant.RetainAsPublished})
	case (qos == 2 || c.inboxOf() != nil) && c.skips(it.part, it.offset):
		c.passFinished(it.part, it.offset)
	case c.isFull() || !c.conn.Room(size):
		return false
	default:
		cur.Next = it.offset + 1 // before the packet can leave
		l.launch(c, it, qos, false)
	}
	cur.Next = it.offset + 1
	return true
}

// launch puts the scratch message in flight and queues it.
func (l *Loop) launch(c *Client, it *chunkItem, qos byte, retained bool) {
	f := c.Flights.Add()
	f.State, f.QoS, f.Part, f.Offset = session.Sent, qos, it.part, it.offset
	f.RetainAsPublished, f.SubIDs, f.Retained = it.grant.RetainAsPublished, it.grant.SubIDs, retained
	l.noteFlight(c, f)
	l.markActive(c)
	l.b.Stats.CatchupRecords.Add(1)
	l.send(c, Delivery{Msg: &l.msg, QoS: qos, ID: f.ID, SubIDs: it.grant.SubIDs,
		Retain: retained || l.msg.Retain && it.grant.RetainAsPublished})
}

func (l *Loop) deliverRetained(c *Client, ch *chunk, it *chunkItem) bool {
	if len(c.owed.retq) == 0 { // that there is a chunk is owed
		return true
	}
	if it.kind == itemRetained && l.prepare(ch, it) && c.mayReceive(l.msg.Topic) {
		qos := min(l.msg.QoS, it.grant.QoS)
		if !c.conn.Room(it.c-it.t+packetOverhead) || qos > 0 && c.isFull() {
			return false
		}
		if qos > 0 {
			l.launch(c, it, qos, true)
		} else {
			l.send(c, Delivery{Msg: &l.msg, SubIDs: it.grant.SubIDs, Retain: true})
		}
	}
	l.popRetained(c)
	return true
}

// resendFlight sends a message again under its old packet id, as the standard demands after a reconnect
// [MQTT-4.4.0-1].
func (l *Loop) resendFlight(c *Client, ch *chunk, it *chunkItem) bool {
	f := c.Flights.Get(it.id)
	switch {
	case f == nil: // acknowledged in the meantime
	case it.kind == itemRelease || f.State == session.Released:
		c.conn.SendRelease(it.id)
	case it.kind == itemGone:
		l.endFlight(c, f)
		l.b.Stats.DroppedTrimmed.Add(1)
	default:
		// What the client has not seen on this connection does not count against its window yet [MQTT-3.3.4-9].
		if c.Flights.Len()-c.owed.unsent >= int(c.window) || !c.conn.Room(it.c-it.t+packetOverhead) {
			return false
		}
		alive := l.prepare(ch, it)
		if !c.mayReceive(l.msg.Topic) { // any more
			l.endFlight(c, f)
			l.b.Stats.DeniedDelivery.Add(1)
			break
		}
		if c.inboxOf() != nil && !alive { // to another member it would be a new delivery
			l.endFlight(c, f)
			l.b.Stats.DroppedExpired.Add(1)
			break
		}
		l.b.Stats.Resent.Add(1)
		l.send(c, Delivery{Msg: &l.msg, QoS: f.QoS, ID: f.ID, Dup: true, SubIDs: f.SubIDs,
			Retain: f.Retained || l.msg.Retain && f.RetainAsPublished})
	}
	if f = c.Flights.Get(it.id); f != nil {
		c.nowSent(f)
	}
	if o := c.owed; len(o.resend) > 0 {
		o.resend = o.resend[1:]
	}
	return true
}

// reader reads chunks; each reader goroutine has one.
type reader struct {
	b       *Broker
	buf     []byte // raw batches
	subs    []*session.Sub
	matched map[string]*match // topics seen in this job
	at      int64             // buf holds records of partition from at to end
	end     int64
	part    uint32
	quiet   quiet
}

type match struct {
	name  string
	subs  []*session.Sub
	grant session.Grant
}

func (r *reader) read(j *job) *chunk {
	ch := r.b.catchup.newChunk()
	r.end, r.at, r.quiet = 0, 0, quiet{}
	switch {
	case len(j.resend) > 0:
		for i := 0; i < len(j.resend) && !ch.failed; i++ {
			r.readFlight(ch, &j.resend[i])
		}
	case len(j.ret) > 0:
		for i := 0; i < len(j.ret) && !ch.failed; i++ {
			r.readRetained(ch, &j.ret[i])
		}
	default:
		r.readCursors(ch, j)
	}
	if cap(r.buf) > 4*readBytes {
		r.buf = nil
	}
	return ch
}

func (r *reader) readFlight(ch *chunk, f *flightRef) {
	it := chunkItem{kind: itemResend, id: f.id, part: f.part, offset: f.offset, grant: f.grant}
	switch {
	case f.state == session.Released:
		it.kind = itemRelease
	case f.state == 0 || !r.find(ch, &it):
		it.kind = itemGone
	}
	if !ch.failed {
		ch.items = append(ch.items, it)
	}
}

func (r *reader) readRetained(ch *chunk, w *retItem) {
	it := chunkItem{kind: itemRetained, grant: session.Merge([]*session.Sub{w.sub})}
	ref, ok := r.b.retained.get(w.topic)
	if ok {
		it.part, it.offset = ref.part.ID, ref.offset
		ok = r.find(ch, &it)
	}
	if !ok {
		it.kind = itemRetainedGone
	}
	if !ch.failed {
		ch.items = append(ch.items, it)
	}
}

// find reads the one record at it.part, it.offset.
func (r *reader) find(ch *chunk, it *chunkItem) bool {
	if r.part != it.part || it.offset < r.at || it.offset >= r.end {
		p := r.b.parts[it.part]
		r.b.readable(p, it.offset)
		var err error
		if r.buf, err = p.Log.Read(it.offset, readBytes/4, r.buf[:0]); err != nil {
			r.end = 0
			if errors.Is(err, seglog.ErrTrimmed) {
				return r.findKept(ch, it)
			}
			ch.failed = true // nothing is gone only because a read failed
			r.b.log.Error("the log could not be read for a session", "partition", p.Name, "offset", it.offset, "err", err)
			return false
		}
		r.part, r.at, r.end = it.part, it.offset, it.offset
		for rec := range seglog.Records(r.buf) {
			r.end = rec.Offset + 1
		}
	}
	for rec := range seglog.Records(r.buf) {
		if rec.Offset == it.offset {
			ch.add(it, &rec)
			return true
		}
	}
	return false
}

func (ch *chunk) add(it *chunkItem, rec *seglog.Record) {
	it.t = len(ch.buf)
	ch.buf = append(ch.buf, rec.Key...)
	it.a = len(ch.buf)
	ch.buf = append(ch.buf, rec.Value...)
	it.b = len(ch.buf)
	ch.buf = append(ch.buf, rec.Headers.Raw...)
	it.c = len(ch.buf)
	it.headerCount, it.timeMs = rec.Headers.Count, rec.TimeMs
}

// readCursors reads on from each cursor that is behind, in turn, until the chunk is full, everything committed has
// been read, or enough was scanned.
func (r *reader) readCursors(ch *chunk, j *job) {
	if r.matched == nil || len(r.matched) > 4096 {
		r.matched = map[string]*match{}
	}
	clear(r.matched)
	scanned := 0
	for i := range j.cursors {
		cur := &j.cursors[i]
		for scanned < scanBytes && !ch.isFull() {
			next, n := r.readSome(ch, j, cur)
			scanned += n
			if next == cur.Next {
				break
			}
			cur.Next = next
		}
		ch.next = append(ch.next, session.Position{Part: cur.Part, Offset: cur.Next})
	}
	r.b.Stats.CatchupScanned.Add(int64(scanned))
}

func (ch *chunk) isFull() bool { return len(ch.buf) >= chunkBytes || len(ch.items) >= chunkItems }

// readSome reads once from a partition and keeps what concerns the session. It returns the offset to go on from,
// which is the cursor's own when nothing more is committed, and how many bytes it looked at.
func (r *reader) readSome(ch *chunk, j *job, cur *session.Cursor) (next int64, scanned int) {
	p, from := r.b.parts[cur.Part], cur.Next
	committed := r.b.readable(p, from)
	if first := p.Log.First(); from < first {
		return r.readKept(ch, j, cur, p, first)
	}
	if from >= committed {
		return from, 0
	}
	var err error
	r.buf, err = p.Log.Read(from, readBytes, r.buf[:0])
	if errors.Is(err, seglog.ErrTrimmed) { // meanwhile
		return r.readKept(ch, j, cur, p, p.Log.First())
	}
	if err != nil {
		r.b.log.Error("the log could not be read for a session", "partition", p.Name, "offset", from, "err", err)
		ch.failed = true
		return from, 0
	}
	next = from
	kept := len(ch.items)
	for rec := range seglog.Records(r.buf) {
		if rec.Offset < from {
			continue
		}
		if rec.Offset >= committed || ch.isFull() {
			return next, len(r.buf)
		}
		next = rec.Offset + 1
		r.keep(ch, j, cur, &rec)
	}
	if next == from { // nothing but damage up to the end of what is committed
		next = committed
	}
	if len(ch.items) == kept {
		next = r.skip(p, j, next, committed)
	}
	return next, len(r.buf)
}

func (r *reader) keep(ch *chunk, j *job, cur *session.Cursor, rec *seglog.Record) {
	m := r.matched[string(rec.Key)]
	if m == nil {
		m = &match{name: string(rec.Key)}
		m.subs = j.matcher.Match(m.name, nil)
		m.grant = session.Merge(m.subs)
		r.matched[m.name] = m
	}
	if len(m.subs) == 0 {
		return
	}
	grant := m.grant
	if older(m.subs, cur.Part, rec.Offset) {
		r.subs = r.subs[:0]
		for _, s := range m.subs {
			if rec.Offset >= s.StartIn(cur.Part) {
				r.subs = append(r.subs, s)
			}
		}
		if len(r.subs) == 0 {
			return
		}
		grant = session.Merge(r.subs)
	}
	if grant.QoS == 0 && rec.Offset < cur.Zero {
		return
	}
	if rec.Headers.Count > 0 {
		qos, _, from := message.Peek(rec.Headers)
		if grant.NoLocal || grant.Own != nil {
			g := grant.For(string(from.Client) == j.id)
			if g == nil {
				r.b.Stats.NoLocal.Add(1)
				return
			}
			grant = *g
		}
		if min(qos, grant.QoS) == 0 && rec.Offset < cur.Zero {
			return
		}
	}
	it := chunkItem{kind: itemRecord, part: cur.Part, offset: rec.Offset, grant: grant}
	ch.add(&it, rec)
	ch.items = append(ch.items, it)
}

// older reports whether the record is older than one of the subscriptions.
func older(subs []*session.Sub, part uint32, offset int64) bool {
	for _, s := range subs {
		if len(s.Starts) > 0 && offset < s.StartIn(part) {
			return true
		}
	}
	return false
}
