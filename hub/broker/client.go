package broker

import (
	"hash/maphash"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"edgehub/hub/auth"
	"edgehub/hub/message"
	"edgehub/hub/session"
	"edgehub/hub/topic"
)

// Client is a session and, while it is connected, its connection. While connected it is owned by the connection's
// loop; while offline by whoever holds its registry shard.
type Client struct {
	session.Session
	conn   Conn
	att    *attachment
	user   *string // who has the session, nil: anonymous
	access *access // what it may do, see rights.go; nil: everything
	owed   *owed   // see there; nil: nothing
	will   *Will   // fired when the connection goes without DISCONNECT; of an offline session: still delayed
	rests  uint64  // number of the loop's commit that its packets rest on, see metadata.go

	gen     uint32 // rises when what a reader is about to bring has become useless
	window  uint16 // messages in flight at most
	turn    uint16 // of the cursors in reading
	reading bool   // a read is under way, see catchup.go

	// What the metadata has of this session, see state.go.
	stored        bool // a session record
	lastStored    bool // it has the last number of an inbound QoS 2 publish
	positioned    bool // a position record
	inboundStored bool // a record of inbound QoS 2
	crashed       bool // during recovery: was connected when the hub ended

	// refusals are noted by whoever fails to write, in the partition's lock, whatever loop has the session.
	refusals atomic.Pointer[refusals]

	// Guarded by the registry shard.
	holder  *string  // the user of the connection that has the session or asked for it last
	owner   *Loop    // nil: offline
	contest *contest // nil: nobody has ever asked for it while it was connected

	timer *timer // guarded by timers.mu; nil while connected
}

// owed is what a client needs only while it does not simply keep up: most of many connections are idle, and an idle one
// has none. Owned as the Client is.
type owed struct {
	// Reading from the log, see catchup.go.
	resend  []uint16       // packet ids to send again, in order
	unsent  int            // messages in flight that are marked Unsent
	retq    []retItem      // retained messages for a new subscription
	replays []*session.Sub // subscriptions whose turn comes then, see retained_replay.go
	chunk   *chunk
	dropped int64  // QoS 0 messages too old to be sent when the client had room
	pace    *pace  // see pace.go; nil: it was never far behind
	group   *group // this is the inbox of a shared subscription, see share.go

	// exact holds positions in live partitions that the position record must name until the vector has passed them:
	// QoS 2 messages below were completed and have no record any more.
	exact   []session.Position
	skip    map[flightKey]bool // in flight at a crash: not to be delivered anew
	starved []*member          // shares in groups whose messages it had no room for
}

// inboxOf is the shared subscription whose inbox this is, nil: none.
func (c *Client) inboxOf() *group {
	if c.owed == nil {
		return nil
	}
	return c.owed.group
}

// owe returns what is owed to the client, to be added to.
func (c *Client) owe() *owed {
	if c.owed == nil {
		c.owed = &owed{}
	}
	return c.owed
}

// isBare reports that there is nothing worth keeping.
func (o *owed) isBare() bool {
	return len(o.resend) == 0 && o.unsent == 0 && len(o.retq) == 0 && o.chunk == nil && o.dropped == 0 && len(o.exact) == 0 &&
		len(o.skip) == 0 && len(o.starved) == 0 && o.pace == nil && o.group == nil
}

// toRead reports whether something is to be read, or was read, from elsewhere than behind the cursors.
func (o *owed) toRead() bool { return o != nil && (len(o.retq) > 0 || len(o.resend) > 0) }

// hasMore reports whether the client has something to come besides what it gets live.
func (c *Client) hasMore() bool {
	return len(c.Cursors) > 0 || c.owed != nil && (c.owed.chunk != nil || c.owed.toRead())
}

// contest is about who gets a session that is connected. Guarded by the registry shard.
type contest struct {
	next     *claim
	takenMs  int64 // hub time from which takeovers are counted
	takeover int   // since then
}

// contested returns the contest about the session, beginning one if need be. Under the registry shard's lock.
func (c *Client) contested() *contest {
	if c.contest == nil {
		c.contest = &contest{}
	}
	return c.contest
}

// claimed reports whether another connection waits for the session. Under the registry shard's lock.
func (c *Client) claimed() bool { return c.contest != nil && c.contest.next != nil }

// Users are kept by reference: many devices have none.

func keepUser(name string) *string {
	if name == "" {
		return nil
	}
	return &name
}

func userName(u *string) string {
	if u == nil {
		return ""
	}
	return *u
}

