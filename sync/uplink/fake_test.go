package uplink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"edgehub/hub/message"
	"edgehub/internal/vfs"
	"edgehub/storage/seglog"
)

const testInstance = "00112233445566778899aabbccddeeff"

// fakeSource is a log of real segments with an epoch table in memory.
type fakeSource struct {
	t    testing.TB
	dir  string
	logs []*seglog.Log

	mu      sync.Mutex
	epochs  map[string][]EpochStart
	notify  map[chan<- struct{}]bool
	builder seglog.Builder
	n       int
}

func newFakeSource(t testing.TB, partitions int) *fakeSource {
	s := &fakeSource{t: t, dir: t.TempDir(), epochs: map[string][]EpochStart{}, notify: map[chan<- struct{}]bool{}}
	s.open(partitions)
	t.Cleanup(func() {
		for _, l := range s.logs {
			_ = l.Close()
		}
	})
	return s
}

func (s *fakeSource) open(partitions int) {
	s.t.Helper()
	s.logs = nil
	for i := range partitions {
		l, _, err := seglog.Open(seglog.Options{FS: fastFS{vfs.OS}, Dir: filepath.Join(s.dir, strconv.Itoa(i)), Name: fmt.Sprintf("main/%d-0", i), Salt: 3, SegmentBytes: 16 << 10})
		if err != nil {
			s.t.Fatal(err)
		}
		s.logs = append(s.logs, l)
	}
}

// fastFS does not sync: here the process does not die.
type fastFS struct{ vfs.FS }

func (f fastFS) OpenFile(name string, flag int) (vfs.File, error) {
	file, err := f.FS.OpenFile(name, flag)
	return fastFile{file}, err
}

func (fastFS) SyncDir(string) error { return nil }

type fastFile struct{ vfs.File }

func (fastFile) Sync() error { return nil }

// crash reopens the logs in a new epoch.
func (s *fakeSource) crash() {
	s.t.Helper()
	n := len(s.logs)
	for _, l := range s.logs {
		if err := l.Close(); err != nil {
			s.t.Fatal(err)
		}
	}
	s.open(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.logs {
		e := s.epochs[l.Name()]
		s.epochs[l.Name()] = append(e, EpochStart{Epoch: uint32(len(e) + 2), First: l.Next()})
	}
}

func (s *fakeSource) append(partition, n int, sync bool) {
	s.t.Helper()
	l := s.logs[partition]
	s.builder.Reset(l.Next())
	for range n {
		s.n++
		m := message.Message{Topic: []byte("t/" + strconv.Itoa(s.n%7)), Payload: []byte(strconv.Itoa(s.n)), QoS: 1, TimeMs: time.Now().UnixMilli()}
		var h seglog.Headers
		m.AppendHeaders(&h)
		s.builder.Append(m.TimeMs, m.Topic, m.Payload, h)
	}
	if err := l.Append(&s.builder); err != nil {
		s.t.Fatal(err)
	}
	if sync {
		s.sync(partition)
	}
}

func (s *fakeSource) sync(partition int) {
	s.t.Helper()
	if _, err := s.logs[partition].Sync(); err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for ch := range s.notify {
		poke(ch)
	}
}

func (s *fakeSource) Partitions() []Partition {
	var out []Partition
	for _, l := range s.logs {
		out = append(out, l)
	}
	return out
}

func (s *fakeSource) Notify(ch chan<- struct{}) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notify[ch] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.notify, ch)
	}
}

func (s *fakeSource) EpochAt(partition string, offset int64) uint32 {
	epoch := uint32(1)
	for _, e := range s.EpochStarts(partition) {
		if e.First <= offset {
			epoch = e.Epoch
		}
	}
	return epoch
}

func (s *fakeSource) EpochStarts(partition string) []EpochStart {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.epochs[partition])
}

// fakeCursors keeps cursors in memory. Once frozen it loses every save.
type fakeCursors struct {
	mu     sync.Mutex
	frozen bool
	pos    map[string]int64
	state  []byte
}

func (c *fakeCursors) Load(_, p string) (int64, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := c.pos[p]
	return n, ok, nil
}

func (c *fakeCursors) Save(_, p string, offset int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.frozen {
		c.pos[p] = offset
	}
	return nil
}

func (c *fakeCursors) LoadState(string) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state, nil
}

func (c *fakeCursors) SaveState(_ string, b []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.frozen {
		c.state = b
	}
	return nil
}

func (c *fakeCursors) freeze() { c.mu.Lock(); c.frozen = true; c.mu.Unlock() }

func (c *fakeCursors) clone() *fakeCursors {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &fakeCursors{pos: maps.Clone(c.pos), state: c.state}
}

// fakeRemote models a remote stream as JetStream checks it: expected sequence,
// then duplicates, then the expected id of the newest record. What is sent is
// on the wire until somebody delivers it, also when the sender has long given up.
type fakeRemote struct {
	mu      sync.Mutex
	name    string // "": EDGE
	up      bool   // connections are accepted
	refuse  bool   // or else refused, rather than lost
	exists  bool
	created time.Time
	last    uint64
	lastID  string
	stored  []fakeStored
	ids     map[string]uint64 // for duplicates; nil: it remembers none
	next    map[string]int64  // next offset to store per partition
	unsafe  []string          // records that were sent too early

	replicated bool // it compares sequences, not ids
	wires      []*fakeSession
	late       int // records that arrived after their connection was closed
	read       int // records that were read back
}

type fakeStored struct {
	Stored
	payload string
}

var errDown = errors.New("no answer, or refused")

