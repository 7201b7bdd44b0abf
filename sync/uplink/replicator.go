package uplink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"sync"
	"time"
)

// Options configures a Replicator. Zero durations and sizes take the defaults.
type Options struct {
	Name     string // of the uplink: the key of its cursors
	Hub      string // hub id
	Instance string
	Remote   string // name of the remote stream; "": known once connected
	Source   Source
	Cursors  Cursors
	Sink     Sink
	Create   bool // create the remote stream when it is missing
	Hold     bool // retention by age waits for this uplink

	// RecordMax is the largest message that the hub accepts; 0: not known. A
	// remote that takes less is named when it is connected.
	RecordMax int64

	RemoteGrace  time.Duration // how long acknowledged records are kept, with Hold
	MessagesPerS int64         // 0: no limit
	BytesPerS    int64         // bytes on the wire; 0: no limit
	Window       Window        // 4096 records, 8 MiB
	Timing       Timing        // 1 s, 2 min, 15 s, 10 s
	SaveEvery    time.Duration // how often moved cursors are saved; 1 s
	NowMs        func() int64  // the clock of the records' times; default: wall time
	Logger       *slog.Logger
	Jitter       func() float64 // spreads back-offs, 0 to 1; default: at random
}

func (o *Options) defaults() {
	set := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	set(&o.Timing.BackoffMin, time.Second)
	set(&o.Timing.BackoffMax, 2*time.Minute)
	set(&o.Timing.RefusedMax, 15*time.Second)
	set(&o.Timing.AckTimeout, 10*time.Second)
	set(&o.SaveEvery, time.Second)
	if o.Window.Messages <= 0 {
		o.Window.Messages = 4096
	}
	if o.Window.Bytes <= 0 {
		o.Window.Bytes = 8 << 20
	}
	if o.NowMs == nil {
		o.NowMs = func() int64 { return time.Now().UnixMilli() }
	}
	if o.Jitter == nil {
		o.Jitter = rand.Float64
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// Replicator forwards the partitions of a Source to one remote stream. Run is
// its only goroutine; the other methods may be called from any.
type Replicator struct {
	o     Options
	parts []Partition
	index map[string]int // partition name → lane
	log   *slog.Logger
	wake  chan struct{} // Pause, Resume

	// Owned by Run.
	merge    *merge
	msgRate  bucket
	byteRate bucket
	pipe     pipe
	saved    []int64 // cursors as last saved
	savedAt  time.Time
	remote   Remote // as last probed
	onTheWay []turn // what earlier connections may not have delivered yet
	settled  bool   // this run has seen a replicated remote at rest
	digests  digester

	warnedMax int64 // the remote's limit that the log has been warned of

	mu sync.Mutex // guards everything below
	// machine is changed by Run alone, under mu; Run reads it without.
	machine   *Machine
	graces    []grace
	state     savedState
	paused    bool
	resume    bool           // the operator resumed since Run last looked
	accept    map[Cause]bool // what the operator resumed in spite of
	blocked   *BlockedError
	connected bool
	stuck     map[int]*stuck // by lane; changed by Run alone, as the machine is
	look      bool           // the remote is to be looked at anew, once nothing is in flight
	lookAt    time.Time      // when it is in any case; zero: never
	lastErr   string
	lastErrAt time.Time
	recovered time.Time // when what the last error says was over; zero: it is not
	counters  Counters
	cancel    context.CancelFunc // ends the session in progress

	ageMu  sync.Mutex // guards ages and ageBuf; taken without mu
	ages   []age
	ageBuf []byte
}

// New loads the cursors, so that Floor is right before Run is called.
func New(o Options) (*Replicator, error) {
	o.defaults()
	r := &Replicator{o: o, parts: o.Source.Partitions(), index: map[string]int{}, wake: make(chan struct{}, 1), accept: map[Cause]bool{}, stuck: map[int]*stuck{}}
	r.log = o.Logger.With("uplink", o.Name)
	b, err := o.Cursors.LoadState(o.Name)
	if err == nil {
		r.state, err = decodeState(b)
	}
	if err != nil {
		return nil, fmt.Errorf("uplink %s: loading state: %w", o.Name, err)
	}
	r.paused = r.state.Paused
	now := time.Now()
	cursors := make([]int64, len(r.parts))
	r.graces = make([]grace, len(r.parts))
	for i, p := range r.parts {
		if err := checkPartition(p.Name()); err != nil {
			return nil, err
		}
		r.index[p.Name()] = i
		var known bool
		if cursors[i], known, err = o.Cursors.Load(o.Name, p.Name()); err != nil {
			return nil, fmt.Errorf("uplink %s: loading cursor of %s: %w", o.Name, p.Name(), err)
		}
		if !known {
			r.noteStart(i)
		}
		r.saved = append(r.saved, cursors[i])
		// What was never in this log cannot have been acknowledged of it.
		cursors[i] = min(cursors[i], p.Next())
		r.graces[i] = grace{keep: o.RemoteGrace, floor: cursors[i]}
		if f, ok := r.state.Floors[p.Name()]; ok && f < cursors[i] {
			r.graces[i].floor = f
			r.graces[i].note(now, cursors[i])
		}
	}
	r.machine = NewMachine(o.Timing, o.Window, cursors, r.state.Seq, o.Jitter)
	r.merge = newMerge(r.parts)
	r.merge.idle, r.merge.stuck, r.merge.pass = r.machine.Idle, r.isStuck, r.pass
	r.merge.skipped, r.merge.failed = r.lost, r.readFailed
	r.msgRate, r.byteRate = newBucket(o.MessagesPerS), newBucket(o.BytesPerS)
	r.pipe.init(r)
	r.ages = make([]age, len(r.parts))
	r.restoreHeld(now)
	return r, nil
}

// restoreHeld goes on with a block that an earlier run found.
func (r *Replicator) restoreHeld(now time.Time) {
	h := r.state.Held
	switch {
	case h == nil:
	case r.o.Remote != "" && r.o.Remote != h.Remote:
		r.state.Held = nil // it is about another remote stream
	case h.Accepted:
		r.accept[h.Cause] = true
	default:
		r.blocked = h.blocked()
		r.lastErr, r.lastErrAt = r.blocked.Error(), h.At
		r.machine.BecomeBlocked(now)
		r.machine.Look(now)
		r.log.Error("uplink is still blocked", "cause", string(h.Cause), "reason", h.Reason, "cure", h.Cure)
	}
}

// epochs is the log's epoch table as the remote sees it.
func (r *Replicator) epochs() *epochs {
	return &epochs{at: r.o.Source.EpochAt, starts: r.o.Source.EpochStarts, branches: r.state.Branches}
}

// Run forwards until ctx ends. An unreachable remote, however long, is not an
// error: Run only returns when it was told to.
func (r *Replicator) Run(ctx context.Context) error {
	notify := make(chan struct{}, 1)
	defer r.o.Source.Notify(notify)()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		now := time.Now()
		if r.obey(now) {
			r.session(ctx, notify, timer)
			continue
		}
		arm(timer, now, r.machine.Deadline())
		select {
		case <-ctx.Done():
		case <-r.wake:
		case <-timer.C:
		}
	}
	return r.save(time.Now())
}

// arm sets a timer to a deadline; a zero one is far away.
func arm(t *time.Timer, now, deadline time.Time) {
	d := time.Hour
	if !deadline.IsZero() {
		d = max(0, deadline.Sub(now))
	}
	t.Reset(d)
}

// obey carries out what Pause and Resume asked for and reports whether a probe
// is due.
func (r *Replicator) obey(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.paused {
		r.machine.Pause(now)
	} else if r.resume || r.machine.State() == Paused {
		r.machine.Resume(now)
		if h := r.state.Held; h != nil && !h.Accepted {
			r.machine.BecomeBlocked(now) // the end of a pause decides nothing
			r.machine.Look(now)
		}
	}
	r.resume = false
	return r.machine.ProbeDue(now)
}

// session is one connection, from the probe to the doubt that ends it.
func (r *Replicator) session(ctx context.Context, notify <-chan struct{}, timer *time.Timer) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.mu.Lock()
	if r.paused {
		r.mu.Unlock()
		return
	}
	r.cancel = cancel
	r.counters.Connects++
	r.mu.Unlock()

	err := r.connection(ctx, notify, timer)
	now := time.Now()
	r.mu.Lock()
	r.cancel, r.connected = nil, false
	if r.machine.State() == Stream {
		r.onTheWay = append(r.machine.turns(), r.merge.rest(r.machine.Next)...)
	}
	r.end(ctx, now, err)
	r.mu.Unlock()
	r.merge.reset()
	if err := r.save(now); err != nil {
		r.log.Warn("saving cursors", "err", err)
	}
}

