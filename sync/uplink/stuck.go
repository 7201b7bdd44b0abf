package uplink

import (
	"errors"
	"time"
)

// stuck is a partition whose next record the remote does not take. The others go
// on; this one is tried again when the uplink looks at the remote anew.
type stuck struct {
	offset  int64
	since   time.Time
	why     *BlockedError
	another bool // to be tried again on this connection
}

// Stuck is a partition that waits for the operator, or for the remote to change.
type Stuck struct {
	Partition string
	Offset    int64
	Since     time.Time
	Cause     Cause
	Reason    string
	Cure      string
}

// errLook ends a connection on which nothing is in flight, to look at the remote
// anew. It is nobody's failure.
var errLook = errors.New("uplink: looking at the remote again")

// stick lets a partition wait at a record. The caller holds mu.
func (r *Replicator) stick(now time.Time, lane int, offset int64, why *BlockedError) {
	s := r.stuck[lane]
	if s == nil || s.offset != offset {
		s = &stuck{offset: offset, since: now}
		r.stuck[lane] = s
		r.log.Error("a partition is stuck, others go on", "partition", r.parts[lane].Name(), "offset", offset, "cause", string(why.Cause), "reason", why.Reason, "cure", why.Cure)
	}
	s.why, s.another = why, false
	r.fault(now, why.Error())
	if r.lookAt.IsZero() {
		r.lookAt = now.Add(r.o.Timing.BackoffMax)
	}
}

// isStuck reports whether nothing of a lane can be sent.
func (r *Replicator) isStuck(lane int) bool { return r.stuckAt(lane, r.machine.Next(lane)) }

// stuckAt reports whether a lane is stuck at a record.
func (r *Replicator) stuckAt(lane int, offset int64) bool {
	s := r.stuck[lane]
	return s != nil && !s.another && offset >= s.offset
}

// unstick ends the wait of a lane of which a record was sent. The caller holds mu.
func (r *Replicator) unstick(lane int) {
	if s := r.stuck[lane]; s != nil {
		delete(r.stuck, lane)
		r.log.Info("a partition goes on", "partition", r.parts[lane].Name(), "after", s.offset)
	}
}

// beginStuck looks at the stuck lanes anew on a new connection. The caller holds mu.
func (r *Replicator) beginStuck(now time.Time, next []int64) {
	due := r.look || !r.lookAt.IsZero() && !now.Before(r.lookAt)
	if due {
		r.lookAt = time.Time{}
	}
	r.look = false
	for lane, s := range r.stuck {
		if next[lane] > s.offset {
			r.unstick(lane)
		} else if due {
			s.another = true
		}
	}
}

// lookDue reports whether the connection should end, once nothing is in flight,
// so that the next one looks at the remote anew.
func (r *Replicator) lookDue(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.look || !r.lookAt.IsZero() && !now.Before(r.lookAt)
}
