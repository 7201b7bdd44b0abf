package meta

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestReadsSeeEveryLayer(t *testing.T) {
	s, _ := open_(t, testOptions(t.TempDir()))
	get := func(key, want string, there bool) {
		t.Helper()
		v, ok, err := s.Get([]byte(key))
		check(t, err)
		if ok != there || string(v) != want {
			t.Fatalf("Get(%q) = %q, %v; want %q, %v", key, v, ok, want, there)
		}
	}
	stages := []struct {
		name string
		do   func() error
	}{{"overlay", func() error { return nil }}, {"log", s.Commit}, {"index", s.Flush}}
	for i, stage := range stages {
		k, v := []byte("k"), []byte(fmt.Sprint("v", i))
		s.Put(k, v)
		s.Put([]byte("empty"), nil)
		s.Put([]byte("gone"), []byte("x"))
		check(t, stage.do())
		k[0], v[0] = 'X', 'X' // the store has its own copies
		get("k", fmt.Sprint("v", i), true)
		get("empty", "", true)
		get("gone", "x", true)
		s.Delete([]byte("gone"))
		get("gone", "", false)
		check(t, stage.do())
		get("gone", "", false)
		get("never", "", false)
	}
	_, ok, err := s.GetHint([]byte("k"))
	if err != nil || ok {
		t.Fatalf("a durable key is seen as a hint: %v, %v", ok, err)
	}
	got, err2 := []byte(nil), error(nil)
	if got, _, err2 = s.Get([]byte("k")); err2 != nil {
		t.Fatal(err2)
	}
	got[0] = 'Y'
	get("k", "v2", true)
}

// TestAgainstModel does random operations on the store and on maps, with
// commits, flushes, compactions, clean and unclean restarts in between.
func TestAgainstModel(t *testing.T) {
	for _, seed := range []uint64{1, 2, 3} {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { modelRun(t, rand.New(rand.NewPCG(seed, 0))) })
	}
}

func modelRun(t *testing.T, r *rand.Rand) {
	o := testOptions(t.TempDir())
	o.SegmentBytes, o.Now = 8<<10, steppedClock()
	s, _ := open_(t, o)
	durable, hints := map[string]string{}, map[string]string{}
	key := func() []byte {
		k := []byte(fmt.Sprintf("%c/%d", 'a'+rune(r.IntN(4)), r.IntN(60)))
		if r.IntN(10) == 0 {
			k = append(k, strings.Repeat("long", 300+r.IntN(3))...)
		}
		return k
	}
	for step := range 3000 {
		k, v := key(), fmt.Sprint(step)
		switch r.IntN(40) {
		default:
			s.Put(k, []byte(v))
			durable[string(k)] = v
		case 0, 1, 2, 3, 4, 5, 6:
			s.Delete(k)
			delete(durable, string(k))
		case 7, 8, 9:
			s.PutHint(k, []byte(v))
			hints[string(k)] = v
		case 10:
			s.DeleteHint(k)
			delete(hints, string(k))
		case 11, 12, 13:
			check(t, s.Commit())
		case 14, 15:
			check(t, s.Flush())
		case 16:
			if r.IntN(4) == 0 {
				check(t, s.Compact())
			}
		case 17:
			comparePrefix(t, s, durable, k[:r.IntN(len(k)+1)])
		case 18:
			if r.IntN(10) == 0 {
				check(t, s.Close())
				s, _ = open_(t, o)
			}
		case 19:
			if r.IntN(10) == 0 { // killed after a commit and a flush
				check(t, s.Flush())
				o.DataDir = copyDir(t, o.DataDir)
				check(t, s.Close())
				var rec Recovery
				if s, rec = open_(t, o); rec.Reason != "" || rec.HintsLost {
					t.Fatalf("step %d: %+v", step, rec)
				}
			}
		}
	}
	d, h := dump(t, s)
	same(t, "durable", d, durable)
	same(t, "hints", h, hints)
}

func comparePrefix(t *testing.T, s *Store, all map[string]string, prefix []byte) {
	t.Helper()
	want := maps.Clone(all)
	maps.DeleteFunc(want, func(k, _ string) bool { return !strings.HasPrefix(k, string(prefix)) })
	got := map[string]string{}
	check(t, s.Scan(prefix, func(k, v []byte) error { got[string(k)] = string(v); return nil }))
	same(t, fmt.Sprintf("prefix %.20q", prefix), got, want)
}

func TestScanStopsAndMayUseTheStore(t *testing.T) {
	s, _ := open_(t, testOptions(t.TempDir()))
	want := map[string]string{}
	fill(s, want, 100, 1)
	check(t, s.Flush())
	fill(s, want, 50, 2)
	stop := errors.New("enough")
	n := 0
	err := s.Scan([]byte("session/"), func(k, _ []byte) error {
		s.Delete(k) // not seen by this scan
		if n++; n == 70 {
			return stop
		}
		return nil
	})
	if !errors.Is(err, stop) || n != 70 {
		t.Fatalf("%d keys, error %v", n, err)
	}
	d, _ := dump(t, s)
	if len(d) != 30 {
		t.Fatalf("%d keys left, want 30", len(d))
	}
}

