package mqtt

import (
	"errors"
	"math/rand/v2"
	"testing"

	"edgehub/internal/vfs/vfstest"
)

var failWrite = vfstest.Fault{Op: vfstest.OpWrite, Pattern: "*.log", Err: errors.New("injected"), Count: 1}

// Answers leave in the order of arrival, whatever order the outcomes come in; numbers stay right over compaction.
func TestAckQueue(t *testing.T) {
	var q ackQueue
	rng := rand.New(rand.NewPCG(3, 4))
	var open []uint32
	next, answered := 0, 0
	id := func(n int) uint16 { return uint16(n%65535) + 1 }
	for range 200_000 {
		switch {
		case len(open) == 0 || len(open) < 3000 && rng.IntN(2) == 0:
			next++
			open = append(open, q.add(id(next), 1+byte(next%2)))
		default:
			i := rng.IntN(min(len(open), 5))
			seq := open[i]
			open = append(open[:i], open[i+1:]...)
			if e := q.done(seq, byte(seq)); e.id == 0 {
				t.Fatalf("number %d is not known", seq)
			}
		}
		for {
			e, ok := q.next()
			if !ok {
				break
			}
			if answered++; e.id != id(answered) || e.qos != 1+byte(answered%2) {
				t.Fatalf("answered %+v, want id %d", e, id(answered))
			}
		}
		if rng.IntN(100) == 0 {
			q.trim()
		}
		if q.len() != next-answered {
			t.Fatalf("%d wait, want %d", q.len(), next-answered)
		}
	}
	for _, seq := range open {
		q.done(seq, 0)
	}
	for _, ok := q.next(); ok; _, ok = q.next() {
	}
	if q.trim(); q.w != nil || q.len() != 0 {
		t.Fatal("an empty queue holds memory")
	}
	if e := q.done(12345, 0); e.id != 0 {
		t.Fatal("the outcome of nothing")
	}
}

// Every connection comes due within a step of its deadline, not before it, wherever in the wheel or beyond it.
func TestWheel(t *testing.T) {
	var w wheel
	rng := rand.New(rand.NewPCG(5, 6))
	now := int64(1_700_000_000_123)
	w.init(now)
	due := map[*Conn]int64{}
	for range 2000 {
		c := &Conn{}
		due[c] = now + rng.Int64N(2*wheelSlots*wheelStepMs)
		w.add(c, due[c])
	}
	gone := 0
	for c := range due {
		if gone++; gone > 500 {
			break
		}
		w.remove(c)
		w.remove(c) // twice is once
		delete(due, c)
	}
	count := 0
	w.each(func(*Conn) { count++ })
	if count != len(due) {
		t.Fatalf("%d connections in the wheel, want %d", count, len(due))
	}
	for len(due) > 0 {
		now += 100 + rng.Int64N(400)
		w.advance(now, func(c *Conn, at int64) int64 {
			d, ok := due[c]
			if !ok {
				t.Fatal("judged although it was removed or judged before")
			}
			if d > at {
				t.Fatalf("judged %d ms too early", d-at)
			}
			if at-d > 2*wheelStepMs+500 {
				t.Fatalf("judged %d ms late", at-d)
			}
			if rng.IntN(4) == 0 { // heard of since
				due[c] = at + 1 + rng.Int64N(5000)
				return due[c]
			}
			delete(due, c)
			return 0
		})
	}
	w.each(func(*Conn) { t.Fatal("something is left in the wheel") })
}

// A gap longer than the wheel, as after a suspend: everybody is judged, after the grace, once.
func TestWheelAfterALongGap(t *testing.T) {
	var w wheel
	now := int64(5_000)
	w.init(now)
	judged := map[*Conn]int{}
	for i := range int64(1000) {
		w.add(&Conn{}, now+i*997)
	}
	judge := func(c *Conn, _ int64) int64 { judged[c]++; return 0 }
	now += 10 * wheelSlots * wheelStepMs
	w.advance(now, judge)
	if len(judged) > 0 {
		t.Fatal("judged without grace")
	}
	for range 50 {
		now += 100
		w.advance(now, judge)
	}
	if len(judged) != 1000 {
		t.Fatalf("%d of 1000 were judged", len(judged))
	}
	for _, n := range judged {
		if n != 1 {
			t.Fatal("judged twice")
		}
	}
	c := &Conn{}
	w.add(c, now+1500)
	for range 40 {
		now += 100
		w.advance(now, judge)
	}
	if judged[c] != 1 {
		t.Fatal("the wheel does not turn any more")
	}
}

func TestNeeded(t *testing.T) {
	for want, b := range map[int][]byte{
		0:             {},
		2:             {0xc0, 0},
		129:           {0x30, 127},
		131:           {0x30, 0x80, 0x01},
		1 + 4 + 1<<21: {0x30, 0x80, 0x80, 0x80, 0x01},
	} {
		if got := needed(b); got != want {
			t.Errorf("%x: %d, want %d", b, got, want)
		}
	}
	if needed([]byte{0x30}) != 0 || needed([]byte{0x30, 0x80}) != 0 {
		t.Error("the length is not known yet")
	}
}

// A loop keeps the buffers that it needs again and again, and gives up those that it does not.
func TestSpareBuffers(t *testing.T) {
	l := &loop{}
	use := func(n int) {
		conns := make([]*Conn, n)
		for i := range conns {
			conns[i] = &Conn{l: l}
			conns[i].out = append(conns[i].buffer(), 1)
			l.queued++
		}
		for _, c := range conns {
			l.giveBuffer(c)
		}
	}
	use(1000)
	l.trimBuffers()
	if len(l.bufs) != 1000 || l.spare != 1000*bufferMin {
		t.Fatalf("%d buffers, %d bytes after a burst", len(l.bufs), l.spare)
	}
	for range 5 {
		use(500)
		l.trimBuffers()
	}
	if n := l.spare; n < 500*bufferMin || n > 500*bufferMin+buffersIdle {
		t.Fatalf("%d bytes are kept of which %d are needed", n, 500*bufferMin)
	}
	l.trimBuffers()
	if l.spare > buffersIdle || l.spare != len(l.bufs)*bufferMin || l.queued != 0 {
		t.Fatalf("%d bytes in %d buffers are kept by an idle loop", l.spare, len(l.bufs))
	}
}
