package broker

import (
	"bytes"
	"errors"
	"iter"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"edgehub/hub/message"
	"edgehub/hub/stream"
	"edgehub/internal/hubtime"
	"edgehub/internal/vfs/vfstest"
	"edgehub/storage/seglog"
)

// A rig is a broker on a disk in memory, whose loops, readers, syncs and checkpoints run only when the test says so.
// Everything happens on the test's goroutine.
type rig struct {
	t     testing.TB
	disk  *vfstest.Mem
	fs    *vfstest.Faults
	meta  *memMeta
	set   *stream.Set
	b     *Broker
	loops []*Loop
	wakes [][]func() // by loop
	// mu is for what a timer of the broker may touch, too.
	mu    sync.Mutex
	read  *reader
	specs []stream.Spec
	lim   Limits
	index seglog.IndexStore // nil: none

	damaged  int  // found by the recovery
	tolerant bool // damage is what the test wants

	// late, when set, chooses the writes that are late: they end when the test says so.
	late  func(*task) bool
	tasks []*task

	// died is set at a kill in the middle of a step: nothing that leaves afterwards has left.
	died bool
}

var rigLimits = Limits{ReceiveMaximum: 64, SessionExpiryMax: 1 << 30, SubsPerClient: 100, TopicLevels: 32,
	QoS0LagMs: 60_000, CatchupBytes: 8 << 20, InboundBytes: 8 << 20}

// oneStream has a single partition, main/0-0: offsets are easy to name.
var oneStream = []stream.Spec{
	{Name: "main", Filters: []string{"#"}, Partitions: 1, SegmentBytes: 1 << 20},
	{Name: RetainedStream, Partitions: 1, SegmentBytes: 1 << 20},
	{Name: OfflineStream, Partitions: 1, SegmentBytes: 64 << 10},
}

// twoKinds has a Synced stream beside a Written one, each with more than one partition.
var twoKinds = []stream.Spec{
	{Name: "safe", Filters: []string{"s/#"}, Partitions: 2, SegmentBytes: 1 << 20, Durability: stream.Synced},
	{Name: "main", Filters: []string{"#"}, Partitions: 3, SegmentBytes: 1 << 20},
	{Name: RetainedStream, Partitions: 1, SegmentBytes: 1 << 20},
	{Name: OfflineStream, Partitions: 1, SegmentBytes: 16 << 10},
}

func newRig(t testing.TB, specs []stream.Spec, loops int) *rig {
	t.Helper()
	r := &rig{t: t, disk: vfstest.NewMem(), meta: newMemMeta(), specs: specs, lim: rigLimits}
	r.start(loops)
	return r
}

// start opens everything and recovers, as the hub does.
func (r *rig) start(loops int) {
	r.t.Helper()
	r.fs = vfstest.New(r.disk)
	floor, err := LastTime(r.meta)
	if err != nil {
		r.t.Fatal(err)
	}
	logger := slog.New(slog.DiscardHandler)
	clock := hubtime.New(floor.HubMs)
	r.set, err = stream.Open(r.specs, stream.Options{FS: r.fs, Dir: "/data/streams", QuarantineDir: "/data/quarantine",
		Salt: 7, Index: r.index, Clock: clock, Logger: logger})
	if err != nil {
		r.t.Fatal(err)
	}
	b := New(Options{Streams: r.set, Meta: r.meta, Clock: clock, Logger: logger, Limits: r.lim})
	r.mu.Lock() // timers of a broker that was killed may still run
	r.b = b
	r.mu.Unlock()
	if r.damaged, err = r.b.Recover(); err != nil || r.damaged > 0 && !r.tolerant {
		r.t.Fatalf("recovery: %d damaged records, %v", r.damaged, err)
	}
	r.tasks = nil
	b.writers.takes = func(t *task) bool {
		if r.late == nil || !r.late(t) {
			return false
		}
		r.tasks = append(r.tasks, t)
		return true
	}
	r.mu.Lock()
	r.read, r.loops, r.wakes, r.died = &reader{b: r.b}, nil, make([][]func(), loops), false
	r.mu.Unlock()
	for id := range loops {
		r.loops = append(r.loops, b.NewLoop(func(fn func()) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.b == b {
				r.wakes[id] = append(r.wakes[id], fn)
			}
		}))
	}
}

