package crash

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"edgehub/hub/broker"
	"edgehub/hub/message"
	hubstream "edgehub/hub/stream"
	"edgehub/internal/vfs/vfstest"
	"edgehub/storage/seglog"
	"edgehub/test/harness/hubtest"
)

// TestCrashClones runs a hub in process through seeded work, with an uplink to a remote that survives everything, and
// starts it again on copies of its disk as a power cut or a kill would leave it, at its sync points and between them:
// data logs, manifest and metadata together, with Badger as it was, deleted, stale, damaged or replaced by a file. What
// was acknowledged must be there, in order, and the remote must become the log. HUB_CLONE_SEED chooses the first seed; a
// failure names its own.
func TestCrashClones(t *testing.T) {
	seeds := hubtest.Scale(t, "HUB_CLONE_SEEDS", 12, 1, 1)
	first := hubtest.Scale(t, "HUB_CLONE_SEED", 1, 1, 1)
	warmUp(t)
	total := cloneCounts{kinds: map[string]int{}}
	for seed := first; seed < first+seeds; seed++ {
		// In a bubble, where time passes only when everything else rests: what an uplink does is then no matter of speed.
		synctest.Test(t, func(t *testing.T) {
			c := newCloner(t, uint64(seed))
			c.run(120)
			total.add(&c.n)
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Logf("crash clones: %d of a hub with an uplink, seeds %d to %d: %d messages acknowledged, %d clones lost unsynced ones, %d segments dropped, %d restarts, %d records forwarded, %d were on the wire at a crash, %d arrived after it",
		total.clones, first, first+seeds-1, total.acked, total.lost, total.dropped, total.restarts, total.forwarded, total.flying, total.late)
	for _, kind := range slices.Sorted(maps.Keys(total.kinds)) {
		t.Logf("crash clones by kind: %6d %s", total.kinds[kind], kind)
	}
	if total.clones < 60*seeds {
		t.Fatalf("too little happened: %+v", total)
	}
	if seeds < 4 { // not every kind comes in each
		return
	}
	if total.acked == 0 || total.lost == 0 || total.dropped == 0 || total.restarts == 0 ||
		total.forwarded == 0 || total.flying == 0 || total.late == 0 {
		t.Fatalf("too little happened: %+v", total)
	}
	for _, kind := range []string{"append", "sync", "roll", "retention", "copy to $retained", "copy to $offline", "metadata compaction", "index write", "uplink", "manifest", "start", "stop"} {
		if total.kinds[kind] == 0 {
			t.Errorf("no clone of kind %q", kind)
		}
	}
}

// warmUp has what is made once for the process made outside of any bubble.
func warmUp(t *testing.T) {
	l, _, err := seglog.Open(seglog.Options{FS: vfstest.NewMem(), Dir: "warm", Name: "warm/0-0", Codec: seglog.CodecZstd})
	if err != nil {
		t.Fatal(err)
	}
	var b seglog.Builder
	b.Append(1, []byte("k"), make([]byte, 1000), seglog.Headers{})
	if err := l.Append(&b); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Read(0, 1000, nil); err != nil {
		t.Fatal(err)
	}
}

// cloneCounts says what happened.
type cloneCounts struct {
	clones, acked, lost, dropped, restarts, kept int
	forwarded, flying, late                      int
	kinds                                        map[string]int // clones, by what was going on
}

func (a *cloneCounts) add(b *cloneCounts) {
	a.clones += b.clones
	a.acked += b.acked
	a.lost += b.lost
	a.dropped += b.dropped
	a.restarts += b.restarts
	a.kept += b.kept
	a.forwarded += b.forwarded
	a.flying += b.flying
	a.late += b.late
	for kind, n := range b.kinds {
		a.kinds[kind] += n
	}
}

// capture is a copy of everything at a moment, to be judged once the hub at hand stands still.
type capture struct {
	what   string
	kill   bool
	disk   *vfstest.Mem
	badger string // a copy of Badger's directory of that moment; "": none
	remote *remote
	must   promise
	acked  map[string][]int
	first  map[string]int
	told   map[string]int64 // by partition: below it, all is at the remote or counted as gone
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
	doing   string           // what is going on
	quiet   bool             // no clones now

	remote   *remote
	told     map[string]int64
	captures []capture
}

type sent struct {
	topic  string
	n      int
	retain bool
}

func newCloner(t *testing.T, seed uint64) *cloner {
	c := &cloner{t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 11)), root: filepath.Join(t.TempDir(), "hub"), disk: vfstest.NewMem(),
		sent: map[uint32]sent{}, synced: map[string][]int{}, first: map[string]int{}, remote: &remote{}, told: map[string]int64{}, n: cloneCounts{kinds: map[string]int{}},
		written: promise{acked: map[string][]int{}, retained: map[string]int{}}}
	if err := os.MkdirAll(c.root, 0o700); err != nil {
		t.Fatal(err)
	}
	c.start()
	if err := c.h.startUplink(c.remote); err != nil {
		t.Fatalf("seed %d: start: %v", c.seed, err)
	}
	return c
}

func (c *cloner) start() {
	c.t.Helper()
	c.doing = "start"
	c.disk.BeforeSync = func(_ vfstest.Op, name string) error {
		if c.r.IntN(3) == 0 {
			c.capture(c.kind(name))
		}
		return nil
	}
	var err error
	if c.h, err = startMini(c.disk, c.root); err != nil {
		c.t.Fatalf("seed %d: start: %v", c.seed, err)
	}
	c.conn = &mconn{acked: c.acked}
	c.h.l.Connect(c.conn, broker.ConnectRequest{ClientID: "publisher", Window: 100})
	c.h.l.Schedule()
	c.h.settle()
}

// arrive decides about what a dead hub had on the wire. It may arrive while the next one is sending; but where retention
// has taken records that were on the wire, what arrives does so before: an uplink that cannot send the same records in
// the same places has no means against older ones that come later.
func (c *cloner) arrive(h *minihub, to *remote) {
	if h.holed(to) {
		to.step(c.r, c.r.IntN(40))
		to.reset()
	}
}

// kind says what is going on when a file or directory is about to be synced.
func (c *cloner) kind(name string) string {
	for part, kind := range map[string]string{"hub.json": "manifest", "$retained": "copy to $retained", "$offline": "copy to $offline"} {
		if strings.Contains(name, part) {
			return kind
		}
	}
	return c.doing
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
		synctest.Wait() // the uplink has taken note
		c.note()
		c.judgeCaptures()
		if c.t.Failed() {
			_ = c.h.close(false) // the failure at hand is the one that matters
			return
		}
	}
	c.disk.BeforeSync = nil
	err := c.h.sync()
	if err == nil {
		err = c.h.drain(c.remote, c.r)
	}
	if err == nil {
		_, err = c.h.compareRemote(c.remote, map[string]int64{})
	}
	c.n.forwarded += len(c.remote.stored)
	if err := errors.Join(err, c.h.close(true)); err != nil {
		c.t.Errorf("seed %d, at the end: %v", c.seed, err)
	}
}

