package broker

import (
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"edgehub/internal/hubtime"
)

// everything is a hub that was killed with a record of every kind in its metadata.
func everything(t testing.TB) *rig {
	r := newRig(t, oneStream, 1)
	req := persistent("c")
	req.Will = willOf("w", "gone", 10)
	c := r.connect(0, req)
	c.ask(SubRequest{Filter: "t/#", QoS: 2, ID: 9, NoLocal: true}, SubRequest{Filter: "a", QoS: 1})
	p := r.connect(0, persistent("p"))
	p.publish(pkt{topic: "t/1", payload: "x", qos: 2, id: 1, retain: true})
	p.pub("t/2", "y", 1, 2)
	p.pub("a", "z", 1, 3)
	r.settle()
	p.pub("b", "open", 2, 4)
	r.settle()
	r.checkpoint()
	r.checkpoint()
	r.meta.Commit()
	for _, prefix := range []string{prefixSession, prefixSub, prefixPosition, prefixFlight, prefixInbound, prefixWill, prefixRetained, prefixVector} {
		if len(r.meta.keys(prefix)) == 0 {
			t.Fatalf("no record with prefix %q", prefix)
		}
	}
	return r
}

// serveAll lets everybody come back and finish.
func (r *rig) serveAll() {
	for _, id := range []string{"c", "p", "new"} {
		c := r.connect(0, persistent(id))
		c.subscribe(1, "#")
		c.answerAll()
		c.pub("t/1", "more", 2, 77)
		c.answerAll()
		c.drop()
	}
	r.settle()
	r.b.expire(r.b.o.Clock.NowMs() + 1e9)
	r.checkpoint()
	r.settle()
}

func TestRecoveryOfEveryKind(t *testing.T) {
	r := everything(t)
	r.kill()
	c := r.b.reg.shard("c").clients.get("c")
	if c == nil || len(c.Subs) != 2 || c.will == nil || c.will.DelayS != 10 {
		t.Fatalf("session: %+v", c)
	}
	s := c.FindSub("t/#")
	if s == nil || s.QoS != 2 || s.ID != 9 || !s.NoLocal {
		t.Fatalf("subscription: %+v", s)
	}
	if ids := c.Flights.Ordered(); len(ids) != 3 {
		t.Fatalf("in flight: %v", ids)
	}
	if p := r.b.reg.shard("p").clients.get("p"); !p.Inbound.Pending(4) || !p.Inbound.Pending(1) {
		t.Fatal("QoS 2 publishes are forgotten")
	}
	if r.b.Retained() != 1 {
		t.Fatal("the retained message is forgotten")
	}
	got := kinds(r.connect(0, persistent("c")).take(), "publish")
	wantTexts(t, got[:3], "x", "y", "z")
	for _, p := range got[3:] { // what was not far enough below the last checkpoint may come twice, but for QoS 2
		if p.qos == 2 {
			t.Errorf("again: %v", p)
		}
	}
}

// Records of every kind, cut short anywhere or with a byte changed: whatever can be served is served, nothing panics,
// and a record that cannot be read is counted once and gone afterwards.
func TestRecoveryOfMalformedRecords(t *testing.T) {
	r := everything(t)
	disk, durable := r.disk, r.meta.durable
	rng := rand.New(rand.NewPCG(7, 8))
	try := func(key string, v []byte) int {
		m := newMemMeta()
		m.durable = maps.Clone(durable)
		m.durable[key] = v
		m.now = maps.Clone(m.durable)
		x := &rig{t: t, disk: disk.Kill(), meta: m, specs: oneStream, lim: rigLimits, tolerant: true}
		x.start(1)
		x.serveAll()
		found := x.damaged
		x.tolerant = false
		x.kill() // nothing is left of the damage
		return found
	}
	for _, key := range slices.Sorted(maps.Keys(durable)) {
		v := durable[key]
		for n := 0; n < len(v); n += 1 + n/4 {
			if try(key, v[:n]) > 1 {
				t.Errorf("%q cut to %d bytes counts more than once", key, n)
			}
		}
		for range 8 {
			w := slices.Clone(v)
			if len(w) > 0 {
				w[rng.IntN(len(w))] = byte(rng.Uint32())
			}
			try(key, w)
		}
	}
	for _, key := range []string{"s/", "b/", "b/c", "c/", "c/nobody", "f/c\x00main/0-0\x00short", "f/c", "f/c\x00nowhere/0-0\x000123456789",
		"q/nobody", "w/c", "w/c\x00short", "r/x", "v/nowhere", "v/main/0-0", "zz"} {
		try(key, []byte{1, 2, 3})
	}
}

// What the end of a session leaves behind when the hub is killed in the middle of it is passed over, and no damage.
func TestRecoveryOfASessionThatWasEnding(t *testing.T) {
	for n := 0; ; n++ {
		r := everything(t)
		r.meta.pending = nil
		c := r.connect(0, ConnectRequest{ClientID: "other"})
		_ = c
		r.b.wipe(r.b.reg.shard("p").clients.get("p"))
		r.b.wipe(r.b.reg.shard("c").clients.get("c"))
		if n > len(r.meta.pending) {
			return
		}
		disk, m := r.disk.Kill(), r.meta.kill(n)
		r.disk, r.meta = disk, m
		r.start(1) // fails on damage
		for _, k := range r.meta.keys(prefixSub) {
			if id, _, _ := cutClient([]byte(k), prefixSub); r.b.reg.shard(id).clients.get(id) == nil {
				t.Errorf("after %d changes: %q is left behind", n, k)
			}
		}
	}
}

// A power cut takes records back that the metadata have counted on: positions and flights end with the log.
func TestRecoveryAfterAPowerCut(t *testing.T) {
	r := everything(t)
	synced := r.part("t").Log.Next()
	p := r.connect(0, persistent("p"))
	p.pub("t/1", "lost", 2, 5)
	p.pub("t/2", "lost too", 1, 6)
	for r.step(0) {
	}
	for range 3 {
		r.checkpoint()
	}
	r.disk = r.disk.Crash(rand.New(rand.NewPCG(1, 1)), 0, false) // nothing of that was synced
	r.meta = r.meta.kill(0)
	r.start(1)
	if n := r.part("t").Log.Next(); n != synced {
		t.Fatalf("%d records survived, %d were synced", n, synced)
	}
	c := r.connect(0, persistent("c"))
	p = r.connect(0, persistent("p"))
	wantTexts(t, c.answerAll(), "x", "y", "z")
	p.pub("t/1", "first of its offset", 2, 9)
	p.pub("t/2", "second", 1, 8)
	wantTexts(t, c.answerAll(), "first of its offset", "second")
}

// LastTime is what the clock goes on from.
func TestLastTime(t *testing.T) {
	m := newMemMeta()
	if at, err := LastTime(m); at != (hubtime.Mark{}) || err != nil {
		t.Fatalf("%v, %v", at, err)
	}
	m.Put([]byte("topic"), []byte("another key with the same beginning"))
	m.Put([]byte(keyTime), binary.BigEndian.AppendUint64(nil, 12345))
	if at, err := LastTime(m); at != (hubtime.Mark{HubMs: 12345}) || err != nil {
		t.Fatalf("%v, %v", at, err)
	}
}
