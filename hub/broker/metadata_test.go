package broker

import (
	"testing"
)

// lateMeta makes every commit of the metadata late: it ends when the test says so.
func (r *rig) lateMeta() { r.late = func(t *task) bool { return t.p == nil } }

// runLoops runs what the loops have to do, and ends nothing that is late.
func (r *rig) runLoops() { r.rounds() }

// While a commit of the metadata is late, who rests on it waits, and nobody else: messages of QoS 0 and 1 and sessions
// without a record go on. What is put meanwhile is one commit, of all rounds together.
func TestLateMetadata(t *testing.T) {
	r := newRig(t, oneStream, 1)
	s := r.connect(0, persistent("s"))
	x := r.connect(0, persistent("x"))
	a := r.connect(0, ConnectRequest{ClientID: "a"})
	a.subscribe(1, "t")
	r.settle()
	for _, cn := range []*tconn{s, x, a} {
		cn.take()
	}
	r.lateMeta()
	s.subscribe(2, "t")
	r.runLoops()
	commits := r.meta.commits
	for i := range 3 { // rounds while the commit is under way
		a.pub("t", "calm", 1, uint16(i+1))
		x.subscribe(1, "other")
		r.runLoops()
	}
	calm := r.conn(0)
	calm.l.Connect(calm, ConnectRequest{ClientID: "calm"})
	later := r.conn(0)
	later.l.Connect(later, persistent("later"))
	r.loops[0].Schedule()
	r.runLoops()
	if got := a.take(); len(kinds(got, "puback")) != 3 || len(kinds(got, "publish")) != 3 {
		t.Errorf("who rests on nothing got %v", got)
	}
	if len(kinds(calm.take(), "connack")) != 1 {
		t.Error("no CONNACK for a session without a record")
	}
	if got := append(append(s.take(), x.take()...), later.take()...); len(got) != 0 || len(r.tasks) != 1 {
		t.Fatalf("left before it was durable: %v; %d commits at a time", got, len(r.tasks))
	}

	r.endLate(0) // it takes all that was put until then
	r.runLoops()
	if n := len(kinds(x.take(), "suback")); n != 3 || len(kinds(later.take(), "connack")) != 1 {
		t.Errorf("%d of 3 subscriptions confirmed", n)
	}
	r.late = nil
	r.settle()
	if got := s.take(); len(got) != 4 || got[0].kind != "suback" || len(texts(got)) != 3 {
		t.Errorf("s got %v", got)
	}
	if n := r.meta.commits - commits; n > 2 {
		t.Errorf("%d commits for all rounds", n)
	}
}

// A late commit that fails closes the connections that wait for it, and only those.
func TestLateMetadataFails(t *testing.T) {
	r := newRig(t, oneStream, 1)
	s, a := r.connect(0, persistent("s")), r.connect(0, ConnectRequest{ClientID: "a"})
	s.take()
	a.take()
	r.lateMeta()
	s.subscribe(1, "t")
	r.runLoops()
	r.meta.around = func(bool) error { return errInjected }
	a.pub("t", "x", 1, 1)
	r.endLate(0)
	r.meta.around = nil
	r.runLoops()
	if got := s.take(); len(got) != 1 || got[0].kind != "disconnect" || !s.gone {
		t.Errorf("left: %v, closed %v", got, s.gone)
	}
	if got := a.take(); len(kinds(got, "puback")) != 1 || a.gone {
		t.Errorf("left: %v, closed %v", got, a.gone)
	}
	r.late = nil
	r.settle()
	if s = r.connect(0, persistent("s")); !s.present {
		t.Error("the session is gone")
	}
}

// What waits for a late commit is bounded: beyond that no session begins, and no subscription and retained message is
// taken.
func TestLateMetadataIsBounded(t *testing.T) {
	r := newRig(t, oneStream, 1)
	s := r.connect(0, persistent("s"))
	s.take()
	r.lateMeta()
	s.subscribe(1, "t")
	r.runLoops()
	r.meta.Put([]byte("x"), make([]byte, metaBacklogMax+1))
	cn := r.conn(0)
	if code := cn.l.Connect(cn, persistent("n")); code != CodeServerBusy {
		t.Errorf("a session begins: %#x", code)
	}
	if codes := s.ask(SubRequest{Filter: "u"}); codes[0] != CodeQuotaExceeded {
		t.Errorf("a subscription is taken: %#x", codes[0])
	}
	if code := s.publish(pkt{topic: "t", payload: "x", qos: 1, id: 1, retain: true}); code != CodeQuotaExceeded {
		t.Errorf("a retained message is taken: %#x", code)
	}
	if n := r.b.Stats.RefusedBusy.Load(); n != 3 {
		t.Errorf("%d refusals counted", n)
	}
	r.settle()
	if r.late = nil; r.connect(0, persistent("n")).c == nil {
		t.Error("refused for ever")
	}
}

// A message of a shared subscription rests on the metadata at QoS 2 only: others reach members on other loops meanwhile.
func TestLateMetadataAndShares(t *testing.T) {
	r := newRig(t, oneStream, 2)
	home := r.connect(0, ConnectRequest{ClientID: "home"})
	home.subscribe(2, "$share/g/t")
	r.settle()
	m := r.connect(1, ConnectRequest{ClientID: "m"})
	m.subscribe(2, "$share/g/t")
	p := r.connect(0, persistent("p"))
	r.settle()
	home.bye()
	r.settle()
	m.take()
	r.lateMeta()
	p.subscribe(1, "nothing") // a commit is under way
	r.runLoops()
	p.pub("t", "one", 1, 1)
	r.runLoops()
	if got := texts(m.take()); len(got) != 1 {
		t.Errorf("QoS 1 waits: %v", got)
	}
	p.pub("t", "two", 2, 2)
	r.runLoops()
	if got := texts(m.take()); len(got) != 0 {
		t.Errorf("QoS 2 left before it was durable: %v", got)
	}
	r.settle()
	if got := texts(m.take()); len(got) != 1 {
		t.Errorf("QoS 2 came %d times", len(got))
	}
}
