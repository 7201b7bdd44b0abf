package broker

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"edgehub/hub/stream"
)

// Writing without stalling the event loops.
//
// A goroutine that has asked the kernel to write waits for as long as the disk takes, and a loop that waits serves
// nobody. So a loop hands each write to a writer, a goroutine of its own, and waits for that: a goroutine can be woken
// by somebody else. Mostly the write is over within microseconds and the loop goes on as if it had written itself. When
// it takes longer than the bound, the watch wakes the loop; the writer then keeps the job, and with it the role that
// the loop had: it is the partition's committer until it finds nothing more to write, and what it has to tell loops
// goes by mail, as after a group fdatasync. New records gather in the open batch meanwhile, bounded by
// Limits.InboundBytes.
//
// While some write is late, loops do not wait at all: each would be the next one to wait. And no round waits longer
// than the bound, however many partitions it has touched.
//
// Writing on the loop while the disk is known to be fast would save the switch to the writer, but the first slow write
// would stall the loop for as long as it takes; nothing announces it.

// writersMax bounds how many writers write at the same time; more jobs wait in order. Each is a thread while the kernel
// has it, and a disk that is late with one gains nothing from hundreds.
const writersMax = 16

// watchSteps is how many ticks of the watch make the bound: a job that is met twice by the watch has taken one step at
// least and two at most.
const watchSteps = 2

// task is one write: of a partition's batch, or of the metadata.
type task struct {
	l  *Loop      // that asked for it; nil: some other goroutine, which does it itself
	p  *partition // nil: the metadata
	bt *batch
	// number is the metadata commit's, see metadata.go.
	number uint64
	err    error

	// state is a sequence number, so that the watch knows one use of a task from the next, and a phase. Whoever moves it
	// away from taskWaited, the writer that is done or the watch, wakes the loop.
	state atomic.Uint64
	done  chan bool // to the loop: true when the write is over

	// Guarded by writers.mu, of a task that is left.
	since time.Time
	slow  *stream.SlowOp // it is late
}

func (t *task) name() string {
	if t.p == nil {
		return "$meta"
	}
	return t.p.Name
}

const (
	taskIdle   = iota
	taskWaited // the loop waits for it
	taskOver   // the write is over and the loop goes on
	taskLeft   // the writer has it alone
	taskPhases
)

// writers are the goroutines that write for the loops.
type writers struct {
	b *Broker
	// wait is how long a loop waits for a write; 0: it writes by itself, however long that takes.
	wait time.Duration
	// takes, when set, is asked first: true leaves the task to whoever has set it, a test.
	takes func(*task) bool

	slow  atomic.Int32  // tasks that are late
	ticks atomic.Uint32 // of the watch, while it is awake
	armed atomic.Bool   // the watch is awake, or being woken
	wake  chan struct{}

	mu      sync.Mutex
	idle    []*writer
	running int
	queue   []*task // left, and not begun for want of a writer
	left    []*task // left, and not written
	closed  bool
	wg      sync.WaitGroup
}

// writer is one goroutine; its jobs come from the loop that has it.
type writer struct{ jobs chan *task }

func (ws *writers) init(b *Broker, wait time.Duration) {
	ws.b, ws.wait, ws.wake = b, wait, make(chan struct{}, 1)
}

func (ws *writers) start() {
	if ws.wait > 0 {
		ws.wg.Add(1)
		go ws.watch()
	}
}

// stop waits for what is being written. The loops have ended.
func (ws *writers) stop() {
	ws.mu.Lock()
	ws.closed = true
	for _, w := range ws.idle {
		close(w.jobs)
	}
	ws.idle = nil
	ws.mu.Unlock()
	for _, l := range *ws.b.loops.Load() {
		if l.writer != nil {
			close(l.writer.jobs)
			l.writer = nil
		}
	}
	ws.wg.Wait()
}

// do runs a task for a loop and reports whether the write is over. When it is not, the task belongs to a writer.
func (l *Loop) do(t *task) bool {
	ws := &l.b.writers
	if ws.takes != nil && ws.takes(t) {
		t.state.Store(taskLeft)
		return false
	}
	if ws.wait == 0 {
		ws.write(t)
		return true
	}
	if l.writer == nil {
		l.writer = ws.get()
	}
	seq := t.state.Load()/taskPhases*taskPhases + taskPhases
	if l.writer == nil || ws.slow.Load() > 0 || ws.ticks.Load()-l.roundTick >= watchSteps {
		t.state.Store(seq + taskLeft)
		ws.leave(t, l.writer)
		l.writer = nil
		return false
	}
	t.state.Store(seq + taskWaited)
	ws.rouse()
	l.writer.jobs <- t
	if <-t.done {
		return true
	}
	l.writer = nil
	return false
}

// newTask returns the loop's task for its next write: the one before, unless that was left to a writer.
func (l *Loop) newTask() *task {
	t := l.task.Load()
	if t == nil || t.state.Load()%taskPhases == taskLeft {
		t = &task{l: l, done: make(chan bool, 1)}
		l.task.Store(t)
	}
	return t
}

// rouse makes sure that the watch is awake.
func (ws *writers) rouse() {
	if !ws.armed.Load() && !ws.armed.Swap(true) {
		ws.wake <- struct{}{} // has room: only who sets armed sends, and only the watch takes it back
	}
}

// get returns a writer that is free, nil when there is none and there may be no more.
func (ws *writers) get() *writer {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if n := len(ws.idle); n > 0 {
		w := ws.idle[n-1]
		ws.idle = ws.idle[:n-1]
		return w
	}
	if ws.running >= writersMax {
		return nil
	}
	ws.running++
	w := &writer{jobs: make(chan *task, 1)}
	ws.wg.Add(1)
	go ws.run(w)
	return w
}

