package broker

import (
	"fmt"
	"slices"
	"testing"

	"edgehub/hub/message"
	"edgehub/hub/stream"
	"edgehub/internal/vfs/vfstest"
)

// Mail that arrives while a round uses up its budget on older mail is handled without another wake-up.
func TestNoMailIsForgotten(t *testing.T) {
	r := newRig(t, oneStream, 1)
	for range 2 * mailBudget {
		r.loops[0].Post(func() {})
	}
	r.step(0) // half of it
	done := false
	r.loops[0].Post(func() { done = true })
	r.settle()
	if !done {
		t.Fatal("the loop sleeps with mail")
	}
}

// Records of one partition that two loops append and commit in turn reach every loop in the order of the log.
func TestOrderAcrossLoops(t *testing.T) {
	r := newRig(t, oneStream, 3)
	var subs []*tconn
	for i := range 3 {
		s := r.connect(i, ConnectRequest{ClientID: fmt.Sprintf("s%d", i)})
		s.subscribe(byte(i), "t")
		subs = append(subs, s)
	}
	a, b := r.connect(0, ConnectRequest{ClientID: "a"}), r.connect(1, ConnectRequest{ClientID: "b"})
	r.settle()
	for _, s := range subs {
		s.take()
	}
	for i := range 200 {
		if i%3 == 0 {
			a.pub("t", fmt.Sprintf("m%d", i), 1, uint16(i+1))
		} else {
			b.pub("t", fmt.Sprintf("m%d", i), 1, uint16(i+1))
		}
		switch i % 7 {
		case 1:
			r.step(0) // commits what both have appended, posts to 1 and 2
		case 3:
			r.step(1)
		case 5:
			r.step(2)
		}
	}
	r.settle()
	want := r.payloads(r.part("t"))
	if len(want) != 200 {
		t.Fatalf("%d records", len(want))
	}
	for i, s := range subs {
		if got := texts(s.answerAll()); !slices.Equal(got, want) {
			t.Errorf("loop %d saw another order: %v", i, got)
		}
	}
}

// The committer changes in the middle: a loop whose mail holds records of the partition may not overtake them with its
// own commit.
func TestACommitDoesNotOvertakeMail(t *testing.T) {
	r := newRig(t, oneStream, 2)
	s := r.connect(0, ConnectRequest{ClientID: "s"})
	s.subscribe(1, "t")
	a, b := r.connect(0, ConnectRequest{ClientID: "a"}), r.connect(1, ConnectRequest{ClientID: "b"})
	s.take()
	b.pub("t", "first", 1, 1)
	r.step(1) // in the mail of loop 0
	a.pub("t", "second", 1, 1)
	r.b.commit(r.part("t"), r.loops[0]) // loop 0 commits before it reads its mail
	r.settle()
	wantTexts(t, s.take(), "first", "second")
}

// Acknowledgements leave only after the commit; those of other loops by mail; each in order of arrival.
func TestAcknowledgedAfterTheCommit(t *testing.T) {
	r := newRig(t, oneStream, 2)
	a, b := r.connect(0, ConnectRequest{ClientID: "a"}), r.connect(1, ConnectRequest{ClientID: "b"})
	a.take()
	b.take()
	wrote := 0
	r.fs.Add(vfstest.Fault{Op: vfstest.OpWrite, Pattern: "*.log", Hook: func() {
		wrote++
		if len(kinds(a.out, "puback"))+len(kinds(b.out, "puback"))+len(a.got)+len(b.got) > 0 {
			t.Error("acknowledged before the write")
		}
	}})
	for i := range 5 {
		a.pub("x", "a", 1, uint16(i+1))
		b.pub("y", "b", 1, uint16(i+1))
	}
	r.step(0)
	if got := kinds(a.take(), "puback"); len(got) != 5 || wrote != 1 {
		t.Fatalf("loop 0 after its round: %v, %d writes", got, wrote)
	}
	if len(b.got) > 0 {
		t.Fatal("acknowledged on another loop's turn")
	}
	r.settle()
	got := kinds(b.take(), "puback")
	if len(got) != 5 || wrote != 1 {
		t.Fatalf("loop 1: %v, %d writes", got, wrote)
	}
	for i, p := range got {
		if p.id != uint16(i+1) {
			t.Fatalf("out of order: %v", got)
		}
	}
}

