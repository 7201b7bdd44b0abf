package mqtt

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"edgehub/adapters/mqtt/packet"
	"edgehub/hub/broker"
)

// Every refusal of CONNECT, by version: what the client hears before the close, if the version has a word for it.
func TestRefusedConnects(t *testing.T) {
	const silence = -1
	tests := []struct {
		name     string
		listener int
		send     []byte
		drain    bool
		code     int
	}{
		{"not CONNECT", 0, publishPacket(4, 0, "t", "x", 0), false, silence},
		{"PINGREQ first", 0, []byte{0xc0, 0}, false, silence},
		{"garbage", 0, []byte("GET / HTTP/1.1\r\n\r\n"), false, silence},
		{"length of five bytes", 0, []byte{0x10, 0xff, 0xff, 0xff, 0xff, 0x01}, false, silence},
		{"too large", 0, []byte{0x10, 0xff, 0xff, 0x7f}, false, silence},
		{"fixed header flags", 0, frame(0x11, str("MQTT"), []byte{4, 2, 0, 0}, str("a")), false, silence},
		{"version 2", 0, frame(0x10, str("MQTT"), []byte{2, 2, 0, 0}, str("a")), false, 1},
		{"version 6", 0, frame(0x10, str("MQTT"), []byte{6, 2, 0, 0}, []byte{0}, str("a")), false, 0x84},
		{"another protocol", 0, frame(0x10, str("AMQP"), []byte{4, 2, 0, 0}, str("a")), false, 1},
		{"reserved flag, 3.1.1", 0, connectPacket(4, 3, "a", 0), false, silence},
		{"reserved flag, 5", 0, connectPacket(5, 3, "a", 0), false, 0x81},
		{"no id and no clean session, 3.1.1", 0, connectPacket(4, 0, "", 0), false, 2},
		{"no id and no clean start, 5", 0, connectPacket(5, 0, "", 0), false, 0},
		{"will QoS 3, 5", 0, frame(0x10, str("MQTT"), []byte{5, 0x1e, 0, 0}, []byte{0}, str("a"), []byte{0}, str("w"), str("x")), false, 0x81},
		{"will to the hub's topics, 5", 0, frame(0x10, str("MQTT"), []byte{5, 6, 0, 0}, []byte{0}, str("a"), []byte{0}, str("$SYS/x"), str("x")), false, 0x90},
		{"password without user, 3.1.1", 0, frame(0x10, str("MQTT"), []byte{4, 0x42, 0, 0}, str("a"), str("p")), false, silence},
		{"authentication method", 0, connectPacket(5, 2, "a", 0, 0x15, 0, 1, 'x'), false, 0x8c},
		{"receive maximum 0", 0, connectPacket(5, 2, "a", 0, 0x21, 0, 0), false, 0x82},
		{"property twice", 0, connectPacket(5, 2, "a", 0, 0x21, 0, 1, 0x21, 0, 1), false, 0x82},
		{"unknown property", 0, connectPacket(5, 2, "a", 0, 0x7f, 0), false, 0x81},
		{"anonymous, 3.1", 1, connectPacket(3, 2, "a", 0), false, 5},
		{"anonymous, 3.1.1", 1, connectPacket(4, 2, "a", 0), false, 5},
		{"anonymous, 5", 1, connectPacket(5, 2, "a", 0), false, 0x87},
		{"stopping, 3.1.1", 0, connectPacket(4, 2, "a", 0), true, 3},
		{"stopping, 5", 0, connectPacket(5, 2, "a", 0), true, 0x8b},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, 1)
			s := r.dial(0, tt.listener)
			r.s.draining.Store(tt.drain)
			s.send(tt.send...)
			got := s.take()
			switch {
			case tt.code == silence && len(got) > 0:
				t.Fatalf("answered by %v, want a close", got)
			case tt.code != silence && (len(got) != 1 || got[0].kind() != packet.TypeConnack || int(got[0].body[1]) != tt.code):
				t.Fatalf("answered by %v, want CONNACK %#x", got, tt.code)
			}
			if closed := tt.code != 0; s.closed != closed {
				t.Fatalf("closed %v", s.closed)
			}
			if n, _, _ := r.s.o.Broker.Counts(); (n > 0) != (tt.code == 0) {
				t.Fatalf("%d sessions are connected", n)
			}
		})
	}
}