// note remembers how far the uplink has got.
func (c *cloner) note() {
	for name, offset := range c.h.up.r.Status().Acked {
		c.told[name] = max(c.told[name], offset+1)
	}
}

// step does one random thing.
func (c *cloner) step() {
	var err error
	switch k := c.r.IntN(100); {
	case k < 35:
		c.doing = "append"
		c.publish()
		if c.r.IntN(6) == 0 {
			c.capture(c.doing)
		}
	case k < 50:
		c.doing = "sync"
		err = c.h.sync()
	case k < 66:
		c.doing = "uplink"
		c.remote.step(c.r, c.r.IntN(40))
		time.Sleep(time.Duration(c.r.IntN(300)) * time.Millisecond)
		synctest.Wait()
		c.note()
		if c.r.IntN(3) == 0 {
			c.capture(c.doing)
		}
	case k < 74:
		c.doing = "session"
		c.subscribe()
	case k < 80:
		c.doing = "metadata sync"
		if err = c.h.meta.Sync(); err == nil {
			c.subs = c.written.subs
		}
	case k < 86:
		err = c.tidyMeta()
	case k < 92:
		for range 2 {
			err = errors.Join(err, c.drop())
		}
	case k < 96:
		c.doing = "roll"
		err = c.h.b.Roll(c.h.set.Partitions[c.r.IntN(len(c.h.set.Partitions))])
		c.h.settle()
		if c.r.IntN(2) == 0 {
			c.capture(c.doing)
		}
	default:
		c.restart()
	}
	if err != nil {
		c.t.Error(err)
	}
}