// attachment is one stay of a session on a loop. Matches that were cached before the session moved on still point to
// it; its client is nil then. client is owned by the loop.
type attachment struct {
	client  *Client
	loop    *Loop
	pumping bool // in the loop's pumps
	active  bool // in the loop's active list
	unsaved byte // in the loop's unsaved list, and what of the session it is for
	waiting bool // in catchup.waiting, guarded by its mutex
	granted bool // a place for a chunk is reserved for it; its loop's

	rights atomic.Pointer[auth.Rights] // the client's, for matches made on other goroutines
}

// Will is the message published for a client that goes without saying so.
type Will struct {
	Msg    message.Message // owned: aliases nothing
	DelayS uint32
	seq    uint64 // of its record
}

// ConnectRequest is what a connection asks of its session.
type ConnectRequest struct {
	ClientID string
	User     string // verified, empty: anonymous
	Clean    bool   // start anew
	Expiry   uint32 // seconds; session.NeverExpires: for ever
	Window   int    // messages in flight that the client takes
	Will     *Will
}

// claim is a connection that waits for a session.
type claim struct {
	loop *Loop
	conn Conn
	req  ConnectRequest
}

const registryShards = 64

// registry finds sessions by client id and says who owns each.
type registry struct {
	seed   maphash.Seed
	shards [registryShards]shard
}

type shard struct {
	mu        sync.Mutex
	clients   clientTable
	connected int
}

func (r *registry) init() {
	r.seed = maphash.MakeSeed()
	for i := range r.shards {
		r.shards[i].clients.seed = r.seed
	}
}

func (r *registry) shard(id string) *shard {
	return &r.shards[maphash.String(r.seed, id)%registryShards]
}

func (r *registry) counts() (connected, sessions int) {
	for i := range r.shards {
		s := &r.shards[i]
		s.mu.Lock()
		connected += s.connected
		sessions += s.clients.len()
		s.mu.Unlock()
	}
	return connected, sessions
}

// Connect attaches the connection to its session; conn.Attached is the answer, now or later on this loop. A session
// that another connection has is taken from it at once; of several that want it, the last one gets it. Any code but
// CodeOK is a refusal, and conn hears no more.
func (l *Loop) Connect(conn Conn, req ConnectRequest) (code byte) {
	if l.metaFull() {
		l.b.Stats.RefusedBusy.Add(1)
		return CodeServerBusy
	}
	req.Expiry = min(req.Expiry, l.b.o.Limits.SessionExpiryMax)
	sh := l.b.reg.shard(req.ClientID)
	sh.mu.Lock()
	c := sh.clients.get(req.ClientID)
	switch {
	case c != nil && c.foreign(req.User):
		sh.mu.Unlock()
		return CodeClientIDNotValid
	case c == nil:
		c = &Client{Session: session.Session{ClientID: req.ClientID}}
		sh.clients.put(c)
		fallthrough
	case c.owner == nil:
		c.owner, c.holder = l, keepUser(req.User)
		sh.connected++
		sh.mu.Unlock()
		l.attach(c, conn, req)
	default:
		ct := c.contested()
		loser, owner := ct.next, c.owner
		ct.next, c.holder = &claim{loop: l, conn: conn, req: req}, keepUser(req.User)
		sh.mu.Unlock()
		l.b.Stats.Takeovers.Add(1)
		if loser != nil {
			loser.loop.Post(func() { loser.conn.Close(CodeTakenOver) })
			return CodeOK // the owner has been told already
		}
		owner.Post(func() { owner.handOver(c) })
	}
	return CodeOK
}

// Flaps reports whether connections take the client id from each other so often that the next one must wait: two
// devices with the same id would otherwise keep each other out, and the hub busy. The connection that has the session
// keeps it. It is asked before Connect.
func (l *Loop) Flaps(id string) bool {
	limit := l.b.o.Limits.TakeoversPerMinute
	if limit == 0 {
		return false
	}
	now := l.b.o.Clock.Coarse()
	sh := l.b.reg.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	c := sh.clients.get(id)
	if c == nil || c.owner == nil {
		return false
	}
	ct := c.contested()
	if now-ct.takenMs >= 60_000 {
		ct.takenMs, ct.takeover = now, 0
	}
	if ct.takeover >= limit {
		l.b.Stats.Flapping.Add(1)
		return true
	}
	ct.takeover++
	return false
}

// handOver gives a session to the connection that waits for it. On the owner's loop.
func (l *Loop) handOver(c *Client) {
	if !l.wanted(c) || c.att == nil { // it disconnected in between: Disconnect has handed it over
		return
	}
	old := c.conn
	if !l.detach(c) {
		return
	}
	if c.Persistent() {
		// Between two loops a checkpoint may see it on neither.
		l.b.putPositions(c, nil)
	}
	old.Close(CodeTakenOver)
	if c.will != nil && c.will.DelayS == 0 { // a delayed one is for attach to judge
		l.b.fireWill(c, l)
	}
	l.pass(c)
}