// A failed write refuses the batch and everything that was appended behind it; the offsets are given again.
func TestAFailedWriteRefusesEverythingBehindIt(t *testing.T) {
	r := newRig(t, oneStream, 2)
	s := r.connect(1, ConnectRequest{ClientID: "s"})
	s.subscribe(1, "t")
	a, b := r.connect(0, ConnectRequest{ClientID: "a"}), r.connect(1, ConnectRequest{ClientID: "b"})
	for _, c := range []*tconn{s, a, b} {
		c.take()
	}
	a.pub("t", "before", 1, 9)
	r.settle()
	r.fs.Add(vfstest.Fault{Op: vfstest.OpWrite, Pattern: "*.log", Err: errInjected, Short: 40, Count: 1, Hook: func() {
		b.pub("t", "behind", 1, 2) // while the write is under way
	}})
	a.pub("t", "fails", 1, 1)
	r.settle()
	for name, c := range map[string]*tconn{"the batch": a, "behind it": b} {
		got := kinds(c.take(), "puback")
		if last := got[len(got)-1]; last.code != CodeQuotaExceeded {
			t.Errorf("%s: %v", name, got)
		}
	}
	b.pub("t", "after", 1, 3)
	r.settle()
	wantPayloads(t, r, r.part("t"), "before", "after")
	wantTexts(t, s.take(), "before", "after")
	if n := r.b.Stats.RefusedWrite.Load(); n != 2 {
		t.Fatalf("%d refusals counted", n)
	}
}

// A Synced stream commits, delivers and acknowledges when fdatasync has returned; a failing one delays all of it.
func TestSyncedStreamsWaitForTheSync(t *testing.T) {
	r := newRig(t, twoKinds, 2)
	s := r.connect(1, persistent("s"))
	s.subscribe(1, "#")
	a := r.connect(0, ConnectRequest{ClientID: "a"})
	s.take()
	a.take()
	steps := func() {
		for r.step(0) || r.step(1) || r.readJob() {
		}
	}
	a.pub("s/1", "safe", 1, 1)
	a.pub("t", "written", 1, 2)
	steps()
	if got := kinds(a.take(), "puback"); len(got) != 0 {
		t.Fatalf("acknowledged before the sync: %v", got)
	}
	wantTexts(t, s.take(), "written")
	p := r.part("s/1")
	if p.Committed() != 0 || p.Log.Next() != 1 {
		t.Fatalf("committed %d, written %d", p.Committed(), p.Log.Next())
	}
	r.fs.Add(vfstest.Fault{Op: vfstest.OpSync, Err: errInjected})
	r.fs.Add(vfstest.Fault{Op: vfstest.OpCreate, Err: errInjected})
	r.sync()
	steps()
	if got := a.take(); len(got) != 0 {
		t.Fatalf("acknowledged after a failed sync: %v", got)
	}
	r.fs.Clear()
	r.sync()
	steps()
	if got := kinds(a.take(), "puback"); len(got) != 2 || got[0].id != 1 || got[1].id != 2 {
		t.Fatalf("answers: %v", got)
	}
	wantTexts(t, s.take(), "safe")
}

// A committer that others keep busy gives way to its own clients.
func TestACommitterIsNotKeptForEver(t *testing.T) {
	r := newRig(t, oneStream, 2)
	a, b := r.connect(0, ConnectRequest{ClientID: "a"}), r.connect(1, ConnectRequest{ClientID: "b"})
	writes := 0
	r.fs.Add(vfstest.Fault{Op: vfstest.OpWrite, Pattern: "*.log", Hook: func() {
		if writes++; writes < 1000 {
			b.pub("t", "more", 1, 1)
		}
	}})
	a.pub("t", "one", 1, 1)
	r.step(0)
	if writes > commitPasses {
		t.Fatalf("%d writes in one round", writes)
	}
	r.settle()
	if n := len(r.payloads(r.part("t"))); n != 1000 {
		t.Fatalf("%d records, want 1000", n)
	}
}

