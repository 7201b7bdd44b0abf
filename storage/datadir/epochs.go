package datadir

import (
	"maps"
	"slices"
	"sort"
)

// epochStartsKept is how many of the newest epoch starts of a partition Trim
// keeps whatever the retention: a remote may name a record that is long gone
// here, and its epoch must still be known.
const epochStartsKept = 64

// EpochStart says that from offset First on, a partition's records belong to Epoch.
type EpochStart struct {
	Epoch uint32 `json:"epoch"`
	First int64  `json:"first"`
}

// epochTable is immutable once published; changes make a new one.
type epochTable struct {
	epoch      uint32
	partitions map[string][]EpochStart
}

// begin returns the table of a run whose partitions continue at next. raised
// is the epoch of the run, created the one that partitions unknown to the
// table were born in (they appeared during the previous run).
func (t *epochTable) begin(next map[string]int64, created, raised uint32) *epochTable {
	out := &epochTable{epoch: raised, partitions: maps.Clone(t.partitions)}
	if out.partitions == nil {
		out.partitions = make(map[string][]EpochStart, len(next))
	}
	for name, first := range next {
		starts, known := out.partitions[name]
		if !known {
			starts = []EpochStart{{Epoch: created, First: 0}}
		}
		out.partitions[name] = startEpoch(starts, EpochStart{Epoch: raised, First: first})
	}
	return out
}

// startEpoch adds s to starts. An epoch that no record got, or whose records
// a power cut took back, loses its row: its range is empty.
func startEpoch(starts []EpochStart, s EpochStart) []EpochStart {
	if n := len(starts); n > 0 && starts[n-1].Epoch == s.Epoch && starts[n-1].First <= s.First {
		return starts
	}
	keep := len(starts)
	for keep > 0 && starts[keep-1].First >= s.First {
		keep--
	}
	out := make([]EpochStart, keep, keep+1)
	copy(out, starts)
	return append(out, s)
}

// at returns the epoch of the record at offset. A partition that the table
// does not know was created by the current run.
func (t *epochTable) at(partition string, offset int64) uint32 {
	starts := t.partitions[partition]
	i := sort.Search(len(starts), func(i int) bool { return starts[i].First > offset })
	switch {
	case i > 0:
		return starts[i-1].Epoch
	case len(starts) > 0:
		return starts[0].Epoch
	}
	return t.epoch
}

// starts returns a copy of a partition's rows.
func (t *epochTable) starts(partition string) []EpochStart {
	if s, ok := t.partitions[partition]; ok {
		return slices.Clone(s)
	}
	return []EpochStart{{Epoch: t.epoch, First: 0}}
}

// trim returns the table without the rows that lie wholly below first, but
// for the newest epochStartsKept.
func (t *epochTable) trim(first map[string]int64) (*epochTable, bool) {
	out := &epochTable{epoch: t.epoch, partitions: maps.Clone(t.partitions)}
	changed := false
	for name, low := range first {
		starts := out.partitions[name]
		drop := 0
		for drop+1 < len(starts) && starts[drop+1].First <= low && len(starts)-drop > epochStartsKept {
			drop++
		}
		if drop > 0 {
			out.partitions[name] = slices.Clone(starts[drop:])
			changed = true
		}
	}
	return out, changed
}
