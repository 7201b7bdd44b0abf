package uplink

import (
	"math/rand/v2"
	"slices"
)

// branch is the operator's decision about a remote that has another history of a
// partition: this log's own records go on behind it, from offset First, in
// epochs of their own, so that no id is used twice.
type branch struct {
	First int64  `json:"first"`
	Shift uint32 `json:"shift,omitempty"` // added to the epochs from First on
	// What follows is the remote's position that was decided about. It stays the
	// one of the partition until the first record of the branch has arrived.
	OverEpoch  uint32 `json:"over_epoch"`
	OverNext   int64  `json:"over_next"`
	OverDigest Digest `json:"over_digest,omitempty"`
}

const (
	// branchesKept bounds the decisions remembered of one partition.
	branchesKept = 64
	// branchSkip is how far a branch skips ahead at most, to epochs that no other
	// copy of this directory is likely to use.
	branchSkip = 1 << 16
)

// branches are the decisions of one uplink by partition, their Firsts rising. They
// are this uplink's alone: another one's remote may have no other history.
type branches map[string][]branch

// over returns the branch that was decided on for a position.
func (b branches) over(p position) (branch, bool) {
	last, ok := b.last(p.Partition)
	return last, ok && last.OverEpoch == p.Epoch && last.OverNext == p.Next && (p.Digest == digestOther || !last.OverDigest.differs(p.Digest))
}

// last returns a partition's newest branch.
func (b branches) last(partition string) (branch, bool) {
	list := b[partition]
	if len(list) == 0 {
		return branch{}, false
	}
	return list[len(list)-1], true
}

// epochs is the epoch table of the log as this uplink's remote sees it.
type epochs struct {
	at       func(partition string, offset int64) uint32
	starts   func(partition string) []EpochStart
	branches branches
}

// epochAt returns the epoch of a record.
func (e *epochs) epochAt(partition string, offset int64) uint32 {
	epoch := e.at(partition, offset)
	for _, b := range e.branches[partition] {
		if offset >= b.First {
			epoch += b.Shift
		}
	}
	return epoch
}

// end returns the first offset after one from which another epoch may hold.
func (e *epochs) end(partition string, offset int64) int64 {
	end := int64(1 << 62)
	for _, row := range e.starts(partition) {
		if row.First > offset {
			end = min(end, row.First)
		}
	}
	for _, b := range e.branches[partition] {
		if b.First > offset {
			end = min(end, b.First)
		}
	}
	return end
}

// newest returns the highest epoch of a partition.
func (e *epochs) newest(partition string) uint32 { return e.epochAt(partition, 1<<62) }

// decide returns the branches of a partition whose own records go on at first,
// although the remote has it at position p.
func (e *epochs) decide(p position, first int64) []branch {
	list := slices.Clone(e.branches[p.Partition])
	used := p.Epoch
	for n := len(list); n > 0 && list[n-1].First >= first; n-- {
		used = max(used, e.newest(p.Partition)) // its epochs may be at the remote
		list = list[:n-1]
	}
	b := branch{First: first, OverEpoch: p.Epoch, OverNext: p.Next, OverDigest: p.Digest}
	before := epochs{at: e.at, starts: e.starts, branches: branches{p.Partition: list}}
	if now := before.epochAt(p.Partition, first); now <= used {
		used = max(used, before.newest(p.Partition))
		b.Shift = used - now + 1 + rand.Uint32N(branchSkip) //nolint:gosec // told apart from others, not kept secret
	}
	if len(list) == branchesKept {
		list[1].Shift += list[0].Shift
		list = list[1:]
	}
	return append(list, b)
}
