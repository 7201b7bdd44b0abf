package session

import (
	"cmp"
	"iter"
	"slices"
)

// State of a message in flight to the client.
type State uint8

// The states. A QoS 1 message is Sent until its PUBACK; a QoS 2 message is Sent until its PUBREC, then Released until
// its PUBCOMP. Finished is one that is done with and remembered, since the position lies before it still.
const (
	Sent State = iota + 1
	Released
	Finished
)

// Flight is a message in flight to the client: a reference into the log and what re-matching could not restore.
type Flight struct {
	ID                uint16
	State             State
	QoS               byte // as granted
	RetainAsPublished bool
	Retained          bool // delivered because of a new subscription
	Kept              bool // outlives the subscription that it came through: no position stands for it
	Unsent            bool // still to be sent again on this connection
	Part              uint32
	Seq               uint32 // order of sending
	Offset            int64
	SubIDs            []uint32
	// Share is the broker's handle on the group that a message of a shared subscription comes from, ShareID the
	// message's id there.
	Share   any
	ShareID uint16
}

// Flights are the messages in flight to one client, by packet id. The zero value is empty and holds no memory.
//
// Ids are given in rising order and skip those in use, so a ring indexed by the id's low bits finds a flight in one
// step; it grows with the window in use and is given back when it is empty.
type Flights struct {
	ring *[]Flight // length a power of two; ID 0: free. By reference: most of many sessions have none
	seq  uint32
	last uint16
	n    uint16
}

// slots are the ring's.
func (f *Flights) slots() []Flight {
	if f.ring == nil {
		return nil
	}
	return *f.ring
}

const ringMin = 8

// Len is the number of messages in flight.
func (f *Flights) Len() int { return int(f.n) }

// Add puts a message in flight under a free packet id and returns its entry, valid until the next Add or Remove.
// It returns nil when all 65,535 ids are in use.
func (f *Flights) Add() *Flight {
	if f.n == 65535 {
		return nil
	}
	if n := len(f.slots()); 2*int(f.n) >= n && n < 1<<16 {
		f.grow()
	}
	for ring := f.slots(); ; {
		f.last++
		if f.last == 0 {
			continue
		}
		if e := &ring[int(f.last)&(len(ring)-1)]; e.ID == 0 {
			return f.take(e, f.last)
		}
	}
}

func (f *Flights) take(e *Flight, id uint16) *Flight {
	f.n++
	f.seq++
	*e = Flight{ID: id, Seq: f.seq}
	return e
}

// Restore puts a message in flight as it was before a restart. Later ones come behind it in the order of sending, now
// and after another restart. False: the id is taken.
func (f *Flights) Restore(was Flight) bool {
	if was.ID == 0 || f.Get(was.ID) != nil {
		return false
	}
	for n := len(f.slots()); n == 0 || (*f.ring)[int(was.ID)&(n-1)].ID != 0; n = len(f.slots()) {
		f.grow()
	}
	if f.n == 0 || was.Seq > f.seq {
		f.seq, f.last = was.Seq, was.ID
	}
	f.n++
	(*f.ring)[int(was.ID)&(len(*f.ring)-1)] = was
	return true
}

// grow doubles the ring: entries with distinct ids that shared no slot before share none afterwards.
func (f *Flights) grow() {
	old := f.slots()
	ring := make([]Flight, max(2*len(old), ringMin))
	for _, e := range old {
		if e.ID != 0 {
			ring[int(e.ID)&(len(ring)-1)] = e
		}
	}
	f.ring = &ring
}

// Get returns the flight with that id, or nil.
func (f *Flights) Get(id uint16) *Flight {
	if f.ring == nil || id == 0 {
		return nil
	}
	if e := &(*f.ring)[int(id)&(len(*f.ring)-1)]; e.ID == id {
		return e
	}
	return nil
}

// Remove ends a flight.
func (f *Flights) Remove(id uint16) bool {
	e := f.Get(id)
	if e == nil {
		return false
	}
	*e = Flight{}
	f.n--
	return true
}

