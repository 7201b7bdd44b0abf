package uplink

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// positionsEvery is how often a record carries Hub-Positions; it is also the
	// longest way that a resume reads back to find one.
	positionsEvery = 256
	// readBackStep is how many records one look at the remote fetches at most, and
	// readBackBytes about how many bytes: they are all in memory at once, and have
	// to come over a slow link in time.
	readBackStep  = 64
	readBackBytes = 256 << 10
	readBackFirst = 8 // while it is not known how large records are
	// walkMax bounds the way forward from the sequence that Hub-Positions is of:
	// the largest window of the sender.
	walkMax = 1 << 16
)

// checkpoint is what was last known of the remote, persisted as a hint: at
// sequence Seq of the stream born at Created, the cursors were exactly right.
type checkpoint struct {
	Remote  string
	Created time.Time
	Seq     uint64
	Anchor  *ownAnchor // nil: not known
}

// ownAnchor is what this directory itself knows the remote to hold: the positions
// at a sequence, as Hub-Positions writes them, and the record at it. Up to there
// every record was acknowledged to this directory or compared by it, and each was
// stored on condition of the one before. So as long as the record at the sequence
// is still that one, only what follows has to be read: what was in flight, not
// all that is newer than the newest Hub-Positions.
type ownAnchor struct {
	Positions string `json:"positions"`
	ID        string `json:"id"`
	Digest    Digest `json:"digest"`
}

// anchorKept bounds the positions of an anchor that is saved: with very many
// partitions it is not worth being written every second.
const anchorKept = 4 << 10

// known is the local side of a resume.
type known struct {
	uplink     string
	instance   string
	partitions []Partition
	cursors    []int64
	*epochs
	digests *digester
	last    checkpoint
	accept  map[Cause]bool // the operator's word: go on in spite of these causes
	moves   map[string]move
}

// start is where the pipeline goes on.
type start struct {
	next    []int64
	digests []Digest
	decided branches   // what the operator's word was needed for
	carry   []position // of partitions that this uplink no longer forwards
	prev    string     // id of the remote's newest record; "": guard by lastSeq
	newest  Digest     // of that record
	lastSeq uint64
}

// resolver maps what the remote holds to the offsets to send next. It reads
// back at most positionsEvery records to find the newest Hub-Positions and walks
// forward from there. Whatever it cannot be sure of is a BlockedError.
type resolver struct {
	known
	remote Remote
	fetch  func(ctx context.Context, from, to uint64) ([]Stored, error)

	lanes     map[string]int
	pos       map[string]position
	strangers bool            // records of others were met, with the operator's leave
	other     map[string]sign // by partition: the first sign of another history
	cached    map[uint64]Stored
	size      int // of the largest record that the last look fetched; 0: none yet
}

func (k known) resolve(ctx context.Context, remote Remote, fetch func(ctx context.Context, from, to uint64) ([]Stored, error)) (start, error) {
	r := &resolver{known: k, remote: remote, fetch: fetch, lanes: make(map[string]int, len(k.partitions)), pos: map[string]position{}, other: map[string]sign{}, cached: map[uint64]Stored{}}
	r.digests.reset()
	for i, p := range k.partitions {
		r.lanes[p.Name()] = i
	}
	if remote.Unsuitable != "" {
		return start{}, &BlockedError{CauseUnsuitable, fmt.Sprintf("remote stream %s: %s", remote.Name, remote.Unsuitable),
			"change its configuration, or set remote_stream to a stream of this hub's own"}
	}
	var s start
	var err error
	if remote.Messages == 0 {
		s, err = r.fromEmpty()
	} else {
		s, err = r.fromStored(ctx)
	}
	if err != nil {
		return start{}, err
	}
	r.move(&s)
	for i, p := range k.partitions {
		s.digests = append(s.digests, r.digests.at(p, s.next[i]-1))
	}
	return s, nil
}

// acknowledged reports whether this remote stream ever acknowledged anything.
func (r *resolver) acknowledged() bool {
	return r.last.Remote == r.remote.Name && r.last.Seq > 0
}