// When the metadata cannot be written, nothing leaves that may rest on them: the connections end instead.
func TestMetadataFailure(t *testing.T) {
	r := newRig(t, oneStream, 1)
	s := r.connect(0, persistent("s"))
	s.take()
	r.meta.around = func(before bool) error { return errInjected }
	s.subscribe(1, "t")
	r.settle()
	got := s.take()
	if len(got) != 1 || got[0].kind != "disconnect" || !s.gone {
		t.Fatalf("left: %v, closed %v", got, s.gone)
	}
	r.meta.around = nil
	s = r.connect(0, persistent("s"))
	if !s.present {
		t.Fatal("the session is gone")
	}
}

// Timestamps of a partition never decrease: not between batches, not after a refusal, not over a restart.
func TestTimestampsNeverDecrease(t *testing.T) {
	r := newRig(t, oneStream, 1)
	put := func(ms int64) {
		r.b.PublishDirect(&message.Message{Topic: []byte("t"), QoS: 1, TimeMs: ms}, nil)
		r.settle()
	}
	put(5000)
	put(4000)
	put(3000)
	r.failWrites(1)
	put(9000)
	put(2000)
	r.kill()
	put(1000)
	put(1500)
	var last int64
	for _, m := range r.records(r.part("t")) {
		if m.TimeMs < last {
			t.Fatalf("%d after %d", m.TimeMs, last)
		}
		last = m.TimeMs
	}
}

// A partition takes a bounded number of bytes that are not committed.
func TestInboundIsBounded(t *testing.T) {
	r := newRig(t, twoKinds, 1)
	r.b.o.Limits.InboundBytes = 1000
	a := r.connect(0, ConnectRequest{ClientID: "a"})
	big := string(make([]byte, 600))
	if a.pub("s/1", big, 1, 1) != CodeOK || a.pub("s/1", big, 1, 2) != CodeOK {
		t.Fatal("refused below the limit")
	}
	if code := a.pub("s/1", big, 1, 3); code != CodeQuotaExceeded {
		t.Fatalf("taken beyond the limit: %#x", code)
	}
	for r.step(0) { // written, not synced: it still counts
	}
	if code := a.pub("s/1", big, 1, 4); code != CodeQuotaExceeded {
		t.Fatalf("taken while the sync is under way: %#x", code)
	}
	r.settle()
	if code := a.pub("s/1", big, 1, 5); code != CodeOK {
		t.Fatalf("refused after the commit: %#x", code)
	}
}

// PublishDirect answers once, whoever commits.
func TestPublishDirect(t *testing.T) {
	r := newRig(t, oneStream, 1)
	var got []string
	done := func(p *stream.Partition, offset int64, code byte) {
		name := "none"
		if p != nil {
			name = p.Name
		}
		got = append(got, fmt.Sprintf("%s@%d %#x", name, offset, code))
	}
	a := r.connect(0, ConnectRequest{ClientID: "a"})
	a.pub("t", "open", 1, 1)
	r.b.PublishDirect(&message.Message{Topic: []byte("t"), QoS: 1}, done)
	r.b.PublishDirect(&message.Message{Topic: []byte("$nobody"), QoS: 1}, done)
	r.failWrites(1)
	r.b.PublishDirect(&message.Message{Topic: []byte("t"), QoS: 1}, done)
	want := []string{"main/0-0@1 0x0", "none@0 0x87", "main/0-0@2 0x97"}
	if !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	r.settle()
	if p := kinds(a.take(), "puback"); len(p) != 1 {
		t.Fatalf("the client's publish was committed along: %v", p)
	}
}

// A mailbox that was large keeps its memory under load, also when single rounds have little in them, and gives it back
// when the load is over.
func TestMailKeepsItsMemoryWhileItIsUsed(t *testing.T) {
	m := mail{buf: make([]byte, 2<<20)}
	for i := range 1000 {
		if m.empty(); cap(m.buf) == 0 {
			t.Fatalf("given up in round %d of a heavy load", i)
		}
		if m.buf = m.buf[:10]; i%(mailIdleMax/2) == 0 {
			m.buf = m.buf[:1<<20]
		}
	}
	for range mailIdleMax {
		m.buf = append(m.buf, 1)
		m.empty()
	}
	if cap(m.buf) > mailBytesKept {
		t.Fatalf("%d bytes are kept after %d rounds with next to nothing", cap(m.buf), mailIdleMax)
	}
}
