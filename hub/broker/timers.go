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

type timerRef struct {
	index int // in the heap, plus 1; 0: none
	atMs  int64
	// willMs is when the delayed will is due, 0: none.
	willMs int64
}

type timerHeap []*Client

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].timer.atMs < h[j].timer.atMs }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].timer.index, h[j].timer.index = i+1, j+1
}
func (h *timerHeap) Push(x any) {
	c := x.(*Client)
	*h = append(*h, c)
	c.timer.index = len(*h)
}
func (h *timerHeap) Pop() any {
	old := *h
	c := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	c.timer.index = 0
	return c
}

// scheduleAt enters an offline session. nowMs is when it went offline.
func (t *timers) scheduleAt(c *Client, nowMs int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
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
		heap.Push(&t.heap, c)
	}
}

func (t *timers) cancel(c *Client) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.timer.index > 0 {
		heap.Remove(&t.heap, c.timer.index-1)
	}
}

// due takes the sessions whose time has come.
func (t *timers) due(nowMs int64) []*Client {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []*Client
	for len(t.heap) > 0 && t.heap[0].timer.atMs <= nowMs {
		list = append(list, heap.Pop(&t.heap).(*Client))
	}
	return list
}

// expire ends offline sessions and fires delayed wills whose time has come.
func (b *Broker) expire(nowMs int64) {
	for _, c := range b.timers.due(nowMs) {
		if w, user, seq := b.expireOne(c, nowMs); w != nil { // not under the shard's lock: it writes to the log
			b.publishWill(c.ClientID, user, w, seq)
		}
	}
}

// expireOne returns a will to publish, if one is due.
func (b *Broker) expireOne(c *Client, nowMs int64) (due *Will, user string, seq uint64) {
	sh := b.reg.shard(c.ClientID)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if c.owner != nil || sh.clients[c.ClientID] != c {
		return nil, "", 0 // it came back
	}
	over := c.ExpiresMs > 0 && c.ExpiresMs <= nowMs
	if c.will != nil && (over || c.timer.willMs <= nowMs) {
		due, user, seq = c.will, c.user, c.willSeq
		c.will, c.willSeq = nil, 0
	}
	if over {
		delete(sh.clients, c.ClientID)
		b.Stats.SessionsExpired.Add(1)
		b.wipe(c)
		return due, user, seq
	}
	b.timers.mu.Lock()
	c.timer.willMs = 0
	b.timers.enter(c)
	b.timers.mu.Unlock()
	return due, user, seq
}
