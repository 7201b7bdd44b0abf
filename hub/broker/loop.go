package broker

import (
	"sync"
	"sync/atomic"
	"time"

	"edgehub/hub/message"
	"edgehub/hub/stream"
	"edgehub/storage/seglog"
)

// mailBudget bounds how many items of mail one round handles before sockets are looked at again.
const mailBudget = 4096

// topicCacheMax bounds the topics a loop remembers; beyond it the cache is dropped and filled anew.
const topicCacheMax = 1 << 16

// Loop is one event loop's share of the broker. Everything but the mailbox is owned by the loop.
type Loop struct {
	ID int

	b    *Broker
	wake func(func())
	// roundFn is l.Round, made once: a method value allocates.
	roundFn func()

	touched      []*partition
	isTouched    []bool // by partition id
	spareTouched []*partition
	topics       map[string]*topicEntry
	handled      []int64 // by partition id: the offset after the last record handed to this loop's clients
	// inMail counts, by partition id, the records that are in the mailbox. While there are any, the loop's own commits
	// go through the mailbox too, or they would overtake them.
	inMail        []atomic.Int64
	dirty         []Conn
	pumps         []*attachment // clients that have something to read from the log
	unsaved       []*attachment // sessions whose records are written at the end of the round
	closing       []func()      // disconnects noticed where they could not be handled
	active        []*attachment // persistent clients whose progress is to be checkpointed at the next tick
	clients       int
	out, outBytes int64 // deliveries of this round
	// subscribers are the loop's sessions that have subscriptions.
	subscribers map[*attachment]struct{}
	handoff     []mail // by loop id: messages for members of shared subscriptions on other loops
	// handoffRests: a message of handoff rests on metadata; handoffNew: and was gathered since the latest commit began.
	handoffRests, handoffNew bool
	meta                     metadata
	unrecord                 [][]byte // records of their QoS 2 messages that are done with
	shared                   Shared
	delivery                 Delivery // scratch of send
	msg                      message.Message
	headers                  seglog.Headers
	lastTick                 []int64 // the position vector of the previous tick
	mail                     mailbox
	work                     mail // swapped with the mailbox
	workPos                  int

	// Of its writes, see writer.go.
	writer    *writer
	task      atomic.Pointer[task] // replaced by the loop, seen by the watch
	roundTick uint32               // the watch's ticks at the start of the round

	// Acknowledgements that wait for subscribers, and the clients waited for: see pace.go.
	held      []heldAcks
	heldSpare [][]mailAck
	holding   atomic.Bool // held is not empty
	holdTimer *time.Timer
	paced     map[*Client]struct{}
}

// mailbox carries what other goroutines have for the loop, in order.
type mailbox struct {
	mu     sync.Mutex
	posted bool // a wake-up is under way
	in     mail
	gap    []bool // by partition id: records are not posted until the loop has handled the gap
}

// mail is a FIFO of items with the bytes they point into.
type mail struct {
	items []mailItem
	acks  []mailAck
	buf   []byte
	idle  int // times in a row that little of a large memory was used
}

type mailKind uint8

const (
	mailDeliver mailKind = iota
	mailAcks
	mailFunc
	mailGap
	mailShare
)

// Beyond this a mailbox takes no more records: the loop does not keep up, and its clients read the log instead.
const (
	mailItemsMax  = 16 << 10
	mailBytesMax  = 4 << 20
	mailKept      = 4 << 10 // items for which an empty mailbox keeps its memory
	mailBytesKept = 256 << 10
	mailIdleMax   = 64
)

// mailItem is a record for this loop's clients, a run of acknowledgements, or a function.
type mailItem struct {
	kind        mailKind
	part        *partition
	match       *matchSet
	entry       *topicEntry
	from        *Client
	fn          func()
	offset      int64
	timeMs      int64
	a, b, c     int // deliver: payload is buf[a:b], headers buf[b:c]; acks: acks[a:b]
	headerCount int

	// Of shared subscriptions: see share.go. A message's topic is buf[t:a] then.
	share      shareMail
	id, packet uint16
	t          int
	group      *group
	member     *member
}

type mailAck struct {
	conn Conn
	seq  uint32
	code byte
}