// end moves the machine on after a session. The caller holds mu.
func (r *Replicator) end(ctx context.Context, now time.Time, err error) {
	if ctx.Err() != nil {
		// Pause, or the end of Run: nobody's failure.
		if r.paused {
			r.machine.Pause(now)
		} else {
			r.machine.BecomeProbe(now)
		}
		return
	}
	if errors.Is(err, errLook) {
		r.machine.BecomeProbe(now)
		return
	}
	r.counters.Failures++
	var b *BlockedError
	if errors.As(err, &b) {
		if r.blocked == nil || r.blocked.Cause != b.Cause {
			r.log.Error("uplink blocked", "cause", string(b.Cause), "reason", b.Reason, "cure", b.Cure)
		}
		r.blocked = b
		r.fault(now, b.Error())
		r.machine.BecomeBlocked(now)
		r.hold(now, b)
		return
	}
	was := r.machine.State()
	if was != Blocked {
		r.blocked = nil
		if !errors.Is(err, ErrTooLarge) { // which has been named
			r.fault(now, err.Error()) // else the reason for the block stays the one to be read
		}
	}
	r.machine.BecomeBackoff(now, errors.Is(err, ErrRefused))
	r.log.Warn("uplink lost", "was", was.String(), "err", err, "next_try", r.machine.Deadline().Sub(now).Round(time.Millisecond))
}

