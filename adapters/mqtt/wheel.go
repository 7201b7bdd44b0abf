package mqtt

const (
	wheelSlots  = 512
	wheelStepMs = 250
	// stallMs: when the wheel was not advanced for this long, the loop was held up, and what clients sent in the
	// meantime is still in their sockets. Judging them now would close them all and fire their wills.
	stallMs = 3000
	graceMs = 2000
)

// wheel holds connections by deadline, in steps of a quarter second: adding, removing and finding the due ones cost the same
// whatever their number. A deadline that moves on with every packet is not moved in the wheel; whoever comes due too
// early is entered again. Owned by a loop.
type wheel struct {
	slots   [wheelSlots]*Conn
	atMs    int64 // everything due before this has been looked at
	seenMs  int64
	graceMs int64 // no judgement before this
}

func (w *wheel) init(now int64) {
	w.atMs, w.seenMs = now-now%wheelStepMs, now
}

func (w *wheel) add(c *Conn, dueMs int64) {
	c.dueMs = dueMs
	// Beyond the horizon: as late as the wheel goes, then entered again.
	at := min(max(dueMs, w.atMs+wheelStepMs), w.atMs+(wheelSlots-1)*wheelStepMs)
	slot := &w.slots[(at/wheelStepMs)%wheelSlots]
	c.slot = int16((at / wheelStepMs) % wheelSlots)
	c.inWheel = true
	c.prev, c.next = nil, *slot
	if *slot != nil {
		(*slot).prev = c
	}
	*slot = c
}

func (w *wheel) remove(c *Conn) {
	if !c.inWheel {
		return
	}
	c.inWheel = false
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		w.slots[c.slot] = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	}
	c.prev, c.next = nil, nil
}

// advance calls judge for every connection whose deadline is at or before now; the result is its next deadline, 0 for
// none.
func (w *wheel) advance(now int64, judge func(c *Conn, now int64) int64) {
	if now-w.seenMs > stallMs {
		w.graceMs = now + graceMs
	}
	w.seenMs = now
	if now < w.graceMs {
		return
	}
	for steps := 0; w.atMs+wheelStepMs <= now && steps < wheelSlots; steps++ {
		slot := &w.slots[(w.atMs/wheelStepMs)%wheelSlots]
		list := *slot
		*slot = nil
		w.atMs += wheelStepMs
		for c := list; c != nil; {
			next := c.next
			c.prev, c.next, c.inWheel = nil, nil, false
			due := c.dueMs
			if due <= now {
				due = judge(c, now)
			}
			if due > 0 && c.phase != phaseClosed {
				w.add(c, due)
			}
			c = next
		}
	}
	if w.atMs+wheelStepMs <= now { // a gap longer than the wheel: everything was looked at
		w.atMs = now - now%wheelStepMs
	}
}

// each calls fn for every connection. fn must not change the wheel.
func (w *wheel) each(fn func(c *Conn)) {
	for _, c := range w.slots {
		for ; c != nil; c = c.next {
			fn(c)
		}
	}
}