// kill ends the hub as SIGKILL does, and starts it again: what was written is there, metadata that were not committed
// are not, and no connection is.
func (r *rig) kill() {
	r.t.Helper()
	disk, m := r.disk.Kill(), r.meta.kill(0)
	r.disk, r.meta = disk, m
	r.start(len(r.loops))
}

// step runs what a loop has been woken for; false when there was nothing.
func (r *rig) step(loop int) bool {
	r.mu.Lock()
	fns := r.wakes[loop]
	r.wakes[loop] = nil
	r.mu.Unlock()
	for _, fn := range fns {
		fn()
	}
	return len(fns) > 0
}

// readJob lets one reader do one job.
func (r *rig) readJob() bool {
	select {
	case j := <-r.b.catchup.jobs:
		r.finishJob(j)
		return true
	default:
		return false
	}
}

// takeJob takes a job and leaves it unfinished.
func (r *rig) takeJob() *job {
	r.t.Helper()
	select {
	case j := <-r.b.catchup.jobs:
		return j
	default:
		r.t.Fatal("nobody wants to read the log")
		return nil
	}
}

func (r *rig) finishJob(j *job) {
	ch := r.read.read(j)
	r.b.catchup.account(ch)
	j.to.loop.Post(func() { j.to.loop.chunkRead(j, ch) })
}

// endLate ends a write that is late, as its writer does; false when there is none with that number.
func (r *rig) endLate(i int) bool {
	if i >= len(r.tasks) {
		return false
	}
	t := r.tasks[i]
	r.tasks = slices.Delete(r.tasks, i, i+1)
	r.b.writers.write(t)
	r.b.writers.finish(t)
	return true
}

// sync does a pass of the syncer.
func (r *rig) sync() {
	for _, p := range r.set.Partitions {
		if n, err := p.Log.Sync(); err == nil {
			r.b.Synced(p, n)
		}
	}
}

// settle runs loops, readers and syncs until nothing is left to do.
func (r *rig) settle() {
	r.t.Helper()
	for n := 0; ; n++ {
		busy := false
		for i := range r.loops {
			busy = r.step(i) || busy
		}
		for r.readJob() {
			busy = true
		}
		for r.endLate(0) {
			busy = true
		}
		r.sync()
		for i := range r.loops {
			busy = busy || len(r.wakes[i]) > 0
		}
		if !busy {
			return
		}
		if n > 10_000 {
			r.t.Fatal("the loops do not come to rest")
		}
	}
}

// checkpoint runs one checkpoint of all loops and stores the vector.
func (r *rig) checkpoint() { r.checkpointWith(func(int) {}) }

// checkpointWith calls between before it asks each loop.
func (r *rig) checkpointWith(between func(loop int)) {
	r.b.checkpointWith(r.b.o.Clock.NowMs(), func(l *Loop) (previous []int64) {
		between(l.ID)
		l.Post(func() { previous = l.checkpoint() })
		for previous == nil {
			if !r.step(l.ID) {
				r.t.Fatalf("loop %d sleeps with mail: posted %v, %d items, work %d of %d", l.ID, l.mail.posted, len(l.mail.in.items), l.workPos, len(l.work.items))
			}
		}
		return previous
	})
}

// part is the partition of a topic.
func (r *rig) part(name string) *partition {
	return r.b.parts[r.set.Route(name).Pick(name, "").ID]
}

// records reads a whole partition.
func (r *rig) records(p *partition) []message.Message {
	r.t.Helper()
	var list []message.Message
	for _, m := range r.recordsFrom(p, p.Log.First()) {
		list = append(list, m)
	}
	return list
}

// recordsFrom reads a partition from an offset on.
func (r *rig) recordsFrom(p *partition, from int64) iter.Seq2[int64, message.Message] {
	return func(yield func(int64, message.Message) bool) {
		for at := from; at < p.Log.Next(); {
			buf, err := p.Log.Read(at, 1<<20, nil)
			if err != nil {
				r.t.Fatal(err)
			}
			for rec := range seglog.Records(buf) {
				var m message.Message
				if err := m.Decode(rec); err != nil {
					r.t.Fatal(err)
				}
				if rec.Offset < at {
					continue
				}
				if !yield(rec.Offset, m) {
					return
				}
				at = rec.Offset + 1
			}
		}
	}
}