// hold keeps a block for the next run if it is one that stays; else it forgets
// the one that was kept. The caller holds mu.
func (r *Replicator) hold(now time.Time, b *BlockedError) {
	h := r.state.Held
	switch {
	case !b.Cause.history() && h == nil, h != nil && !h.Accepted && *h.blocked() == *b && h.Remote == r.remote.Name && h.Created.Equal(r.remote.Created):
		return
	case !b.Cause.history():
		r.state.Held = nil
	default:
		r.state.Held = &held{Cause: b.Cause, Reason: b.Reason, Cure: b.Cure, At: now, Remote: r.remote.Name, Created: r.remote.Created}
	}
	if err := r.saveState(now); err != nil {
		r.log.Warn("saving the uplink's block", "err", err)
	}
}

// fault notes what went wrong. The caller holds mu.
func (r *Replicator) fault(now time.Time, what string) {
	r.lastErr, r.lastErrAt, r.recovered = what, now, time.Time{}
}

// recover notes that records flow again, or that none is left, so that the last
// error is a thing of the past. The caller holds mu.
func (r *Replicator) recover(now time.Time) {
	for _, s := range r.stuck {
		r.lastErr, r.lastErrAt, r.recovered = s.why.Error(), s.since, time.Time{}
		return
	}
	if r.lastErr != "" && r.recovered.IsZero() && !r.merge.failing() {
		r.recovered = now
	}
}

// settleTime is how long a replicated remote has to be at rest before the first
// record of a run.
const settleTime = time.Second

// connect opens a connection. What a killed hub has sent may still be stored
// while the next run looks. A remote that compares ids refuses what does not
// fit; a replicated one compares sequences only, so the first connection of a
// run waits until the newest sequence does not move any more.
func (r *Replicator) connect(ctx context.Context) (Session, error) {
	s, err := r.o.Sink.Connect(ctx)
	for err == nil && !r.settled {
		last := s.Remote().Last
		if !s.Remote().Replicated || last == 0 {
			r.settled = true
			break
		}
		s.Close()
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(settleTime):
		}
		if s, err = r.o.Sink.Connect(ctx); err == nil {
			r.settled = s.Remote().Last == last
		}
	}
	return s, err
}

