package broker

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"edgehub/hub/stream"
	"edgehub/hub/topic"
	"edgehub/internal/vfs/vfstest"
)

// The simulation: clients that publish, subscribe, come, go and take sessions from each other; loops, readers, syncs
// and checkpoints in any order; writes that fail; kills at any step. Everything follows from a seed.
//
//	HUB_SIM_SEEDS=200 go test ./hub/broker -run Simulation       seeds 1 to 200
//	HUB_SIM_SEED=17 HUB_SIM_TRACE=1 go test ./hub/broker -run Simulation -v
func TestSimulation(t *testing.T) {
	first, n, steps := uint64(1), uint64(12), 2500
	if os.Getenv("HUB_TEST_FULL") != "" {
		if n, steps = 100, 100_000; raceEnabled {
			steps = 6000 // `make test-full` runs it whole without the detector
		}
	}
	if s := os.Getenv("HUB_SIM_SEEDS"); s != "" {
		n, _ = strconv.ParseUint(s, 10, 64)
		steps = 6000
	}
	if s := os.Getenv("HUB_SIM_SEED"); s != "" {
		first, _ = strconv.ParseUint(s, 10, 64)
		n, steps = 1, 6000
	}
	if s := os.Getenv("HUB_SIM_STEPS"); s != "" {
		steps, _ = strconv.Atoi(s)
	}
	var sum simStats
	for seed := first; seed < first+n; seed++ {
		ok := t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSim(t, seed)
				s.run(steps)
				sum.add(&s.stats)
			})
		})
		if !ok {
			t.Fatalf("replay: HUB_SIM_SEED=%d HUB_SIM_STEPS=%d HUB_SIM_TRACE=1 go test ./hub/broker -run Simulation -v", seed, steps)
		}
	}
	t.Logf("%+v", sum)
	// A run in which nothing happened proves nothing.
	if n > 5 && (sum.Kills == 0 || sum.Takeovers == 0 || sum.Refused == 0 || sum.Acked == 0 || sum.Exact == 0 || sum.Resent == 0 || sum.Retained == 0 || sum.SharedExact == 0 || sum.Expired == 0 ||
		sum.Overruns == 0 || sum.Copied == 0 || sum.Late == 0) {
		t.Fatalf("the simulation did not reach what it is for: %+v", sum)
	}
}

type simStats struct {
	Records, Acked, Refused, Delivered, Exact, Resent, Retained, Shared, SharedExact, Expired, Kills, Takeovers, CatchupJobs, Gaps, Overruns, Copied, Late int64
}

func (s *simStats) add(o *simStats) {
	s.Records += o.Records
	s.Acked += o.Acked
	s.Refused += o.Refused
	s.Delivered += o.Delivered
	s.Exact += o.Exact
	s.Resent += o.Resent
	s.Retained += o.Retained
	s.Shared += o.Shared
	s.SharedExact += o.SharedExact
	s.Expired += o.Expired
	s.Kills += o.Kills
	s.Takeovers += o.Takeovers
	s.CatchupJobs += o.CatchupJobs
	s.Gaps += o.Gaps
	s.Overruns += o.Overruns
	s.Copied += o.Copied
	s.Late += o.Late
}

type sim struct {
	*rig
	rng    *rand.Rand
	trace  bool
	devs   []*dev
	groups []*simGroup
	stats  simStats

	// What is in the log.
	at      []int64 // by partition: looked at so far
	records map[string]*simRecord
	byTopic map[string][]*simRecord
	bases   map[string]int   // records by publisher and number
	expires map[string]int64 // by payload: when it expires, hub time

	killAt   []int64 // by partition: the end of the log at the last kill
	dieIn    int     // disk writes and commits until a kill; 0: none planned
	dice     *rand.Rand
	onWrite  func()   // the strike of a disk write
	live     *memMeta // of the broker that runs: what a killed one's timers do counts for nothing
	snapshot func()
}