// Input that comes before the session does is held, and handled after CONNACK.
func TestInputIsHeldWhileTheSessionIsOnItsWay(t *testing.T) {
	r := newRig(t, 2)
	old := r.login(0, 5, "c", 0)
	s := r.dial(1, 0)
	s.send(append(connectPacket(5, 2, "c", 0), publishPacket(5, 1, "t", "early", 7)...)...)
	if s.c.phase != phaseWaiting || len(s.in) == 0 || len(s.got) > 0 {
		t.Fatalf("phase %d, %d bytes held, %d written", s.c.phase, len(s.in), len(s.got))
	}
	if got := s.take(); len(got) != 1 || got[0].kind() != packet.TypeConnack {
		t.Fatalf("answered by %v", got)
	}
	s.nudge()
	if got := s.take(); len(got) != 1 || got[0].kind() != packet.TypePuback {
		t.Fatalf("the publish was answered by %v", got)
	}
	if got := old.take(); len(got) != 1 || got[0].kind() != packet.TypeDisconnect || got[0].body[0] != broker.CodeTakenOver || !old.closed {
		t.Fatalf("the old connection heard %v", got)
	}
}

// Whoever sends too much before CONNACK, or is not served in time, is closed: without a CONNACK that promises a session.
func TestNoAcceptanceForAConnectionThatEndsBeforeItsSession(t *testing.T) {
	for name, end := range map[string]func(r *rig, s *socket){
		"too much input": func(r *rig, s *socket) { s.send(make([]byte, r.s.o.MaxPacket+1)...) },
		"too late":       func(r *rig, s *socket) { s.l.judge(s.c, r.s.o.Clock.NowMs()+decideMaxMs+1_000) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 2)
			r.login(0, 5, "c", 0)
			s := r.dial(1, 0)
			s.send(connectPacket(5, 2, "c", 0)...)
			end(r, s)
			for r.step(1) { // the session is still on loop 0
			}
			for _, p := range s.take() {
				if p.kind() == packet.TypeConnack && p.body[1] == 0 {
					t.Fatal("accepted and closed")
				}
			}
			if !s.closed {
				t.Fatal("still open")
			}
			r.settle()
			if n, _, _ := r.s.o.Broker.Counts(); n != 0 {
				t.Fatalf("%d sessions are connected", n)
			}
		})
	}
}

// A large packet in pieces is waited for as a whole.
func TestNeed(t *testing.T) {
	r := newRig(t, 1)
	s := r.login(0, 4, "c", 0)
	p := publishPacket(4, 1, "t", strings.Repeat("x", 3000), 9)
	s.send(p[:2]...)
	if n := r.s.Need(s.c); n != 0 && n != len(p) {
		t.Fatalf("needs %d bytes, the packet has %d", n, len(p))
	}
	s.send(p[2:10]...)
	if n := r.s.Need(s.c); n != len(p) {
		t.Fatalf("needs %d bytes, the packet has %d", n, len(p))
	}
	s.send(p[10:]...)
	if got := s.take(); len(got) != 1 || got[0].kind() != packet.TypePuback {
		t.Fatalf("answered by %v", got)
	}
}

// Malformed and forbidden packets end the connection, in MQTT 5 with the reason.
func TestProtocolErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		send []byte
		code byte
	}{
		"a second CONNECT":      {connectPacket(5, 2, "c", 0), 0x82},
		"a packet of servers":   {[]byte{0xd0, 0}, 0x82},
		"SUBSCRIBE with none":   {frame(0x82, []byte{0, 1, 0}), 0x82},
		"SUBSCRIBE without QoS": {frame(0x82, []byte{0, 1, 0}, str("t")), 0x81},
		"QoS 3":                 {frame(0x36, str("t"), []byte{0, 1, 0}), 0x81},
		"packet id 0":           {publishPacket(5, 1, "t", "x", 0), 0x82},
		"wildcard in a topic":   {publishPacket(5, 0, "a/+", "x", 0), 0x90},
		"too many levels":       {publishPacket(5, 0, strings.Repeat("a/", 20), "x", 0), 0x90},
		"alias never set":       {frame(0x30, str(""), []byte{3, 0x23, 0, 1}), 0x82},
		"alias beyond":          {frame(0x30, str("t"), []byte{3, 0x23, 0, 99}), 0x94},
		"AUTH":                  {[]byte{0xf0, 0}, 0x82},
		"too large":             {[]byte{0x30, 0xff, 0xff, 0x7f}, 0x95},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			other := r.login(0, 5, "other", 0)
			s := r.login(0, 5, "c", 0)
			s.send(tt.send...)
			got := s.take()
			if len(got) != 1 || got[0].kind() != packet.TypeDisconnect || got[0].body[0] != tt.code || !s.closed {
				t.Fatalf("answered by %v, closed %v; want DISCONNECT %#x", got, s.closed, tt.code)
			}
			other.send(0xc0, 0)
			if got := other.take(); len(got) != 1 || got[0].kind() != packet.TypePingresp {
				t.Fatalf("another client suffers: %v", got)
			}
		})
	}
}

