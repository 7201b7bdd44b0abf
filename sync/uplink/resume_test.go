package uplink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

// resumeCase is a remote stream written down: records m0, m1, … of partitions
// main/0-0 (a) and main/1-0 (b).
type resumeCase struct {
	name    string
	stored  []Stored
	last    uint64
	cursors [2]int64
	check   checkpoint
	accept  Cause
	created time.Time
	expires bool
	want    string // "next … prev … last …" or the cause
}

func rec(seq uint64, partition string, epoch uint32, offset int64, pos string) Stored {
	return Stored{Seq: seq, Found: true, ID: string(appendIdent(nil, testInstance, partition, epoch, offset)), Positions: pos}
}

// flow is n records of a, from a sequence and an offset on, without positions.
func flow(seq uint64, offset int64, n int) []Stored {
	var out []Stored
	for i := range n {
		out = append(out, rec(seq+uint64(i), "main/0-0", 1, offset+int64(i), ""))
	}
	return out
}

var born = time.Unix(1000, 5)

func resumeCases() []resumeCase {
	ours := checkpoint{Remote: "EDGE", Created: born, Seq: 10}
	return []resumeCase{
		{name: "nothing anywhere", want: "next 0,0 prev  last 0"},
		{name: "cursors beyond the log are clamped", cursors: [2]int64{5000, 3}, want: "next 1000,3 prev  last 0"},
		{name: "another remote stream before", cursors: [2]int64{7, 3}, check: checkpoint{Remote: "OLD", Created: born, Seq: 4}, want: "next 7,3 prev  last 0"},
		{name: "one record", stored: []Stored{rec(1, "main/0-0", 1, 0, "0;")}, last: 1, want: "next 1,0 prev a1:0 last 1"},
		{name: "cursors are a hint only", stored: []Stored{rec(1, "main/0-0", 1, 0, "0;")}, last: 1, cursors: [2]int64{900, 900}, want: "next 1,0 prev a1:0 last 1"},
		{name: "walk forward from the positions", stored: []Stored{rec(5, "main/0-0", 1, 7, "4;main/0-0=1:7,main/1-0=1:2"), rec(6, "main/1-0", 1, 2, ""), rec(7, "main/1-0", 1, 3, "")}, last: 7, want: "next 8,4 prev b1:3 last 7"},
		{name: "what was in flight lies before the anchor", stored: []Stored{rec(3, "main/0-0", 1, 7, ""), rec(4, "main/1-0", 1, 2, ""), rec(5, "main/0-0", 1, 8, "2;main/0-0=1:7,main/1-0=1:2")}, last: 5, want: "next 9,3 prev a1:8 last 5"},
		{name: "the newest positions count", stored: []Stored{rec(1, "main/0-0", 1, 0, "0;"), rec(2, "main/1-0", 1, 0, "1;main/0-0=1:1")}, last: 2, want: "next 1,1 prev b1:0 last 2"},
		{name: "256 back", stored: append([]Stored{rec(1, "main/0-0", 1, 0, "0;main/1-0=1:9")}, flow(2, 1, 255)...), last: 256, want: "next 256,9 prev a1:255 last 256"},
		{name: "257 back is too far", stored: append([]Stored{rec(1, "main/0-0", 1, 0, "0;")}, flow(2, 1, 256)...), last: 257, want: "gap"},
		{name: "positions aged out, the checkpoint is there", stored: flow(9, 8, 5), last: 13, cursors: [2]int64{10, 4}, check: ours, created: born, want: "next 13,4 prev a1:12 last 13"},
		{name: "all aged out but what the checkpoint joins", stored: flow(11, 10, 2), last: 12, cursors: [2]int64{10, 4}, check: ours, created: born, want: "next 12,4 prev a1:11 last 12"},
		{name: "checkpoint of an earlier stream", stored: flow(9, 8, 5), last: 13, cursors: [2]int64{10, 4}, check: ours, created: born.Add(1), want: "gap"},
		{name: "checkpoint too old", stored: flow(12, 11, 2), last: 13, cursors: [2]int64{10, 4}, check: ours, created: born, want: "gap"},
		{name: "checkpoint of what is lost", stored: flow(5, 4, 2), last: 6, cursors: [2]int64{10, 4}, check: ours, created: born, want: "gap"},
		{name: "gap accepted", stored: flow(12, 11, 2), last: 13, cursors: [2]int64{10, 4}, check: ours, created: born, accept: CauseGap, want: "next 13,4 prev  last 13"},
		{name: "hole after the anchor", stored: []Stored{rec(1, "main/0-0", 1, 0, "0;"), rec(3, "main/0-0", 1, 2, "")}, last: 3, want: "gap"},
		{name: "hole before the anchor", stored: []Stored{rec(1, "main/0-0", 1, 0, "0;"), rec(3, "main/0-0", 1, 2, "1;main/0-0=1:1")}, last: 3, want: "gap"},
		{name: "hole that does not matter", stored: []Stored{rec(1, "main/0-0", 1, 0, "0;"), rec(3, "main/0-0", 1, 2, "2;main/0-0=1:2")}, last: 3, want: "next 3,0 prev a1:2 last 3"},
		{name: "a stranger's record", stored: []Stored{rec(1, "main/0-0", 1, 0, "0;"), {Seq: 2, Found: true}}, last: 2, want: "foreign"},
		{name: "a stranger's record, accepted", stored: []Stored{rec(1, "main/0-0", 1, 0, "0;"), {Seq: 2, Found: true}}, last: 2, accept: CauseForeign, want: "next 1,0 prev  last 2"},
		{name: "a stranger's stream", stored: []Stored{{Seq: 1, Found: true, ID: "x"}}, last: 1, want: "foreign"},
		{name: "another instance", stored: []Stored{{Seq: 1, Found: true, ID: "other/main/0-0/1/0", Positions: "0;"}}, last: 1, want: "foreign"},
		{name: "positions nobody wrote", stored: []Stored{rec(1, "main/0-0", 1, 0, "hello")}, last: 1, want: "foreign"},
		{name: "positions of the future", stored: []Stored{rec(1, "main/0-0", 1, 0, "1;")}, last: 1, want: "foreign"},
		{name: "ahead of the log", stored: []Stored{rec(1, "main/0-0", 2, 1000, "0;")}, last: 1, want: "ahead"},
		{name: "ahead in the positions of another partition", stored: []Stored{rec(1, "main/0-0", 1, 0, "0;main/1-0=2:1001")}, last: 1, want: "ahead"},
		{name: "ahead, accepted", stored: []Stored{rec(1, "main/0-0", 2, 1000, "0;")}, last: 1, accept: CauseAhead, cursors: [2]int64{700, 0}, want: "next 700,0 prev a2:1000 last 1 decided 1"},
		{name: "an epoch before", stored: []Stored{rec(1, "main/0-0", 1, 499, "0;")}, last: 1, want: "next 500,0 prev a1:499 last 1"},
		{name: "the epoch since 500", stored: []Stored{rec(1, "main/0-0", 2, 500, "0;main/0-0=1:500")}, last: 1, want: "next 501,0 prev a2:500 last 1"},
		{name: "another history", stored: []Stored{rec(1, "main/0-0", 1, 500, "0;")}, last: 1, want: "diverged"},
		{name: "an epoch of the future", stored: []Stored{rec(1, "main/0-0", 3, 600, "0;")}, last: 1, want: "diverged"},
		{name: "another history, accepted", stored: []Stored{rec(1, "main/0-0", 1, 700, "0;main/1-0=1:3")}, last: 1, accept: CauseDiverged, want: "next 0,3 prev a1:700 last 1 decided 1"},
		{name: "the future, accepted", stored: []Stored{rec(1, "main/0-0", 3, 600, "0;")}, last: 1, accept: CauseDiverged, cursors: [2]int64{500, 0}, want: "next 500,0 prev a3:600 last 1 decided 1"},
		{name: "a partition that is not forwarded", stored: []Stored{rec(1, "old/3-0", 9, 77, "0;main/0-0=1:5,old/1-0=1:6")}, last: 1, want: "next 5,0 prev old/3-0/9/77 last 1 carry 2"},
		{name: "emptied", last: 10, check: ours, created: born, want: "purged"},
		{name: "emptied, accepted", last: 10, check: ours, created: born, accept: CausePurged, cursors: [2]int64{6, 4}, want: "next 6,4 prev  last 10"},
		{name: "aged out", last: 10, check: ours, created: born, expires: true, cursors: [2]int64{6, 4}, want: "next 6,4 prev  last 10"},
		{name: "aged out with more than was acknowledged", last: 12, check: ours, created: born, expires: true, cursors: [2]int64{6, 4}, want: "purged"},
		{name: "lost power before its first sync", last: 0, check: ours, created: born, cursors: [2]int64{6, 4}, want: "next 0,0 prev  last 0"},
		{name: "created again", last: 0, check: ours, created: born.Add(1), cursors: [2]int64{6, 4}, want: "recreated"},
		{name: "created again, accepted", last: 0, check: ours, created: born.Add(1), accept: CauseRecreated, cursors: [2]int64{6, 4}, want: "next 6,4 prev  last 0"},
	}
}