// owns reports whether the session is this loop's. Only then may the loop look at it: the owner changes on the owner's
// own loop, or from offline.
func (l *Loop) owns(c *Client) bool {
	sh := l.b.reg.shard(c.ClientID)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return c.owner == l
}

// wanted reports whether the session is this loop's and another connection waits for it.
func (l *Loop) wanted(c *Client) bool {
	sh := l.b.reg.shard(c.ClientID)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return c.owner == l && c.claimed()
}

// pass gives a detached session to its next claim, or leaves it offline. It reports which.
func (l *Loop) pass(c *Client) (offline bool) {
	sh := l.b.reg.shard(c.ClientID)
	sh.mu.Lock()
	var cl *claim
	if c.contest != nil {
		cl, c.contest.next = c.contest.next, nil
	}
	if cl == nil {
		c.owner = nil
		sh.connected--
		if !c.Persistent() {
			sh.clients.remove(c.ClientID)
		} else {
			l.b.timers.scheduleAt(c, l.b.o.Clock.NowMs())
		}
		sh.mu.Unlock()
		return true
	}
	c.owner = cl.loop
	sh.mu.Unlock()
	cl.loop.Post(func() { cl.loop.attach(c, cl.conn, cl.req) })
	return false
}

// attach makes a session the connection's. On the connection's loop, which owns the session by now.
func (l *Loop) attach(c *Client, conn Conn, req ConnectRequest) {
	l.b.timers.cancel(c)
	durable := c.stored || c.inboundStored || c.positioned || c.will != nil // what goes, goes before CONNACK
	// What a user has left is not for an anonymous client: that session ends. What was left without a user may be taken on.
	present := c.Persistent() && !req.Clean && (c.user == nil || *c.user == req.User)
	if !present {
		if c.will != nil { // the delayed will of a session that ends here [MQTT-3.1.3.2.2]
			l.b.fireWill(c, l)
		}
		l.b.wipe(c)
		l.b.startInbound(&c.Inbound)
	}
	c.Expiry, c.ExpiresMs = req.Expiry, 0
	c.conn, c.window = conn, uint16(max(min(req.Window, l.b.o.Limits.ReceiveMaximum, math.MaxUint16), 1))
	c.att = &attachment{client: c, loop: l}
	c.user = keepUser(req.User)
	l.makeRights(c)
	l.clients++
	l.insertSubs(c)
	if c.Persistent() || c.stored {
		l.b.putSession(c, true)
		l.markActive(c)
	}
	l.b.setWill(c, req.Will)
	c.rests = 0 // of the loop before
	if durable || c.Persistent() || c.will != nil {
		l.rest(c)
	}
	l.floor(c)
	if c.Flights.Len() > 0 {
		again := c.Flights.Ordered()
		c.owe().resend, c.owed.unsent = again, len(again)
		for _, id := range again {
			c.Flights.Get(id).Unsent = true
		}
	}
	conn.Attached(c, present)
	if c.conn == conn && (c.owed.toRead() || c.IsBehind()) {
		l.wantPump(c)
	}
}

// floor: a session that comes back reads up to here from the log. It is called when the subscriptions have been
// inserted: records above were matched with them in place.
func (l *Loop) floor(c *Client) {
	for i := range c.Cursors {
		cur := &c.Cursors[i]
		cur.Floor = l.b.parts[cur.Part].Committed()
		cur.Zero = cur.Floor
	}
}

// isFull reports that as many messages are in flight as the client takes.
func (c *Client) isFull() bool { return c.Flights.Len() >= int(c.window) }

// Conn returns the connection of an attached client.
func (c *Client) Conn() Conn { return c.conn }

// SetExpiry changes the session expiry of a connected session [MQTT-3.14.2-2].
func (c *Client) SetExpiry(l *Loop, seconds uint32) {
	c.Expiry = min(seconds, l.b.o.Limits.SessionExpiryMax)
}

// DropWill forgets the will: the client has said goodbye [MQTT-3.1.2-10].
func (l *Loop) DropWill(c *Client) {
	if c.will != nil {
		l.b.setWill(c, nil)
	}
}

// Disconnect ends a connection's hold on its session. It must run at a safe point (Loop.AtSafePoint), since it can
// publish a will and handles all pending mail; and only while the connection has the session, see Conn.Close.
func (l *Loop) Disconnect(c *Client) {
	if !l.detach(c) {
		return
	}
	if c.will != nil && (c.will.DelayS == 0 || !c.Persistent()) {
		l.b.fireWill(c, l)
	}
	l.goOffline(c)
}

