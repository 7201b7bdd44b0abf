package bench

import (
	"slices"
	"sync"
)

// verdict is what a message turns out to be.
type verdict uint8

const (
	fresh     verdict = iota // the next one, or one after a gap
	late                     // not seen before, but one with a higher number was
	duplicate                // seen before
)

// flowLog knows which numbers of one flow have arrived. It costs nothing per message while none is missing.
type flowLog struct {
	next    uint32 // one more than the highest number seen
	missing []span // below next, ascending, not touching
}

// span is the numbers from..to-1.
type span struct{ from, to uint32 }

func (f *flowLog) take(seq uint32) verdict {
	switch {
	case seq == f.next:
		f.next++
		return fresh
	case seq > f.next:
		f.missing = append(f.missing, span{f.next, seq})
		f.next = seq + 1
		return fresh
	}
	i, _ := slices.BinarySearchFunc(f.missing, seq, func(s span, seq uint32) int {
		if s.to <= seq {
			return -1
		}
		return 1
	})
	if i == len(f.missing) || f.missing[i].from > seq {
		return duplicate
	}
	s := f.missing[i]
	switch {
	case s.from == seq && s.to == seq+1:
		f.missing = slices.Delete(f.missing, i, i+1)
	case s.from == seq:
		f.missing[i].from++
	case s.to == seq+1:
		f.missing[i].to--
	default:
		f.missing[i].to = seq
		f.missing = slices.Insert(f.missing, i+1, span{seq + 1, s.to})
	}
	return late
}

// lost is how many of the sent messages have not arrived.
func (f *flowLog) lost(sent uint32) (n int64) {
	for _, s := range f.missing {
		n += int64(min(s.to, sent)) - int64(min(s.from, sent))
	}
	return n + int64(sent) - int64(min(f.next, sent))
}

// flows is a set of flows: first, first+stride, ... below end.
type flows struct{ first, stride, end int }

// index is the place of a flow in the set.
func (f flows) index(flow uint32) (int, bool) {
	i := int(flow) - f.first
	if i < 0 || int(flow) >= f.end || i%f.stride != 0 {
		return 0, false
	}
	return i / f.stride, true
}

func (f flows) count() int { return max(0, (f.end-f.first+f.stride-1)/f.stride) }

// at is the i-th flow of the set.
func (f flows) at(i int) int { return f.first + i*f.stride }

// tally is what one subscriber has received. A subscriber alone has a log for each of its flows. A member of a group
// gets a part of each flow: the group knows what has arrived at all, the member only whether its own part ascends.
type tally struct {
	flows   flows
	logs    []flowLog
	group   *group
	highest []uint32 // member: one more than the highest number per flow

	fresh, duplicated, disordered, foreign int64
}

// group is the members of a shared subscription together.
type group struct {
	mu   sync.Mutex
	logs []flowLog
}

func newTally(f flows, g *group) *tally {
	t := &tally{flows: f, group: g}
	if g != nil {
		t.highest = make([]uint32, f.count())
	} else {
		t.logs = make([]flowLog, f.count())
	}
	return t
}

// take counts a message.
func (t *tally) take(flow, seq uint32) {
	i, ok := t.flows.index(flow)
	if !ok {
		t.foreign++
		return
	}
	switch t.judge(i, seq) {
	case fresh:
		t.fresh++
	case late:
		t.fresh++
		t.disordered++
	case duplicate:
		t.duplicated++
	}
}

func (t *tally) judge(i int, seq uint32) verdict {
	if t.group == nil {
		return t.logs[i].take(seq)
	}
	t.group.mu.Lock()
	v := t.group.logs[i].take(seq)
	t.group.mu.Unlock()
	if v == duplicate {
		return v
	}
	// What came late for the group is in order as long as this member has seen nothing higher.
	v = fresh
	if seq < t.highest[i] {
		v = late
	}
	t.highest[i] = max(t.highest[i], seq+1)
	return v
}

// lost sums what the logs miss of the sent numbers, which sent tells by flow.
func lost(f flows, logs []flowLog, sent func(flow int) uint32) (n int64) {
	for i := range logs {
		n += logs[i].lost(sent(f.at(i)))
	}
	return n
}