// The receive maximum that the hub has announced binds the client [MQTT-3.3.4-9].
func TestReceiveMaximum(t *testing.T) {
	r := newRig(t, 1)
	s := r.login(0, 5, "c", 0)
	for i := range 10 {
		s.send(publishPacket(5, 2, "t", "x", uint16(i+1))...)
	}
	s.send(publishPacket(5, 2, "t", "x", 3)...) // a repetition is none more
	if got := s.take(); len(got) != 11 {
		t.Fatalf("%d answers", len(got))
	}
	s.send(publishPacket(5, 1, "t", "x", 77)...)
	if got := s.take(); len(got) != 1 || got[0].kind() != packet.TypeDisconnect || got[0].body[0] != 0x93 {
		t.Fatalf("answered by %v", got)
	}
}

// A refused publish is refused with a reason in MQTT 5; older clients are closed, and nothing behind it is acknowledged.
func TestRefusedPublish(t *testing.T) {
	for _, version := range []byte{4, 5} {
		r := newRig(t, 1)
		s := r.login(0, version, "c", 0)
		s.l.last = time.Now().Add(time.Hour) // no round within AfterData
		s.send(publishPacket(version, 1, "t", "a", 1)...)
		r.failNextWrite()
		s.send(publishPacket(version, 1, "t", "b", 2)...)
		got := s.take()
		if version == 4 && (len(got) != 0 || !s.closed) {
			t.Errorf("3.1.1: %v, closed %v", got, s.closed)
		}
		if version == 5 && (len(got) != 2 || got[0].body[2] != 0x97 || s.closed) {
			t.Errorf("5: %v, closed %v", got, s.closed)
		}
	}
}

func (r *rig) failNextWrite() { r.fs.Add(failWrite) }

// The keep-alive: one and a half times the interval without a packet, and not while the loop itself was held up.
func TestKeepAlive(t *testing.T) {
	r := newRig(t, 1)
	s, idle := r.login(0, 5, "c", 10), r.login(0, 5, "idle", 0)
	start := s.c.seenMs
	for ms := int64(0); ms <= 14_000; ms += 100 {
		s.l.tick(start + ms)
	}
	if got := s.take(); len(got) != 0 {
		t.Fatalf("closed too early: %v", got)
	}
	s.c.seenMs = start + 14_000 // a packet
	for ms := int64(14_000); ms <= 28_000; ms += 100 {
		s.l.tick(start + ms)
	}
	if got := s.take(); len(got) != 0 {
		t.Fatalf("closed although it was heard of: %v", got)
	}
	for ms := int64(28_000); ms <= 32_000; ms += 100 {
		s.l.tick(start + ms)
	}
	got := s.take()
	if len(got) != 1 || got[0].kind() != packet.TypeDisconnect || got[0].body[0] != 0x8d || !s.closed {
		t.Fatalf("answered by %v", got)
	}
	if idle.take(); idle.closed {
		t.Fatal("keep-alive 0 is none")
	}
}

// After a stall of the loop, what clients have sent meanwhile is read before anybody is judged.
func TestKeepAliveAfterAStall(t *testing.T) {
	r := newRig(t, 1)
	s := r.login(0, 5, "c", 2)
	start := s.c.seenMs
	s.l.tick(start + 100)
	s.l.tick(start + 60_000) // the loop was away
	s.l.tick(start + 61_000)
	if got := s.take(); len(got) != 0 {
		t.Fatalf("judged right after a stall: %v", got)
	}
	for ms := int64(61_100); ms < 70_000; ms += 100 {
		s.l.tick(start + ms)
	}
	if s.take(); !s.closed {
		t.Fatal("never judged")
	}
}

// Whoever connects and says nothing is closed.
func TestConnectTimeout(t *testing.T) {
	r := newRig(t, 1)
	s := r.dial(0, 0)
	start := s.c.seenMs
	s.send(0x10) // slowly
	for ms := int64(0); ms < 9_000; ms += 500 {
		s.l.tick(start + ms)
	}
	if s.take(); s.closed {
		t.Fatal("closed too early")
	}
	for ms := int64(9_000); ms < 13_000; ms += 500 {
		s.l.tick(start + ms)
	}
	if s.take(); !s.closed || r.s.Stats.ConnectTimeouts.Load() != 1 {
		t.Fatal("still open")
	}
}

