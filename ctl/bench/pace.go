package bench

import (
	"math"
	"time"
)

// schedule says when each message of a rate is due: message k at startNs + k/perS.
type schedule struct {
	startNs int64
	perS    float64
}

func (s schedule) due(k int64) int64 { return s.startNs + int64(math.Round(float64(k)/s.perS*1e9)) }

// by is how many messages are due at that time.
func (s schedule) by(now int64) int64 {
	if now < s.startNs {
		return 0
	}
	n := int64(float64(now-s.startNs)*s.perS/1e9) + 1
	for s.due(n) <= now {
		n++
	}
	for n > 0 && s.due(n-1) > now {
		n--
	}
	return n
}

// A pacer looks again after pauseMax even when nothing is due, and after retryPause when a publisher could not send
// what it owes.
const (
	pauseMax   = 50 * time.Millisecond
	retryPause = 500 * time.Microsecond
)

// pacer sends the messages of all publishers at their times: message k belongs to publisher k modulo their number. It
// never waits for a broker. What a full window or socket keeps from being sent keeps its due time.
type pacer struct {
	schedule
	endNs func() int64 // messages due from then on are not sent
	now   func() int64
	pause func(time.Duration)
	turns []turn

	next   int64 // first message not yet owed
	behind []int // turns that owe messages
	over   int   // turns that have sent everything
}

// turn is a publisher's place in the schedule.
type turn struct {
	payer
	behind, over bool
}

// payer is what a pacer asks of a publisher.
type payer interface {
	// pay sends messages as far as it goes without waiting: its own number n, at due(n), as long as n is below owed. It
	// reports how many it has sent so far, and whether those are all that it will ever send.
	pay(owed int64, due func(n int64) int64) (sent int64, over bool)
}

// loop runs until everything is sent, or stop is closed.
func (p *pacer) loop(stop <-chan struct{}) {
	for {
		now := p.now()
		p.release(min(now, p.endNs()-1))
		if p.over == len(p.turns) || now >= p.endNs() && len(p.behind) == 0 {
			return
		}
		select {
		case <-stop:
			return
		default:
		}
		wait := pauseMax
		if now < p.endNs() {
			wait = min(wait, time.Duration(p.due(p.next)-p.now()))
		}
		if len(p.behind) > 0 {
			wait = min(wait, retryPause)
		}
		if wait > 0 {
			p.pause(wait)
		}
	}
}

// release makes publishers send what is due by now, and what they still owe.
func (p *pacer) release(now int64) {
	n, due := int64(len(p.turns)), p.by(now)
	first := max(p.next, due-n) // each publisher once, however many of its messages have become due
	p.next = max(p.next, due)
	retry := p.behind
	p.behind = nil
	for _, i := range retry {
		p.turns[i].behind = false
	}
	for _, i := range retry {
		p.pay(i)
	}
	for k := first; k < due; k++ {
		p.pay(int(k % n))
	}
}

// pay is the turn of one publisher.
func (p *pacer) pay(i int) {
	t, n, id := &p.turns[i], int64(len(p.turns)), int64(i)
	if t.over || t.behind {
		return
	}
	owed := (p.next - id + n - 1) / n // the k below p.next with k ≡ id
	sent, over := t.payer.pay(owed, func(j int64) int64 { return p.due(j*n + id) })
	switch {
	case over:
		t.over = true
		p.over++
	case sent < owed:
		t.behind = true
		p.behind = append(p.behind, i)
	}
}
