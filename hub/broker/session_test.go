package broker

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"edgehub/hub/message"
	"edgehub/hub/session"
)

// A takeover between loops under traffic: nothing is left out, QoS 2 comes once, and the old connection is told.
func TestTakeoverUnderTraffic(t *testing.T) {
	r := newRig(t, oneStream, 3)
	s := r.connect(0, persistent("s"))
	s.subscribe(2, "t")
	p := r.connect(2, ConnectRequest{ClientID: "p"})
	s.take()
	var got []pkt
	drain := func(answer bool) {
		for _, x := range s.take() {
			if x.kind == "publish" && !x.dup {
				got = append(got, x)
			}
			if answer {
				s.answer(x)
			}
		}
	}
	for i := range 60 {
		p.pub("t", fmt.Sprintf("m%d", i), 2, uint16(i+1))
		r.step(2)
		switch i % 6 {
		case 1:
			r.step(s.l.ID)
			drain(i%4 != 0)
		case 4:
			old := s
			s = r.conn(1 - old.l.ID)
			s.l.Connect(s, ConnectRequest{ClientID: "s", Expiry: 3600, Window: 50})
			s.l.Schedule()
			for len(old.closedWith) == 0 || s.c == nil {
				r.step(old.l.ID)
				r.step(s.l.ID)
			}
			if old.closedWith[0] != CodeTakenOver || old.c != nil || !s.present {
				t.Fatalf("old connection closed with %#x, new one present %v", old.closedWith, s.present)
			}
			for _, x := range old.take() { // had left before the takeover
				if x.kind == "publish" && !x.dup {
					got = append(got, x)
				}
			}
		}
	}
	got = append(got, s.answerAll()...)
	seen := map[string]bool{}
	next := 0
	for _, x := range got {
		if seen[x.payload] && !x.dup {
			t.Fatalf("%s came twice", x.payload)
		}
		if !seen[x.payload] && x.payload != fmt.Sprintf("m%d", next) {
			t.Fatalf("%s came before m%d", x.payload, next)
		}
		if !seen[x.payload] {
			seen[x.payload] = true
			next++
		}
	}
	if next != 60 {
		t.Fatalf("%d of 60 messages came", next)
	}
}

// A session that moves from a loop that is still to be asked to one that has been: the checkpoint sees it on neither,
// and its messages in flight must be in its record all the same.
func TestTakeoverInTheMiddleOfACheckpoint(t *testing.T) {
	r := newRig(t, oneStream, 2)
	s := r.connect(1, persistent("s"))
	s.subscribe(1, "t")
	p := r.connect(0, ConnectRequest{ClientID: "p"})
	r.checkpoint()
	p.pub("t", "x", 1, 1)
	r.settle()
	wantTexts(t, s.take(), "x") // in flight, not acknowledged
	r.checkpoint()
	r.checkpointWith(func(loop int) {
		if loop == 1 {
			n := r.conn(0)
			n.l.Connect(n, ConnectRequest{ClientID: "s", Expiry: 3600, Window: 10})
			for n.c == nil {
				r.step(1)
				for len(r.wakes[0]) > 0 && n.c == nil {
					r.step(0)
				}
			}
		}
	})
	r.kill()
	wantTexts(t, r.connect(0, persistent("s")).answerAll(), "x")
}

// Of several connections that want a session, the last one gets it; the others are told.
func TestTheLastClaimWins(t *testing.T) {
	r := newRig(t, oneStream, 3)
	first := r.connect(0, persistent("s"))
	second, third := r.conn(1), r.conn(2)
	for _, c := range []*tconn{second, third} {
		c.l.Connect(c, ConnectRequest{ClientID: "s", Expiry: 3600, Window: 10})
	}
	r.settle()
	if first.c != nil || second.c != nil || third.c == nil {
		t.Fatalf("attached: %v %v %v", first.c != nil, second.c != nil, third.c != nil)
	}
	for i, c := range []*tconn{first, second} {
		if len(c.closedWith) != 1 || c.closedWith[0] != CodeTakenOver {
			t.Errorf("connection %d was closed with %v", i, c.closedWith)
		}
	}
	if n, sessions, _ := r.b.Counts(); n != 1 || sessions != 1 {
		t.Fatalf("%d connections, %d sessions", n, sessions)
	}
}