// detach takes a session off its loop and computes where it is in each partition that concerns it.
//
// A loop has handed out everything below what was posted before its mailbox was emptied. So the order is: read the
// posted offsets, empty the mailbox, then take the larger of posted and handled: nothing of interest lies below it that
// the session has not been given, and nothing above it that it has. False: the mail itself took the session away.
func (l *Loop) detach(c *Client) bool {
	posted := l.relevant(c)
	if len(posted) > 0 {
		att := c.att
		if l.drainAll(); c.att != att {
			return false
		}
	}
	for _, at := range posted {
		if cur := c.Cursor(at.Part); cur == nil {
			c.FallBehind(at.Part, max(at.Offset, l.handled[at.Part]))
		} else if !cur.Behind {
			c.FallBehind(at.Part, max(cur.Next, at.Offset, l.handled[at.Part]))
		}
	}
	l.keepFlights(c)
	c.Cursors = slices.DeleteFunc(c.Cursors, func(cur session.Cursor) bool { return !concerns(c.Subs, l.b.parts[cur.Part]) })
	l.removeSubs(c)
	if c.Persistent() {
		l.b.putInbound(c) // positions are for whoever takes the session off the loop
		l.settleInbound(c)
	}
	c.att.client = nil
	c.att, c.conn = nil, nil
	c.gen++
	c.reading = false
	l.unpace(c)
	if o := c.owed; o != nil { // what remains is not to be delivered anew, or for operators
		l.b.catchup.free(o.chunk)
		if c.owed = nil; len(o.skip) > 0 || o.dropped > 0 || o.group != nil {
			c.owed = &owed{skip: o.skip, dropped: o.dropped, group: o.group}
		}
	}
	l.clients--
	return true
}

// keepFlights marks what is in flight from partitions that no subscription concerns any more. Their positions are about
// to be forgotten, and after a crash a later subscription gives the partition an older one: the message would pass for
// one that never left and has to be read again.
func (l *Loop) keepFlights(c *Client) {
	if !c.Persistent() {
		return
	}
	for _, id := range c.Flights.Ordered() {
		f := c.Flights.Get(id)
		if f.Kept || f.Share != nil || concerns(c.Subs, l.b.parts[f.Part]) {
			continue
		}
		f.Kept = true
		if f.QoS == 2 {
			l.b.o.Meta.Put(l.b.flightRecordKey(c.ClientID, f), appendFlight(nil, f))
		}
	}
}

// relevant lists the partitions that the session's subscriptions can match at QoS 1 or 2, with the offset posted so far.
func (l *Loop) relevant(c *Client) []session.Position {
	if !c.Persistent() {
		return nil
	}
	var at []session.Position
	for _, p := range l.b.parts {
		if concerns(c.Subs, p) {
			at = append(at, session.Position{Part: p.ID, Offset: p.posted.Load()})
		}
	}
	return at
}

// concerns reports whether a subscription can match a topic of the partition's stream.
func concerns(subs []*session.Sub, p *partition) bool {
	for _, s := range subs {
		if s.QoS > 0 && subConcerns(s, p) {
			return true
		}
	}
	return false
}

// touches reports whether a subscription of any QoS can match a topic of the partition's stream.
func touches(subs []*session.Sub, p *partition) bool {
	for _, s := range subs {
		if subConcerns(s, p) {
			return true
		}
	}
	return false
}

func subConcerns(s *session.Sub, p *partition) bool {
	if !p.Stream.Configured || s.Shared {
		return false
	}
	for _, f := range p.Stream.Filters {
		if topic.Overlap(f, s.Filter) {
			return true
		}
	}
	return false
}

func (l *Loop) goOffline(c *Client) {
	if !c.Persistent() {
		l.b.wipe(c)
		l.pass(c)
		return
	}
	if c.Expiry != session.NeverExpires {
		c.ExpiresMs = l.b.o.Clock.NowMs() + int64(c.Expiry)*1000
	}
	// Positions first: a kill in between finds a session that was connected and has positions. The other way round it
	// would find one that was offline and has none.
	l.b.putPositions(c, nil)
	l.b.putSession(c, false)
	l.pass(c)
}

// HasNoLocal reports whether a subscription of the client leaves out its own messages: those then carry its id.
func (c *Client) HasNoLocal() bool {
	for _, s := range c.Subs {
		if s.NoLocal {
			return true
		}
	}
	return false
}
