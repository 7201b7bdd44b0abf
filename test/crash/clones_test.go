package crash

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"edgehub/hub/broker"
	"edgehub/hub/message"
	"edgehub/internal/vfs/vfstest"
	"edgehub/storage/seglog"
	"edgehub/test/harness/hubtest"
)

// TestCrashClones runs a hub in process through seeded work and, at its sync points, starts again on copies of its disk
// as a power cut or a kill would leave it, data log and metadata together, with Badger deleted, stale, damaged or
// replaced by a file. HUB_CLONE_SEED chooses the first seed; a failure names its own.
func TestCrashClones(t *testing.T) {
	seeds := hubtest.Scale(t, "HUB_CLONE_SEEDS", 24, 2, 1)
	first := hubtest.Scale(t, "HUB_CLONE_SEED", 1, 1, 1)
	var total cloneCounts
	for seed := first; seed < first+seeds; seed++ {
		c := newCloner(t, uint64(seed))
		c.run(120)
		total.add(c.n)
		if t.Failed() {
			t.Fatalf("seed %d: %+v", seed, c.n)
		}
	}
	t.Logf("seeds %d to %d: %+v", first, first+seeds-1, total)
	if total.clones < 20*seeds || total.acked == 0 || total.lost == 0 || total.compactions == 0 || total.dropped == 0 || total.restarts == 0 {
		t.Fatalf("too little happened: %+v", total)
	}
}

// cloneCounts says what happened.
type cloneCounts struct {
	clones, acked, lost, compactions, dropped, restarts, kept int
}

func (a *cloneCounts) add(b cloneCounts) {
	a.clones += b.clones
	a.acked += b.acked
	a.lost += b.lost
	a.compactions += b.compactions
	a.dropped += b.dropped
	a.restarts += b.restarts
	a.kept += b.kept
}

// promise is what a hub that starts on a copy must have.
type promise struct {
	acked    map[string][]int // by topic: numbers acknowledged
	subs     int              // sessions whose subscription has been acknowledged
	retained map[string]int   // topic → number of the retained message acknowledged last
}

type cloner struct {
	t     *testing.T
	seed  uint64
	r     *rand.Rand
	root  string
	stale string // a copy of Badger's directory from an earlier, orderly stop
	disk  *vfstest.Mem
	h     *minihub
	conn  *mconn
	n     cloneCounts

	sent    map[uint32]sent // by sequence number
	seq     uint32
	written promise          // survives a kill
	synced  map[string][]int // survives a power cut: of the Synced stream
	subs    int              // survives a power cut
	first   map[string]int   // by topic: numbers below went with their segment
	quiet   bool             // no clones now
}

type sent struct {
	topic  string
	n      int
	retain bool
}

func newCloner(t *testing.T, seed uint64) *cloner {
	c := &cloner{t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 11)), root: filepath.Join(t.TempDir(), "hub"), disk: vfstest.NewMem(),
		sent: map[uint32]sent{}, synced: map[string][]int{}, first: map[string]int{},
		written: promise{acked: map[string][]int{}, retained: map[string]int{}}}
	if err := os.MkdirAll(c.root, 0o700); err != nil {
		t.Fatal(err)
	}
	c.start()
	return c
}

func (c *cloner) start() {
	c.t.Helper()
	c.disk.BeforeSync = nil
	var err error
	if c.h, err = startMini(c.disk, c.root); err != nil {
		c.t.Fatalf("seed %d: start: %v", c.seed, err)
	}
	c.conn = &mconn{acked: c.acked}
	c.h.l.Connect(c.conn, broker.ConnectRequest{ClientID: "publisher", Window: 100})
	c.h.l.Schedule()
	c.h.settle()
	c.disk.BeforeSync = func(vfstest.Op, string) error {
		if !c.quiet && c.r.IntN(6) == 0 {
			c.clone()
		}
		return nil
	}
}

// acked takes an acknowledgement. That of a Synced stream holds through a power cut.
func (c *cloner) acked(seq uint32, code byte) {
	x := c.sent[seq]
	delete(c.sent, seq)
	if code != broker.CodeOK {
		c.t.Errorf("%v refused with %#x", x, code)
		return
	}
	c.n.acked++
	c.written.acked[x.topic] = append(c.written.acked[x.topic], x.n)
	if strings.HasPrefix(x.topic, "safe/") {
		c.synced[x.topic] = append(c.synced[x.topic], x.n)
	}
}