// simRecord is a record of the log. Payloads are PUBLISHER:NUMBER:ATTEMPT, so each record has its own.
type simRecord struct {
	topic   string
	payload string
	qos     byte
	part    uint32
	offset  int64
	nth     int // among those of its topic
}

func base(payload string) string { return payload[:strings.LastIndexByte(payload, ':')] }

var simTopics = []string{"a/0", "a/1", "a/2", "b/0", "s/0", "s/1"}
var simFilters = []string{"a/#", "s/#", "a/1", "+/0", "#", "b/0", "s/1"}

func newSim(t *testing.T, seed uint64) *sim {
	s := &sim{rng: rand.New(rand.NewPCG(seed, 99)), trace: os.Getenv("HUB_SIM_TRACE") != "",
		records: map[string]*simRecord{}, byTopic: map[string][]*simRecord{}, bases: map[string]int{}, expires: map[string]int64{}}
	s.rig = &rig{t: t, disk: vfstest.NewMem(), meta: newMemMeta(), specs: twoKinds, lim: rigLimits}
	if s.rng.IntN(2) == 0 {
		s.lim.CatchupBytes = chunkBytes + 1
	}
	if s.rng.IntN(3) == 0 { // b/0 waits for others to be written with
		s.specs = append([]stream.Spec{{Name: "slow", Filters: []string{"b/#"}, Partitions: 1, SegmentBytes: 1 << 20,
			Linger: 50 * time.Millisecond}}, twoKinds...)
	}
	if lates := []int{0, 5, 30, 90}[s.rng.IntN(4)]; lates > 0 {
		s.late = func(*task) bool {
			late := s.rng.IntN(100) < lates
			if late {
				s.stats.Late++
			}
			return late
		}
	}
	s.boot()
	s.at, s.killAt = make([]int64, len(s.b.parts)), make([]int64, len(s.b.parts))
	s.makeGroups()
	for i := range 7 {
		d := &dev{s: s, id: fmt.Sprintf("d%d", i), persist: i < 5, old: i%3 == 0, window: 1 + s.rng.IntN(8)}
		d.reset()
		s.devs = append(s.devs, d)
	}
	return s
}

func (s *sim) logf(format string, args ...any) {
	if s.trace {
		s.t.Logf(format, args...)
	}
}

func (s *sim) failf(format string, args ...any) {
	s.t.Helper()
	format = "VIOLATION " + format
	s.t.Fatalf(format, args...)
}

func (s *sim) boot() {
	s.start(3)
	s.hooks()
}

// hooks make disk writes and commits the places where a kill can strike.
func (s *sim) hooks() {
	s.fs.Clear()
	m := s.meta
	s.mu.Lock()
	s.live = m
	s.mu.Unlock()
	s.onWrite = func() {
		m.mu.Lock() // as around has it: timers of a broker that lingers write on goroutines of their own
		defer m.mu.Unlock()
		s.strike(m)
	}
	s.fs.Add(vfstest.Fault{Op: vfstest.OpWrite, Hook: s.onWrite})
	s.fs.Add(vfstest.Fault{Op: vfstest.OpRemove, Hook: s.onWrite})
	m.around = func(bool) error { s.strike(m); return nil }
}

// strike takes the state of the disk at the moment of a planned kill.
func (s *sim) strike(m *memMeta) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.died || s.dieIn == 0 || m != s.live {
		return
	}
	if s.dieIn--; s.dieIn > 0 {
		return
	}
	s.died = true
	disk, left := s.disk.Kill(), m.crash(s.dice)
	s.snapshot = func() { s.disk, s.meta = disk, left }
}

// dead reports whether the planned kill has happened; plan sets how many writes and commits come before one, 0: none.
// Timers of a broker that lingers strike too, on goroutines of their own.
func (s *sim) dead() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.died
}

func (s *sim) plan(in int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dieIn, s.dice = in, rand.New(rand.NewPCG(s.rng.Uint64(), 7))
}