// fromEmpty decides for a stream that holds nothing. That is right at the very
// beginning, under a new name, and when everything it held has aged out; else
// the records are gone for a reason that the operator has to know of.
func (r *resolver) fromEmpty() (start, error) {
	s := start{next: make([]int64, len(r.partitions)), lastSeq: r.remote.Last}
	for i, p := range r.partitions {
		s.next[i] = min(r.cursors[i], p.Next()) // a cursor beyond the log would leave records out
	}
	if !r.acknowledged() {
		return s, nil
	}
	resume := "look at the remote, then resume the uplink to go on after the last acknowledged record"
	switch {
	case !r.last.Created.Equal(r.remote.Created):
		if r.accept[CauseRecreated] {
			return s, nil
		}
		return start{}, &BlockedError{CauseRecreated, fmt.Sprintf("remote stream %s is empty and was created at %s, the one written before at %s: it was deleted and created again",
			r.remote.Name, r.remote.Created.UTC().Format(time.RFC3339Nano), r.last.Created.UTC().Format(time.RFC3339Nano)), resume}
	case r.accept[CausePurged], r.remote.Expires && r.remote.Last == r.last.Seq:
		return s, nil
	case r.remote.Last == 0:
		// By its own count it never stored a record: it lost power before its
		// first sync. That is what remote_grace keeps acknowledged records for.
		return start{next: make([]int64, len(r.partitions))}, nil
	}
	return start{}, &BlockedError{CausePurged, fmt.Sprintf("remote stream %s was emptied after sequence %d", r.remote.Name, r.remote.Last), resume}
}

// fromStored finds an anchor and walks forward over every record after what it
// covers.
func (r *resolver) fromStored(ctx context.Context) (start, error) {
	back, newest, err := r.behindAnchor(ctx)
	if err != nil {
		return start{}, err
	}
	for _, m := range back {
		if m.Found {
			if err := r.apply(m); err != nil {
				return start{}, err
			}
		} else if !r.accept[CauseGap] {
			return start{}, r.gap(fmt.Sprintf("sequence %d is missing", m.Seq))
		}
	}
	s, err := r.check(ctx, newest.ID)
	if s.prev != "" {
		s.newest = newest.Digest
	}
	return s, err
}

// behindAnchor takes the positions of an anchor (what this directory knows by
// itself, or the newest Hub-Positions, whichever covers more; else the persisted
// cursors), and returns the records behind it and the newest of all.
func (r *resolver) behindAnchor(ctx context.Context) (back []Stored, newest Stored, err error) {
	anchor, newest, err := r.own(ctx)
	if err != nil {
		return nil, newest, err
	}
	if anchor == nil || r.remote.Last-anchor.Seq > positionsEvery {
		var told *positions
		if back, told, err = r.readBack(ctx); err != nil {
			return nil, newest, err
		}
		if anchor == nil || told != nil && told.Seq > anchor.Seq {
			anchor = told
		}
	}
	if n := len(back); n > 0 {
		newest = back[n-1]
	}
	if anchor == nil {
		back, err = r.withoutAnchor(back)
		return back, newest, err
	}
	r.anchorAt(anchor.List)
	back, err = r.extend(ctx, back, anchor.Seq+1)
	if n := len(back); n > 0 {
		newest = back[n-1]
	}
	return back, newest, err
}

// withoutAnchor takes the persisted cursors for the positions, where that is sure
// or the operator said so.
func (r *resolver) withoutAnchor(back []Stored) ([]Stored, error) {
	// Foreign records explain a missing anchor better than deleted ones do.
	for _, m := range back {
		if m.Found && !r.ours(m.ID) && !r.accept[CauseForeign] {
			return nil, r.foreign(m)
		}
	}
	back, sure := r.afterCheckpoint(back)
	if !sure && !r.accept[CauseGap] && !r.accept[CauseForeign] {
		return nil, r.gap("none of the newest tells the positions")
	}
	r.fromCursors()
	return back, nil
}

