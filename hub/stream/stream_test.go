package stream

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"edgehub/hub/topic"
	"edgehub/internal/hubtime"
	"edgehub/internal/vfs/vfstest"
	"edgehub/storage/seglog"
)

type fixture struct {
	t     *testing.T
	disk  *vfstest.Mem
	fs    *vfstest.Faults
	clock *hubtime.Clock
	set   *Set
}

func newFixture(t *testing.T) *fixture {
	disk := vfstest.NewMem()
	return &fixture{t: t, disk: disk, fs: vfstest.New(disk), clock: hubtime.New(0)}
}

func (f *fixture) open(specs ...Spec) error {
	for i := range specs {
		if specs[i].SegmentBytes == 0 {
			specs[i].SegmentBytes = 1 << 20
		}
	}
	set, err := Open(specs, Options{FS: f.fs, Dir: "/streams", QuarantineDir: "/quarantine", Clock: f.clock,
		Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		f.set = set
	}
	return err
}

func (f *fixture) mustOpen(specs ...Spec) {
	f.t.Helper()
	if err := f.open(specs...); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) close() {
	f.t.Helper()
	if f.set == nil {
		return
	}
	f.fs.Clear()
	if err := f.set.Close(); err != nil {
		f.t.Error(err)
	}
	f.set = nil
}

// put appends records of size bytes to a partition, each a batch of its own.
func (f *fixture) put(p *Partition, n, size int) {
	f.t.Helper()
	for range n {
		var b seglog.Builder
		b.Reset(p.Log.Next())
		b.Append(f.clock.NowMs(), []byte("t"), make([]byte, size), seglog.Headers{})
		bytes := b.Len()
		if err := p.Log.Append(&b); err != nil {
			f.t.Fatal(err)
		}
		p.SetCommitted(p.Log.Next())
		f.set.Appended(p, bytes)
	}
}

func (f *fixture) stream(name string) *Stream {
	f.t.Helper()
	st, err := f.set.Stream(name)
	if err != nil {
		f.t.Fatal(err)
	}
	return st
}

var noHooks = RetentionHooks{
	Hold:       func(*Partition) int64 { return math.MaxInt64 },
	BeforeDrop: func(*Partition, seglog.SegmentInfo) error { return nil },
	Roll:       func(p *Partition) error { return p.Log.Roll() },
	Dropped:    func(*Partition, int64) {},
}

func TestRoute(t *testing.T) {
	f := newFixture(t)
	f.mustOpen(
		Spec{Name: "exact", Filters: []string{"a/b", "a/c"}, Partitions: 1},
		Spec{Name: "wild", Filters: []string{"a/+", "x/#"}, Partitions: 1},
		Spec{Name: "dollar", Filters: []string{"$dev/#"}, Partitions: 1},
		Spec{Name: "main", Filters: []string{"#"}, Partitions: 1},
		Spec{Name: "$retained", Partitions: 1},
	)
	defer f.close()
	for name, want := range map[string]string{
		"a/b": "exact", "a/d": "wild", "a/b/c": "main", "x": "wild", "x/y/z": "wild", "": "main", "/": "main",
		"$dev/1": "dollar", "$SYS/x": "", "$other": "", "$retained": "",
	} {
		got := ""
		if st := f.set.Route(name); st != nil {
			got = st.Name
		}
		if got != want {
			t.Errorf("%q goes to %q, want %q", name, got, want)
		}
	}
	if _, err := f.set.Stream("nobody"); !errors.Is(err, ErrUnknown) {
		t.Errorf("unknown stream: %v", err)
	}
	if f.set.Partition("wild/0-0") == nil || f.set.Partition("wild/1-0") != nil {
		t.Error("partitions by name")
	}
}

func TestPick(t *testing.T) {
	f := newFixture(t)
	f.mustOpen(
		Spec{Name: "topic", Partitions: 4},
		Spec{Name: "client", Partitions: 4, ByClient: true},
		Spec{Name: "level", Partitions: 4, ByLevel: 2},
		Spec{Name: "one", Partitions: 1, ByClient: true},
	)
	defer f.close()
	used := map[string]map[int]bool{}
	pick := func(st, name, client string) int {
		i := f.stream(st).Pick(name, client).Index
		if used[st] == nil {
			used[st] = map[int]bool{}
		}
		used[st][i] = true
		return i
	}
	for i := range 200 {
		name, client := fmt.Sprintf("d/%d/x", i), fmt.Sprintf("c%d", i)
		if pick("topic", name, "a") != pick("topic", name, "b") {
			t.Fatal("a topic has one partition, whoever publishes")
		}
		if pick("client", name, client) != pick("client", "another", client) {
			t.Fatal("a client has one partition, whatever it publishes")
		}
		if pick("level", name, "a") != pick("level", fmt.Sprintf("d/%d/y/z", i), "b") {
			t.Fatal("what shares the first levels shares the partition")
		}
		pick("one", name, client)
		// The hash is a contract with what is on disk.
		if want := int(topic.Hash([]byte(name)) % 4); pick("topic", name, "") != want {
			t.Fatalf("%s is in another partition than %d", name, want)
		}
	}
	for _, st := range []string{"topic", "client", "level"} {
		if len(used[st]) != 4 {
			t.Errorf("%s uses %d of 4 partitions", st, len(used[st]))
		}
	}
	if got := firstLevels("a/b/c", 2) + " " + firstLevels("a", 2) + " " + firstLevels("/a/b", 1); got != "a/b a " {
		t.Errorf("first levels: %q", got)
	}
}

func TestNumberOfPartitionsIsKept(t *testing.T) {
	f := newFixture(t)
	f.mustOpen(Spec{Name: "s", Filters: []string{"#"}, Partitions: 3})
	f.put(f.set.Partitions[1], 1, 10)
	f.close()
	for _, n := range []int{1, 2, 4} {
		err := f.open(Spec{Name: "s", Filters: []string{"#"}, Partitions: n})
		if !errors.Is(err, ErrPartitions) || !strings.Contains(err.Error(), "partitions = 3") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%d partitions: %v", n, err)
		}
	}
	f.mustOpen(Spec{Name: "s", Filters: []string{"#"}, Partitions: 3})
	if f.set.Partitions[1].Committed() != 1 {
		t.Error("what is on disk is committed")
	}
	f.close()
}