func (c *cloner) run(steps int) {
	for range steps {
		c.step()
		if c.t.Failed() {
			return
		}
	}
	c.disk.BeforeSync = nil
	if err := c.h.close(); err != nil {
		c.t.Error(err)
	}
}

// step does one random thing.
func (c *cloner) step() {
	var err error
	switch k := c.r.IntN(100); {
	case k < 45:
		c.publish()
	case k < 60:
		err = c.h.sync()
	case k < 72:
		c.subscribe()
	case k < 80:
		if err = c.h.meta.Sync(); err == nil {
			c.subs = c.written.subs
		}
	case k < 86:
		if err = c.h.meta.Flush(); err == nil {
			err = c.h.meta.Compact()
		}
		c.n.compactions++
	case k < 92:
		err = c.drop()
	case k < 96:
		err = c.h.b.Roll(c.h.set.Partitions[c.r.IntN(len(c.h.set.Partitions))])
		c.h.settle()
	default:
		c.restart()
	}
	if err != nil {
		c.t.Error(err)
	}
}

// publish sends a few messages in one round. What is retained counts once the round is over.
func (c *cloner) publish() {
	retained := map[string]int{}
	for range 1 + c.r.IntN(12) {
		topic := fmt.Sprintf("%s/%d", []string{"safe", "packed", "t", "u"}[c.r.IntN(4)], c.r.IntN(3))
		c.seq++
		x := sent{topic, int(c.seq), c.r.IntN(8) == 0}
		c.sent[c.seq] = x
		m := &message.Message{Topic: []byte(topic), Payload: []byte(fmt.Sprint(x.n) + strings.Repeat(".", c.r.IntN(150))), QoS: 1, Retain: x.retain, TimeMs: int64(c.seq)}
		if code := c.h.l.Publish(c.conn.c, c.conn, c.seq, m); code != broker.CodeOK {
			c.t.Errorf("%v refused with %#x", x, code)
		}
		if x.retain && !strings.HasPrefix(topic, "safe/") {
			retained[topic] = x.n
		}
	}
	c.h.l.Schedule()
	c.h.settle()
	for topic, n := range retained {
		c.written.retained[topic] = n
	}
}

// subscribe leaves a session with a subscription behind.
func (c *cloner) subscribe() {
	conn := &mconn{acked: func(uint32, byte) {}}
	c.h.l.Connect(conn, broker.ConnectRequest{ClientID: fmt.Sprint("s", c.written.subs), Expiry: 1 << 20, Window: 10})
	c.h.l.Subscribe(conn.c, []broker.SubRequest{{Filter: fmt.Sprintf("none/%d", c.written.subs), QoS: 1}}, nil)
	c.h.l.Schedule()
	c.h.settle()
	c.written.subs++ // the round has committed it
	c.h.l.Disconnect(conn.c)
	c.h.l.Schedule()
	c.h.settle()
}

// drop deletes the oldest segment of a partition as retention does: what is retained is copied first.
func (c *cloner) drop() error {
	p := c.h.set.Partitions[c.r.IntN(len(c.h.set.Partitions)-1)]
	segs := p.Log.Segments()
	if len(segs) < 3 || !segs[0].Sealed {
		return nil
	}
	if err := c.h.b.KeepRetained(p, segs[0]); err != nil {
		return err
	}
	c.h.settle()
	// Before the segment goes: a copy made while it goes may have it or not.
	chunk, err := p.Log.Read(segs[0].Base, int(segs[0].Bytes)*8, nil)
	if err != nil {
		return err
	}
	for rec := range seglog.Records(chunk) {
		var n int
		if rec.Offset < segs[0].Next {
			if _, err := fmt.Sscan(strings.TrimRight(string(rec.Value), "."), &n); err != nil {
				return err
			}
			c.first[string(rec.Key)] = max(c.first[string(rec.Key)], n+1)
		}
	}
	_, err = p.Log.DropOldest()
	c.n.dropped++
	return err
}