// A connection that dies while it waits for its session leaves the session offline, not lost.
func TestAClaimThatDiesWhileItWaits(t *testing.T) {
	r := newRig(t, oneStream, 2)
	s := r.connect(0, persistent("s"))
	s.subscribe(1, "t")
	n := r.conn(1)
	n.l.Connect(n, ConnectRequest{ClientID: "s", Expiry: 3600, Window: 10})
	n.drop()
	r.settle()
	p := r.connect(0, ConnectRequest{ClientID: "p"})
	p.pub("t", "x", 1, 1)
	r.settle()
	if n, _, _ := r.b.Counts(); n != 1 {
		t.Fatalf("%d connections", n)
	}
	wantTexts(t, r.connect(1, persistent("s")).answerAll(), "x")
}

// An order to hand a session over that comes late, when nobody waits any more, does nothing.
func TestALateHandOver(t *testing.T) {
	r := newRig(t, oneStream, 2)
	s := r.connect(0, persistent("s"))
	n := r.conn(1)
	n.l.Connect(n, ConnectRequest{ClientID: "s", Expiry: 3600, Window: 10}) // mail for loop 0
	s.c = nil
	r.loops[0].Disconnect(r.b.reg.shard("s").clients.get("s")) // hands over by itself
	for n.c == nil {
		r.step(1)
	}
	n.drop()
	for r.step(1) {
	}
	s = r.conn(0)
	s.l.Connect(s, ConnectRequest{ClientID: "s", Expiry: 3600, Window: 10})
	r.settle() // now loop 0 reads its mail
	if s.c == nil || len(s.closedWith) > 0 {
		t.Fatalf("the session was taken from its only connection: %v", s.closedWith)
	}
}

// The session ends when it is time, not before, and not when its client is back.
func TestSessionExpiry(t *testing.T) {
	r := newRig(t, oneStream, 1)
	never := persistent("never")
	never.Expiry = session.NeverExpires
	r.b.o.Limits.SessionExpiryMax = session.NeverExpires
	for _, req := range []ConnectRequest{{ClientID: "none"}, {ClientID: "ten", Expiry: 10}, {ClientID: "back", Expiry: 10}, never} {
		c := r.connect(0, req)
		c.subscribe(1, "t")
		c.drop()
		r.settle()
	}
	back := r.connect(0, ConnectRequest{ClientID: "back", Expiry: 10})
	now := r.b.o.Clock.NowMs()
	r.b.expire(now + 9_000)
	if _, n, _ := r.b.Counts(); n != 3 {
		t.Fatalf("%d sessions before the time", n)
	}
	r.b.expire(now + 11_000)
	if _, n, _ := r.b.Counts(); n != 2 || back.c == nil {
		t.Fatalf("%d sessions after the time", n)
	}
	for _, prefix := range []string{prefixSession, prefixSub, prefixPosition} {
		for _, k := range r.meta.keys(prefix + "ten") {
			t.Errorf("left behind: %q", k)
		}
	}
	back.c.SetExpiry(back.l, 0) // at DISCONNECT
	back.bye()
	r.settle()
	r.b.expire(now + 1e15)
	if _, n, _ := r.b.Counts(); n != 1 {
		t.Fatalf("%d sessions: one never expires, one ended with its connection", n)
	}
}

// Expiry is absolute, and goes on counting while the hub is down.
func TestSessionExpiryOverARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, oneStream, 1)
		for _, id := range []string{"offline", "connected"} {
			c := r.connect(0, ConnectRequest{ClientID: id, Expiry: 100})
			c.subscribe(1, "t")
			r.settle()
		}
		r.b.reg.shard("offline").clients.get("offline").conn.(*tconn).drop()
		r.settle()
		time.Sleep(60 * time.Second)
		r.kill()
		time.Sleep(50 * time.Second)
		r.b.expire(r.b.o.Clock.NowMs())
		if c := r.connect(0, persistent("offline")); c.present {
			t.Error("a session outlived its time")
		}
		if c := r.connect(0, persistent("connected")); !c.present { // its time began with the kill
			t.Error("a session ended before its time")
		}
	})
}

func willOf(topic, payload string, delay uint32) *Will {
	return &Will{DelayS: delay, Msg: message.Message{Topic: []byte(topic), Payload: []byte(payload), QoS: 1}}
}

// willTest is one way for a client to go.
type willTest struct {
	name string
	req  ConnectRequest
	do   func(r *rig, c *tconn)
	want int // wills published
}