func (s *sim) run(steps int) {
	for range steps {
		s.act()
		if s.dead() {
			s.reborn()
		}
		s.look()
	}
	s.quiesce()
	if s.trace {
		s.dump()
	}
	for _, d := range s.devs {
		d.complete()
	}
	for _, g := range s.groups {
		g.complete()
	}
	s.stats.Records = int64(len(s.records))
	s.collect()
}

// collect adds up the counters of a broker that ends.
func (s *sim) collect() {
	s.stats.Takeovers += s.b.Stats.Takeovers.Load()
	s.stats.Resent += s.b.Stats.Resent.Load()
	s.stats.CatchupJobs += s.b.Stats.CatchupJobs.Load()
	s.stats.Gaps += s.b.Stats.MailGaps.Load()
	s.stats.Expired += s.b.Stats.DroppedExpired.Load()
	s.stats.Copied += s.b.Stats.OfflineCopied.Load()
}

func (s *sim) reborn() {
	s.logf("KILL")
	s.stats.Kills++
	s.collect()
	if s.snapshot == nil {
		disk, m := s.disk.Kill(), s.meta.crash(s.rng)
		s.disk, s.meta = disk, m
	} else {
		s.snapshot()
		s.snapshot = nil
	}
	s.plan(0)
	for _, d := range s.devs {
		if d.cn != nil {
			d.cn.c, d.cn.gone = nil, true
		}
	}
	s.boot()
	s.look()
	s.killAt = slices.Clone(s.at)
	if s.trace {
		s.dump()
	}
	for _, d := range s.devs {
		d.lost(s.rng.IntN(len(d.inbox) + 1))
	}
}

// dump traces what the recovery has made of the sessions.
func (s *sim) dump() {
	for _, d := range s.devs {
		if c := s.b.reg.shard(d.id).clients.get(d.id); c != nil {
			for _, cur := range c.Cursors {
				s.logf("   %s reads %s from %d", d.id, s.b.parts[cur.Part].Name, cur.Next)
			}
			for _, id := range c.Flights.Ordered() {
				f := c.Flights.Get(id)
				s.logf("   %s in flight: id%d q%d state %d %s@%d", d.id, f.ID, f.QoS, f.State, s.b.parts[f.Part].Name, f.Offset)
			}
			for id, e := range c.Inbound.All() {
				s.logf("   %s inbound: id%d %+v", d.id, id, e)
			}
			s.logf("   %s: reading %v, owed %+v", d.id, c.reading, c.owed)
			if c.att != nil {
				s.logf("   %s: waiting %v, pumping %v", d.id, c.att.waiting, c.att.pumping)
			}
		}
	}
	s.shareState()
	s.logf("   reading ahead: %d bytes, %d wait", s.b.catchup.inUse, len(s.b.catchup.waiting))
}

// look notes what is new in the log.
func (s *sim) look() {
	for i, p := range s.b.parts {
		if s.at[i] > p.Log.Next() {
			s.failf("%s ends at %d and had %d records before", p.Name, p.Log.Next(), s.at[i])
		}
		if s.at[i] == p.Log.Next() || p.Stream.Name[0] == '$' {
			continue
		}
		for offset, m := range s.recordsFrom(p, s.at[i]) {
			r := &simRecord{topic: string(m.Topic), payload: string(m.Payload), qos: m.QoS, part: p.ID, offset: offset, nth: len(s.byTopic[string(m.Topic)])}
			s.at[i] = offset + 1
			if s.records[r.payload] != nil {
				s.failf("%s is in the log twice", r.payload)
			}
			s.records[r.payload] = r
			s.byTopic[r.topic] = append(s.byTopic[r.topic], r)
			b := base(r.payload)
			if s.bases[b]++; s.bases[b] > 1 && r.qos == 2 {
				s.failf("the QoS 2 publish %s is in the log twice", b)
			}
			s.logf("log %s@%d %s=%s q%d", p.Name, r.offset, r.topic, r.payload, r.qos)
		}
	}
}