// connection opens a connection, probes the remote and streams until doubt.
func (r *Replicator) connection(ctx context.Context, notify <-chan struct{}, timer *time.Timer) error {
	s, err := r.connect(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	// A write that the network swallows must not delay Pause.
	defer context.AfterFunc(ctx, s.Close)()
	r.mu.Lock()
	r.connected = true
	r.mu.Unlock()
	st, err := r.probe(ctx, s)
	if err != nil {
		return err
	}
	now := time.Now()
	if err := r.begin(now, s, st); err != nil {
		return err
	}
	return r.stream(ctx, s, notify, timer)
}

// probe asks the remote where to go on.
func (r *Replicator) probe(ctx context.Context, s Session) (start, error) {
	r.mu.Lock()
	k := known{uplink: r.o.Name, instance: r.o.Instance, partitions: r.parts, epochs: r.epochs(), digests: &r.digests, last: r.state.checkpoint()}
	for i := range r.parts {
		k.cursors = append(k.cursors, r.machine.Acked(i))
	}
	k.accept = make(map[Cause]bool, len(r.accept))
	for c := range r.accept {
		k.accept[c] = true
	}
	k.moves = maps.Clone(r.state.Moves)
	r.remote = s.Remote()
	still := r.state.Held.still(r.remote)
	r.mu.Unlock()
	if still != nil {
		return start{}, still
	}
	if rem := r.remote; !rem.Exists {
		if k.last.Remote == rem.Name && k.last.Seq > 0 && !k.accept[CauseRecreated] {
			return start{}, &BlockedError{CauseRecreated, fmt.Sprintf("remote stream %s was deleted", rem.Name),
				"bring it back, or resume the uplink to create it anew and go on after the last acknowledged record"}
		}
		if !r.o.Create {
			return start{}, fmt.Errorf("remote stream %s does not exist: create it, or set create = true", rem.Name)
		}
		if err := s.Create(ctx); err != nil {
			return start{}, err
		}
	}
	return k.resolve(ctx, s.Remote(), func(ctx context.Context, from, to uint64) ([]Stored, error) {
		got, err := s.Stored(ctx, from, to)
		r.mu.Lock()
		r.counters.ReadBack += uint64(len(got))
		r.mu.Unlock()
		return got, err
	})
}

// begin enters Stream where the probe said.
func (r *Replicator) begin(now time.Time, s Session, st start) error {
	rem := s.Remote()
	r.mu.Lock()
	if len(st.decided) > 0 {
		all := maps.Clone(r.state.Branches)
		if all == nil {
			all = branches{}
		}
		maps.Copy(all, st.decided)
		r.state.Branches = all
	}
	r.moved(st)
	r.beginStuck(now, st.next)
	for i, n := range st.next {
		if was := r.machine.Acked(i); n < was && st.decided[r.parts[i].Name()] == nil {
			r.counters.Rewound += uint64(was - n)
			r.log.Warn("the remote has less than it acknowledged; sending again", "partition", r.parts[i].Name(), "from", n, "acknowledged", was)
		}
	}
	r.machine.BecomeStream(now, st.next, st.digests, rem.Last)
	for i := range r.graces {
		r.graces[i].note(now, st.next[i])
	}
	r.state.Remote, r.state.Created, r.state.Seq = rem.Name, rem.Created, rem.Last
	clear(r.accept)
	if r.state.Held != nil {
		r.lastErr, r.lastErrAt, r.recovered = "", time.Time{}, time.Time{} // it is decided, and was logged
	}
	r.blocked, r.state.Held = nil, nil
	r.mu.Unlock()
	r.merge.reset()
	r.merge.follow(r.onTheWay, st.next)
	r.pipe.reset(st)
	r.log.Info("uplink connected", "remote", rem.Name, "remote_seq", rem.Last)
	r.warnSize(rem)
	err := r.save(now)
	// The first acknowledgement is saved at once: from then on a remote stream
	// that was recreated is noticed.
	r.savedAt = time.Time{}
	return err
}

// warnSize names a remote that takes less than the hub accepts, once.
func (r *Replicator) warnSize(rem Remote) {
	if rem.RecordMax > 0 && r.o.RecordMax+recordOverhead > rem.RecordMax && rem.RecordMax != r.warnedMax {
		r.log.Warn("the remote takes smaller records than the hub: a larger one will make its partition wait; raise max_payload at the server (and max_msg_size of the stream), or lower limits.max_packet_bytes",
			"remote_max_bytes", rem.RecordMax, "hub_max_bytes", r.o.RecordMax, "headers_about", recordOverhead)
	}
	r.warnedMax = rem.RecordMax
}

// Pause stops forwarding, now and after a restart.
func (r *Replicator) Pause() error {
	r.mu.Lock()
	r.paused = true
	if r.cancel != nil {
		r.cancel()
	}
	err := r.savePaused()
	r.mu.Unlock()
	poke(r.wake)
	return err
}

// Resume ends a pause, shortens a back-off, and lets a blocked uplink go on
// where the cause allows it: resuming is the operator's word for that cause. The
// end of a pause is nobody's word for a cause that is not shown.
func (r *Replicator) Resume() error {
	r.mu.Lock()
	var err error
	if r.paused {
		r.paused = false
		err = r.savePaused()
	} else if r.blocked != nil {
		r.accept[r.blocked.Cause] = true
		if h := r.state.Held; h != nil && !h.Accepted && h.Cause == r.blocked.Cause {
			decided := *h
			decided.Accepted = true
			r.state.Held = &decided
			err = r.saveState(time.Now())
		}
	}
	r.resume = true
	r.look = r.look || len(r.stuck) > 0
	r.mu.Unlock()
	poke(r.wake)
	return err
}

func (r *Replicator) savePaused() error {
	if r.state.Paused == r.paused {
		return nil
	}
	r.state.Paused = r.paused
	return r.saveState(time.Now())
}

func poke(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Floor returns the offset below which retention by age may remove a
// partition's records; math.MaxInt64 when this uplink holds nothing there.
func (r *Replicator) Floor(partition string) int64 {
	i, ok := r.index[partition]
	if !ok || !r.o.Hold {
		return math.MaxInt64
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.graces[i].at(time.Now())
}

// save persists what has moved since the last time: first the cursors, then the
// checkpoint that says at which remote sequence they were right.
func (r *Replicator) save(now time.Time) error {
	r.savedAt = now
	for i, p := range r.parts {
		acked := r.machine.Acked(i)
		r.mu.Lock()
		r.graces[i].note(now, acked)
		r.mu.Unlock()
		if acked == r.saved[i] {
			continue
		}
		if err := r.o.Cursors.Save(r.o.Name, p.Name(), acked); err != nil {
			return fmt.Errorf("saving the cursor of %s: %w", p.Name(), err)
		}
		r.saved[i] = acked
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state.Seq = r.machine.Seq()
	r.state.Anchor = r.pipe.anchor()
	return r.saveState(now)
}

// saveState persists the small state. The caller holds mu.
func (r *Replicator) saveState(now time.Time) error {
	r.state.Floors = nil
	for i, p := range r.parts {
		if f := r.graces[i].at(now); f < r.machine.Acked(i) {
			if r.state.Floors == nil {
				r.state.Floors = map[string]int64{}
			}
			r.state.Floors[p.Name()] = f
		}
	}
	s := r.state
	if s.Anchor != nil && len(s.Anchor.Positions) > anchorKept {
		s.Anchor = nil
	}
	b, err := s.encode()
	if err != nil {
		return err
	}
	if err := r.o.Cursors.SaveState(r.o.Name, b); err != nil {
		return fmt.Errorf("saving the uplink's state: %w", err)
	}
	return nil
}
