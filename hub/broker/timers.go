package broker

import (
	"container/heap"
	"sync"

	"edgehub/hub/session"
)

// timers are the due times of offline sessions: their end, and the delayed will before it. One heap, looked at by the
// tick; a session has one entry at most.
type timers struct {
	mu   sync.Mutex
	heap timerHeap
}

// timer is the entry of an offline session. Guarded by timers.mu.
type timer struct {
	c     *Client
	index int // in the heap, plus 1; 0: not there
	atMs  int64
	// willMs is when the delayed will is due, 0: none.
	willMs int64
}

type timerHeap []*timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].atMs < h[j].atMs }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i+1, j+1
}
func (h *timerHeap) Push(x any) {
	e := x.(*timer)
	*h = append(*h, e)
	e.index = len(*h)
}
func (h *timerHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	e.index = 0
	return e
}

// scheduleAt enters an offline session. nowMs is when it went offline.
func (t *timers) scheduleAt(c *Client, nowMs int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.will == nil && c.ExpiresMs == 0 && c.Expiry == session.NeverExpires {
		return // nothing will be due
	}
	if c.timer == nil {
		c.timer = &timer{c: c}
	}
	c.timer.willMs = 0
	if c.will != nil {
		c.timer.willMs = nowMs + int64(min(c.will.DelayS, c.Expiry))*1000
	}
	t.enter(c)
}

// enter puts c at its next due time. Under t.mu.
func (t *timers) enter(c *Client) {
	at := c.ExpiresMs
	if w := c.timer.willMs; w > 0 && (at == 0 || w < at) {
		at = w
	}
	if at == 0 && c.Expiry == session.NeverExpires {
		return
	}
	c.timer.atMs = at
	if c.timer.index > 0 {
		heap.Fix(&t.heap, c.timer.index-1)
	} else {
		heap.Push(&t.heap, c.timer)
	}
}

func (t *timers) cancel(c *Client) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.timer != nil && c.timer.index > 0 {
		heap.Remove(&t.heap, c.timer.index-1)
	}
	c.timer = nil
}

// willDue reports whether the time of an offline session's will has come.
func (t *timers) willDue(c *Client, nowMs int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return c.timer != nil && c.timer.willMs <= nowMs
}

// again enters an offline session whose will has been fired: for its end.
func (t *timers) again(c *Client) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.timer != nil {
		c.timer.willMs = 0
		t.enter(c)
	}
}

// due takes the sessions whose time has come.
func (t *timers) due(nowMs int64) []*Client {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []*Client
	for len(t.heap) > 0 && t.heap[0].atMs <= nowMs {
		list = append(list, heap.Pop(&t.heap).(*timer).c)
	}
	return list
}

// expire ends offline sessions and fires delayed wills whose time has come.
func (b *Broker) expire(nowMs int64) {
	for _, c := range b.timers.due(nowMs) {
		if w, user := b.expireOne(c, nowMs); w != nil { // not under the shard's lock: it writes to the log
			b.publishWill(c.ClientID, user, w, nil)
		}
	}
}

// expireOne returns a will to publish, if one is due.
func (b *Broker) expireOne(c *Client, nowMs int64) (due *Will, user string) {
	sh := b.reg.shard(c.ClientID)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if c.owner != nil || sh.clients.get(c.ClientID) != c {
		return nil, "" // it came back
	}
	over := c.ExpiresMs > 0 && c.ExpiresMs <= nowMs
	if c.will != nil && (over || b.timers.willDue(c, nowMs)) {
		due, user = c.will, userName(c.user)
		c.will = nil
	}
	if over {
		sh.clients.remove(c.ClientID)
		b.Stats.SessionsExpired.Add(1)
		b.wipe(c)
		return due, user
	}
	b.timers.again(c)
	return due, user
}