func TestLongKeysAndValues(t *testing.T) {
	o := testOptions(t.TempDir())
	s, _ := open_(t, o)
	want := map[string]string{}
	base := strings.Repeat("c", 65535)
	for _, n := range []int{0, 1, foldBytes - 1, foldBytes, foldBytes + 1, 60000, 65535} {
		for _, size := range []int{0, 10, inlineBytes - 1, inlineBytes, inlineBytes + 1, 1 << 20} {
			k := base[:n] + fmt.Sprint("/", size)
			v := strings.Repeat("v", size)
			s.Put([]byte(k), []byte(v))
			want[k] = v
		}
	}
	s.Put([]byte("biggest"), make([]byte, ValueBytesMax))
	want["biggest"] = string(make([]byte, ValueBytesMax))
	d, _ := dump(t, s)
	same(t, "overlay", d, want)
	check(t, s.Flush())
	d, _ = dump(t, s)
	same(t, "index", d, want)
	comparePrefix(t, s, want, []byte(base[:60001]))
	for k, v := range want {
		got, ok, err := s.Get([]byte(k))
		if err != nil || !ok || string(got) != v {
			t.Fatalf("Get of a key of %d bytes: %v, %v", len(k), ok, err)
		}
	}
	check(t, s.Close())
	check(t, os.RemoveAll(filepath.Join(o.DataDir, indexDir)))
	s, rec := open_(t, o)
	if !rec.Rebuilt || !rec.HintsLost {
		t.Fatalf("%+v", rec)
	}
	d, _ = dump(t, s)
	same(t, "rebuilt", d, want)
}

func TestValueBeyondTheLimitIsABug(t *testing.T) {
	s, _ := open_(t, testOptions(t.TempDir()))
	defer func() {
		if p := fmt.Sprint(recover()); !strings.HasPrefix(p, "BUG: ") {
			t.Fatalf("panic %q", p)
		}
	}()
	s.Put([]byte("k"), make([]byte, ValueBytesMax+1))
}

// TestCommitOfMany has several goroutines put and commit their own keys while
// others read, flush and compact; each commit must cover its own puts.
func TestCommitOfMany(t *testing.T) {
	o := testOptions(t.TempDir())
	o.FlushEvery, o.SegmentBytes, o.CompactBytes = time.Millisecond, 16<<10, 64<<10
	s, _ := open_(t, o)
	const writers, rounds = 4, 300
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range rounds {
				k := []byte(fmt.Sprintf("w%d/%d", w, i%20))
				v := []byte(fmt.Sprintf("%d %s", i, bytes.Repeat([]byte("x"), 100)))
				s.Put(k, v)
				if err := s.Commit(); err != nil {
					t.Error(err)
					return
				}
				got, ok, err := s.Get(k)
				if err != nil || !ok || !bytes.Equal(got, v) {
					t.Errorf("%s: %.20q, %v, %v", k, got, ok, err)
					return
				}
				if i%50 == 0 {
					if err := s.Scan([]byte(fmt.Sprintf("w%d/", w)), func(_, _ []byte) error { return nil }); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Go(func() {
		for range 5 {
			if err := s.Compact(); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	want, _ := dump(t, s)
	if len(want) != writers*20 {
		t.Fatalf("%d keys", len(want))
	}
	check(t, s.Close())
	if _, _, err := s.Get([]byte("w0/1")); !errors.Is(err, ErrClosed) {
		t.Fatalf("Get after Close: %v", err)
	}
	s.Put([]byte("late"), nil)
	if err := s.Commit(); !errors.Is(err, ErrClosed) {
		t.Fatalf("Commit after Close: %v", err)
	}
	check(t, os.RemoveAll(filepath.Join(o.DataDir, indexDir)))
	s, _ = open_(t, o)
	got, _ := dump(t, s)
	same(t, "from the log alone", got, want)
}

func TestFlusherWorksBehind(t *testing.T) {
	o := testOptions(t.TempDir())
	o.FlushEvery = time.Millisecond
	s, _ := open_(t, o)
	flushed := make(chan struct{})
	go func() {
		defer close(flushed)
		for s.Stats().OverlayBytes > 0 || s.Stats().Keys < 2 {
			select {
			case <-s.done:
				return
			default:
			}
		}
	}()
	s.Put([]byte("a"), []byte("1"))
	s.PutHint([]byte("b"), []byte("2"))
	select {
	case <-flushed:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing was flushed")
	}
	// The copy is what a kill leaves: both keys must be there without Commit.
	o.DataDir = copyDir(t, o.DataDir)
	again, rec := open_(t, o)
	d, h := dump(t, again)
	if d["a"] != "1" || h["b"] != "2" || rec.Replayed != 0 || rec.HintsLost {
		t.Fatalf("%v %v %+v", d, h, rec)
	}
}