// Whoever has said who it is and waits for the hub's word is not closed by the connect timeout, but has a bound, too.
func TestTimeForTheHubToDecide(t *testing.T) {
	r := newRig(t, 1)
	s := r.dial(0, 0)
	start := s.c.seenMs
	s.c.phase = phaseWaiting
	for ms := int64(0); ms < decideMaxMs-1000; ms += 500 {
		s.l.tick(start + ms)
	}
	if s.take(); s.closed || r.s.Stats.ConnectTimeouts.Load() != 0 {
		t.Fatal("closed while it waited for the hub")
	}
	for ms := int64(decideMaxMs - 1000); ms < decideMaxMs+5000; ms += 500 {
		s.l.tick(start + ms)
	}
	if s.take(); !s.closed || r.s.Stats.ConnectTimeouts.Load() != 1 {
		t.Error("waits for ever")
	}
}

// A client that does not read holds a bounded number of bytes, its messages stay in the log, and all clients together
// have a bound too.
func TestOutboundIsBounded(t *testing.T) {
	r := newRig(t, 1)
	var slow []*socket
	for i := range 20 {
		s := r.login(0, 5, fmt.Sprintf("s%d", i), 0)
		s.send(subscribePacket(5, 1, "t", 0)...)
		s.take()
		s.stuck = true
		slow = append(slow, s)
	}
	p := r.login(0, 5, "p", 0)
	for i := range 60 {
		p.send(publishPacket(5, 1, "t", strings.Repeat("x", 1000), uint16(i+1))...)
		p.take()
	}
	total := 0
	for i, s := range slow {
		if n := len(s.waiting); n > r.s.o.OutboundPerClient {
			t.Errorf("client %d holds %d bytes, limit %d", i, n, r.s.o.OutboundPerClient)
		}
		total += len(s.waiting)
	}
	// The bound of all is looked at before each message: everybody may be one beyond.
	if most := int(r.s.o.Outbound) + len(slow)*1100; total > most {
		t.Errorf("all clients hold %d bytes, limit %d", total, r.s.o.Outbound)
	}
	if got := r.s.Buffered(); got != int64(total) {
		t.Errorf("%d bytes counted, %d held", got, total)
	}
	for _, s := range slow {
		s.shut()
	}
	if r.settle(); r.s.Buffered() != 0 {
		t.Errorf("%d bytes counted after all have gone", r.s.Buffered())
	}
}

// Answers to a client that does not read them are no reason to grow: it is closed.
func TestAClientThatAsksAndDoesNotRead(t *testing.T) {
	r := newRig(t, 1)
	s := r.login(0, 4, "c", 0)
	s.stuck = true
	for n := 0; !s.closed; n++ {
		s.send([]byte(strings.Repeat("\xc0\x00", 2000))...)
		r.settle()
		if n > 100 {
			t.Fatalf("%d bytes of answers are held", len(s.waiting))
		}
	}
	if r.s.Stats.SlowClosed.Load() != 1 {
		t.Fatal("not counted")
	}
}

// A write that fails closes the connection in the middle of the flush; the others get theirs.
func TestAWriteThatFails(t *testing.T) {
	r := newRig(t, 1)
	var all []*socket
	for i := range 3 {
		s := r.login(0, 5, fmt.Sprintf("s%d", i), 0)
		s.send(subscribePacket(5, 1, "t", 1)...)
		s.take()
		all = append(all, s)
	}
	all[1].broken = true
	p := r.login(0, 5, "p", 0)
	p.send(publishPacket(5, 1, "t", "x", 1)...)
	p.take()
	for i, s := range all {
		if got := s.take(); (len(got) == 1) != (i != 1) || s.closed != (i == 1) {
			t.Errorf("client %d: %v, closed %v", i, got, s.closed)
		}
	}
	if n, _, _ := r.s.o.Broker.Counts(); n != 3 {
		t.Fatalf("%d sessions are connected", n)
	}
}