// NewLoop adds a loop. wake runs a function on it soon; it is called from any goroutine.
func (b *Broker) NewLoop(wake func(func())) *Loop {
	l := &Loop{b: b, wake: wake, topics: map[string]*topicEntry{},
		isTouched: make([]bool, len(b.parts)), handled: make([]int64, len(b.parts)),
		inMail: make([]atomic.Int64, len(b.parts)), lastTick: b.positions(),
		subscribers: map[*attachment]struct{}{}, paced: map[*Client]struct{}{}}
	l.mail.gap = make([]bool, len(b.parts))
	l.roundFn = l.Round
	b.loopsMu.Lock()
	defer b.loopsMu.Unlock()
	old := *b.loops.Load()
	l.ID = len(old)
	all := append(append([]*Loop(nil), old...), l)
	b.loops.Store(&all)
	b.version.Add(1) // cached matches have no row for the new loop
	return l
}

// Post runs fn on the loop, after everything posted before. Safe from any goroutine.
func (l *Loop) Post(fn func()) {
	l.mail.mu.Lock()
	l.mail.in.items = append(l.mail.in.items, mailItem{kind: mailFunc, fn: fn})
	l.wakeLocked()
}

// wakeLocked unlocks the mailbox and wakes the loop unless that is under way: many posts, one wake-up.
func (l *Loop) wakeLocked() {
	need := !l.mail.posted
	l.mail.posted = true
	l.mail.mu.Unlock()
	if need {
		l.wake(l.roundFn)
	}
}

// Schedule makes sure that a round comes soon.
func (l *Loop) Schedule() {
	l.mail.mu.Lock()
	l.wakeLocked()
}

// MarkDirty adds a connection to those that Round flushes. The connection sees to it that it is added once.
func (l *Loop) MarkDirty(c Conn) { l.dirty = append(l.dirty, c) }

// AtSafePoint runs fn in the next round, when no fan-out is under way: for events that can come from inside one.
func (l *Loop) AtSafePoint(fn func()) {
	l.closing = append(l.closing, fn)
	l.Schedule()
}

func (l *Loop) touch(p *partition) {
	if !l.isTouched[p.ID] {
		l.isTouched[p.ID] = true
		l.touched = append(l.touched, p)
	}
}

// Round is the commit round: mail, one write per touched partition with its fan-out, then one write per connection.
//
// Durable metadata is committed before anything is flushed, so that no packet leaves that rests on a change which a
// kill could take back (packet ids of QoS 2, subscriptions, sessions).
func (l *Loop) Round() {
	l.mail.mu.Lock()
	l.mail.posted = false
	l.mail.mu.Unlock()

	l.roundTick = l.b.writers.ticks.Load()
	more := l.drain(mailBudget)
	for range 4 { // closing can publish wills, which touch partitions
		l.commitTouched()
		if len(l.closing) == 0 {
			break
		}
		l.runClosing()
	}
	l.pump()
	l.releaseHeld()
	l.commitMeta()
	l.flush()
	l.count()
	if more || len(l.touched) > 0 || len(l.closing) > 0 || len(l.pumps) > 0 {
		l.Schedule()
	}
}

// count adds the round's deliveries to the hub's counters: once a round, since loops share them.
func (l *Loop) count() {
	if l.out > 0 {
		l.b.Stats.Out.Add(l.out)
		l.b.Stats.OutBytes.Add(l.outBytes)
		l.out, l.outBytes = 0, 0
	}
}

func (l *Loop) runClosing() {
	for len(l.closing) > 0 {
		fns := l.closing
		l.closing = nil
		for _, fn := range fns {
			fn()
		}
	}
}

// commitTouched commits the partitions touched so far. A partition that other loops keep filling is touched again by
// its commit and waits for the next round.
func (l *Loop) commitTouched() {
	list := l.touched
	l.touched, l.spareTouched = l.spareTouched[:0], nil
	for _, p := range list {
		l.isTouched[p.ID] = false
		l.b.commit(p, l)
	}
	l.spareTouched = list
}

// flush writes every connection's queue once. A failing write runs the connection's close handler inside, which only
// takes note.
func (l *Loop) flush() {
	for i := 0; i < len(l.dirty); i++ {
		l.dirty[i].Flush()
		l.dirty[i] = nil
	}
	l.dirty = l.dirty[:0]
}

// drain handles up to budget items of mail and reports whether there may be more: the wake-up for those was the one
// that the caller is serving. It can be entered again from within an item (a hand-over drains the mail
// before it takes a session off the loop): the inner call goes on where the outer one is.
func (l *Loop) drain(budget int) (more bool) {
	for ; budget > 0; budget-- {
		if l.workPos == len(l.work.items) && !l.swapMail() {
			return false
		}
		it := &l.work.items[l.workPos]
		l.workPos++
		l.handle(it)
	}
	return true
}

