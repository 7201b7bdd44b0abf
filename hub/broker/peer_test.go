package broker

import (
	"fmt"
	"slices"

	"edgehub/hub/message"
)

// pkt is a packet, either way.
type pkt struct {
	kind    string // connack publish puback pubrec pubrel pubcomp suback disconnect
	id      uint16
	qos     byte
	dup     bool
	retain  bool
	topic   string
	payload string
	code    byte
	present bool
	subIDs  []uint32
	expires int64 // hub time, 0: never
	sentMs  int64 // hub time of Send; it may leave later, when it rests on metadata
}

func (p pkt) String() string {
	switch p.kind {
	case "publish":
		return fmt.Sprintf("publish %s=%s q%d id%d dup=%v retain=%v %v", p.topic, p.payload, p.qos, p.id, p.dup, p.retain, p.subIDs)
	case "connack":
		return fmt.Sprintf("connack present=%v", p.present)
	}
	return fmt.Sprintf("%s id%d code%#x", p.kind, p.id, p.code)
}

// tconn is a connection with the contract of Conn and the rules of a protocol adapter: acknowledgements in order of
// arrival, repetitions of QoS 2 behind a barrier, a close that only takes note.
type tconn struct {
	r       *rig
	l       *Loop
	c       *Client
	present bool
	out     []pkt
	got     []pkt // flushed
	// receive takes what is flushed instead of got.
	receive func(pkt)
	room    int // deliveries that still fit; negative: any number
	flushes int
	waits   uint64 // for which commit it waits, or has waited
	closing bool
	gone    bool
	dirty   bool
	old     bool // a version that cannot refuse: the connection ends instead
	tooBig  bool // drops every publish as larger than the client takes
	// sent is called inside Send, as an early flush would be.
	sent func()
	// closedWith are the codes given to Close.
	closedWith []byte

	acks []tack
	base uint32
}

type tack struct {
	id   uint16
	qos  byte
	done bool
	code byte
}

func (r *rig) conn(loop int) *tconn { return &tconn{r: r, l: r.loops[loop], room: -1} }

// connect attaches a new connection and lets the loops finish.
func (r *rig) connect(loop int, req ConnectRequest) *tconn {
	r.t.Helper()
	cn := r.conn(loop)
	if req.Window == 0 {
		req.Window = 65535
	}
	cn.l.Connect(cn, req)
	cn.l.Schedule()
	r.settle()
	if cn.c == nil {
		r.t.Fatalf("%s is not attached", req.ClientID)
	}
	return cn
}

func persistent(id string) ConnectRequest { return ConnectRequest{ClientID: id, Expiry: 3600} }

func (cn *tconn) queue(p pkt) {
	cn.out = append(cn.out, p)
	if !cn.dirty {
		cn.dirty = true
		cn.l.MarkDirty(cn)
	}
}

func (cn *tconn) Attached(c *Client, present bool) {
	cn.c, cn.present = c, present
	if cn.gone || cn.closing {
		cn.l.AtSafePoint(cn.disconnect)
		return
	}
	cn.queue(pkt{kind: "connack", present: present})
}

func (cn *tconn) Room(int) bool { return !cn.gone && !cn.closing && cn.room != 0 }

func (cn *tconn) Send(d *Delivery) bool {
	if cn.tooBig {
		return false
	}
	if cn.gone || cn.closing {
		return true
	}
	if cn.room > 0 {
		cn.room--
	}
	cn.queue(pkt{kind: "publish", sentMs: cn.r.b.o.Clock.NowMs(), id: d.ID, qos: d.QoS, dup: d.Dup, retain: d.Retain, topic: string(d.Msg.Topic),
		payload: string(d.Msg.Payload), subIDs: slices.Clone(d.SubIDs)})
	if cn.sent != nil {
		cn.sent()
	}
	return true
}

func (cn *tconn) SendRelease(id uint16) { cn.queue(pkt{kind: "pubrel", id: id}) }

func (cn *tconn) Ack(seq uint32, code byte) {
	if i := int(seq - cn.base); i >= 0 && i < len(cn.acks) {
		cn.acks[i].done, cn.acks[i].code = true, code
		if cn.c != nil && cn.acks[i].qos == 2 && code < 0x80 {
			cn.l.Taken(cn.c, cn.acks[i].id)
		}
	}
	if cn.c == nil || cn.gone || cn.closing {
		return
	}
	for len(cn.acks) > 0 && cn.acks[0].done {
		e := cn.acks[0]
		cn.acks = cn.acks[1:]
		cn.base++
		if e.qos == 2 && e.code >= 0x80 {
			cn.l.Forget(cn.c, e.id)
		}
		if e.code >= 0x80 && cn.old {
			cn.closing = true
			cn.queue(pkt{kind: "disconnect"})
			return
		}
		if e.qos == 1 {
			cn.queue(pkt{kind: "puback", id: e.id, code: e.code})
			continue
		}
		cn.queue(pkt{kind: "pubrec", id: e.id, code: e.code})
	}
}

func (cn *tconn) Close(code byte) {
	cn.closedWith = append(cn.closedWith, code)
	if code == CodeTakenOver {
		cn.c = nil
	}
	cn.out = nil
	cn.closing = true
	cn.queue(pkt{kind: "disconnect", code: code})
}

