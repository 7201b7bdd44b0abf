package seglog

import "testing"

// TestNoAllocations holds the hot path to no allocation in steady state.
func TestNoAllocations(t *testing.T) {
	o := testOptions(t)
	o.SegmentBytes = 1 << 30
	l, _ := mustOpen(t, o)
	var w Builder
	var h Headers
	h.Append("\x00f", []byte{2})
	h.Append("unit", []byte("K"))
	payload := value(0, 100)
	appendOne := func() {
		w.Reset(l.Next())
		for range 600 { // more than one batch
			w.Append(5, benchKey, payload, h)
		}
		if err := l.Append(&w); err != nil {
			t.Fatal(err)
		}
	}
	for range 300 { // the index has reached its bound
		appendOne()
	}
	chunk := make([]byte, 0, 1<<20)
	var err error
	var s Scanner
	from := int64(0)
	for name, f := range map[string]func(){
		"append": appendOne,
		"headers": func() {
			h.Reset()
			h.Append("unit", payload)
		},
		"read": func() {
			if chunk, err = l.Read(from%l.Next(), 1<<18, chunk[:0]); err != nil {
				t.Fatal(err)
			}
			from += 7919
		},
		"scan": func() {
			n := 0
			for s.Reset(chunk); s.Next(); {
				for k, v := range s.Record().Headers.All() {
					n += len(k) + len(v)
				}
			}
			if s.Err() != nil || n == 0 {
				t.Fatal(s.Err(), n)
			}
		},
		"records": func() {
			n := 0
			for r := range Records(chunk) {
				n += len(r.Value)
			}
			if n == 0 {
				t.Fatal("no records")
			}
		},
		"bytes from": func() { l.BytesFrom(from % l.Next()) },
		"accessors":  func() { _, _, _, _ = l.First(), l.Next(), l.Synced(), l.Bytes() },
	} {
		if name == "scan" || name == "records" {
			if chunk, err = l.Read(0, 1<<18, chunk[:0]); err != nil {
				t.Fatal(err)
			}
		}
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// TestIndexIsBounded: whatever the size of a segment, its index in memory is bounded and still useful.
func TestIndexIsBounded(t *testing.T) {
	var x sparse
	x.reset(4096)
	pos := int64(0)
	for i := range 200_000 {
		x.add(IndexEntry{Offset: int64(i), Position: pos, MaxTimeMs: int64(i) - 1})
		pos += 3000
	}
	e := x.snapshot()
	if len(e) > indexEntriesMax || len(e) < indexEntriesMax/4 {
		t.Fatalf("%d entries", len(e))
	}
	if !plausible(e, 0, pos) {
		t.Fatal("not rising")
	}
	step := pos / int64(len(e))
	for i := 1; i < len(e); i++ {
		if e[i].Position != e[i].Offset*3000 || e[i].Position-e[i-1].Position > 4*step {
			t.Fatalf("entry %d: %+v after %+v", i, e[i], e[i-1])
		}
	}
}

// TestIdlePartitionsHoldNoDescriptors opens many logs; those that nobody writes to keep no file open for long.
func TestIdlePartitionsHoldNoDescriptors(t *testing.T) {
	var logs []*Log
	var opens int
	for range 2 * openFilesMax {
		o := testOptions(t)
		l, _ := mustOpen(t, o)
		fill(t, l, 5, 5, 10)
		if _, err := l.Sync(); err != nil {
			t.Fatal(err)
		}
		logs = append(logs, l)
	}
	for _, l := range logs {
		if !l.Park() {
			t.Fatal("not parked")
		}
	}
	for _, l := range logs {
		wantDense(t, readAll(t, l, 0), 0, 5)
	}
	for _, l := range logs {
		s := l.view.Load().segs[0]
		s.mu.Lock()
		if s.file != nil {
			opens++
		}
		s.mu.Unlock()
	}
	if opens > openFilesMax {
		t.Fatalf("%d files open", opens)
	}
}
