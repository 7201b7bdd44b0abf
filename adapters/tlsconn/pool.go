package tlsconn

import (
	"cmp"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"edgehub/adapters/eventloop"
)

// Pool runs handshakes, a bounded number at a time; the rest wait without a goroutine. Two bounds: slots are
// handshakes that have begun, most of them parked until their client's next message; tokens are those that use a
// processor. One processor is left to the loops where there are several, since a storm of handshakes must not delay
// the clients that are connected.
//
// There is no timeout here: a connection that takes too long is closed by its handler, which ends its handshake. But
// clients that begin a handshake and fall silent must not keep all others out: when handshakes wait, the one that has
// been parked longest gives its slot up, once it had its time.
type Pool struct {
	Stats PoolStats

	tokens chan struct{}
	crowd  atomic.Int32 // handshakes that want a token
	used   atomic.Int64 // time that tokens were held since the last pause, ns

	mu      sync.Mutex
	slots   int
	active  map[*handshake]struct{} // those in a slot
	waiting []job                   // in order; those whose connection has closed are skipped
	relief  *time.Timer             // runs while handshakes wait
}

type job struct {
	c *Conn
	h *handshake
}

// PoolStats are the pool's counters.
type PoolStats struct {
	Waited  atomic.Int64 // handshakes that had to wait for a slot
	Evicted atomic.Int64 // handshakes that gave their slot up
	Pauses  atomic.Int64 // taken for those who are connected
}

// parkMin is how long a client may take for its next message even when others wait.
const parkMin = 2 * time.Second

// slotsDefault bounds the memory of handshakes: a parked one holds about 20 KiB.
const slotsDefault = 512

// errEvicted ends a handshake whose client is silent while others wait.
var errEvicted = errors.New("tlsconn: the client is silent in its handshake and others wait")

// NewPool returns a pool with so many slots, 0 for the default.
func NewPool(slots int) *Pool {
	if slots <= 0 {
		slots = slotsDefault
	}
	return &Pool{slots: slots, active: map[*handshake]struct{}{}, tokens: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)-1))}
}

// start begins c's handshake, or has it wait for a slot.
func (p *Pool) start(c *Conn) {
	j := job{c, c.hs}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.active) < p.slots {
		p.active[j.h] = struct{}{}
		go p.run(j)
		return
	}
	p.Stats.Waited.Add(1)
	p.waiting = append(p.waiting, j)
	if p.relief == nil {
		p.relief = time.AfterFunc(parkMin/4, p.relieve)
	}
}

// run is a slot's goroutine: one handshake after the other, as long as some wait.
func (p *Pool) run(j job) {
	for ok := true; ok; j, ok = p.next(j) {
		p.take(j.h)
		err := j.c.tc.Handshake()
		p.give(j.h)
		j.h.finish(err)
		eventloop.Nudge(j.c.below) // the loop takes over
	}
}

// take waits for a processor.
func (p *Pool) take(h *handshake) {
	p.crowd.Add(1)
	p.tokens <- struct{}{}
	p.crowd.Add(-1)
	h.tookAt = time.Now()
}

// give lets the next handshake have it. Everybody else goes first: those who wait for a token are made runnable by the
// one who gives it, right behind him, and without a pause a long row of handshakes would keep a loop, which was woken
// meanwhile, in the scheduler's global queue for tens of milliseconds.
//
// In a storm that is not enough where the collector, which handshakes keep busy, has the other processor: for every
// stretch of work there is a pause, in which the token is nobody's.
func (p *Pool) give(h *handshake) {
	used := p.used.Add(int64(time.Since(h.tookAt)))
	runtime.Gosched()
	if used >= int64(stretch) && p.crowd.Load() > 0 && p.used.CompareAndSwap(used, 0) {
		p.Stats.Pauses.Add(1)
		time.Sleep(pause)
	}
	<-p.tokens
}

// While handshakes wait for one another they have two thirds of the time.
const (
	stretch = 2 * time.Millisecond
	pause   = time.Millisecond
)

// next takes the first handshake that waits and whose connection is still there. Without one, the slot is free.
func (p *Pool) next(last job) (job, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.active, last.h)
	for len(p.waiting) > 0 {
		j := p.waiting[0]
		p.waiting[0] = job{}
		p.waiting = p.waiting[1:]
		if !j.h.aborted() {
			p.active[j.h] = struct{}{}
			return j, true
		}
	}
	p.waiting = nil
	return job{}, false
}