func (cn *tconn) Flush() {
	cn.dirty = false
	switch {
	case cn.c == nil || cn.gone || !cn.l.Rests(cn.c):
	case cn.closing: // what rests on metadata that are not durable is left unsaid
		cn.out = kinds(cn.out, "disconnect")
	default:
		if cn.waits != cn.l.Begun() {
			cn.waits = cn.l.Begun()
			cn.l.Wait(cn)
		}
		return
	}
	cn.flushes++
	out := cn.out
	cn.out = nil
	if cn.gone || cn.r.died {
		return
	}
	for _, p := range out {
		if cn.receive != nil {
			cn.receive(p)
		} else {
			cn.got = append(cn.got, p)
		}
	}
	if cn.closing {
		cn.drop()
	}
}

// drop is the end of the socket, for whatever reason.
func (cn *tconn) drop() {
	if cn.gone {
		return
	}
	cn.gone = true
	cn.l.AtSafePoint(cn.disconnect)
}

func (cn *tconn) disconnect() {
	if c := cn.c; c != nil {
		cn.c = nil
		cn.l.Disconnect(c)
	}
}

// bye is a DISCONNECT of the client.
func (cn *tconn) bye() {
	cn.l.DropWill(cn.c)
	cn.drop()
}

// publish is a PUBLISH of the client, handled as a protocol adapter does. It returns the code of a refusal on the spot.
func (cn *tconn) publish(p pkt) byte {
	m := &message.Message{Topic: []byte(p.topic), Payload: []byte(p.payload), QoS: p.qos, Retain: p.retain,
		TimeMs: cn.r.b.o.Clock.NowMs(), ExpiresMs: p.expires}
	if cn.c.HasNoLocal() {
		m.Origin = message.Origin{Client: []byte(cn.c.ClientID), NoLocal: true}
	}
	if p.qos == 0 {
		code := cn.l.Publish(cn.c, nil, 0, m)
		cn.l.Schedule()
		return code
	}
	cn.acks = append(cn.acks, tack{id: p.id, qos: p.qos})
	seq := cn.base + uint32(len(cn.acks)-1)
	defer cn.l.Schedule()
	if p.qos == 2 {
		if cn.c.Inbound.Pending(p.id) {
			cn.barrier(seq, p.id)
			return CodeOK
		}
		if m.Origin.QoS2Seq = cn.l.Take(cn.c, p.id); cn.c.Persistent() {
			m.Origin.PacketID, m.Origin.Client = p.id, []byte(cn.c.ClientID)
		}
	}
	code := cn.l.Publish(cn.c, cn, seq, m)
	if code != CodeOK {
		cn.Ack(seq, code)
	}
	return code
}

func (cn *tconn) barrier(seq uint32, id uint16) { cn.l.Barrier(cn, seq, cn.c, id) }

// pub is publish with the arguments in a row.
func (cn *tconn) pub(topic, payload string, qos byte, id uint16) byte {
	return cn.publish(pkt{topic: topic, payload: payload, qos: qos, id: id})
}

// subscribe subscribes to filters at one QoS.
func (cn *tconn) subscribe(qos byte, filters ...string) {
	var reqs []SubRequest
	for _, f := range filters {
		reqs = append(reqs, SubRequest{Filter: f, QoS: qos})
	}
	cn.ask(reqs...)
}

func (cn *tconn) ask(reqs ...SubRequest) []byte {
	codes := cn.l.Subscribe(cn.c, reqs, nil)
	cn.queue(pkt{kind: "suback"})
	cn.l.Schedule()
	return codes
}

// answer acknowledges a packet of the hub as a client does.
func (cn *tconn) answer(p pkt) {
	if cn.c == nil {
		return
	}
	switch {
	case p.kind == "publish" && p.qos == 1:
		cn.l.Acked(cn.c, p.id)
	case p.kind == "publish" && p.qos == 2:
		if cn.l.Received(cn.c, p.id) {
			cn.queue(pkt{kind: "pubrel", id: p.id})
		}
	case p.kind == "pubrel":
		cn.l.Completed(cn.c, p.id)
	case p.kind == "pubrec" && p.code < 0x80:
		cn.l.Release(cn.c, p.id)
		cn.queue(pkt{kind: "pubcomp", id: p.id})
	}
	cn.l.Schedule()
}

// take returns what has been flushed and forgets it.
func (cn *tconn) take() []pkt {
	p := cn.got
	cn.got = nil
	return p
}

// answerAll acknowledges everything, until nothing more comes, and returns the publishes.
func (cn *tconn) answerAll() []pkt {
	var list []pkt
	for {
		cn.r.settle()
		got := cn.take()
		if len(got) == 0 {
			return list
		}
		for _, p := range got {
			if p.kind == "publish" {
				list = append(list, p)
			}
			cn.answer(p)
		}
	}
}

// kinds are the packets of a kind.
func kinds(list []pkt, kind string) []pkt {
	return slices.DeleteFunc(slices.Clone(list), func(p pkt) bool { return p.kind != kind })
}

// texts are the payloads of the publishes.
func texts(list []pkt) []string {
	var s []string
	for _, p := range kinds(list, "publish") {
		s = append(s, p.payload)
	}
	return s
}
