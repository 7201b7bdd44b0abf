package uplink

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"edgehub/hub/message"
	"edgehub/storage/seglog"
)

const (
	// pumpMax is how many records are sent between two looks at the
	// acknowledgements.
	pumpMax = 128
	// recordOverhead estimates what ids and headers add to a record.
	recordOverhead = 512
)

// pipe is the state of the pipeline between two probes. Owned by Run.
type pipe struct {
	r      *Replicator
	parts  []pipePart
	out    Out
	msg    message.Message
	ids    [2][]byte // the current id and the previous one, in turn
	flip   int
	prev   []byte
	seq    uint64 // what the remote's newest record will be once all sent ones are stored
	fresh  bool   // nothing was sent since the probe
	pos    positions
	posBuf []byte
	carry  []position
	known  ownAnchor // the record that a probe found at the newest sequence
	acks   []Ack
}

// pipePart is what is known of a partition without asking again.
type pipePart struct {
	stream string
	part   string
	epoch  uint32
	from   int64 // epoch holds for [from, to)
	to     int64
}

func (p *pipe) init(r *Replicator) {
	p.r = r
	p.parts = make([]pipePart, len(r.parts))
	for i, part := range r.parts {
		p.parts[i].stream, p.parts[i].part, _ = strings.Cut(part.Name(), "/")
	}
}

func (p *pipe) reset(st start) {
	p.fresh, p.carry, p.seq = true, st.carry, st.lastSeq
	p.known = ownAnchor{ID: st.prev, Digest: st.newest}
	p.prev = nil
	if st.prev != "" {
		p.ids[0] = append(p.ids[0][:0], st.prev...)
		p.prev, p.flip = p.ids[0], 1
	}
	p.out = Out{Instance: p.r.o.Instance, Message: &p.msg}
	for i := range p.parts {
		p.parts[i].from, p.parts[i].to = 0, 0
	}
}

// epochAt is epochs.epochAt, asked once per epoch.
func (p *pipe) epochAt(lane int, offset int64) uint32 {
	c := &p.parts[lane]
	if offset >= c.from && offset < c.to {
		return c.epoch
	}
	name, e := p.r.parts[lane].Name(), p.r.epochs()
	c.epoch, c.from, c.to = e.epochAt(name, offset), offset, e.end(name, offset)
	return c.epoch
}

// positions writes what is acknowledged, as of the sequence up to which it is.
func (p *pipe) positions() []byte {
	p.pos.Seq, p.pos.List = p.r.machine.Seq(), p.pos.List[:0]
	e := p.r.epochs()
	for i, part := range p.r.parts {
		name, next := part.Name(), p.r.machine.Acked(i)
		if b, ok := e.branches.last(name); ok && b.First == next {
			// So that another copy of this directory that meets the remote next
			// sees what is there, and takes no epoch that was used.
			p.pos.List = append(p.pos.List, position{Partition: name, Epoch: b.OverEpoch, Next: b.OverNext, Digest: digestOther})
		} else if next > 0 {
			p.pos.List = append(p.pos.List, position{Partition: name, Epoch: e.epochAt(name, next-1), Next: next, Digest: p.r.machine.Digest(i)})
		}
	}
	p.pos.List = append(p.pos.List, p.carry...)
	p.posBuf = p.pos.append(p.posBuf[:0])
	return p.posBuf
}

// anchor is what is known of the remote by now. Before the first probe of a run it
// is what the last run left. The caller holds mu.
func (p *pipe) anchor() *ownAnchor {
	if p.out.Message == nil {
		return p.r.state.Anchor
	}
	a := p.known
	if lane, offset, digest, ok := p.r.machine.Top(); ok {
		name := p.r.parts[lane].Name()
		a.ID, a.Digest = string(appendIdent(nil, p.r.o.Instance, name, p.r.epochs().epochAt(name, offset), offset)), digest
	}
	a.Positions = string(p.positions())
	return &a
}