// Trim gives the memory of an empty ring back; for clients that have become idle.
func (f *Flights) Trim() {
	if f.n == 0 {
		f.ring = nil
	}
}

// Ordered returns the ids in flight in the order in which they were sent.
func (f *Flights) Ordered() []uint16 {
	all := make([]*Flight, 0, f.n)
	for i, ring := 0, f.slots(); i < len(ring); i++ {
		if ring[i].ID != 0 {
			all = append(all, &ring[i])
		}
	}
	slices.SortFunc(all, func(a, b *Flight) int { return cmp.Compare(a.Seq, b.Seq) })
	ids := make([]uint16, len(all))
	for i, e := range all {
		ids[i] = e.ID
	}
	return ids
}

// Inbound is what a client has published at QoS 2 and not yet released: its packet ids, each with the number that
// identifies the record in the log. The zero value is empty.
type Inbound struct {
	pending map[uint16]taken
	seq     uint64
}

// taken is one unreleased PUBLISH: its number with the mark committed, and 1 plus the partition of its record, 0 when
// that is not known.
type taken struct {
	seq  uint64
	part uint32
}

// committed marks a number whose record is known to be in the log.
const committed = 1 << 63

// Pending reports whether a PUBLISH with that packet id was taken and not yet released: a repetition is then
// acknowledged and not taken again [MQTT-4.3.3-10].
func (in *Inbound) Pending(id uint16) bool {
	_, ok := in.pending[id]
	return ok
}

// Len is the number of unreleased packet ids.
func (in *Inbound) Len() int { return len(in.pending) }

// Take notes a new PUBLISH and returns its number, rising over the life of the session.
func (in *Inbound) Take(id uint16) uint64 {
	if in.pending == nil {
		in.pending = map[uint16]taken{}
	}
	in.seq++
	in.pending[id] = taken{seq: in.seq}
	return in.seq
}

// Seq is the number of an unreleased packet id, 0 when there is none.
func (in *Inbound) Seq(id uint16) uint64 { return in.pending[id].seq &^ committed }

// Place notes the partition that the record of a packet id was appended to.
func (in *Inbound) Place(id uint16, part uint32) {
	if e, ok := in.pending[id]; ok {
		e.part = part + 1
		in.pending[id] = e
	}
}

// Commit notes that the record of a packet id is in the log.
func (in *Inbound) Commit(id uint16) {
	if e, ok := in.pending[id]; ok {
		e.seq |= committed
		in.pending[id] = e
	}
}

// Restore notes a PUBLISH that is known to be in the log; a lower number than the one known for the id is older news
// and ignored.
func (in *Inbound) Restore(id uint16, seq uint64) {
	in.seq = max(in.seq, seq)
	if in.pending == nil {
		in.pending = map[uint16]taken{}
	}
	if in.Seq(id) < seq {
		in.pending[id] = taken{seq: seq | committed}
	}
}

// SkipTo makes sure that numbers up to seq are not given again.
func (in *Inbound) SkipTo(seq uint64) { in.seq = max(in.seq, seq) }

// Release ends a packet id.
func (in *Inbound) Release(id uint16) bool {
	if _, ok := in.pending[id]; !ok {
		return false
	}
	delete(in.pending, id)
	return true
}

// Last is the highest number given so far.
func (in *Inbound) Last() uint64 { return in.seq }

// All yields the unreleased packet ids with their numbers, and whether their records are known to be in the log.
func (in *Inbound) All() iter.Seq2[uint16, InboundEntry] {
	return func(yield func(uint16, InboundEntry) bool) {
		for id, v := range in.pending {
			if !yield(id, v.entry()) {
				return
			}
		}
	}
}

// Entry returns what is known of a packet id; the zero number when it is not pending.
func (in *Inbound) Entry(id uint16) InboundEntry { return in.pending[id].entry() }

func (v taken) entry() InboundEntry {
	return InboundEntry{v.seq &^ committed, v.seq&committed != 0, int(v.part) - 1}
}

// InboundEntry is one unreleased PUBLISH.
type InboundEntry struct {
	Seq       uint64
	Committed bool
	Part      int // of its record, -1 when that is not known
}
