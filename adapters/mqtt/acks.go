package mqtt

// ackQueue holds the publishes of a client that wait for their commit, in order of arrival: acknowledgements leave in
// that order [MQTT-4.6.0-2] although partitions commit in any.
type ackQueue struct {
	list []ackEntry
	head int    // entries before it have been answered
	base uint32 // number of list[0]
}

type ackEntry struct {
	id   uint16
	qos  byte
	done bool
	code byte
}

// add enters a publish and returns its number.
func (q *ackQueue) add(id uint16, qos byte) uint32 {
	if q.head == len(q.list) && q.head > 0 {
		q.base += uint32(q.head)
		q.list, q.head = q.list[:0], 0
	} else if q.head > 1024 && q.head > len(q.list)/2 {
		n := copy(q.list, q.list[q.head:])
		q.list = q.list[:n]
		q.base += uint32(q.head)
		q.head = 0
	}
	q.list = append(q.list, ackEntry{id: id, qos: qos})
	return q.base + uint32(len(q.list)-1)
}

// done notes the outcome of a publish and returns it, or the zero entry when it is not waiting any more.
func (q *ackQueue) done(seq uint32, code byte) ackEntry {
	i := int(seq - q.base)
	if i < q.head || i >= len(q.list) {
		return ackEntry{}
	}
	q.list[i].done, q.list[i].code = true, code
	return q.list[i]
}

// next returns the next publish to be answered, if its outcome is known.
func (q *ackQueue) next() (ackEntry, bool) {
	if q.head < len(q.list) && q.list[q.head].done {
		q.head++
		return q.list[q.head-1], true
	}
	return ackEntry{}, false
}

func (q *ackQueue) len() int { return len(q.list) - q.head }

// trim frees the memory of an empty queue.
func (q *ackQueue) trim() {
	if q.head == len(q.list) {
		q.base += uint32(q.head)
		q.list, q.head = nil, 0
	}
}