// own returns the positions that this directory knows by itself and the record at
// their sequence, if the remote still has that one there.
func (r *resolver) own(ctx context.Context) (*positions, Stored, error) {
	a := r.last.Anchor
	if a == nil || a.ID == "" || a.Digest == 0 || !r.acknowledged() || !r.last.Created.Equal(r.remote.Created) || r.last.Seq > r.remote.Last || r.last.Seq < r.remote.First {
		return nil, Stored{}, nil
	}
	p, err := parsePositions(a.Positions)
	if err != nil || p.Seq != r.last.Seq {
		return nil, Stored{}, nil //nolint:nilerr // of another version: the remote's own do as well
	}
	for _, at := range p.List {
		if i, mine := r.lanes[at.Partition]; mine && !r.agrees(r.partitions[i], at) {
			return nil, Stored{}, nil // the log is not the one that it was known of
		}
	}
	m, err := r.one(ctx, p.Seq)
	if err != nil || !m.Found || m.ID != a.ID || m.Digest != a.Digest {
		return nil, Stored{}, err
	}
	return &p, m, nil
}

// agrees reports whether the log has what a position says of it.
func (r *resolver) agrees(part Partition, at position) bool {
	if _, decided := r.branches.over(at); decided || at.Next == 0 {
		return true
	}
	return at.Next <= part.Next() && at.Epoch == r.epochAt(at.Partition, at.Next-1) && at.Digest != digestOther && !at.Digest.differs(r.digests.at(part, at.Next-1))
}

// anchorAt takes positions as stated, and has what lies below them compared.
func (r *resolver) anchorAt(list []position) {
	for _, p := range list {
		r.pos[p.Partition] = p
		if _, decided := r.branches.over(p); !decided {
			r.compare(p)
		}
	}
}

// step returns how many records to fetch next.
func (r *resolver) step() uint64 {
	if r.size == 0 {
		return readBackFirst
	}
	return uint64(max(1, min(readBackStep, readBackBytes/r.size)))
}

// look fetches records.
func (r *resolver) look(ctx context.Context, from, to uint64) ([]Stored, error) {
	got, err := r.fetch(ctx, from, to)
	if err != nil {
		return nil, fmt.Errorf("reading back the remote stream: %w", err)
	}
	r.size = 1
	for i := range got {
		r.size = max(r.size, got[i].Size)
	}
	return got, nil
}

// readBack returns the remote's newest records, oldest first, back to the newest
// that has Hub-Positions, and those positions.
func (r *resolver) readBack(ctx context.Context) ([]Stored, *positions, error) {
	var back []Stored // newest first
	low := max(r.remote.First, 1)
	if r.remote.Last > positionsEvery {
		low = max(low, r.remote.Last-positionsEvery+1)
	}
	for to := r.remote.Last; to >= low; {
		from := low
		if step := r.step(); to-low >= step {
			from = to - step + 1
		}
		got, err := r.look(ctx, from, to)
		if err != nil {
			return nil, nil, err
		}
		for i := len(got) - 1; i >= 0; i-- {
			m := got[i]
			back = append(back, m)
			if !m.Found || m.Positions == "" || !r.ours(m.ID) {
				continue
			}
			p, err := parsePositions(m.Positions)
			if err != nil || p.Seq >= m.Seq || m.Seq-p.Seq > walkMax {
				return nil, nil, &BlockedError{CauseForeign, fmt.Sprintf("remote stream %s, sequence %d: positions %.100q are not of this program", r.remote.Name, m.Seq, m.Positions), "give this hub a remote_stream of its own"}
			}
			slices.Reverse(back)
			return back, &p, nil
		}
		to = from - 1
	}
	slices.Reverse(back)
	return back, nil, nil
}

// extend makes the records begin at a sequence: those between what the anchor
// covers and the anchor itself were in flight when it was sent.
func (r *resolver) extend(ctx context.Context, back []Stored, from uint64) ([]Stored, error) {
	end := r.remote.Last + 1
	if len(back) > 0 {
		end = back[0].Seq
	}
	if from >= end {
		for len(back) > 0 && back[0].Seq < from {
			back = back[1:]
		}
		return back, nil
	}
	if from < r.remote.First {
		if !r.accept[CauseGap] {
			return nil, r.gap(fmt.Sprintf("sequence %d is missing", from))
		}
		from = r.remote.First
	}
	all := make([]Stored, 0, r.remote.Last-from+1)
	for from < end {
		to := min(end-1, from+r.step()-1)
		got, err := r.look(ctx, from, to)
		if err != nil {
			return nil, err
		}
		all = append(all, got...)
		from = to + 1
	}
	return append(all, back...), nil
}

