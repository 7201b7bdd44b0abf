package seglog

import (
	"bytes"
	"fmt"
	"maps"
	"testing"

	"edgehub/internal/vfs"
	"edgehub/internal/vfs/vfstest"
)

// memSummaries is a SummaryStore in memory.
type memSummaries struct {
	memIndex
	s map[string][]byte
}

func (x *memSummaries) SaveSummary(log string, base int64, b []byte) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.s == nil {
		x.s = map[string][]byte{}
	}
	x.s[x.key(log, base)] = bytes.Clone(b)
	return nil
}

func (x *memSummaries) LoadSummary(log string, base int64) ([]byte, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.s[x.key(log, base)], nil
}

// TestSummary: with summaries nothing that matches is ever stepped over, and what can be is.
func TestSummary(t *testing.T) {
	for _, codec := range []Codec{CodecNone, CodecZstd} {
		o := testOptions(t)
		store := &memSummaries{}
		o.Index, o.SegmentBytes, o.Codec = store, 4000, codec
		l, _ := mustOpen(t, o)
		var b Builder
		topicOf := func(i int64) string { // rare/N once in 500, the others everywhere
			if i%500 == 250 {
				return fmt.Sprint("rare/", i/500)
			}
			return fmt.Sprint("often/", i%7)
		}
		for i := range int64(3000) {
			b.Reset(i)
			b.Append(timeOf(i), []byte(topicOf(i)), value(i, 30), Headers{})
			if err := l.Append(&b); err != nil {
				t.Fatal(err)
			}
		}
		at, err := l.Summarize(0, 1<<62)
		segs := l.Segments()
		if err != nil || at != segs[len(segs)-1].Base || len(store.s) != len(segs)-1 {
			t.Fatal(at, len(store.s), len(segs), err)
		}
		if again, err := l.Summarize(at, 1<<62); again != at || err != nil {
			t.Fatal(again, err)
		}
		for _, c := range []struct {
			want  string
			reads int // at most
		}{{"rare/0", 3}, {"rare/5", 3}, {"rare/3", 3}, {"often/3", 3000}, {"none", 3}} {
			var got []int64
			reads := 0
			for from := int64(0); from < l.Next(); {
				next, until := l.NextMatch(from, func(k []byte) bool { return string(k) == c.want })
				if next < from || until <= from {
					t.Fatal(from, next, until)
				}
				reads++
				end := min(l.Next(), max(until, next+1))
				for i := from; i < end; i++ { // the truth
					if topicOf(i) == c.want {
						if i < next {
							t.Fatalf("%s: offset %d was stepped over, from %d to %d", c.want, i, from, next)
						}
						got = append(got, i)
					}
				}
				from = end
			}
			if n := map[bool]int{true: 1, false: 0}[c.want[0] == 'r']; c.want[0] != 'o' && len(got) != n || reads > c.reads {
				t.Errorf("%s: %v in %d reads", c.want, got, reads)
			}
		}

		// A summary that is not the segment's own is not believed: stale, of another one, flipped, cut.
		good := maps.Clone(store.s)
		for key, raw := range good {
			for _, bad := range [][]byte{raw[:len(raw)-1], append(bytes.Clone(raw), 0), flip(raw, 2), flip(raw, len(raw)-1), nil, {}, {1}} {
				store.s[key] = bad
				if next, _ := l.NextMatch(0, func([]byte) bool { return false }); key == store.key(o.Name, 0) && next != 0 {
					t.Fatalf("believed %x", bad)
				}
			}
			store.s[key] = good[store.key(o.Name, segs[1].Base)]
			if next, _ := l.NextMatch(0, func([]byte) bool { return false }); key == store.key(o.Name, 0) && next != 0 {
				t.Fatal("believed another segment's")
			}
			store.s[key] = raw
		}
	}
}

func flip(b []byte, i int) []byte {
	b = bytes.Clone(b)
	b[i] ^= 0x10
	return b
}

// TestSummaryTooManyKeys: what does not fit is left out whole.
func TestSummaryTooManyKeys(t *testing.T) {
	o := testOptions(t)
	o.Index = &memSummaries{}
	l, _ := mustOpen(t, o)
	var b Builder
	b.Reset(0)
	for i := range int64(summaryKeysMax + 1) {
		b.Append(timeOf(i), fmt.Append(nil, i), nil, Headers{})
	}
	if err := l.Append(&b); err != nil {
		t.Fatal(err)
	}
	if err := l.Roll(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Summarize(0, 1<<62); err != nil {
		t.Fatal(err)
	}
	if next, until := l.NextMatch(5, func([]byte) bool { return false }); next != 5 || until != l.Next() {
		t.Error(next, until)
	}
}

// TestSummarizeOld: segments from before there were summaries get theirs, a bounded part each time; those that have one
// are not read again.
func TestSummarizeOld(t *testing.T) {
	o := testOptions(t)
	store := &memSummaries{}
	o.Index = store
	l, _ := mustOpen(t, o)
	for range 5 {
		fill(t, l, 50, 5, 100)
		if err := l.Roll(); err != nil {
			t.Fatal(err)
		}
	}
	_ = l.Close()
	f := vfstest.New(vfs.OS)
	o.FS = f
	l, _ = mustOpen(t, o)
	at, calls := int64(0), 0
	for next := int64(-1); next != at; calls++ { // until it is at rest
		next = at
		var err error
		if at, err = l.Summarize(at, 1); err != nil {
			t.Fatal(err)
		}
	}
	if at != l.ActiveBase() || len(store.s) != 5 || calls < 5 {
		t.Fatalf("at %d after %d calls, %d summaries", at, calls, len(store.s))
	}
	f.Add(vfstest.Fault{Op: vfstest.OpRead, Hook: func() { t.Error("read again") }})
	if at, err := l.Summarize(0, 1<<62); at != l.ActiveBase() || err != nil {
		t.Fatal(at, err)
	}
}

// FuzzSummary: whatever a summary holds, reading it ends within bounds.
func FuzzSummary(f *testing.F) {
	f.Add([]byte{0})
	f.Add([]byte{1, 0, 1, 'a', 3, 4, 5})
	f.Add([]byte{2, 0, 1, 'a', 3, 4, 5, 1, 1, 'b', 0, 0, 1})
	f.Add([]byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		readSummary(b, 7, func(k KeyRange) {
			if n++; k.First < 7 || k.Last < k.First || len(k.Key) > len(b) {
				t.Fatalf("%+v of %x", k, b)
			}
		})
		if n > len(b) {
			t.Fatal(n)
		}
	})
}