func TestResume(t *testing.T) {
	src := newFakeSource(t, 2)
	for i := range 2 {
		src.append(i, 1000, true)
		src.epochs[src.logs[i].Name()] = []EpochStart{{Epoch: 2, First: 500}}
	}
	for _, c := range resumeCases() {
		t.Run(c.name, func(t *testing.T) {
			r := Remote{Name: "EDGE", Exists: true, Created: c.created, Messages: uint64(len(c.stored)), Last: c.last, First: c.last + 1, Expires: c.expires}
			if len(c.stored) > 0 {
				r.First = c.stored[0].Seq
			}
			k := known{instance: testInstance, partitions: src.Partitions(), cursors: c.cursors[:], epochs: &epochs{at: src.EpochAt, starts: src.EpochStarts}, digests: &digester{}, last: c.check, accept: map[Cause]bool{c.accept: true}}
			reads := 0
			st, err := k.resolve(context.Background(), r, func(_ context.Context, from, to uint64) ([]Stored, error) {
				if from < r.First || to > r.Last || to < from || to-from >= readBackStep {
					t.Fatalf("reads %d to %d of %d to %d", from, to, r.First, r.Last)
				}
				reads += int(to - from + 1)
				var out []Stored
				for q := from; q <= to; q++ {
					i := slices.IndexFunc(c.stored, func(m Stored) bool { return m.Seq == q })
					if i < 0 {
						out = append(out, Stored{Seq: q})
					} else {
						out = append(out, c.stored[i])
					}
				}
				return out, nil
			})
			got := ""
			var b *BlockedError
			switch {
			case errors.As(err, &b):
				got = string(b.Cause)
			case err != nil:
				got = err.Error()
			default:
				prev := st.prev
				if id, ok := parseIdent(prev); ok {
					prev = fmt.Sprintf("%s/%d/%d", id.Partition, id.Epoch, id.Offset)
					if p, ok := map[string]string{"main/0-0": "a", "main/1-0": "b"}[id.Partition]; ok {
						prev = fmt.Sprintf("%s%d:%d", p, id.Epoch, id.Offset)
					}
				}
				got = fmt.Sprintf("next %d,%d prev %s last %d", st.next[0], st.next[1], prev, st.lastSeq)
				if len(st.decided) > 0 {
					got += fmt.Sprintf(" decided %d", len(st.decided))
				}
				if len(st.carry) > 0 {
					got += fmt.Sprintf(" carry %d", len(st.carry))
				}
			}
			if got != c.want {
				t.Errorf("got  %s (%v)\nwant %s", got, err, c.want)
			}
			if reads > 2*positionsEvery {
				t.Errorf("read %d records", reads)
			}
		})
	}
}

func TestResumeReadError(t *testing.T) {
	k := known{instance: testInstance, digests: &digester{}, epochs: &epochs{at: func(string, int64) uint32 { return 1 }}}
	boom := errors.New("boom")
	_, err := k.resolve(context.Background(), Remote{Name: "EDGE", Exists: true, Messages: 1, First: 1, Last: 1}, func(context.Context, uint64, uint64) ([]Stored, error) { return nil, boom })
	var b *BlockedError
	if !errors.Is(err, boom) || errors.As(err, &b) {
		t.Errorf("%v, want a wrapped boom that does not block", err)
	}
}
