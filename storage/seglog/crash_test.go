package seglog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"edgehub/internal/vfs/vfstest"
)

// TestCrash runs a log through seeded random work and, at every sync point, starts again on copies of the disk as a
// power cut or a kill at that moment would leave it. SEGLOG_CRASH_SEEDS sets how many seeds, SEGLOG_CRASH_SEED the
// first; a failure names its seed.
func TestCrash(t *testing.T) {
	seeds, first := envInt("SEGLOG_CRASH_SEEDS", 12), envInt("SEGLOG_CRASH_SEED", 1)
	var total crashCounts
	for seed := first; seed < first+seeds; seed++ {
		c := &crasher{t: t, seed: uint64(seed), r: rand.New(rand.NewPCG(uint64(seed), 7)), disk: vfstest.NewMem()}
		c.run()
		total.add(c.n)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Logf("crash clones: %d of a log, seeds %d to %d: %+v", total.clones, first, first+seeds-1, total)
	for _, kind := range slices.Sorted(maps.Keys(total.kinds)) {
		t.Logf("crash clones by kind: %6d %s", total.kinds[kind], kind)
	}
	// A run in which nothing happened proves nothing.
	if n := total; n.clones < 50*seeds || n.torn == 0 || n.lostUnsynced == 0 || n.rewrites == 0 || n.rolls == 0 || n.drops == 0 || n.refused == 0 {
		t.Fatalf("too little happened: %+v", total)
	}
}

func envInt(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return otherwise
}

// crashCounts says what happened.
type crashCounts struct {
	clones, records, torn, lostUnsynced, damaged, quarantined, rewrites, rolls, drops, refused int

	kinds map[string]int // clones, by what was going on
}

func (a *crashCounts) add(b crashCounts) {
	a.clones += b.clones
	a.records += b.records
	a.torn += b.torn
	a.lostUnsynced += b.lostUnsynced
	a.damaged += b.damaged
	a.quarantined += b.quarantined
	a.rewrites += b.rewrites
	a.rolls += b.rolls
	a.drops += b.drops
	a.refused += b.refused
	if a.kinds == nil {
		a.kinds = map[string]int{}
	}
	for kind, n := range b.kinds {
		a.kinds[kind] += n
	}
}

type crasher struct {
	t    *testing.T
	seed uint64
	r    *rand.Rand
	disk *vfstest.Mem
	o    Options
	l    *Log
	b    Builder
	n    crashCounts
	fail bool // let the next fsync fail

	doing string
}

func (c *crasher) run() {
	faults := vfstest.New(c.disk)
	c.o = Options{FS: faults, Dir: "hub/0-0", Name: "crash/0-0", Salt: uint32(c.seed), SegmentBytes: 6000, IndexBytes: 500, Index: &memIndex{}, QuarantineDir: "hub/quarantine"}
	if c.seed%3 == 0 {
		c.o.Codec = CodecZstd
	}
	var err error
	if c.l, _, err = Open(c.o); err != nil {
		c.t.Fatal(err)
	}
	c.n.kinds = map[string]int{}
	c.disk.BeforeSync = func(op vfstest.Op, name string) error {
		if c.clone(); filepath.Base(name) == rewriteName {
			c.doing = "log: rewrite after a failed fsync"
		}
		if c.fail && op == vfstest.OpSync {
			c.fail = false
			return syscall.EIO
		}
		return nil
	}
	for range 150 {
		c.step(faults)
		if c.t.Failed() {
			return
		}
	}
	c.disk.BeforeSync = nil
	c.n.rewrites += int(c.l.Stats().Rewrites)
	if err := c.l.Close(); err != nil {
		c.t.Error(err)
	}
}

// step does one random thing.
func (c *crasher) step(faults *vfstest.Faults) {
	switch k := c.r.IntN(100); {
	case k < 55:
		c.append()
		if c.r.IntN(12) == 0 {
			c.doing = "log: append"
			c.clone()
		}
	case k < 60: // a full disk: whatever part of the write got there must not come back
		faults.Add(vfstest.Fault{Op: vfstest.OpWrite, Pattern: "*.log", Count: 1, Err: syscall.ENOSPC, Short: c.r.IntN(1000)})
		c.append()
		faults.Clear()
	case k < 78:
		c.doing = "log: sync"
		c.check(c.l.Sync())
	case k < 82:
		c.doing = "log: failed fsync"
		c.fail = true
		c.check(c.l.Sync())
		c.fail = false
	case k < 88:
		c.check(0, c.l.Roll())
		c.doing = "log: roll"
		c.clone()
	case k < 94:
		c.check(0, c.l.Prepare())
	case k < 98:
		c.doing = "log: retention"
		if _, err := c.l.DropOldest(); err == nil {
			c.n.drops++
		} else if !errors.Is(err, ErrActive) {
			c.t.Error(err)
		}
	default: // an orderly stop, or a kill
		c.restart()
	}
}

func (c *crasher) check(_ int64, err error) {
	if err != nil {
		c.t.Error(err)
	}
}

func (c *crasher) append() {
	c.b.Reset(c.l.Next())
	c.b.Floor(c.l.LastTime())
	n := 1 + c.r.IntN(20)
	for range n {
		c.b.Append(timeOf(c.b.Next()), []byte("t"), value(c.b.Next(), c.r.IntN(200)), Headers{})
	}
	before := len(c.l.view.Load().segs)
	err := c.l.Append(&c.b)
	switch {
	case err == nil:
		c.n.records += n
	case errors.Is(err, syscall.ENOSPC):
		c.n.refused++
	default:
		c.t.Error(err)
	}
	c.n.rolls += len(c.l.view.Load().segs) - before
}

func (c *crasher) restart() {
	want := c.l.Next()
	c.n.rewrites += int(c.l.Stats().Rewrites)
	hook := c.disk.BeforeSync
	c.disk.BeforeSync = nil
	if c.r.IntN(2) == 0 {
		c.check(0, c.l.Close())
	}
	if c.r.IntN(3) == 0 {
		c.o.Index = &memIndex{} // Badger is gone
	}
	var err error
	var rec Recovery
	if c.l, rec, err = Open(c.o); err != nil {
		c.t.Fatal(err)
	}
	if c.l.Next() != want || rec.TornBytes != 0 || len(rec.Damaged) != 0 {
		c.t.Errorf("restart: next %d, want %d; %+v", c.l.Next(), want, rec)
	}
	c.disk.BeforeSync = hook
}

// clone starts on copies of the disk as they would be after a cut or kill now.
func (c *crasher) clone() {
	first, synced, next := c.l.First(), c.l.Synced(), c.l.Next()
	if c.t.Failed() {
		return
	}
	for _, share := range []float64{0, 0.5, 0.9, 1} {
		c.count()
		c.judge(c.disk.Crash(c.r, share, c.r.IntN(2) == 0), first, synced, next, false)
	}
	c.count()
	c.judge(c.disk.Kill(), first, next, next, true)
}

func (c *crasher) count() {
	c.n.clones++
	c.n.kinds[c.doing]++
}

// judge opens a log on a disk left behind. Records from first to safe must be there, those up to next may be.
func (c *crasher) judge(disk *vfstest.Mem, first, safe, next int64, killed bool) {
	defer func() {
		if c.t.Failed() {
			c.t.Logf("seed %d, offsets %d to %d to %d\n%s", c.seed, first, safe, next, disk)
		}
	}()
	o := c.o
	o.FS = disk
	if c.r.IntN(3) == 0 {
		o.Index = &memIndex{}
	} else { // as it is, and not to be changed by the copy
		o.Index = frozenIndex{o.Index}
	}
	l, rec, err := Open(o)
	if err != nil {
		c.t.Errorf("open: %v", err)
		return
	}
	if rec.TornBytes > 0 {
		c.n.torn++
	}
	c.n.damaged += len(rec.Damaged)
	c.n.quarantined += len(rec.Quarantined)
	if l.Next() < safe || l.Synced() != l.Next() {
		c.t.Errorf("%d to %d, synced %d; %+v", l.First(), l.Next(), l.Synced(), rec)
	}
	if l.Next() < next {
		c.n.lostUnsynced++
	}
	want := first
	for _, offset := range readAll(c.t, l, l.First()) {
		if offset >= want && want < safe {
			if offset != want {
				c.t.Errorf("offset %d is missing", want)
				return
			}
			want++
		}
		// A refused append is cut off the file at once, and so never survives a kill. In a power cut its write may
		// outlive its truncation: a record more than acknowledged, as after any refusal in doubt.
		if offset >= next && killed {
			c.t.Errorf("offset %d was never acknowledged as written", offset)
		}
	}
	if want < safe {
		c.t.Errorf("offset %d is missing", want)
	}
	// It goes on, and a second start agrees.
	fill(c.t, l, 3, 2, 50)
	want = l.Next()
	if err := l.Close(); err != nil {
		c.t.Error(err)
	}
	l, rec, err = Open(o)
	if err != nil || l.Next() != want || rec.TornBytes != 0 || len(rec.Quarantined) != 0 {
		c.t.Errorf("second start: %v, %+v", err, rec)
		return
	}
	if got := readAll(c.t, l, want-3); len(got) != 3 {
		c.t.Errorf("second start: %v", got)
	}
	_ = l.Close()
}

// frozenIndex is an index store that ignores changes.
type frozenIndex struct{ IndexStore }

func (frozenIndex) SaveIndex(string, int64, []IndexEntry) error { return nil }
func (frozenIndex) DropIndex(string, int64) error               { return nil }

// TestRefusedRecordsStayAway: what part of a refused append reached the disk never comes back, even when a cut follows
// at once.
func TestRefusedRecordsStayAway(t *testing.T) {
	disk := vfstest.NewMem()
	faults := vfstest.New(disk)
	o := Options{FS: faults, Dir: "0-0", Name: "t/0-0", Salt: testSalt}
	l, _, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	fill(t, l, 20, 5, 100)
	if _, err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	faults.Add(vfstest.Fault{Op: vfstest.OpWrite, Count: 1, Err: io.ErrShortWrite, Short: 700})
	if err := tryFill(l, 5); !errors.Is(err, io.ErrShortWrite) {
		t.Fatal(err)
	}
	o.FS = disk.Kill()
	l2, rec := mustOpen(t, o)
	if l2.Next() != 20 || rec.TornBytes != 0 {
		t.Fatalf("next %d, %+v", l2.Next(), rec)
	}
}

// TestMemMatchesDisk: the log writes the same files to memory as to a real disk.
func TestMemMatchesDisk(t *testing.T) {
	real := testOptions(t)
	mem := real
	mem.FS, mem.Dir, mem.Index = vfstest.NewMem(), "0-0", &memIndex{}
	var content [2][][]byte
	for i, o := range []Options{real, mem} {
		o.SegmentBytes = 5000
		l, _ := mustOpen(t, o)
		fill(t, l, 200, 7, 100)
		for _, s := range l.view.Load().segs {
			b, err := s.bytes()
			if err != nil {
				t.Fatal(err)
			}
			content[i] = append(content[i], append([]byte(filepath.Base(s.name)), b...))
		}
	}
	if len(content[0]) < 4 || fmt.Sprint(len(content[0])) != fmt.Sprint(len(content[1])) {
		t.Fatal(len(content[0]), len(content[1]))
	}
	for i := range content[0] {
		if !bytes.Equal(content[0][i], content[1][i]) {
			t.Fatalf("segment %d differs", i)
		}
	}
}