func (r *fakeRemote) Connect(context.Context) (Session, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.up && r.refuse {
		return nil, fmt.Errorf("dial: %w", ErrRefused)
	}
	if !r.up {
		return nil, errDown
	}
	s := &fakeSession{r: r, ready: make(chan struct{}, 1)}
	s.remote = r.describe()
	r.wires = append(r.wires, s)
	return s, nil
}

func (r *fakeRemote) describe() Remote {
	m := Remote{Name: cmp.Or(r.name, "EDGE"), Replicated: r.replicated, Exists: r.exists, Created: r.created, Messages: uint64(len(r.stored)), Last: r.last, First: r.last + 1}
	if len(r.stored) > 0 {
		m.First = r.stored[0].Seq
	}
	return m
}

type fakeWire struct {
	token        uint64
	id, prev     string
	lastSeq      uint64
	pos, payload string
	digest       Digest
}

type fakeSession struct {
	r      *fakeRemote
	remote Remote
	ready  chan struct{}

	// Guarded by r.mu.
	queue  []fakeWire
	acks   []Ack
	err    error
	closed bool
}

func (s *fakeSession) Remote() Remote         { return s.remote }
func (s *fakeSession) Ready() <-chan struct{} { return s.ready }

func (s *fakeSession) Create(context.Context) error {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.r.exists, s.r.created = true, time.Now()
	s.remote = s.r.describe()
	return nil
}

func (s *fakeSession) Stored(_ context.Context, from, to uint64) ([]Stored, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	out := make([]Stored, 0, to-from+1)
	s.r.read += cap(out)
	for q := from; q <= to; q++ {
		i, ok := slices.BinarySearchFunc(s.r.stored, q, func(m fakeStored, q uint64) int { return int(int64(m.Seq) - int64(q)) })
		if ok {
			out = append(out, s.r.stored[i].Stored)
		} else {
			out = append(out, Stored{Seq: q})
		}
	}
	return out, nil
}

func (s *fakeSession) Publish(o *Out) (int, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	if s.err != nil {
		return 0, s.err
	}
	// The rule on which the order rests: right behind its own predecessor, or
	// when all before it is stored.
	id, _ := parseIdent(string(o.ID))
	if prev, ok := parseIdent(string(o.Prev)); id.Offset > s.r.next[id.Partition] && (!ok || prev.Partition != id.Partition || prev.Offset != id.Offset-1) {
		s.r.unsafe = append(s.r.unsafe, fmt.Sprintf("%s behind %s, stored up to %d", o.ID, o.Prev, s.r.next[id.Partition]-1))
	}
	s.queue = append(s.queue, fakeWire{token: o.Token, id: string(o.ID), prev: string(o.Prev), lastSeq: o.LastSeq, pos: string(o.Positions), payload: string(o.Message.Payload), digest: DigestOf(o.Message.TimeMs, o.Message.Topic, o.Message.Payload)})
	return len(o.Message.Payload), nil
}

func (s *fakeSession) Acks(dst []Ack) ([]Ack, error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	dst = append(dst, s.acks...)
	s.acks = s.acks[:0]
	return dst, s.err
}

func (s *fakeSession) Close() {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.closed = true
}

func (s *fakeSession) fail(err error) {
	if s.err == nil {
		s.err = err
	}
	poke(s.ready)
}

// deliver stores the oldest record on a session's wire, or refuses it.
func (s *fakeSession) deliver() {
	w := s.queue[0]
	s.queue = s.queue[1:]
	r := s.r
	if s.closed {
		r.late++
	}
	a := Ack{Token: w.token}
	switch dup := r.ids[w.id]; {
	case !r.exists:
		a.Err = errors.New("no stream")
	case w.lastSeq != r.last:
		a.Err = fmt.Errorf("wrong last sequence: %d", r.last)
	case dup != 0:
		a.Duplicate, a.Seq = true, dup
	case !r.replicated && w.prev != "" && w.prev != r.lastID:
		a.Err = fmt.Errorf("wrong last msg ID: %s", r.lastID)
	default:
		r.last++
		r.lastID = w.id
		id, _ := parseIdent(w.id)
		if r.next == nil {
			r.next = map[string]int64{}
		}
		r.next[id.Partition] = id.Offset + 1
		r.stored = append(r.stored, fakeStored{Stored{Seq: r.last, Found: true, ID: w.id, Positions: w.pos, Digest: w.digest}, w.payload})
		if r.ids != nil {
			r.ids[w.id] = r.last
		}
		a.Seq = r.last
	}
	s.acks = append(s.acks, a)
	poke(s.ready)
}

// step delivers up to n records, of the connections at random: bursts of one,
// interleaved with others.
func (r *fakeRemote) step(rng *rand.Rand, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n > 0 {
		var busy []*fakeSession
		for _, s := range r.wires {
			if len(s.queue) > 0 {
				busy = append(busy, s)
			}
		}
		if len(busy) == 0 {
			return
		}
		s := busy[rng.IntN(len(busy))]
		for k := 1 + rng.IntN(8); k > 0 && n > 0 && len(s.queue) > 0; k-- {
			s.deliver()
			n--
		}
	}
}

// cut fails all open connections; what is on their wires stays there.
func (r *fakeRemote) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.wires {
		s.fail(errors.New("connection reset"))
	}
}

// drop forgets what closed connections have on the wire, as resets do.
func (r *fakeRemote) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.wires {
		if s.closed {
			s.queue = nil
		}
	}
}

func (r *fakeRemote) idle() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.wires {
		if len(s.queue) > 0 {
			return false
		}
	}
	return true
}