// restart stops in good order, or is killed, and goes on.
func (c *cloner) restart() {
	c.n.restarts++
	c.disk.BeforeSync = nil
	if c.r.IntN(2) == 0 {
		if err := c.h.close(); err != nil {
			c.t.Error(err)
		}
		c.stale = c.t.TempDir()
		copyIndex(c.t, c.root, c.stale, nil)
	} else {
		old := c.h
		c.disk = c.disk.Kill()
		clear(c.sent)                       // not answered: may be there or not
		if err := old.close(); err != nil { // what it still writes goes to the disk that is left behind
			c.t.Error(err)
		}
		if err := os.RemoveAll(filepath.Join(c.root, "meta")); err != nil {
			c.t.Fatal(err)
		}
	}
	c.start()
	c.judge("restart", c.h, c.written)
}

// clone starts on copies of the disk as it would be after a power cut or a kill now.
func (c *cloner) clone() {
	c.quiet = true
	defer func() { c.quiet = false }()
	cut := promise{acked: c.synced, subs: c.subs}
	share := []float64{0, 0.5, 1}[c.r.IntN(3)]
	c.try(fmt.Sprintf("power cut, %.0f %%", share*100), c.disk.Crash(c.r, share, c.r.IntN(2) == 0), cut)
	c.try("kill", c.disk.Kill(), c.written)
}

func (c *cloner) try(what string, disk *vfstest.Mem, must promise) {
	c.n.clones++
	root, err := os.MkdirTemp("", "clone")
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(root) }() // the next run of the machine's cleaner takes what is left
	moved := disk.Moved(c.root, root)
	if c.stale != "" {
		what += ", index " + badger(c.t, c.r, c.stale, root)
	}
	h, err := startMini(moved, root)
	if err != nil {
		c.t.Errorf("seed %d, %s: %v\n%s", c.seed, what, err, disk)
		return
	}
	if h.unread > 0 && strings.HasPrefix(what, "kill") {
		c.t.Errorf("seed %d, %s: %d metadata records dropped", c.seed, what, h.unread)
	}
	c.judge(what, h, must)
	if err := h.close(); err != nil {
		c.t.Errorf("seed %d, %s: close: %v", c.seed, what, err)
	}
}

// judge compares a hub that has started with what it must have.
func (c *cloner) judge(what string, h *minihub, must promise) {
	got := map[string][]int{}
	for _, p := range h.set.Partitions {
		if p.Stream.Name == broker.RetainedStream {
			continue
		}
		list, err := h.payloads(p)
		if err != nil {
			c.t.Errorf("seed %d, %s: %s: %v", c.seed, what, p.Name, err)
		}
		for topic, n := range list {
			got[topic] = append(got[topic], n...)
		}
	}
	for topic, want := range must.acked {
		if why := c.compare(topic, want, got[topic]); why != "" {
			c.t.Errorf("seed %d, %s: %s: %s", c.seed, what, topic, why)
		}
	}
	for topic, want := range c.written.acked {
		if n := len(want); n > 0 && (len(got[topic]) == 0 || got[topic][len(got[topic])-1] < want[n-1]) {
			c.n.lost++ // allowed, or compare has said so
			break
		}
	}
	if _, sessions, _ := h.b.Counts(); sessions < must.subs {
		c.t.Errorf("seed %d, %s: %d sessions, %d were acknowledged", c.seed, what, sessions, must.subs)
	}
	if n := h.b.Retained(); n < len(must.retained) {
		c.t.Errorf("seed %d, %s: %d retained messages, %d were acknowledged", c.seed, what, n, len(must.retained))
	}
	c.n.kept += h.b.Retained()
}

// compare says what is wrong with the numbers of a topic: they rise, and none that was acknowledged is missing but
// those that went with their segment.
func (c *cloner) compare(topic string, want, got []int) string {
	at := 0
	for i, n := range got {
		if i > 0 && n <= got[i-1] {
			return fmt.Sprintf("%d after %d", n, got[i-1])
		}
		for at < len(want) && want[at] < c.first[topic] {
			at++
		}
		if at < len(want) && n > want[at] {
			return fmt.Sprintf("%d is missing, %d is there", want[at], n)
		}
		if at < len(want) && n == want[at] {
			at++
		}
	}
	for at < len(want) && want[at] < c.first[topic] {
		at++
	}
	if at < len(want) {
		return fmt.Sprintf("%d and %d later ones are missing", want[at], len(want)-at-1)
	}
	return ""
}
