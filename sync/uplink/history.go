package uplink

import (
	"context"
	"fmt"
)

// Offsets and epochs alone do not prove that the remote has this log's records: an
// older copy of the data directory gives the same ones to other records. So
// records are compared by digest:
//
//   - The one before each position of Hub-Positions. Whoever wrote that had
//     everything up to it acknowledged; an equal record there means that all
//     before it are equal too.
//   - Each record after that. Two hubs on copies of one directory give the same
//     ids to different records, so the remote may have taken turns between them.
//
// A record that the log does not have any more cannot be compared; the epoch
// alone decides then.

// sign is what another history was recognized by.
type sign struct {
	cause Cause
	what  string
}

// compare notes when what the remote has before a position is not what this log has.
func (r *resolver) compare(p position) {
	i, mine := r.lanes[p.Partition]
	if _, known := r.other[p.Partition]; !mine || p.Next == 0 || known {
		return
	}
	differs := func(cause Cause, format string, args ...any) {
		r.other[p.Partition] = sign{cause, fmt.Sprintf(format, args...)}
	}
	part := r.partitions[i]
	switch epoch, end := r.epochAt(p.Partition, p.Next-1), part.Next(); {
	case epoch != p.Epoch:
		differs(CauseDiverged, "has %s offset %d in epoch %d, here it is of epoch %d", p.Partition, p.Next-1, p.Epoch, epoch)
	case p.Digest == digestOther:
		differs(CauseDiverged, "has %s up to offset %d by another copy", p.Partition, p.Next-1)
	case p.Next > end:
		differs(CauseAhead, "has %s offset %d, this log ended at %d when that was found", p.Partition, p.Next-1, end-1)
	case p.Digest.differs(r.digests.at(part, p.Next-1)):
		differs(CauseDiverged, "has %s offset %d with another time, topic or payload than this log", p.Partition, p.Next-1)
	}
}

// judge returns the next offset to send after what the remote has, or by what the
// remote's history is told from this log's.
func (r *resolver) judge(p position) (next int64, other sign, same bool) {
	if b, ok := r.branches.over(p); ok {
		return b.First, sign{}, true
	}
	other, differs := r.other[p.Partition]
	return p.Next, other, !differs
}

// otherHistory says what was found, in one or several partitions.
func (r *resolver) otherHistory(first sign, more int) error {
	what := first.what
	if more > 0 {
		what += fmt.Sprintf(" (and so with %d more)", more)
	}
	return &BlockedError{first.cause, fmt.Sprintf("remote stream %s %s: the data directory is an older copy or lacks a part, or a second hub runs on a copy of it", r.remote.Name, what),
		fmt.Sprintf("stop any second hub and bring back the newest directory, or have this log's own records sent behind what is there: hubctl uplink resume %s, or set a new remote_stream", r.uplink)}
}

// fork finds where this log's own records begin that the remote does not have,
// though it has others there: behind the newest common record. Hub-Positions are
// on every sequence that positionsEvery divides: a search over them, backwards in
// growing steps since the remote may have met several histories, then a walk
// over the records between two. What is found is never too late; where the remote
// has no common record any more, or many histories, it may be too early.
func (r *resolver) fork(ctx context.Context, part Partition, cursor int64) (int64, error) {
	f := &forker{r: r, part: part, name: part.Name(), next: -1, low: -1}
	first := max(r.remote.First, 1)
	oldest, bad := (first+positionsEvery-1)/positionsEvery, r.remote.Last/positionsEvery+1
	from, to := first, r.remote.Last
	// Invariant: what is at bad is not common, or bad is behind the newest.
	for good, step := oldest, uint64(1); good < bad; {
		mid := good + (bad-good)/2
		if good == oldest && step > 0 {
			mid = bad - min(step, bad-oldest)
			step *= 2
		}
		p, common, err := f.anchor(ctx, mid*positionsEvery)
		switch {
		case err != nil:
			return 0, err
		case p == nil:
			return f.guess(cursor), nil
		case common:
			good, from, step = mid+1, max(first, p.Seq+1), 0
		default:
			bad, to = mid, p.Seq
		}
	}
	if to >= from && to-from > 2*walkMax {
		return f.guess(cursor), nil
	}
	if err := f.walk(ctx, from, to); err != nil {
		return 0, err
	}
	if f.next >= 0 {
		return f.next, nil
	}
	return f.guess(cursor), nil
}

type forker struct {
	r    *resolver
	part Partition
	name string
	next int64 // the remote is known to have all of the log below it; -1: nothing is known
	low  int64 // lowest offset known to differ; -1: none
}

// compare tells whether a record of the remote is the log's own. Records that
// retention removed here are as good as that: none of them can be sent.
func (f *forker) compare(offset int64, d Digest) (common, known bool) {
	mine := f.r.digests.at(f.part, offset)
	switch {
	case d == digestOther:
		known = true
	case offset < f.part.First():
		common, known = true, true
	case offset >= f.part.Next():
		known = true
	case d != 0 && mine != 0:
		common, known = d == mine, true
	}
	if known && !common && (f.low < 0 || offset < f.low) {
		f.low = offset
	}
	return common, known
}

// anchor returns the positions at a sequence, and whether what they say of the
// partition is common; nil when it cannot be told.
func (f *forker) anchor(ctx context.Context, seq uint64) (*positions, bool, error) {
	m, err := f.r.one(ctx, seq)
	if err != nil || !m.Found || m.Positions == "" || !f.r.ours(m.ID) {
		return nil, false, err
	}
	p, err := parsePositions(m.Positions)
	if err != nil || p.Seq >= seq {
		return nil, false, nil //nolint:nilerr // not of this program: it cannot be told
	}
	for _, e := range p.List {
		if e.Partition == f.name && e.Next > 0 {
			common, known := f.compare(e.Next-1, e.Digest)
			if !known {
				return nil, false, nil
			}
			if common {
				f.next = max(f.next, e.Next)
			}
			return &p, common, nil
		}
	}
	return &p, true, nil // it has nothing of the partition yet
}

// walk follows the log's own records. One that does not join the one before was
// stored among another writer's, and what it should join may not be there.
func (f *forker) walk(ctx context.Context, from, to uint64) error {
	for from <= to {
		end := min(to, from+f.r.step()-1)
		got, err := f.r.look(ctx, from, end)
		if err != nil {
			return err
		}
		for _, m := range got {
			id, ok := parseIdent(m.ID)
			if !ok || id.Instance != f.r.instance || id.Partition != f.name {
				continue
			}
			if common, _ := f.compare(id.Offset, m.Digest); !common {
				continue
			}
			if f.next < 0 && (f.low < 0 || id.Offset < f.low) {
				f.next = id.Offset
			}
			if id.Offset == max(f.next, f.part.First()) && f.next >= 0 {
				f.next = id.Offset + 1
			}
		}
		from = end + 1
	}
	return nil
}

// guess is where to go on when that cannot be told from the remote: at what it had
// acknowledged to this very directory, and if even that cannot be, at the oldest
// record. Sent twice is better than not at all.
func (f *forker) guess(cursor int64) int64 {
	if cursor > f.part.Next() || (f.low >= 0 && cursor > f.low) {
		cursor = f.part.First()
	}
	return max(cursor, f.next)
}
