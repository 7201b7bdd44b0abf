package uplink

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// move is an operator's order for one partition: the next record to send is To,
// further ahead (what is before it is left out) or further back (it is sent
// again). It is carried out at the next probe, when nothing is in flight.
type move struct {
	To   int64 `json:"to"`
	Back bool  `json:"back,omitempty"`
	// Epoch is the one that a rewind's records go in, once that was decided. The
	// order stands until the remote has the first of them: until then a late
	// record of an earlier connection can undo the decision.
	Epoch uint32 `json:"epoch,omitempty"`
}

// Move is an order that is not carried out yet.
type Move struct {
	Partition string
	Back      bool
	Offset    int64
}

// The operator's mistakes.
var (
	ErrPartition = errors.New("no such partition")
	ErrOffset    = errors.New("offset out of range")
)

// partition finds a partition by name; the lane may be left out, and the whole
// name where there is no choice. The caller holds mu.
func (r *Replicator) partition(name string) (int, error) {
	if i, ok := r.index[name]; ok {
		return i, nil
	}
	if i, ok := r.index[name+"-0"]; ok {
		return i, nil
	}
	if name == "" && len(r.parts) == 1 {
		return 0, nil
	}
	names := make([]string, len(r.parts))
	for i, p := range r.parts {
		names[i] = p.Name()
	}
	if name == "" {
		return 0, fmt.Errorf("%w: name one of %s", ErrPartition, strings.Join(names, ", "))
	}
	return 0, fmt.Errorf("%w %q; this uplink has %s", ErrPartition, name, strings.Join(names, ", "))
}

// Skip leaves records of a partition out: offset is the next to be sent. A
// negative offset leaves out just the record that the partition is stuck at, and
// then the partition need not be named if no other is stuck.
func (r *Replicator) Skip(name string, offset int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if offset < 0 && name == "" && len(r.stuck) == 1 {
		for lane := range r.stuck {
			name = r.parts[lane].Name()
		}
	}
	lane, err := r.partition(name)
	if err != nil {
		return err
	}
	p := r.parts[lane]
	if offset < 0 {
		s := r.stuck[lane]
		if s == nil {
			return fmt.Errorf("%w: %s is not stuck at a record; say with --offset which is to be sent next", ErrOffset, p.Name())
		}
		offset = s.offset + 1
	}
	if acked, next := r.machine.Acked(lane), p.Next(); offset <= acked || offset > next {
		return fmt.Errorf("%w: %s is acknowledged below %d and ends before %d: what can be left out next is below %d to %d", ErrOffset, p.Name(), acked, next, acked+1, next)
	}
	return r.order(p.Name(), move{To: offset})
}

// Rewind sends records of a partition again, from an offset on.
func (r *Replicator) Rewind(name string, offset int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	lane, err := r.partition(name)
	if err != nil {
		return err
	}
	p := r.parts[lane]
	if acked, first := r.machine.Acked(lane), p.First(); offset < first || offset >= acked {
		return fmt.Errorf("%w: %s can be sent again from %d, its oldest record, to %d, the newest that is acknowledged", ErrOffset, p.Name(), first, acked-1)
	}
	return r.order(p.Name(), move{To: offset, Back: true})
}

// order keeps a move, and has the connection end as soon as nothing is in flight.
// The caller holds mu.
func (r *Replicator) order(name string, m move) error {
	if r.state.Moves == nil {
		r.state.Moves = map[string]move{}
	}
	r.state.Moves[name] = m
	r.look = true
	poke(r.wake)
	return r.saveState(time.Now())
}

// move applies the operator's orders to where a probe found that it goes on.
func (r *resolver) move(s *start) {
	for i, p := range r.partitions {
		m, ok := r.moves[p.Name()]
		if !ok || !m.Back {
			continue
		}
		at, stored := r.pos[p.Name()]
		if stored && m.Epoch != 0 && at.Epoch == m.Epoch {
			continue // its first record has arrived: it is done
		}
		if m.To >= s.next[i] && m.Epoch == 0 {
			continue // the remote has less than that anyway
		}
		if !stored {
			at = position{Partition: p.Name(), Epoch: r.epochAt(p.Name(), s.next[i]-1), Next: s.next[i]}
		}
		if s.decided == nil {
			s.decided = branches{}
		}
		s.decided[p.Name()] = r.decide(at, m.To)
		s.next[i] = m.To
	}
}

// moved carries out what a probe decided of the operator's orders. The caller
// holds mu.
func (r *Replicator) moved(st start) {
	for i, p := range r.parts {
		m, ok := r.state.Moves[p.Name()]
		switch {
		case !ok:
			if l := r.state.Losses[p.Name()]; l != nil {
				if to := l.behind(st.next[i]); to > st.next[i] {
					st.next[i], st.digests[i] = to, 0
				}
			}
		case !m.Back:
			if n := st.next[i]; n < m.To {
				r.loss(i).leaveOut(span{From: n, To: m.To})
				r.log.Warn("records are left out by the operator's word", "partition", p.Name(), "from", n, "to", m.To)
				st.next[i], st.digests[i] = m.To, 0
			}
			delete(r.state.Moves, p.Name())
		case st.decided[p.Name()] != nil && st.next[i] == m.To:
			m.Epoch = r.epochs().epochAt(p.Name(), m.To)
			r.state.Moves[p.Name()] = m
			l := r.loss(i)
			l.takeIn(m.To)
			l.To = max(l.To, r.machine.Acked(i)) // what retention takes of them was sent once
			r.log.Warn("records are sent again by the operator's word", "partition", p.Name(), "from", m.To)
		default:
			delete(r.state.Moves, p.Name())
		}
	}
}

// takeIn forgets what was left out from an offset on.
func (l *loss) takeIn(from int64) {
	kept := l.Passed[:0]
	for _, s := range l.Passed {
		if s.To = min(s.To, from); s.From < s.To {
			kept = append(kept, s)
		}
	}
	l.Passed = kept
}

// arrived ends a rewind whose first record the remote has acknowledged. The
// caller holds mu.
func (r *Replicator) arrived() {
	for name, m := range r.state.Moves {
		if m.Back && m.Epoch != 0 && r.machine.Acked(r.index[name]) > m.To {
			delete(r.state.Moves, name)
		}
	}
}
