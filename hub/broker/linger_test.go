package broker

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"edgehub/hub/stream"
	"edgehub/internal/vfs/vfstest"
	"edgehub/storage/seglog"
)

// lingering is one partition whose timer never fires in a test: it is written when the test says so.
func lingering(d stream.Durability) []stream.Spec {
	return []stream.Spec{
		{Name: "main", Filters: []string{"#"}, Partitions: 1, SegmentBytes: 1 << 20, Durability: d, Linger: time.Hour, Codec: seglog.CodecZstd},
		{Name: RetainedStream, Partitions: 1, SegmentBytes: 1 << 20},
	}
}

func countUp(from, to int) (list []string) {
	for i := from; i < to; i++ {
		list = append(list, fmt.Sprint(i))
	}
	return list
}

func (cn *tconn) pubs(from, to int) {
	for i := from; i < to; i++ {
		cn.pub("t", fmt.Sprint(i), 1, uint16(i+1))
	}
}

// With durability memory a message is delivered and acknowledged before it is written; a kill takes what was not.
func TestMemoryIsAcknowledgedBeforeTheWrite(t *testing.T) {
	r := newRig(t, lingering(stream.Memory), 2)
	s := r.connect(1, ConnectRequest{ClientID: "s"})
	s.subscribe(1, "#")
	a := r.connect(0, ConnectRequest{ClientID: "a"})
	r.settle()
	s.take()
	a.take()
	p := r.part("t")
	for round := range 3 { // the same batch, handed out bit by bit
		a.pubs(10*round, 10*round+10)
		r.settle()
		if got := kinds(a.take(), "puback"); len(got) != 10 || got[0].id != uint16(10*round+1) || got[9].code != CodeOK {
			t.Fatalf("round %d: %v", round, got)
		}
		wantTexts(t, s.take(), countUp(10*round, 10*round+10)...)
		if p.Log.Next() != 0 || p.Committed() != int64(10*round+10) {
			t.Fatalf("written %d, committed %d", p.Log.Next(), p.Committed())
		}
	}
	r.b.commitDue(p)
	if got := r.payloads(p); strings.Join(got, " ") != strings.Join(countUp(0, 30), " ") {
		t.Fatal(got)
	}
	if p.bytes != 0 || r.b.Stats.In.Load() != 30 || r.b.Stats.InBytes.Load() != int64(30+10+2*20) {
		t.Errorf("%d bytes held, %d messages, %d bytes", p.bytes, r.b.Stats.In.Load(), r.b.Stats.InBytes.Load())
	}
	a.pubs(30, 40)
	r.settle()
	r.kill()
	if p = r.part("t"); p.Log.Next() != 30 {
		t.Errorf("%d records after the kill", p.Log.Next())
	}
}

// A batch with a retained message is written before anything of it is handed out: the retained index points into the log.
func TestMemoryWritesRetainedFirst(t *testing.T) {
	r := newRig(t, lingering(stream.Memory), 1)
	a := r.connect(0, ConnectRequest{ClientID: "a"})
	a.pubs(0, 2)
	r.settle()
	a.publish(pkt{topic: "state", payload: "on", qos: 1, id: 9, retain: true})
	r.settle()
	if p := r.part("t"); p.Log.Next() != 3 || len(kinds(a.take(), "puback")) != 3 {
		t.Fatal(p.Log.Next())
	}
	r.kill()
	s := r.connect(0, ConnectRequest{ClientID: "s"})
	s.subscribe(1, "state")
	r.settle()
	wantTexts(t, s.take(), "on")
}

// A session that reads from the log gets what is committed and not written, by having it written.
func TestMemoryIsWrittenForReaders(t *testing.T) {
	r := newRig(t, lingering(stream.Memory), 2)
	s := r.connect(1, persistent("s"))
	s.subscribe(1, "#")
	r.settle()
	s.drop()
	a := r.connect(0, ConnectRequest{ClientID: "a"})
	a.pubs(0, 20)
	r.settle()
	if p := r.part("t"); p.Log.Next() != 0 {
		t.Fatal(p.Log.Next())
	}
	s = r.connect(1, persistent("s"))
	if got := texts(s.answerAll()); strings.Join(got, " ") != strings.Join(countUp(0, 20), " ") {
		t.Fatal(got)
	}
	// In flight when the connection goes: sent again, though not written when it comes back.
	a.pubs(20, 23)
	r.settle()
	s.take()
	s.drop()
	r.settle()
	s = r.connect(1, persistent("s"))
	r.settle()
	if got := texts(s.take()); strings.Join(got, " ") != "20 21 22" {
		t.Fatal(got)
	}
}

