package bench

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestScheduleByIsTheInverseOfDue(t *testing.T) {
	for _, perS := range []float64{0.5, 1, 3, 7.7, 1000, 9999, 123456.7, 1e7} {
		s := schedule{startNs: 1_000_003, perS: perS}
		if n := s.by(s.startNs - 1); n != 0 {
			t.Errorf("%v/s: %d due before the start", perS, n)
		}
		for _, k := range []int64{0, 1, 2, 10, 999, 1_000_000, 1_000_000_000} {
			at := s.due(k)
			if n := s.by(at); n < k+1 || n > k+1+int64(perS/1e9) {
				t.Errorf("%v/s: at the time of message %d, %d are due", perS, k, n)
			}
			if n := s.by(at - 1); n > k {
				t.Errorf("%v/s: before the time of message %d, %d are due", perS, k, n)
			}
		}
	}
}

// fakePayer sends unless it is blocked, and notes what it sent when.
type fakePayer struct {
	now     func() int64
	blocked func(now int64) bool
	most    int64 // messages it will ever send; 0: no end
	sent    int64
	due, at []int64
}

func (f *fakePayer) pay(owed int64, due func(int64) int64) (int64, bool) {
	now := f.now()
	for f.sent < owed && (f.blocked == nil || !f.blocked(now)) && (f.most == 0 || f.sent < f.most) {
		f.due, f.at = append(f.due, due(f.sent)), append(f.at, now)
		f.sent++
	}
	return f.sent, f.most > 0 && f.sent == f.most
}

// paceFor runs a pacer on the bubble's clock.
func paceFor(end time.Duration, perS float64, payers ...*fakePayer) *pacer {
	base := time.Now()
	now := func() int64 { return int64(time.Since(base)) }
	p := &pacer{schedule: schedule{0, perS}, endNs: func() int64 { return int64(end) }, now: now, pause: time.Sleep}
	for _, x := range payers {
		x.now = now
		p.turns = append(p.turns, turn{payer: x})
	}
	p.loop(nil)
	return p
}

func TestPacerSendsEveryMessageAtItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, c := &fakePayer{}, &fakePayer{}, &fakePayer{}
		paceFor(10*time.Second, 100, a, b, c)
		if a.sent+b.sent+c.sent != 1000 || a.sent != 334 || b.sent != 333 || c.sent != 333 {
			t.Fatalf("sent %d, %d and %d of 1000", a.sent, b.sent, c.sent)
		}
		for id, x := range []*fakePayer{a, b, c} {
			for n := range x.due {
				if want := int64(id+3*n) * int64(10*time.Millisecond); x.due[n] != want || x.at[n] != want {
					t.Fatalf("publisher %d, message %d: due %d, sent at %d, want %d", id, n, x.due[n], x.at[n], want)
				}
			}
		}
	})
}

// A broker that stands still shows in every message that was due meanwhile, not in one only.
func TestPacerKeepsDueTimesWhileBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, to := int64(2*time.Second), int64(4*time.Second)
		slow := &fakePayer{blocked: func(now int64) bool { return now >= from && now < to }}
		free := &fakePayer{}
		paceFor(10*time.Second, 200, slow, free)
		if slow.sent != 1000 || free.sent != 1000 {
			t.Fatalf("sent %d and %d of 1000 each", slow.sent, free.sent)
		}
		late := 0
		for n := range slow.due {
			if slow.due[n] != int64(n)*int64(10*time.Millisecond) {
				t.Fatalf("message %d is due at %d", n, slow.due[n])
			}
			if wait := slow.at[n] - slow.due[n]; wait > 0 {
				late++
				if slow.due[n] < from || slow.due[n] >= to || wait > to-slow.due[n]+int64(retryPause) {
					t.Fatalf("message %d was due at %d and sent %d later", n, slow.due[n], wait)
				}
			}
		}
		if late != 200 {
			t.Errorf("%d messages were late, want the 200 of two seconds", late)
		}
		for n := range free.due {
			if free.at[n]-free.due[n] > int64(retryPause) {
				t.Fatalf("one publisher's block made message %d of the other %d late", n, free.at[n]-free.due[n])
			}
		}
	})
}

func TestPacerEndsWhenEverythingIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		a, b := &fakePayer{most: 5}, &fakePayer{most: 3}
		paceFor(time.Hour, 10, a, b)
		if a.sent != 5 || b.sent != 3 {
			t.Errorf("sent %d and %d", a.sent, b.sent)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

func TestPacerStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &fakePayer{blocked: func(int64) bool { return true }}
		stop := make(chan struct{})
		base := time.Now()
		x.now = func() int64 { return int64(time.Since(base)) }
		p := &pacer{schedule: schedule{0, 10}, endNs: func() int64 { return int64(time.Second) }, now: x.now, pause: time.Sleep, turns: []turn{{payer: x}}}
		done := make(chan struct{})
		go func() { p.loop(stop); close(done) }()
		time.Sleep(5 * time.Second)
		select {
		case <-done:
			t.Fatal("it gave up what is owed")
		default:
		}
		close(stop)
		<-done
	})
}