// drainAll handles all mail that was posted before the call.
func (l *Loop) drainAll() {
	l.drain(1 << 30)
}

// swapMail takes the mailbox's content; false when it is empty.
func (l *Loop) swapMail() bool {
	clear(l.work.items) // drop references to clients and functions
	clear(l.work.acks)
	l.workPos = 0
	l.work.empty()
	l.mail.mu.Lock()
	l.work, l.mail.in = l.mail.in, l.work
	l.mail.mu.Unlock()
	return len(l.work.items) > 0
}

// empty keeps the memory while it is used: growing it anew in each round of a heavy load costs more than all else, and
// keeping it for ever after one costs memory.
func (m *mail) empty() {
	much := len(m.items) > cap(m.items)/8 || len(m.acks) > cap(m.acks)/8 || len(m.buf) > cap(m.buf)/8
	if m.idle++; much || cap(m.items) <= mailKept && cap(m.acks) <= mailKept && cap(m.buf) <= mailBytesKept {
		m.idle = 0
	}
	if m.idle >= mailIdleMax {
		*m = mail{}
	}
	m.items, m.acks, m.buf = m.items[:0], m.acks[:0], m.buf[:0]
}

func (l *Loop) handle(it *mailItem) {
	switch it.kind {
	case mailFunc:
		it.fn()
	case mailAcks:
		acks := l.work.acks[it.a:it.b]
		if len(acks) > 0 && acks[0].code == CodeOK && l.b.holds(it.part) {
			l.hold(it.part, acks...)
			return
		}
		for i := range acks {
			acks[i].conn.Ack(acks[i].seq, acks[i].code)
		}
	case mailShare:
		l.handleShare(it, l.work.buf)
	case mailGap:
		part := it.part
		l.passGap(part, it.offset)
		l.inMail[part.ID].Add(-1)
	case mailDeliver:
		buf := l.work.buf
		l.setMessage(it.entry, it.timeMs, buf[it.a:it.b], buf[it.b:it.c], it.headerCount)
		l.deliverAll(it.part, it.offset, it.match.rows[l.ID], it.from)
		l.handled[it.part.ID] = it.offset + 1
		l.inMail[it.part.ID].Add(-1)
	}
}

// Streams returns the streams behind the broker.
func (b *Broker) Streams() *stream.Set { return b.o.Streams }

// Pump looks at a client again that could take no more: its connection has room now.
func (l *Loop) Pump(c *Client) {
	l.unstarve(c)
	if c.hasMore() {
		l.wantPump(c)
		l.Schedule()
	}
}

// Barrier acknowledges conn's publish number seq, the repetition of the client's QoS 2 publish id, once its first copy is
// committed or refused, and as that was, whatever connection it came on.
func (l *Loop) Barrier(conn Conn, seq uint32, c *Client, id uint16) {
	first := c.Inbound.Seq(id)
	l.afterPublish(c, id, first, func() {
		code := CodeOK
		// A refusal that was answered already has taken the number away.
		if c.conn == conn && (c.refused(first) || c.Inbound.Seq(id) != first) {
			code = CodeQuotaExceeded
		}
		conn.Ack(seq, code)
	})
}

// afterPublish calls fn on this loop when the client's QoS 2 publish is committed or refused. It waits for nothing that
// was appended later: while writes are late, the hub's positions may pass the one long before the other.
func (l *Loop) afterPublish(c *Client, id uint16, seq uint64, fn func()) {
	for _, p := range l.b.placeOf(c, id) {
		p.mu.Lock()
		bt := p.holding(c, seq)
		if bt != nil {
			bt.after = append(bt.after, func() { l.Post(fn) })
		}
		p.mu.Unlock()
		if bt != nil {
			return
		}
	}
	l.Post(fn) // behind the news of its outcome
}

// holding returns the batch with a QoS 2 publish that is neither handed out nor refused. Under p.mu.
func (p *partition) holding(c *Client, seq uint64) *batch {
	for _, bt := range append([]*batch{p.open, p.writing, p.stuck}, p.awaiting...) {
		if bt == nil {
			continue
		}
		for i := range bt.pend[bt.acked:] {
			if pd := &bt.pend[bt.acked+i]; pd.qos2 == seq && pd.from == c {
				return bt
			}
		}
	}
	return nil
}