// stream sends and settles until there is doubt. It never returns nil.
func (r *Replicator) stream(ctx context.Context, s Session, notify <-chan struct{}, timer *time.Timer) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		now := time.Now()
		acks, err := s.Acks(r.pipe.acks[:0])
		r.pipe.acks = acks
		if e := r.settle(now, acks); e != nil {
			return e
		}
		if err != nil {
			return err
		}
		if err := r.machine.Check(now); err != nil {
			return err
		}
		wait, more, err := r.pumpOrLook(now, s)
		if err != nil {
			return err
		}
		if err := r.saveDue(now); err != nil {
			r.readFailed(err)
		}
		if more {
			continue
		}
		arm(timer, now, r.wakeAt(now, wait))
		select {
		case <-ctx.Done():
		case <-s.Ready():
		case <-notify:
		case <-r.wake: // an order of the operator; Run looks by itself
		case <-timer.C:
		}
	}
}

// pumpOrLook sends, or, when the remote is to be looked at anew, nothing more
// until all that is in flight is acknowledged: then there is no doubt, and no
// late record.
func (r *Replicator) pumpOrLook(now time.Time, s Session) (wait time.Duration, more bool, err error) {
	inFlight, _ := r.machine.InFlight()
	if !r.lookDue(now) {
		wait, more, err = r.pump(now, s)
		if n, _ := r.machine.InFlight(); n == 0 && !more && wait == 0 && err == nil {
			r.mu.Lock()
			r.recover(now)
			r.mu.Unlock()
		}
		return wait, more, err
	}
	if inFlight == 0 {
		return 0, false, errLook
	}
	return 0, false, nil
}

// wakeAt returns when stream must look again though nothing happened.
func (r *Replicator) wakeAt(now time.Time, wait time.Duration) time.Time {
	at := r.machine.Deadline()
	sooner := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	if wait > 0 {
		sooner(now.Add(wait))
	}
	sooner(r.merge.retryAt(now))
	if len(r.stuck) > 0 {
		sooner(r.lookAt)
	}
	if r.unsaved() {
		sooner(r.savedAt.Add(r.o.SaveEvery))
	}
	return at
}

func (r *Replicator) unsaved() bool {
	for i := range r.parts {
		if r.machine.Acked(i) != r.saved[i] {
			return true
		}
	}
	return false
}

// saveDue saves moved cursors once per SaveEvery.
func (r *Replicator) saveDue(now time.Time) error {
	if now.Sub(r.savedAt) < r.o.SaveEvery || !r.unsaved() {
		return nil
	}
	return r.save(now)
}

// settle takes acknowledgements in. A failed or an unexplained one is doubt.
func (r *Replicator) settle(now time.Time, acks []Ack) error {
	if len(acks) == 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range acks {
		a := &acks[i]
		if a.Err != nil || a.Duplicate {
			return r.refused(now, a)
		}
		n, err := r.machine.Ack(now, a.Token, a.Seq)
		if err != nil {
			return err
		}
		r.counters.Acked += uint64(n)
	}
	r.recover(now)
	r.arrived()
	return nil
}

// refused makes an error of an answer that stored nothing, or not as it should.
// The caller holds mu.
func (r *Replicator) refused(now time.Time, a *Ack) error {
	what := "a record"
	lane, offset, ok := r.machine.Flight(a.Token)
	if ok {
		what = fmt.Sprintf("%s offset %d", r.parts[lane].Name(), offset)
	}
	switch {
	case a.Err == nil:
		r.counters.Duplicates++
		return fmt.Errorf("remote calls %s a duplicate, which it should not be", what)
	case ok && errors.Is(a.Err, ErrTooLarge):
		// What was sent behind it is refused as well. Where only sequences are
		// compared, it has to be so before anything else is sent.
		r.settled = r.settled && !r.remote.Replicated
		r.stick(now, lane, offset, r.tooLarge(lane, offset, a.Err))
	}
	return fmt.Errorf("remote refused %s: %w", what, a.Err)
}

// tooLarge is why a partition is stuck at a record, and the cures.
func (r *Replicator) tooLarge(lane int, offset int64, err error) *BlockedError {
	name, cure := r.parts[lane].Name(), "raise the limit at the remote, and it goes on by itself"
	var size *SizeError
	if errors.As(err, &size) {
		cure = size.Cure
	}
	return &BlockedError{CauseTooLarge, fmt.Sprintf("%s offset %d: %v", name, offset, err),
		fmt.Sprintf("%s; or leave the record out: hubctl uplink skip %s %s", cure, r.o.Name, name)}
}