func withWill(expiry, delay uint32) ConnectRequest {
	return ConnectRequest{ClientID: "c", Expiry: expiry, Window: 10, Will: willOf("w", "gone", delay)}
}

var willTests = []willTest{
	{"the connection breaks", withWill(0, 0), func(_ *rig, c *tconn) { c.drop() }, 1},
	{"goodbye", withWill(0, 0), func(_ *rig, c *tconn) { c.bye() }, 0},
	{"persistent, breaks", withWill(100, 0), func(_ *rig, c *tconn) { c.drop() }, 1},
	{"delayed, not yet due", withWill(100, 50), func(_ *rig, c *tconn) { c.drop() }, 0},
	{"delayed, due", withWill(100, 50), func(r *rig, c *tconn) {
		c.drop()
		r.settle()
		time.Sleep(51 * time.Second)
		r.b.expire(r.b.o.Clock.NowMs())
		r.b.expire(r.b.o.Clock.NowMs())
	}, 1},
	{"delayed beyond the session's end", withWill(20, 50), func(r *rig, c *tconn) {
		c.drop()
		r.settle()
		time.Sleep(21 * time.Second)
		r.b.expire(r.b.o.Clock.NowMs())
	}, 1},
	{"delayed, the session ends with the connection", withWill(0, 50), func(_ *rig, c *tconn) { c.drop() }, 1},
	{"delayed, the client comes back", withWill(100, 50), func(r *rig, c *tconn) {
		c.drop()
		r.settle()
		r.connect(1, persistent("c")).l.Schedule()
		time.Sleep(200 * time.Second)
		r.b.expire(r.b.o.Clock.NowMs())
	}, 0},
	{"delayed, a clean start", withWill(100, 50), func(r *rig, c *tconn) {
		c.drop()
		r.settle()
		r.connect(1, ConnectRequest{ClientID: "c", Clean: true})
	}, 1},
	{"taken over", withWill(100, 0), func(r *rig, _ *tconn) { r.connect(1, persistent("c")) }, 1},
	{"taken over and resumed, delayed", withWill(100, 50), func(r *rig, _ *tconn) {
		r.connect(1, persistent("c"))
		time.Sleep(200 * time.Second)
		r.b.expire(r.b.o.Clock.NowMs())
	}, 0},
	{"taken over by a clean start, delayed", withWill(100, 50), func(r *rig, _ *tconn) {
		r.connect(1, ConnectRequest{ClientID: "c", Clean: true})
	}, 1},
	{"kill", withWill(0, 0), func(r *rig, _ *tconn) { r.kill() }, 1},
	{"kill, persistent", withWill(100, 0), func(r *rig, _ *tconn) { r.kill() }, 1},
	{"kill after a goodbye", withWill(100, 0), func(r *rig, c *tconn) {
		c.bye()
		r.settle()
		r.kill()
	}, 0},
	{"kill, delayed", withWill(100, 50), func(r *rig, _ *tconn) { r.kill() }, 0},
	{"kill, delayed, due", withWill(100, 50), func(r *rig, _ *tconn) {
		r.kill()
		time.Sleep(51 * time.Second)
		r.b.expire(r.b.o.Clock.NowMs())
	}, 1},
	{"kill while offline and delayed", withWill(100, 50), func(r *rig, c *tconn) {
		c.drop()
		r.settle()
		r.kill()
		time.Sleep(51 * time.Second)
		r.b.expire(r.b.o.Clock.NowMs())
	}, 1},
	{"two kills", withWill(100, 0), func(r *rig, _ *tconn) {
		r.kill()
		r.settle()
		r.kill()
	}, 1},
}

func TestWills(t *testing.T) {
	for _, tt := range willTests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, oneStream, 2)
				c := r.connect(0, tt.req)
				tt.do(r, c)
				r.settle()
				if got := r.payloads(r.part("w")); len(got) != tt.want {
					t.Fatalf("%d wills published, want %d", len(got), tt.want)
				}
			})
		})
	}
}