// payloads are those of a whole partition.
func (r *rig) payloads(p *partition) []string {
	var list []string
	for _, m := range r.records(p) {
		list = append(list, string(m.Payload))
	}
	return list
}

// memMeta is metadata in memory with the store's contract: Put is seen at once, and survives a kill after Commit.
type memMeta struct {
	now     map[string][]byte
	durable map[string][]byte
	pending []metaChange
	// around is called before and after a commit; an error before fails it.
	around  func(before bool) error
	commits int
	last    []metaChange // of the latest commit that changed something
	mu      sync.Mutex
}

type metaChange struct {
	key   string
	value []byte
	del   bool
}

func newMemMeta() *memMeta {
	return &memMeta{now: map[string][]byte{}, durable: map[string][]byte{}}
}

func (m *memMeta) Put(key, value []byte) {
	m.change(metaChange{string(key), bytes.Clone(value), false})
}

func (m *memMeta) Delete(key []byte) { m.change(metaChange{key: string(key), del: true}) }

func (m *memMeta) change(c metaChange) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pending = append(m.pending, c)
	c.apply(m.now)
}

func (c metaChange) apply(to map[string][]byte) {
	if c.del {
		delete(to, c.key)
		return
	}
	to[c.key] = c.value
}

// PutNew is Put: there is no index to spare.
func (m *memMeta) PutNew(key, value []byte) { m.Put(key, value) }

func (m *memMeta) Commit() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.pending) == 0 {
		return nil
	}
	if m.around != nil {
		if err := m.around(true); err != nil {
			return err
		}
	}
	for _, c := range m.pending {
		c.apply(m.durable)
	}
	m.last, m.pending = m.pending, nil
	m.commits++
	if m.around != nil {
		return m.around(false)
	}
	return nil
}

func (m *memMeta) Backlog() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.pending {
		n += 1 + len(c.value)
	}
	return n
}

func (m *memMeta) Sync() error { return m.Commit() }

func (m *memMeta) Scan(prefix []byte, fn func(key, value []byte) error) error {
	for _, k := range slices.Sorted(maps.Keys(m.now)) {
		if strings.HasPrefix(k, string(prefix)) {
			if err := fn([]byte(k), m.now[k]); err != nil {
				return err
			}
		}
	}
	return nil
}

// kill returns what a kill leaves: everything committed, and a part of what was not.
func (m *memMeta) kill(kept int) *memMeta {
	n := newMemMeta()
	n.durable = maps.Clone(m.durable)
	for _, c := range m.pending[:kept] {
		c.apply(n.durable)
	}
	n.now = maps.Clone(n.durable)
	return n
}

// crash is kill at a place of chance among the uncommitted changes.
func (m *memMeta) crash(rng *rand.Rand) *memMeta { return m.kill(rng.IntN(len(m.pending) + 1)) }

// keys are the keys with a prefix.
func (m *memMeta) keys(prefix string) []string {
	var list []string
	for k := range m.now {
		if strings.HasPrefix(k, prefix) {
			list = append(list, k)
		}
	}
	slices.Sort(list)
	return list
}

var errInjected = errors.New("injected")

func TestMemMetaLosesWhatWasNotCommitted(t *testing.T) {
	m := newMemMeta()
	m.Put([]byte("a"), []byte("1"))
	if err := m.Commit(); err != nil {
		t.Fatal(err)
	}
	m.Put([]byte("b"), []byte("2"))
	m.Delete([]byte("a"))
	if got := m.keys(""); !slices.Equal(got, []string{"b"}) {
		t.Fatalf("now: %v", got)
	}
	if got := m.kill(0).keys(""); !slices.Equal(got, []string{"a"}) {
		t.Fatalf("after a kill: %v", got)
	}
	if got := m.kill(1).keys(""); !slices.Equal(got, []string{"a", "b"}) {
		t.Fatalf("after a kill in the middle of a commit: %v", got)
	}
}