// A write behind that fails is tried again in order; what waits is bounded, and then refused.
func TestMemoryWriteFails(t *testing.T) {
	r := newRig(t, lingering(stream.Memory), 1)
	r.b.o.Limits.InboundBytes = 200
	a := r.connect(0, ConnectRequest{ClientID: "a"})
	a.take()
	p := r.part("t")
	r.fs.Add(vfstest.Fault{Op: vfstest.OpWrite, Pattern: "*.log", Err: syscall.ENOSPC})
	a.pubs(0, 10)
	r.settle()
	r.b.commitDue(p) // fails: the batch is stuck
	a.pubs(10, 20)
	r.settle()
	r.b.commitDue(p) // fails again
	if n, busy := p.behind(); n != 20 || busy || p.stuck == nil || r.b.Stats.WriteBehindFailed.Load() != 2 {
		t.Fatal(n, busy, r.b.Stats.WriteBehindFailed.Load())
	}
	for i := 20; i < 300; i++ {
		if code := a.pub("t", fmt.Sprint(i), 1, uint16(i+1)); code != CodeOK {
			if code != CodeQuotaExceeded || i > 120 {
				t.Fatal(i, code)
			}
			break
		}
	}
	r.settle()
	taken := int(p.Committed())
	if got := kinds(a.take(), "puback"); len(got) < taken || taken >= 300 {
		t.Fatal(len(got), taken)
	}
	r.fs.Clear()
	r.b.commitDue(p)
	if got := r.payloads(p); strings.Join(got, " ") != strings.Join(countUp(0, taken), " ") {
		t.Fatalf("%d, then %v", taken, got)
	}
	if n, _ := p.behind(); n != 0 || p.bytes != 0 {
		t.Error(n, p.bytes)
	}
}

// A stop writes what lingers, or says what is lost.
func TestStopWritesWhatLingers(t *testing.T) {
	for _, fail := range []bool{false, true} {
		r := newRig(t, lingering(stream.Memory), 1)
		a := r.connect(0, ConnectRequest{ClientID: "a"})
		a.pubs(0, 5)
		r.settle()
		if fail {
			r.fs.Add(vfstest.Fault{Op: vfstest.OpWrite, Pattern: "*.log", Err: syscall.ENOSPC})
		}
		r.b.flushBehind()
		if lost, next := r.b.Stats.LostBehind.Load(), r.part("t").Log.Next(); fail && (lost != 5 || next != 0) || !fail && (lost != 0 || next != 5) {
			t.Error(fail, lost, next)
		}
	}
}

// A Written stream that lingers acknowledges after the write, which waits for time or for a full batch.
func TestWrittenLingers(t *testing.T) {
	r := newRig(t, lingering(stream.Written), 2)
	s := r.connect(1, ConnectRequest{ClientID: "s"})
	s.subscribe(1, "#")
	a := r.connect(0, ConnectRequest{ClientID: "a"})
	r.settle()
	s.take()
	a.take()
	p := r.part("t")
	a.pubs(0, 10)
	r.settle()
	if got := append(s.take(), a.take()...); len(got) != 0 || p.Log.Next() != 0 {
		t.Fatalf("before the write: %v", got)
	}
	r.b.commitDue(p)
	r.settle()
	if got := kinds(a.take(), "puback"); len(got) != 10 || p.Log.Next() != 10 {
		t.Fatal(got, p.Log.Next())
	}
	wantTexts(t, s.take(), countUp(0, 10)...)
	big := strings.Repeat("x", lingerBytes/4)
	for i := range 4 {
		a.pub("t", big, 0, uint16(i))
	}
	r.settle()
	if p.Log.Next() != 14 {
		t.Error("a full batch waits", p.Log.Next())
	}
	if p.Log.Bytes() > lingerBytes/4 {
		t.Error("not compressed:", p.Log.Bytes())
	}
}

// The timer writes by itself.
func TestLingerEnds(t *testing.T) {
	specs := lingering(stream.Memory)
	specs[0].Linger = time.Millisecond
	r := newRig(t, specs, 1)
	a := r.connect(0, ConnectRequest{ClientID: "a"})
	a.pubs(0, 3)
	r.step(0)
	p := r.part("t")
	for deadline := time.Now().Add(10 * time.Second); p.Log.Next() < 3; {
		if time.Now().After(deadline) {
			t.Fatal("not written")
		}
		<-time.After(time.Millisecond)
	}
}

// While the disk is low, what has to be kept is refused, QoS 0 goes by policy, and both are counted.
func TestDiskLow(t *testing.T) {
	for _, write := range []bool{false, true} {
		r := newRig(t, oneStream, 1)
		low := true
		r.b.o.DiskLow = func() bool { return low }
		r.b.o.Limits.QoS0WhenLow = write
		a := r.connect(0, ConnectRequest{ClientID: "a"})
		for i, c := range []struct {
			qos  byte
			want byte
		}{{0, map[bool]byte{false: CodeQuotaExceeded, true: CodeOK}[write]}, {1, CodeQuotaExceeded}, {2, CodeQuotaExceeded}} {
			if code := a.pub("t", "x", c.qos, uint16(i+1)); code != c.want {
				t.Errorf("QoS %d, write %v: %#x", c.qos, write, code)
			}
		}
		if s := &r.b.Stats; s.RefusedDisk.Load() != 2 || s.DroppedDisk.Load() != map[bool]int64{false: 1, true: 0}[write] {
			t.Error(s.RefusedDisk.Load(), s.DroppedDisk.Load())
		}
		low = false
		if code := a.pub("t", "x", 1, 9); code != CodeOK {
			t.Error(code)
		}
	}
}