// A will that is on its way to the disk does not take the record of the next one with it.
func TestTheNextWillSurvivesTheLastOne(t *testing.T) {
	r := newRig(t, twoKinds, 2)
	req := ConnectRequest{ClientID: "c", Expiry: 100, Window: 10, Will: willOf("s/w", "first", 0)}
	c := r.connect(0, req)
	c.drop()
	for r.step(0) || r.step(1) { // published, waits for the sync
	}
	n := r.conn(1)
	req.Will = willOf("s/w", "second", 0)
	n.l.Connect(n, req)
	n.l.Schedule()
	r.settle()
	r.checkpoint()
	r.kill()
	r.settle()
	if got := r.payloads(r.part("s/w")); len(got) != 2 || got[1] != "second" {
		t.Fatalf("wills: %v", got)
	}
}

// No Local holds live and from the log, over a restart, and only for the session that asked for it.
func TestNoLocal(t *testing.T) {
	r := newRig(t, oneStream, 1)
	me, other := r.connect(0, persistent("me")), r.connect(0, persistent("other"))
	me.ask(SubRequest{Filter: "t", QoS: 1, NoLocal: true})
	other.ask(SubRequest{Filter: "t", QoS: 1})
	r.settle()
	me.pub("t", "mine live", 1, 1)
	other.pub("t", "yours live", 1, 1)
	r.settle()
	me.room = 0
	other.pub("t", "yours later", 1, 2)
	me.pub("t", "mine later", 1, 2)
	r.settle()
	me.room = -1
	me.l.Pump(me.c)
	wantTexts(t, me.answerAll(), "yours live", "yours later")
	wantTexts(t, other.answerAll(), "mine live", "yours live", "yours later", "mine later")
	me.pub("t", "mine before the kill", 1, 3)
	r.settle()
	r.kill()
	for _, s := range texts(r.connect(0, persistent("me")).answerAll()) {
		if strings.HasPrefix(s, "mine") {
			t.Errorf("%q came back to its publisher", s)
		}
	}
}

// A packet that is too large for the client is as good as delivered [MQTT-3.1.2-25], live and from the log.
func TestTooLargeForTheClient(t *testing.T) {
	r := newRig(t, oneStream, 1)
	s := r.connect(0, ConnectRequest{ClientID: "s", Window: 2})
	s.subscribe(2, "t")
	p := r.connect(0, ConnectRequest{ClientID: "p"})
	s.take()
	s.tooBig = true
	for i := range 5 {
		p.pub("t", "big", 2, uint16(i+1))
	}
	r.settle()
	s.room = 0
	p.pub("t", "behind", 2, 9)
	r.settle()
	s.room = -1
	s.l.Pump(s.c)
	r.settle()
	if s.c.Flights.Len() != 0 || s.c.IsBehind() {
		t.Fatalf("%d in flight, behind %v", s.c.Flights.Len(), s.c.IsBehind())
	}
	s.tooBig = false
	p.pub("t", "fits", 2, 10)
	wantTexts(t, s.answerAll(), "fits")
	if n := r.b.Stats.DroppedTooLarge.Load(); n != 6 {
		t.Fatalf("%d drops counted", n)
	}
}

// A message that has expired is not delivered, wherever it was waiting.
func TestExpiredMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, oneStream, 1)
		s := r.connect(0, persistent("s"))
		s.subscribe(1, "t")
		s.drop()
		r.settle()
		put := func(text string, ms int64) {
			m := &message.Message{Topic: []byte("t"), Payload: []byte(text), QoS: 1, Retain: text == "retained"}
			m.TimeMs = r.b.o.Clock.NowMs()
			m.ExpiresMs = m.TimeMs + ms
			r.b.PublishDirect(m, nil)
		}
		put("short", 1000)
		put("retained", 2000)
		put("long", 60_000)
		time.Sleep(5 * time.Second)
		s = r.connect(0, persistent("s"))
		wantTexts(t, s.answerAll(), "long")
		s.subscribe(1, "+")
		wantTexts(t, s.answerAll())
		if n := r.b.Stats.DroppedExpired.Load(); n < 2 {
			t.Fatalf("%d drops counted", n)
		}
	})
}

// A session that is taken on has the will of its new connection and no other: a kill must not find the delayed one of
// the connection before.
func TestSupersededWillIsForgotten(t *testing.T) {
	r := newRig(t, oneStream, 1)
	r.connect(0, withWill(100, 50)).drop()
	r.settle()
	if c := r.connect(0, withWill(100, 60)); !c.present {
		t.Fatal("the session is gone")
	}
	r.settle()
	if keys := r.meta.keys(prefixWill); len(keys) != 1 {
		t.Fatalf("records of wills: %q", keys)
	}
}
