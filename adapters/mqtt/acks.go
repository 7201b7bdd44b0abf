package mqtt

// ackQueue holds the publishes of a client that wait for their commit, in order of arrival: acknowledgements leave in
// that order [MQTT-4.6.0-2] although partitions commit in any.
// The zero value is empty and holds no memory.
type ackQueue struct {
	w    *ackWait // nil: nothing waits
	base uint32   // number of w.list[0]
}

type ackWait struct {
	list  []ackEntry
	head  int // entries before it have been answered
	qos1s int // of those behind
}

type ackEntry struct {
	id   uint16
	qos  byte
	done bool
	code byte
}

// add enters a publish and returns its number.
func (q *ackQueue) add(id uint16, qos byte) uint32 {
	if q.w == nil {
		q.w = &ackWait{}
	}
	w := q.w
	if w.head == len(w.list) && w.head > 0 {
		q.base += uint32(w.head)
		w.list, w.head = w.list[:0], 0
	} else if w.head > 1024 && w.head > len(w.list)/2 {
		n := copy(w.list, w.list[w.head:])
		w.list = w.list[:n]
		q.base += uint32(w.head)
		w.head = 0
	}
	w.list = append(w.list, ackEntry{id: id, qos: qos})
	if qos == 1 {
		w.qos1s++
	}
	return q.base + uint32(len(w.list)-1)
}

// done notes the outcome of a publish and returns it, or the zero entry when it is not waiting any more.
func (q *ackQueue) done(seq uint32, code byte) ackEntry {
	w, i := q.w, int(seq-q.base)
	if w == nil || i < w.head || i >= len(w.list) {
		return ackEntry{}
	}
	w.list[i].done, w.list[i].code = true, code
	return w.list[i]
}

// next returns the next publish to be answered, if its outcome is known.
func (q *ackQueue) next() (ackEntry, bool) {
	w := q.w
	if w == nil || w.head == len(w.list) || !w.list[w.head].done {
		return ackEntry{}, false
	}
	e := w.list[w.head]
	w.head++
	if e.qos == 1 {
		w.qos1s--
	}
	return e, true
}

func (q *ackQueue) len() int {
	if q.w == nil {
		return 0
	}
	return len(q.w.list) - q.w.head
}

// qos1 is how many of the publishes that wait are of QoS 1.
func (q *ackQueue) qos1() int {
	if q.w == nil {
		return 0
	}
	return q.w.qos1s
}

// trim frees the memory of an empty queue.
func (q *ackQueue) trim() {
	if q.w != nil && q.len() == 0 {
		q.base += uint32(q.w.head)
		q.w = nil
	}
}
