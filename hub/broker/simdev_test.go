package broker

import (
	"fmt"
	"slices"
)

// dev is a client of the simulation, with the state that the standard asks of clients, and what it has been promised.
type dev struct {
	s       *sim
	id      string
	persist bool
	old     bool // a version without reasons: a refusal is a close
	window  int

	cn      *tconn
	up      bool // CONNACK received
	present bool // a session is expected at the next connect
	clean   bool // a clean start was asked for and not confirmed: the old session may still be there
	inbox   []pkt
	held    []pkt           // to be acknowledged
	onWire  map[uint16]bool // sent by the hub on this connection and not acknowledged
	conns   int

	n      int // number of the last message
	lastID uint16
	out    []*outMsg
	// uncertain: publishes were refused, or a session was given up; the order of first records is then the client's own doing.

	// The session.
	in2   map[uint16]string
	subs  []*simSub
	asked []*simSub // SUBACK not received
	seen  map[string]*simSeen
	done  map[string]int // by topic: records before that are accounted for
}

type outMsg struct {
	id       uint16
	qos      byte
	topic    string
	n        int
	attempt  int
	received bool // PUBREC
}

// simSub is one subscription over its life: what must be delivered because of it, and what may.
type simSub struct {
	filter        string
	qos           byte
	may, from, to []int64   // by partition: asked for; confirmed; ended, or nil
	group         *simGroup // of a shared one, which has nothing of the above
}

type simSeen struct {
	conn int
	qos  byte
}

// reset forgets the session.
func (d *dev) reset() {
	d.leaveAll()
	d.in2, d.subs, d.asked, d.seen, d.done = map[uint16]string{}, nil, nil, map[string]*simSeen{}, map[string]int{}
	d.out, d.present = nil, false
}

func (d *dev) logf(format string, args ...any) { d.s.logf(d.id+" "+format, args...) }

func (d *dev) failf(format string, args ...any) { d.s.failf(d.id+": "+format, args...) }

// lost is the end of the connection as the client sees it: kept packets of its inbox were received before.
func (d *dev) lost(kept int) {
	d.inbox = d.inbox[:kept]
	d.drainInbox()
	d.cn, d.up, d.inbox, d.held = nil, false, nil, nil
	for _, x := range d.asked { // nobody knows whether the hub has it
		if x.group != nil {
			continue
		}
		x.from, x.to = x.may, make([]int64, len(x.may))
		d.subs = append(d.subs, x)
	}
	d.asked = nil
	if !d.persist {
		d.leaveAll()
	}
}

func (d *dev) act() {
	x := d.s.rng.IntN(100)
	switch {
	case d.cn == nil:
		if x < 30 {
			d.connect(x < 2)
		}
	case x < 2: // take the session from itself
		d.lost(d.s.rng.IntN(len(d.inbox) + 1))
		d.connect(x == 0)
	case x < 4:
		d.hangUp(x == 2)
	case x < 8 && d.up:
		d.subscribe()
	case x < 10 && d.up:
		d.unsubscribe()
	case x == 10 && d.up:
		d.unsubscribeShared()
	case x < 40 && d.up:
		d.publish()
	case x < 70:
		d.receiveOne()
	case x < 90:
		d.acknowledge()
	case x < 94:
		d.setRoom(d.s.rng.IntN(4))
	default:
		d.setRoom(-1)
	}
}

func (d *dev) connect(clean bool) {
	r := d.s.rig
	d.conns++
	d.up, d.inbox, d.held, d.onWire = false, nil, nil, map[uint16]bool{}
	clean = clean || d.clean
	if clean || !d.persist {
		d.reset()
	}
	d.clean = clean
	cn := r.conn(d.s.rng.IntN(len(r.loops)))
	cn.old = d.old
	d.cn = cn
	cn.receive = func(p pkt) { d.arrive(cn, p) }
	d.logf("connect clean=%v on loop %d", clean, cn.l.ID)
	req := ConnectRequest{ClientID: d.id, Clean: clean || !d.persist, Window: d.window}
	if d.persist {
		req.Expiry = 1 << 20
	}
	cn.l.Connect(cn, req)
	cn.l.Schedule()
}

func (d *dev) hangUp(polite bool) {
	d.logf("hang up")
	cn := d.cn
	d.lost(d.s.rng.IntN(len(d.inbox) + 1))
	if polite && cn.c != nil {
		cn.bye()
		return
	}
	cn.drop()
}

func (d *dev) setRoom(n int) {
	d.cn.room = n
	if n != 0 && d.cn.c != nil {
		d.cn.l.Pump(d.cn.c)
	}
}

// arrive takes a packet off the hub, as soon as it is flushed.
func (d *dev) arrive(cn *tconn, p pkt) {
	if d.cn != cn {
		return
	}
	d.logf("<- %v", p)
	d.inbox = append(d.inbox, p)
	if p.kind == "publish" {
		d.onTime(p)
	}
	if p.kind == "publish" && p.qos > 0 {
		d.onWire[p.id] = true
		if len(d.onWire) > d.window {
			d.failf("%d messages in flight, receive maximum %d", len(d.onWire), d.window)
		}
	}
}

