package seglog

import (
	"sort"
	"sync/atomic"
)

// IndexEntry says that a batch with base offset Offset begins at Position of a segment, and that no record before it
// in the segment is later than MaxTimeMs. The last entry of a sealed segment's index is its end: the offset and
// position after its last batch, and its highest timestamp.
type IndexEntry struct{ Offset, Position, MaxTimeMs int64 }

// IndexStore keeps the sparse indexes of segments. It is a hint: what it loses or mangles is rebuilt from the log.
// log is Options.Name and base the segment's base offset. The slice given to SaveIndex is not to be kept.
type IndexStore interface {
	SaveIndex(log string, base int64, e []IndexEntry) error
	// LoadIndex returns nil, nil when there is none.
	LoadIndex(log string, base int64) ([]IndexEntry, error)
	DropIndex(log string, base int64) error
}

// indexEntriesMax bounds an index in memory (24 bytes an entry). When it is full every second entry goes and the step
// doubles, so a segment of any size costs at most this and a seek reads at most 1/512 of its segment.
const indexEntriesMax = 1024

// sparse is the index of one segment: written by one goroutine, read by any.
//
// Invariant: the entries below n are never written again, and n is stored after them; so a reader that loads n and
// then reads below it sees whole entries without a lock. Growing and thinning make a new table.
type sparse struct {
	table atomic.Pointer[indexTable]
	step  int64 // owned by the writer: least distance between entries, in bytes
	next  int64 // owned by the writer: position from which the next batch gets an entry
}

type indexTable struct {
	n       atomic.Int64
	entries []IndexEntry // len is the capacity
}

// reset starts an empty index.
func (x *sparse) reset(step int) {
	x.step, x.next = int64(step), int64(step) // the batch at position 0 needs no entry
	x.table.Store(&indexTable{})
}

// load replaces the index by stored entries, which the index keeps.
func (x *sparse) load(e []IndexEntry, step int) {
	t := &indexTable{entries: e}
	t.n.Store(int64(len(e)))
	x.step, x.next = int64(step), int64(step)
	if len(e) > 0 {
		x.step = max(x.step, e[len(e)-1].Position/indexEntriesMax)
		x.next = e[len(e)-1].Position + x.step
	}
	x.table.Store(t)
}

// add considers a batch for an entry.
func (x *sparse) add(e IndexEntry) {
	if e.Position < x.next {
		return
	}
	t := x.table.Load()
	n := int(t.n.Load())
	if n >= indexEntriesMax {
		t = t.thin()
		n = int(t.n.Load())
		x.step *= 2
		x.table.Store(t)
		if e.Position < t.entries[n-1].Position+x.step {
			x.next = t.entries[n-1].Position + x.step
			return
		}
	} else if n == len(t.entries) {
		bigger := &indexTable{entries: make([]IndexEntry, min(max(16, 2*n), indexEntriesMax))}
		copy(bigger.entries, t.entries[:n])
		bigger.n.Store(int64(n))
		t = bigger
		x.table.Store(t)
	}
	t.entries[n] = e
	t.n.Store(int64(n + 1))
	x.next = e.Position + x.step
}

// thin returns a table with every second entry.
func (t *indexTable) thin() *indexTable {
	out := &indexTable{entries: make([]IndexEntry, indexEntriesMax)}
	n := 0
	for i := 1; i < int(t.n.Load()); i += 2 {
		out.entries[n] = t.entries[i]
		n++
	}
	out.n.Store(int64(n))
	return out
}

// snapshot returns the entries so far. The caller must not change them.
func (x *sparse) snapshot() []IndexEntry {
	t := x.table.Load()
	if t == nil {
		return nil
	}
	n := t.n.Load() // before entries are read: see the invariant
	return t.entries[:n]
}

// floorOffset returns the last entry at or before an offset.
func floorOffset(e []IndexEntry, offset int64) (IndexEntry, bool) {
	i := sort.Search(len(e), func(i int) bool { return e[i].Offset > offset })
	if i == 0 {
		return IndexEntry{}, false
	}
	return e[i-1], true
}

// floorTime returns the index of the last entry before which every record is earlier than ms, or −1.
func floorTime(e []IndexEntry, ms int64) int {
	return sort.Search(len(e), func(i int) bool { return e[i].MaxTimeMs >= ms }) - 1
}

// plausible reports whether stored entries can be an index of a segment: rising, and inside it. Whether an entry tells
// the truth is checked where it is used, against the batch that it points to.
func plausible(e []IndexEntry, base, size int64) bool {
	prev := IndexEntry{Offset: base - 1, Position: -1}
	for _, x := range e {
		if x.Offset <= prev.Offset || x.Position <= prev.Position || x.MaxTimeMs < prev.MaxTimeMs && prev.Position >= 0 {
			return false
		}
		prev = x
	}
	return prev.Position <= size
}