// tidyMeta brings the index up to the log, and compacts that.
func (c *cloner) tidyMeta() error {
	c.doing = "index write"
	c.capture(c.doing)
	if err := c.h.meta.Flush(); err != nil {
		return err
	}
	c.capture(c.doing)
	c.doing = "metadata compaction"
	return c.h.meta.Compact()
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
	p := c.h.set.Partitions[c.r.IntN(len(c.h.uplinked()))]
	segs := p.Log.Segments()
	if len(segs) < 2 || !segs[0].Sealed {
		return nil
	}
	if err := c.h.sync(); err != nil { // what is not handed out yet keeps its segment
		return err
	}
	c.doing = "retention"
	if err := c.h.b.KeepRetained(p, segs[0]); err != nil {
		return err
	}
	if err := c.keepOffline(p, segs[0]); err != nil {
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

// keepOffline copies what absent sessions still have to receive. It asks the loop about those that are connected, so
// it runs beside it.
func (c *cloner) keepOffline(p *hubstream.Partition, seg seglog.SegmentInfo) error {
	done := make(chan error, 1)
	go func() { done <- c.h.b.KeepOffline(p, seg) }()
	for {
		synctest.Wait()
		c.h.settle()
		select {
		case err := <-done:
			return err
		default:
		}
	}
}

// restart stops in good order, or is killed, and goes on.
func (c *cloner) restart() {
	c.n.restarts++
	if c.r.IntN(2) == 0 {
		c.doing = "stop"
		if err := c.h.close(true); err != nil {
			c.t.Error(err)
		}
		c.stale = c.t.TempDir()
		copyIndex(c.t, c.root, c.stale, nil)
	} else {
		old := c.h
		c.disk.BeforeSync = nil
		c.remote = c.remote.after() // what it has sent stays on its way
		c.disk = c.disk.Kill()
		clear(c.sent)                            // not answered: may be there or not
		if err := old.close(false); err != nil { // what it still writes goes to the disk that is left behind
			c.t.Error(err)
		}
		if err := os.RemoveAll(filepath.Join(c.root, "meta")); err != nil {
			c.t.Fatal(err)
		}
	}
	c.start()
	c.arrive(c.h, c.remote)
	if err := c.h.startUplink(c.remote); err != nil {
		c.t.Fatalf("seed %d: start: %v", c.seed, err)
	}
	c.note()
	c.judge(&capture{what: "restart", kill: true, must: c.written, acked: c.written.acked, first: c.first}, c.h)
}

// capture takes copies of the disk as it would be after a power cut and after a kill now, and of all else.
func (c *cloner) capture(kind string) {
	if c.quiet {
		return
	}
	written := promise{acked: maps.Clone(c.written.acked), subs: c.written.subs, retained: maps.Clone(c.written.retained)}
	share := []float64{0, 0.5, 1}[c.r.IntN(3)]
	common := capture{remote: c.remote.after(), acked: written.acked, first: maps.Clone(c.first), told: maps.Clone(c.told)}
	cut, kill := common, common
	cut.what, cut.disk = fmt.Sprintf("%s, power cut, %.0f %%", kind, share*100), c.disk.Crash(c.r, share, c.r.IntN(2) == 0)
	cut.must = promise{acked: maps.Clone(c.synced), subs: c.subs}
	kill.what, kill.kill, kill.disk, kill.must = kind+", kill", true, c.disk.Kill(), written
	kill.remote = c.remote.after()
	if c.doing != "start" && c.doing != "stop" && c.r.IntN(3) == 0 { // Badger is at rest
		kill.badger = c.t.TempDir()
		copyIndex(c.t, c.root, kill.badger, nil)
	}
	c.captures = append(c.captures, cut, kill)
	c.n.kinds[kind] += 2
	c.n.flying += common.remote.inFlight()
}

// judgeCaptures starts hubs on what was captured. The uplink of the hub at hand has ended meanwhile, and begins again.
func (c *cloner) judgeCaptures() {
	if len(c.captures) == 0 {
		return
	}
	c.quiet = true
	c.h.up.stop()
	for i := range c.captures {
		c.try(&c.captures[i])
		if c.t.Failed() {
			return
		}
	}
	c.captures = nil
	if err := c.h.startUplink(c.remote); err != nil {
		c.t.Error(err)
	}
	c.note()
	c.quiet = false
}

func (c *cloner) try(x *capture) {
	c.n.clones++
	root, err := os.MkdirTemp("", "clone")
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(root) }() // the next run of the machine's cleaner takes what is left
	moved := x.disk.Moved(c.root, root)
	switch state := "deleted"; {
	case x.badger != "":
		copyIndex(c.t, x.badger, root, nil)
		x.what += ", index as it was"
		c.n.kinds["index as it was"]++
	default:
		if c.stale != "" {
			state = badger(c.t, c.r, c.stale, root)
		}
		x.what += ", index " + state
		c.n.kinds["index "+state]++
	}
	h, err := startMini(moved, root)
	if err != nil {
		c.t.Errorf("seed %d, %s: %v\n%s", c.seed, x.what, err, x.disk)
		return
	}
	if h.unread > 0 && x.kill {
		c.t.Errorf("seed %d, %s: %d metadata records dropped", c.seed, x.what, h.unread)
	}
	c.judge(x, h)
	c.arrive(h, x.remote)
	err = h.forward(x.remote, x.told, c.r)
	c.n.late += x.remote.late
	if err := errors.Join(err, h.close(true)); err != nil {
		c.t.Errorf("seed %d, %s: %v", c.seed, x.what, err)
	}
}

// judge compares a hub that has started with what it must have.
func (c *cloner) judge(x *capture, h *minihub) {
	got := map[string][]int{}
	for _, p := range h.uplinked() {
		list, err := h.payloads(p)
		if err != nil {
			c.t.Errorf("seed %d, %s: %s: %v", c.seed, x.what, p.Name, err)
		}
		for topic, n := range list {
			got[topic] = append(got[topic], n...)
		}
	}
	for topic, want := range x.must.acked {
		if why := compare(want, got[topic], x.first[topic]); why != "" {
			c.t.Errorf("seed %d, %s: %s: %s", c.seed, x.what, topic, why)
		}
	}
	for topic, want := range x.acked {
		if n := len(want); n > 0 && (len(got[topic]) == 0 || got[topic][len(got[topic])-1] < want[n-1]) {
			c.n.lost++ // allowed, or compare has said so
			break
		}
	}
	if _, sessions, _ := h.b.Counts(); sessions < x.must.subs {
		c.t.Errorf("seed %d, %s: %d sessions, %d were acknowledged", c.seed, x.what, sessions, x.must.subs)
	}
	if n := h.b.Retained(); n < len(x.must.retained) {
		c.t.Errorf("seed %d, %s: %d retained messages, %d were acknowledged", c.seed, x.what, n, len(x.must.retained))
	}
	c.n.kept += h.b.Retained()
}

// compare says what is wrong with the numbers of a topic: they rise, and none that was acknowledged is missing but
// those that went with their segment, below first.
func compare(want, got []int, first int) string {
	at := 0
	for i, n := range got {
		if i > 0 && n <= got[i-1] {
			return fmt.Sprintf("%d after %d", n, got[i-1])
		}
		for at < len(want) && want[at] < first {
			at++
		}
		if at < len(want) && n > want[at] {
			return fmt.Sprintf("%d is missing, %d is there", want[at], n)
		}
		if at < len(want) && n == want[at] {
			at++
		}
	}
	for at < len(want) && want[at] < first {
		at++
	}
	if at < len(want) {
		return fmt.Sprintf("%d and %d later ones are missing", want[at], len(want)-at-1)
	}
	return ""
}