func (d *dev) drainInbox() {
	for len(d.inbox) > 0 && d.cn != nil {
		d.receiveOne()
	}
	for len(d.held) > 0 && d.cn != nil {
		d.acknowledge()
	}
}

func (d *dev) receiveOne() {
	if len(d.inbox) == 0 {
		return
	}
	p := d.inbox[0]
	d.inbox = d.inbox[1:]
	switch p.kind {
	case "connack":
		d.connected(p.present)
	case "suback":
		d.confirmed()
	case "disconnect":
		d.lost(0)
	case "puback", "pubrec":
		d.answered(p)
	case "pubcomp":
		if i := d.find(p.id); i >= 0 && d.out[i].qos == 2 {
			d.out = slices.Delete(d.out, i, i+1)
		}
	case "publish":
		d.delivered(p)
		if p.qos > 0 {
			d.held = append(d.held, p)
		}
	case "pubrel":
		delete(d.in2, p.id)
		d.held = append(d.held, p)
	}
}

func (d *dev) connected(present bool) {
	if d.present && !present {
		d.failf("the session is gone")
	}
	if d.clean { // the old session has ended by now
		d.leaveAll()
		for _, g := range d.s.groups {
			delete(g.asked, d)
		}
	}
	d.up, d.clean = true, false
	d.present = d.persist
	for _, m := range d.out { // [MQTT-4.4.0-1]
		if d.cn.c == nil {
			return
		}
		if m.received {
			d.s.releaseFrom(d.cn, m.id)
			continue
		}
		m.attempt++
		d.send(m, true)
	}
}

func (s *sim) releaseFrom(cn *tconn, id uint16) {
	cn.answer(pkt{kind: "pubrec", id: id})
}

func (d *dev) publish() {
	if len(d.out) >= 6 || d.cn.c == nil {
		return
	}
	d.n++
	m := &outMsg{qos: byte(d.s.rng.IntN(3)), topic: simTopics[d.s.rng.IntN(len(simTopics))], n: d.n, attempt: 1}
	if m.qos > 0 {
		for m.id == 0 || d.find(m.id) >= 0 {
			d.lastID = d.lastID%7 + 1
			m.id = d.lastID
		}
		d.out = append(d.out, m)
	}
	d.send(m, false)
}

func (d *dev) send(m *outMsg, dup bool) {
	p := pkt{id: m.id, qos: m.qos, topic: m.topic, payload: fmt.Sprintf("%s:%d:%d", d.id, m.n, m.attempt), dup: dup, retain: m.n%7 == 0}
	if m.n%6 == 0 {
		p.expires = d.s.b.o.Clock.NowMs() + int64(1+m.n%5)*500
		d.s.expires[p.payload] = p.expires
	}
	d.logf("-> publish %s=%s q%d id%d", p.topic, p.payload, p.qos, p.id)
	if d.cn.c != nil && !d.cn.closing {
		d.cn.publish(p)
	}
}

func (d *dev) find(id uint16) int {
	return slices.IndexFunc(d.out, func(m *outMsg) bool { return m.id == id })
}

func (d *dev) answered(p pkt) {
	i := d.find(p.id)
	if i < 0 {
		d.failf("%v for nothing", p)
	}
	m := d.out[i]
	if p.code >= 0x80 {
		d.s.stats.Refused++
		d.out = slices.Delete(d.out, i, i+1)
		return
	}
	d.s.stats.Acked++
	if d.s.bases[fmt.Sprintf("%s:%d", d.id, m.n)] == 0 {
		d.failf("message %d is acknowledged and not in the log", m.n)
	}
	if p.kind == "puback" {
		d.out = slices.Delete(d.out, i, i+1)
		return
	}
	m.received = true
	if d.cn.c != nil {
		d.s.releaseFrom(d.cn, m.id)
	}
}

// acknowledge sends one of the acknowledgements held back, not always the oldest.
func (d *dev) acknowledge() {
	if len(d.held) == 0 {
		return
	}
	i := 0
	if d.s.rng.IntN(4) == 0 {
		i = d.s.rng.IntN(len(d.held))
	}
	p := d.held[i]
	d.held = slices.Delete(d.held, i, i+1)
	if d.cn.c == nil || d.cn.closing {
		return
	}
	if p.kind == "pubrel" || p.qos == 1 {
		delete(d.onWire, p.id)
	}
	d.cn.answer(p)
}

func (d *dev) committed() []int64 {
	var at []int64
	for _, p := range d.s.b.parts {
		at = append(at, p.Committed())
	}
	return at
}