// pump sends what window and rates allow. wait is how long a rate forbids more;
// more says that there is something to send right away.
func (r *Replicator) pump(now time.Time, s Session) (wait time.Duration, more bool, err error) {
	for range pumpMax {
		if wait := max(r.msgRate.wait(now), r.byteRate.wait(now)); wait > 0 {
			return wait, false, nil
		}
		lane, rec, ok := r.merge.peek(now, r.machine.Next)
		if !ok {
			return 0, false, nil
		}
		size := int64(len(rec.Key)+len(rec.Value)+len(rec.Headers.Raw)) + recordOverhead
		if !r.machine.CanSend(size) {
			return 0, false, nil // an acknowledgement wakes us
		}
		switch err := r.send(now, s, lane, rec, size); {
		case errors.Is(err, ErrTooLarge):
			r.merge.drop()
		case err != nil:
			return 0, false, err
		default:
			r.merge.take()
		}
	}
	return 0, true, nil
}

// send publishes one record, on condition that the remote's newest record is its
// predecessor, by sequence and by id.
//
// Records of an earlier connection may still be on their way while the next one
// is streaming, with the partitions in another order, and the remote takes a late
// one whenever its condition happens to hold. That does no harm, because a record
// is only ever sent
//
//   - right behind the record before it in its own partition, or
//   - when everything before it in its own partition is known to be stored
//     (merge sees to that: a turn begins when nothing is in flight).
//
// So wherever a late copy fits in, no record before it is missing.
func (r *Replicator) send(now time.Time, s Session, lane int, rec seglog.Record, size int64) error {
	p, part := &r.pipe, &r.pipe.parts[lane]
	if r.stuckAt(lane, rec.Offset) {
		return ErrTooLarge
	}
	if err := p.msg.Decode(rec); err != nil {
		// It passed its checksum, so it is what was acknowledged to somebody:
		// it goes on as topic and payload rather than stopping all others.
		r.readFailed(fmt.Errorf("%s offset %d is sent without its properties: %w", r.parts[lane].Name(), rec.Offset, err))
		p.msg = message.Message{Topic: rec.Key, Payload: rec.Value, TimeMs: rec.TimeMs}
	}
	id := appendIdent(p.ids[p.flip][:0], r.o.Instance, r.parts[lane].Name(), p.epochAt(lane, rec.Offset), rec.Offset)
	p.ids[p.flip] = id
	p.out.ID, p.out.Prev = id, p.prev
	p.out.Token, p.out.LastSeq = r.machine.Token(), p.seq
	p.out.Stream, p.out.Partition, p.out.Offset = part.stream, part.part, rec.Offset
	p.out.Positions = nil
	// By sequence: so whichever copy of a record is stored, one among any 256
	// records has the positions.
	if p.fresh || (p.seq+1)%positionsEvery == 0 {
		p.out.Positions = p.positions()
	}
	n, err := s.Publish(&p.out)

	r.mu.Lock()
	defer r.mu.Unlock()
	if errors.Is(err, ErrTooLarge) {
		// Nothing of it has left: the pipeline goes on with another partition.
		r.stick(now, lane, rec.Offset, r.tooLarge(lane, rec.Offset, err))
		return err
	}
	// Also after an error: it may be on its way.
	r.machine.Send(now, lane, rec.Offset, size, DigestOf(rec.TimeMs, rec.Key, rec.Value))
	r.counters.Sent++
	if err != nil {
		return fmt.Errorf("sending %s offset %d: %w", r.parts[lane].Name(), rec.Offset, err)
	}
	r.unstick(lane)
	p.prev, p.flip, p.fresh = id, 1-p.flip, false
	p.seq++
	r.msgRate.pay(1)
	r.byteRate.pay(n)
	r.counters.SentBytes += uint64(n)
	return nil
}

// readFailed reports trouble on this side, which does not put the link in doubt.
func (r *Replicator) readFailed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fault(time.Now(), err.Error())
	r.log.Error("uplink", "err", err)
}