// relieve has slots given up for those that wait.
func (p *Pool) relieve() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.relief = nil
	if len(p.waiting) == 0 {
		return
	}
	var silent []*handshake
	since := time.Now().Add(-parkMin).UnixNano()
	for h := range p.active {
		if at := h.parkedAt.Load(); at != 0 && at < since {
			silent = append(silent, h)
		}
	}
	slices.SortFunc(silent, func(a, b *handshake) int { return cmp.Compare(a.parkedAt.Load(), b.parkedAt.Load()) })
	for _, h := range silent[:min(len(silent), len(p.waiting))] {
		p.Stats.Evicted.Add(1)
		h.abort(errEvicted)
	}
	p.relief = time.AfterFunc(parkMin/4, p.relieve)
}

// handshake is what a connection's loop and the goroutine of its handshake share.
type handshake struct {
	parkedAt atomic.Int64 // when it began to wait for the client, ns; 0: it does not
	early    []byte       // plaintext written before it was done; the loop's
	tookAt   time.Time    // when it got its token; its goroutine's

	mu      sync.Mutex
	in      []byte // ciphertext from the client, from off on
	off     int
	out     []byte        // ciphertext for the client
	more    chan struct{} // one slot: there is input, or an end
	started bool
	dead    error // why there will be no more input
	done    bool
	err     error // how it ended
}

const (
	recordHandshake   = 22
	recordHeader      = 5
	recordBytesMax    = 16<<10 + 2048
	handshakeBytesMax = 1 << 20
)

// shake passes ciphertext on to the handshake and sends what it has written. done says that it has succeeded.
func (c *Conn) shake(b []byte) (done, ok bool) {
	h := c.hs
	h.mu.Lock()
	h.in = append(h.in, b...)
	begin := !h.started && helloComplete(h.in)
	var err error
	switch {
	case h.done:
		err = h.err
	case !h.started && len(h.in) > 0 && h.in[0] != recordHandshake:
		err = ErrNotTLS
	case len(h.in) > handshakeBytesMax:
		err = errTooMuch
	case begin:
		h.started, h.more = true, make(chan struct{}, 1)
	case h.started && len(b) > 0:
		h.signal()
	}
	out, done := h.out, h.done
	h.out = nil
	h.mu.Unlock()
	if len(out) > 0 {
		if _, werr := c.below.Write(out); werr != nil {
			return false, false
		}
	}
	if err != nil {
		c.fail(err)
		return false, done && c.linger() // its alert may have left before
	}
	if begin {
		c.ln.o.Pool.start(c)
	}
	if done {
		c.ln.Stats.Handshakes.Add(1)
		if c.tc.ConnectionState().DidResume {
			c.ln.Stats.Resumed.Add(1)
		}
	}
	return done, true
}

// errTooMuch ends a handshake whose client sends without end.
var errTooMuch = errors.New("tlsconn: too much input before the handshake is done")

// helloComplete says whether b has the whole first record: no goroutine is spent on a client that dribbles it.
func helloComplete(b []byte) bool {
	if len(b) < recordHeader {
		return false
	}
	n := int(b[3])<<8 | int(b[4])
	return len(b) >= recordHeader+n || n > recordBytesMax
}

// read is the transport's Read in the goroutine of the handshake.
func (h *handshake) read(p []byte, pool *Pool) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.off == len(h.in) {
		if h.dead != nil {
			return 0, h.dead
		}
		h.mu.Unlock()
		h.parkedAt.Store(time.Now().UnixNano())
		pool.give(h) // it uses no processor while it waits
		<-h.more
		pool.take(h)
		h.parkedAt.Store(0)
		h.mu.Lock()
	}
	n := copy(p, h.in[h.off:])
	if h.off += n; h.off == len(h.in) {
		h.in, h.off = h.in[:0], 0
	}
	return n, nil
}

func (h *handshake) write(p []byte) {
	h.mu.Lock()
	h.out = append(h.out, p...)
	h.mu.Unlock()
}

func (h *handshake) finish(err error) {
	h.mu.Lock()
	if h.dead != nil && err != nil {
		err = h.dead
	}
	h.done, h.err = true, err
	h.mu.Unlock()
}

// abort ends the handshake where it waits; nothing happens when it is done.
func (h *handshake) abort(why error) {
	h.mu.Lock()
	if h.dead == nil {
		h.dead = why
	}
	if h.started {
		h.signal()
	}
	h.mu.Unlock()
}

func (h *handshake) aborted() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.dead != nil
}

func (h *handshake) signal() {
	select {
	case h.more <- struct{}{}:
	default:
	}
}

// rest is the ciphertext that the handshake has not read, once it is done.
func (h *handshake) rest() []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.in[h.off:]
}