func (d *dev) subscribe() {
	if d.cn.c == nil || d.cn.closing {
		return
	}
	if d.s.rng.IntN(3) == 0 {
		d.subscribeShared()
		return
	}
	f := simFilters[d.s.rng.IntN(len(simFilters))]
	for _, x := range slices.Concat(d.subs, d.asked) {
		if x.filter == f && x.to == nil {
			return // replaced subscriptions have a test of their own
		}
	}
	x := &simSub{filter: f, qos: byte(d.s.rng.IntN(3)), may: d.committed()}
	d.mergeEnded(f)
	d.asked = append(d.asked, x)
	d.logf("subscribe %s q%d", f, x.qos)
	d.cn.ask(SubRequest{Filter: f, QoS: x.qos, RetainHandling: byte(d.s.rng.IntN(2) * 2)})
}

// mergeEnded makes one of the ended subscriptions with a filter: what may still come because of them.
func (d *dev) mergeEnded(filter string) {
	var first *simSub
	d.subs = slices.DeleteFunc(d.subs, func(x *simSub) bool {
		if x.filter != filter || x.to == nil {
			return false
		}
		if first == nil {
			first = x
			return false
		}
		for i := range first.may {
			first.may[i] = min(first.may[i], x.may[i])
		}
		return true
	})
}

func (d *dev) confirmed() {
	x := d.asked[0]
	d.asked = d.asked[1:]
	if x.group != nil {
		x.group.join(d)
		return
	}
	x.from = d.committed()
	d.subs = append(d.subs, x)
}

func (d *dev) unsubscribe() {
	if d.cn.c == nil || d.cn.closing || len(d.subs) == 0 {
		return
	}
	x := d.subs[d.s.rng.IntN(len(d.subs))]
	if x.to != nil {
		return
	}
	d.logf("unsubscribe %s", x.filter)
	x.to = make([]int64, len(d.s.b.parts)) // what was not delivered by now may never be
	d.cn.l.Unsubscribe(d.cn.c, []string{x.filter}, nil)
	d.cn.l.Schedule()
}

// must reports whether the session has been promised the record at QoS 1 or 2.
func (d *dev) must(r *simRecord) bool {
	if !d.persist && r.offset < d.s.b.parts[r.part].Log.First() {
		return false // nothing is copied for sessions that end with their connection
	}
	for _, x := range d.subs {
		if r.qos > 0 && x.qos > 0 && matching(x.filter, r.topic) && r.offset >= x.from[r.part] && (x.to == nil || r.offset < x.to[r.part]) && !d.s.expired(r.payload) {
			return true
		}
	}
	return false
}

// delivered judges a message.
func (d *dev) delivered(p pkt) {
	r := d.s.records[p.payload]
	if r == nil {
		d.failf("%v is not in the log", p)
	}
	if p.qos == 2 {
		if old, ok := d.in2[p.id]; ok {
			if old != p.payload {
				d.failf("%v: the packet id is in use for %s", p, old)
			}
			return // known already
		}
		d.in2[p.id] = p.payload
	}
	if g := d.s.through(p); g != nil {
		d.shared(g, p, r)
		return
	}
	if p.retain {
		d.s.stats.Retained++
		return
	}
	d.s.stats.Delivered++
	if !slices.ContainsFunc(slices.Concat(d.subs, d.asked), func(x *simSub) bool {
		return matching(x.filter, r.topic) && r.offset >= x.may[r.part]
	}) {
		d.failf("%v (offset %d) is older than every subscription that matches", p, r.offset)
	}
	switch old := d.seen[p.payload]; {
	case old == nil:
		d.seen[p.payload] = &simSeen{d.conns, p.qos}
		d.inOrder(r)
	case p.qos == 2 && old.qos == 2:
		d.failf("%v: delivered twice", p)
	case old.conn == d.conns && !p.dup && r.offset >= d.s.killAt[r.part]: // a kill may repeat QoS 1
		d.failf("%v: delivered twice on one connection", p)
	default:
		old.conn = d.conns
	}
	if p.qos == 2 {
		d.s.stats.Exact++
	}
}

// inOrder checks that nothing that was promised and is older on the same topic is still to come.
func (d *dev) inOrder(r *simRecord) {
	for _, x := range d.s.byTopic[r.topic][min(d.done[r.topic], r.nth):r.nth] {
		if d.must(x) && d.seen[x.payload] == nil {
			d.failf("%s (offset %d) came before %s (offset %d)", r.payload, r.offset, x.payload, x.offset)
		}
	}
	d.done[r.topic] = max(d.done[r.topic], r.nth)
}

// complete checks, at the end, that nothing that was promised is missing.
func (d *dev) complete() {
	if d.cn == nil {
		return
	}
	for _, list := range d.s.byTopic {
		for _, x := range list {
			if d.must(x) && d.seen[x.payload] == nil {
				d.failf("%s on %s (%s@%d, QoS %d) never came", x.payload, x.topic, d.s.b.parts[x.part].Name, x.offset, x.qos)
			}
		}
	}
	for _, m := range d.out {
		d.failf("message %d (QoS %d, packet id %d) was not acknowledged", m.n, m.qos, m.id)
	}
}