// A client with a maximum packet size never gets a larger one.
func TestMaximumPacketSize(t *testing.T) {
	r := newRig(t, 1)
	s := r.login(0, 5, "c", 0, 0x27, 0, 0, 0, 60)
	two := r.login(0, 5, "d", 0, 0x27, 0, 0, 0, 60)
	for _, x := range []*socket{s, two} { // two receivers: the encoded form is shared
		x.send(subscribePacket(5, 1, "t", 0)...)
		x.take()
	}
	p := r.login(0, 5, "p", 0)
	p.send(publishPacket(5, 1, "t", strings.Repeat("x", 100), 1)...)
	p.send(publishPacket(5, 1, "t", "fits", 2)...)
	p.take()
	for _, x := range []*socket{s, two} {
		if got := x.take(); len(got) != 1 || !strings.HasSuffix(string(got[0].body), "fits") {
			t.Errorf("delivered %v", got)
		}
	}
}

// The hub's own topics are refused, and the client goes on.
func TestPublishToTheHubsTopics(t *testing.T) {
	for _, version := range []byte{4, 5} {
		r := newRig(t, 1)
		s := r.login(0, version, "c", 0)
		s.send(publishPacket(version, 1, "$SYS/broker/x", "x", 1)...)
		got := s.take()
		if len(got) != 1 || got[0].kind() != packet.TypePuback || version == 5 && (len(got[0].body) < 3 || got[0].body[2] < 0x80) || s.closed {
			t.Errorf("version %d: %v, closed %v", version, got, s.closed)
		}
	}
}

// Aliases belong to one connection.
func TestTopicAliasesDoNotOutliveTheConnection(t *testing.T) {
	r := newRig(t, 1)
	s := r.login(0, 5, "c", 0)
	s.send(frame(0x32, str("t"), []byte{0, 1, 3, 0x23, 0, 1}, []byte("x"))...)
	s.send(frame(0x32, str(""), []byte{0, 2, 3, 0x23, 0, 1}, []byte("y"))...)
	if got := s.take(); len(got) != 2 || got[1].kind() != packet.TypePuback {
		t.Fatalf("answered by %v", got)
	}
	s = r.login(0, 5, "c", 0)
	s.send(frame(0x32, str(""), []byte{0, 3, 3, 0x23, 0, 1}, []byte("z"))...)
	if got := s.take(); len(got) != 1 || got[0].kind() != packet.TypeDisconnect || got[0].body[0] != 0x82 {
		t.Fatalf("answered by %v", got)
	}
}

// FuzzConn: whatever a client sends, in whatever pieces, the hub does not panic, says CONNACK before anything else,
// writes only whole packets, and serves the others.
func FuzzConn(f *testing.F) {
	for _, v := range []byte{3, 4, 5} {
		hello := connectPacket(v, 2, "c", 10)
		f.Add(hello, uint8(3))
		f.Add(append(hello, publishPacket(v, 2, "a/b", "x", 1)...), uint8(7))
		f.Add(append(append(hello, subscribePacket(v, 1, "#", 2)...), publishPacket(v, 1, "a", "x", 2)...), uint8(1))
		f.Add(append(append(hello, 0x62, 2, 0, 1), 0xe0, 0), uint8(200))
	}
	r := newRig(f, 2)
	other := r.login(1, 5, "other", 0)
	other.send(subscribePacket(5, 1, "alive", 0)...)
	other.take()
	f.Fuzz(func(t *testing.T, data []byte, piece uint8) {
		r.t = t
		s := r.dial(0, 0)
		for len(data) > 0 && !s.closed {
			n := min(int(piece)+1, len(data))
			s.send(data[:n]...)
			data = data[n:]
			r.settle()
			s.nudge()
		}
		for i, p := range s.take() {
			if i == 0 && p.kind() != packet.TypeConnack {
				t.Fatalf("the first packet is %v", p)
			}
			if i > 0 && p.kind() == packet.TypeConnack {
				t.Fatal("a second CONNACK")
			}
		}
		s.shut()
		r.settle()
		other.take()
		p := r.login(1, 5, "p", 0)
		p.send(publishPacket(5, 0, "alive", "x", 0)...)
		if got := other.take(); len(got) != 1 || got[0].kind() != packet.TypePublish {
			t.Fatalf("another client heard %v", got)
		}
		p.shut()
		r.settle()
		if r.s.Open() != 1 || r.s.Buffered() != 0 || r.loops[0].queued != 0 || r.loops[1].queued != 0 {
			t.Fatalf("left behind: %d connections, %d bytes, %d and %d queued", r.s.Open(), r.s.Buffered(), r.loops[0].queued, r.loops[1].queued)
		}
	})
}