// afterCheckpoint cuts the records that the persisted checkpoint covers. It is
// sure when the checkpoint is of this very stream and no record is missing
// between it and the rest.
func (r *resolver) afterCheckpoint(back []Stored) ([]Stored, bool) {
	if !r.acknowledged() || !r.last.Created.Equal(r.remote.Created) || r.last.Seq > r.remote.Last || len(back) == 0 || r.last.Seq+1 < back[0].Seq {
		return back, false
	}
	for len(back) > 0 && back[0].Seq <= r.last.Seq {
		back = back[1:]
	}
	return back, true
}

func (r *resolver) ours(id string) bool {
	return strings.HasPrefix(id, r.instance) && len(id) > len(r.instance) && id[len(r.instance)] == '/'
}

// fromCursors takes the persisted cursors for the positions.
func (r *resolver) fromCursors() {
	for i, p := range r.partitions {
		if c := r.cursors[i]; c > 0 {
			r.pos[p.Name()] = position{Partition: p.Name(), Epoch: r.epochAt(p.Name(), c-1), Next: c}
		}
	}
}

func (r *resolver) gap(what string) error {
	return &BlockedError{CauseGap, fmt.Sprintf("records were deleted from remote stream %s: %s", r.remote.Name, what),
		"resume the uplink to go on after the last acknowledged record"}
}

func (r *resolver) foreign(m Stored) error {
	who := "without an id of this program"
	if id, ok := parseIdent(m.ID); ok {
		who = "by instance " + id.Instance
	}
	return &BlockedError{CauseForeign, fmt.Sprintf("remote stream %s has a record written %s at sequence %d: a second writer, or another data directory before this one", r.remote.Name, who, m.Seq),
		"give this hub a remote_stream of its own, or, when nobody else writes there any more, resume the uplink to go on after it"}
}

// apply moves the positions over one stored record.
func (r *resolver) apply(m Stored) error {
	id, ok := parseIdent(m.ID)
	if !ok || id.Instance != r.instance {
		if !r.accept[CauseForeign] {
			return r.foreign(m)
		}
		r.strangers = true
		return nil
	}
	at := position{Partition: id.Partition, Epoch: id.Epoch, Next: id.Offset + 1, Digest: m.Digest}
	r.compare(at)
	// A later epoch counts whatever its offset: it went on behind another history.
	// Apart from that a record is never behind the positions, except after the
	// operator let go of missing ones.
	if p := r.pos[id.Partition]; at.Next > p.Next || at.Epoch > p.Epoch {
		r.pos[id.Partition] = at
	}
	return nil
}

// check holds the positions against the log and its epochs, and turns them into
// the lanes' next offsets.
func (r *resolver) check(ctx context.Context, newest string) (start, error) {
	s := start{next: make([]int64, len(r.partitions)), prev: newest, lastSeq: r.remote.Last, decided: branches{}}
	if r.strangers || r.accept[CauseGap] || !r.ours(newest) {
		s.prev = ""
	}
	for name, p := range r.pos {
		if _, mine := r.lanes[name]; !mine {
			s.carry = append(s.carry, p)
		}
	}
	var others []sign
	for i, part := range r.partitions {
		p, stored := r.pos[part.Name()]
		if !stored {
			continue
		}
		next, other, same := r.judge(p)
		switch {
		case same:
		case r.accepts(CauseAhead, CauseDiverged):
			var err error
			if next, err = r.fork(ctx, part, r.cursors[i]); err != nil {
				return start{}, err
			}
			s.decided[p.Partition] = r.decide(p, next)
		default:
			others = append(others, other)
		}
		s.next[i] = next
	}
	if len(others) > 0 {
		return start{}, r.otherHistory(others[0], len(others)-1)
	}
	if r.accept[CauseGap] {
		for i, p := range r.partitions {
			s.next[i] = max(s.next[i], min(r.cursors[i], p.Next()))
		}
	}
	return s, nil
}

func (r *resolver) accepts(causes ...Cause) bool {
	return slices.ContainsFunc(causes, func(c Cause) bool { return r.accept[c] })
}

// one fetches a single record, once.
func (r *resolver) one(ctx context.Context, seq uint64) (Stored, error) {
	if m, ok := r.cached[seq]; ok {
		return m, nil
	}
	got, err := r.look(ctx, seq, seq)
	if err != nil {
		return Stored{}, err
	}
	r.cached[seq] = got[0]
	return got[0], nil
}