// act does one thing.
func (s *sim) act() {
	x := s.rng.IntN(1000)
	switch {
	case x < 300:
		s.step(s.rng.IntN(len(s.loops)))
	case x < 380:
		s.readJob()
	case x < 410 && len(s.tasks) > 0:
		s.endLate(s.rng.IntN(len(s.tasks)))
	case x < 430:
		s.sync()
	case x < 440:
		s.checkpointWith(func(int) {
			for n := s.rng.IntN(3); n > 0 && !s.dead(); n-- {
				s.look()
				s.devs[s.rng.IntN(len(s.devs))].act()
				s.step(s.rng.IntN(len(s.loops)))
			}
		})
	case x < 445:
		s.sleep(time.Duration(s.rng.IntN(3000)) * time.Millisecond)
	case x < 455:
		s.sleep(time.Duration(s.rng.IntN(80)) * time.Millisecond)
	case x < 457:
		s.logf("a write will fail")
		s.fs.Clear()
		s.fs.Add(vfstest.Fault{Op: vfstest.OpWrite, Pattern: "*.log", Err: errInjected, Count: 1, Short: s.rng.IntN(200)})
		s.fs.Add(vfstest.Fault{Op: vfstest.OpWrite, Hook: s.onWrite})
		s.fs.Add(vfstest.Fault{Op: vfstest.OpRemove, Hook: s.onWrite})
	case x < 459:
		s.plan(1 + s.rng.IntN(10))
	case x < 460:
		s.mu.Lock()
		s.died = true
		s.mu.Unlock()
	case x < 466:
		s.overrun(s.b.parts[s.rng.IntN(len(s.b.parts))])
	case x < 467 && s.rng.IntN(4) == 0:
		l := s.loops[s.rng.IntN(len(s.loops))]
		for range mailItemsMax {
			l.Post(func() {})
		}
	default:
		s.devs[s.rng.IntN(len(s.devs))].act()
	}
}

// overrun deletes what a partition has, as retention does when others fill the stream.
func (s *sim) overrun(p *partition) {
	if p.Stream.Name[0] == '$' {
		if s.rng.IntN(2) == 0 {
			s.b.offline.snap = nil
		}
		if err := s.b.tidyOffline(s.askNow); err != nil {
			s.logf("tidy: %v", err)
		}
		return
	}
	if s.b.Roll(p.Partition) != nil {
		return // a write that failed
	}
	for segs := p.Log.Segments(); len(segs) > 1 && segs[0].Sealed; segs = p.Log.Segments() {
		s.logf("retention: %s below %d", p.Name, segs[0].Next)
		if err := errors.Join(s.b.KeepRetained(p.Partition, segs[0]), s.b.keepOffline(p, segs[0], s.askNow)); err != nil {
			s.logf("kept: %v", err)
			return
		}
		if _, err := p.Log.DropOldest(); err != nil {
			s.failf("%s: %v", p.Name, err)
		}
		s.stats.Overruns++
	}
}

// sleep lets time pass, and what is due then be done.
func (s *sim) sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// quiesce lets everything finish: every client is there and answers.
func (s *sim) quiesce() {
	s.logf("QUIESCE")
	s.plan(0)
	s.hooks()
	for idle, before := 0, int64(-1); idle < 25; idle++ {
		for _, d := range s.devs {
			if d.cn != nil {
				d.setRoom(-1)
			}
			if d.cn == nil && d.persist {
				d.connect(false)
			}
			d.drainInbox()
		}
		s.sleep(100 * time.Millisecond)
		s.settle()
		s.look()
		if idle%10 == 9 {
			s.checkpoint()
		}
		if n := s.stats.Delivered + s.stats.Acked + s.stats.Retained + s.stats.Shared; n != before {
			idle, before = 0, n
		}
	}
}

// matching reports whether the topic matches.
func matching(filter, name string) bool { return topic.Match(filter, name) }