// A first start that was cut short leaves some of the partitions; the next one makes the others.
func TestACutShortFirstStart(t *testing.T) {
	f := newFixture(t)
	f.fs.Add(vfstest.Fault{Op: vfstest.OpMkdir, After: 2, Err: errors.New("power cut")})
	if err := f.open(Spec{Name: "s", Filters: []string{"#"}, Partitions: 4}); err == nil {
		t.Fatal("the start was not cut short")
	}
	f.fs.Clear()
	f.mustOpen(Spec{Name: "s", Filters: []string{"#"}, Partitions: 4})
	f.close()
}

func TestUnconfiguredStreamsAreKept(t *testing.T) {
	f := newFixture(t)
	f.mustOpen(Spec{Name: "old", Filters: []string{"old/#"}, Partitions: 2}, Spec{Name: "main", Filters: []string{"#"}, Partitions: 1})
	f.put(f.stream("old").Partitions[1], 3, 10)
	f.close()
	f.mustOpen(Spec{Name: "main", Filters: []string{"#"}, Partitions: 1})
	defer f.close()
	old := f.stream("old")
	if old.Configured || len(old.Partitions) != 2 || old.Partitions[1].Committed() != 3 {
		t.Fatalf("old stream: configured %v, %d partitions", old.Configured, len(old.Partitions))
	}
	if st := f.set.Route("old/x"); st == nil || st.Name != "main" {
		t.Error("a stream that is not configured captures nothing")
	}
	if f.set.Streams[len(f.set.Streams)-1] != old {
		t.Error("configured streams come first")
	}
}

// segments rolls a partition every so many records.
func (f *fixture) fill(p *Partition, segments, each, size int) {
	for range segments {
		f.put(p, each, size)
		if err := p.Log.Roll(); err != nil {
			f.t.Fatal(err)
		}
	}
}

func TestRetentionByAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.mustOpen(Spec{Name: "s", Filters: []string{"#"}, Partitions: 1, MaxAge: time.Hour})
		p := f.set.Partitions[0]
		var hold, drops atomic.Int64
		var refuse atomic.Bool
		hold.Store(4)
		refuse.Store(true)
		hooks := noHooks
		hooks.Hold = func(*Partition) int64 { return hold.Load() }
		hooks.BeforeDrop = func(_ *Partition, seg seglog.SegmentInfo) error {
			if refuse.Load() {
				return errors.New("not yet")
			}
			drops.Add(1)
			return nil
		}
		f.set.Start(func(*Partition, int64) {}, hooks)
		f.fill(p, 3, 2, 100) // segments 0, 2, 4
		time.Sleep(30 * time.Minute)
		f.put(p, 2, 100)
		wait := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
		if wait(time.Minute); p.Log.First() != 0 {
			t.Fatal("deleted before its time")
		}
		if wait(time.Hour); p.Log.First() != 0 {
			t.Fatal("deleted although what is needed of it could not be copied")
		}
		refuse.Store(false)
		if wait(time.Minute); p.Log.First() != 4 || drops.Load() != 2 {
			t.Fatalf("first offset %d after %d drops: held from 4", p.Log.First(), drops.Load())
		}
		hold.Store(math.MaxInt64)
		if wait(2 * time.Hour); p.Log.First() != 8 { // the last segment was rolled by age, too
			t.Fatalf("first offset %d, everything is too old", p.Log.First())
		}
		if n := p.Stream.Expired.Load(); n != 8 {
			t.Fatalf("%d records counted as expired", n)
		}
	})
}

func TestRetentionByBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.mustOpen(Spec{Name: "s", Filters: []string{"#"}, Partitions: 2, MaxBytes: 10_000})
		a, b := f.set.Partitions[0], f.set.Partitions[1]
		var lost atomic.Int64
		hooks := noHooks
		hooks.Hold = func(p *Partition) int64 { return 1 } // held from offset 1 on: max_bytes is harder
		hooks.Dropped = func(_ *Partition, n int64) { lost.Add(n) }
		f.fill(a, 1, 4, 1000) // oldest
		time.Sleep(time.Second)
		f.fill(b, 2, 4, 1000)
		if b.Stream.Full() {
			t.Fatal("drop-oldest is never full")
		}
		f.set.Start(func(*Partition, int64) {}, hooks)
		time.Sleep(time.Second) // kicked by the last append, not by the clock
		synctest.Wait()
		if a.Log.First() != 4 || b.Log.First() != 0 {
			t.Fatalf("first offsets %d and %d: the oldest segment of all should go, and no more", a.Log.First(), b.Log.First())
		}
		if n := a.Stream.Dropped.Load(); n != 4 || lost.Load() != 3 {
			t.Fatalf("%d records counted as dropped, %d as lost to what held them", n, lost.Load())
		}
	})
}

func TestRetentionByRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.mustOpen(Spec{Name: "s", Filters: []string{"#"}, Partitions: 2, MaxBytes: 1 << 30, MaxRecords: 64, SegmentBytes: 1 << 20})
		a, b := f.set.Partitions[0], f.set.Partitions[1]
		hooks := noHooks
		hooks.Roll = func(p *Partition) error { return p.Log.Roll() }
		f.set.Start(func(*Partition, int64) {}, hooks)
		left := func() int64 { return a.Log.Next() - a.Log.First() + b.Log.Next() - b.Log.First() }
		for i := range 100 {
			f.put(a, 1, 10)
			f.put(b, 1, 10)
			synctest.Wait()
			if n := left(); n > 64+4 || n < min(int64(2*i+2), 64-8) { // a segment is sealed at 4 records
				t.Fatalf("%d records are kept after %d", n, 2*i+2)
			}
		}
		if n := a.Stream.Dropped.Load(); n != 200-left() {
			t.Fatalf("%d records counted as dropped, %d are", n, 200-left())
		}
	})
	t.Run("reject-new", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t)
			defer f.close()
			f.mustOpen(Spec{Name: "s", Filters: []string{"#"}, Partitions: 1, MaxBytes: 1 << 30, MaxRecords: 10, RejectNew: true})
			p := f.set.Partitions[0]
			f.set.Start(func(*Partition, int64) {}, noHooks)
			f.put(p, 9, 10)
			if p.Stream.Full() {
				t.Fatal("full below the limit")
			}
			f.put(p, 1, 10)
			synctest.Wait()
			if !p.Stream.Full() || p.Log.First() != 0 {
				t.Fatal("at the limit it is full, and nothing is deleted")
			}
		})
	})
}

func TestRejectNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.mustOpen(Spec{Name: "s", Filters: []string{"#"}, Partitions: 1, MaxBytes: 5000, MaxAge: time.Hour, RejectNew: true})
		p := f.set.Partitions[0]
		f.set.Start(func(*Partition, int64) {}, noHooks)
		f.fill(p, 1, 4, 1000)
		if p.Stream.Full() {
			t.Fatal("full below the limit")
		}
		f.fill(p, 1, 2, 1000)
		if !p.Stream.Full() {
			t.Fatal("not full beyond the limit")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if !p.Stream.Full() || p.Log.First() != 0 {
			t.Fatal("nothing may be deleted for bytes")
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if p.Stream.Full() {
			t.Fatal("still full after the records have expired")
		}
		f.close()
		f.mustOpen(Spec{Name: "s", Filters: []string{"#"}, Partitions: 1, MaxBytes: 10, RejectNew: true})
		f.set.Start(func(*Partition, int64) {}, noHooks)
		f.put(f.set.Partitions[0], 1, 100)
		if !f.set.Partitions[0].Stream.Full() {
			t.Fatal("not full after a restart")
		}
	})
}

func TestSyncer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.mustOpen(Spec{Name: "safe", Filters: []string{"s"}, Partitions: 1, Durability: Synced}, Spec{Name: "main", Filters: []string{"#"}, Partitions: 2})
		safe, lazy, followed := f.set.Partitions[0], f.set.Partitions[1], f.set.Partitions[2]
		var mu sync.Mutex
		calls := map[*Partition][]int64{}
		told := func(p *Partition) []int64 {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return calls[p]
		}
		f.set.Start(func(p *Partition, n int64) {
			mu.Lock()
			defer mu.Unlock()
			calls[p] = append(calls[p], n)
		}, noHooks)
		f.set.Follow(followed)
		time.Sleep(10 * time.Second)
		for _, p := range f.set.Partitions {
			f.put(p, 1, 10)
		}
		f.set.RequestSync(safe)
		if got := told(safe); !slices.Equal(got, []int64{1}) {
			t.Fatalf("asked for and not synced at once: %v", got)
		}
		time.Sleep(2 * followEvery)
		if got := told(followed); !slices.Equal(got, []int64{1}) {
			t.Fatalf("followed and not synced soon: %v", got)
		}
		time.Sleep(2 * lazyEvery)
		if got := told(lazy); !slices.Equal(got, []int64{1}) {
			t.Fatalf("not synced within %v: %v", 2*lazyEvery, got)
		}
	})
}

// A sync that has run between the append and the request covers it: whoever asks is told all the same.
func TestSyncerAnswersEveryRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.mustOpen(Spec{Name: "safe", Filters: []string{"#"}, Partitions: 1, Durability: Synced})
		p := f.set.Partitions[0]
		var told atomic.Int64
		f.set.Start(func(*Partition, int64) { told.Add(1) }, noHooks)
		f.put(p, 1, 10)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if told.Load() != 1 {
			t.Fatalf("told %d times", told.Load())
		}
		f.set.RequestSync(p)
		synctest.Wait()
		if told.Load() != 2 {
			t.Fatal("a request was not answered")
		}
	})
}

func TestSyncerGoesOnAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		defer f.close()
		f.mustOpen(Spec{Name: "safe", Filters: []string{"#"}, Partitions: 1, Durability: Synced})
		p := f.set.Partitions[0]
		var synced atomic.Int64
		f.set.Start(func(_ *Partition, n int64) { synced.Store(n) }, noHooks)
		f.put(p, 1, 10)
		f.fs.Add(vfstest.Fault{Op: vfstest.OpSync, Err: errors.New("injected")})
		f.fs.Add(vfstest.Fault{Op: vfstest.OpCreate, Err: errors.New("injected")})
		f.set.RequestSync(p)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := synced.Load(); n > 0 {
			t.Fatalf("reported as synced: %d", n)
		}
		f.fs.Clear()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := synced.Load(); n != 1 {
			t.Fatalf("after the disk works again: %d", n)
		}
	})
}