// leave gives a task to a writer for good, or to the next one that is free.
func (ws *writers) leave(t *task, w *writer) {
	ws.mu.Lock()
	t.since = time.Now()
	ws.left = append(ws.left, t)
	if w == nil {
		ws.queue = append(ws.queue, t)
	}
	ws.mu.Unlock()
	ws.rouse() // it may become late
	if w != nil {
		w.jobs <- t
	}
}

// here writes on the calling goroutine, which is no loop.
func (ws *writers) here(t *task) {
	if ws.wait == 0 {
		ws.write(t)
		return
	}
	ws.mu.Lock()
	t.since = time.Now()
	ws.left = append(ws.left, t)
	ws.mu.Unlock()
	ws.rouse()
	ws.write(t)
	ws.written(t)
}

// write does what is to be done.
func (ws *writers) write(t *task) {
	if t.p != nil {
		t.err = t.p.Log.Append(&t.bt.b)
	} else {
		t.err = ws.b.o.Meta.Commit()
	}
}

// finish goes on where the loop has not waited.
func (ws *writers) finish(t *task) {
	if t.p != nil {
		behind := t.p.Stream.Durability == stream.Memory && t.bt.acked == len(t.bt.pend)
		ws.b.wrote(t.p, t.bt, nil, t.err)
		if behind { // see writeBehind
			ws.b.commit(t.p, nil)
		} else {
			ws.b.serve(t.p, nil)
		}
		return
	}
	t.l.Post(func() { t.l.metaDone(t.number, t.err) })
}

// run is a writer.
func (ws *writers) run(w *writer) {
	defer ws.wg.Done()
	for t := range w.jobs {
		state := t.state.Load()
		ws.write(t)
		if state%taskPhases == taskWaited && t.state.CompareAndSwap(state, state-taskWaited+taskOver) {
			t.done <- true
			continue
		}
		for t != nil {
			ws.written(t)
			ws.finish(t)
			if t = ws.next(w); t != nil {
				ws.write(t)
			}
		}
	}
}

// written takes note that a task that was left is written.
func (ws *writers) written(t *task) {
	ws.mu.Lock()
	ws.left = slices.DeleteFunc(ws.left, func(x *task) bool { return x == t })
	slow := t.slow
	t.slow = nil
	ws.mu.Unlock()
	if slow != nil {
		ws.slow.Add(-1)
		took := ws.b.o.Streams.Slow.End(slow)
		if n, say := ws.b.said.slowOver.next(ws.b.o.Clock.NowMs()); say {
			ws.b.log.Warn("a slow write is over", "file", t.name(), "took", took.Round(time.Millisecond), "not_said", n)
		}
	}
}

// next returns the task that has waited longest for a writer. Without one the writer is free again.
func (ws *writers) next(w *writer) *task {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(ws.queue) > 0 {
		t := ws.queue[0]
		ws.queue = slices.Delete(ws.queue, 0, 1)
		return t
	}
	if ws.closed {
		close(w.jobs)
	} else {
		ws.idle = append(ws.idle, w)
	}
	return nil
}

// watch looks at what loops wait for, while they do.
func (ws *writers) watch() {
	defer ws.wg.Done()
	t := time.NewTicker(ws.wait / watchSteps)
	defer t.Stop()
	var seen []uint64
	for {
		t.Stop()
		select {
		case <-ws.b.stop:
			return
		case <-ws.wake:
		}
		t.Reset(ws.wait / watchSteps)
		for awake := true; awake; {
			select {
			case <-ws.b.stop:
				return
			case <-t.C:
			}
			ws.ticks.Add(1)
			if seen, awake = ws.look(seen); !awake {
				// Whoever begins from here on wakes it again; who began before, and was not seen, is looked for once more.
				ws.armed.Store(false)
				seen, awake = ws.look(seen)
				awake = awake && !ws.armed.Swap(true)
			}
		}
	}
}

// look wakes the loops that have waited for as long as they may, and counts what is late. It reports whether anything
// was or is under way. seen has, by loop, the state of its task at the last look.
func (ws *writers) look(seen []uint64) ([]uint64, bool) {
	busy := false
	for i, l := range *ws.b.loops.Load() {
		if i == len(seen) {
			seen = append(seen, 0)
		}
		t := l.task.Load()
		if t == nil {
			continue
		}
		state := t.state.Load()
		if state != seen[i] {
			seen[i], busy = state, true
			continue
		}
		if state%taskPhases == taskWaited && ws.takeAway(t, state) {
			busy = true
			t.done <- false
		}
	}
	late, left := ws.lateOnes()
	for _, t := range late {
		if n, say := ws.b.said.slow.next(ws.b.o.Clock.NowMs()); say {
			ws.b.log.Warn("the disk takes long to write; clients are served, and what they are waiting for will come when it is written", "file", t.name(), "not_said", n)
		}
	}
	return seen, busy || left
}

// takeAway leaves a task that a loop waits for to its writer. False: it is over.
func (ws *writers) takeAway(t *task, state uint64) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if !t.state.CompareAndSwap(state, state-taskWaited+taskLeft) {
		return false
	}
	t.since = time.Now().Add(-ws.wait / watchSteps)
	ws.left = append(ws.left, t) // before the writer can look for it: see written
	return true
}

// lateOnes counts the tasks that have become late, and reports whether any are left.
func (ws *writers) lateOnes() (late []*task, left bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, t := range ws.left {
		if t.slow == nil && time.Since(t.since) >= ws.wait/watchSteps {
			t.slow = ws.b.o.Streams.Slow.Begin(stream.SlowWrite, t.name(), t.since)
			ws.slow.Add(1)
			late = append(late, t)
		}
	}
	return late, len(ws.left) > 0
}
