package hubtime

import (
	"testing"
	"testing/synctest"
	"time"
)

const year = 365 * 24 * time.Hour

// machine is one whose clocks the test sets. The wall clock is the bubble's, so it is the hub's past that moves.
type machine struct {
	boot   string
	since  int64
	synced bool
}

func (m *machine) system(trust bool) System {
	return System{BootID: m.boot, SinceBoot: func() int64 { return m.since }, Synced: func() bool { return m.synced }, Trust: trust}
}

// A clock that steps by a year either way while the hub is down moves hub time only when the kernel vouches for it, and
// never back.
func TestContinue(t *testing.T) {
	const day = int64(24 * time.Hour / time.Millisecond)
	for name, tt := range map[string]struct {
		apart  time.Duration // how far the machine's clock is ahead of the last hub time
		boot   string
		synced bool
		trust  bool
		want   time.Duration // hub time after the start, less the last one
	}{
		"the same boot, right clock":                {apart: time.Hour, boot: "one", want: time.Hour},
		"the same boot, stepped ahead":              {apart: year, boot: "one", want: time.Hour},
		"the same boot, stepped back":               {apart: -year, boot: "one", want: time.Hour},
		"the same boot, synchronised":               {apart: 2 * time.Hour, boot: "one", synced: true, want: 2 * time.Hour},
		"another boot, a year ahead":                {apart: year, boot: "two", want: 0},
		"another boot, a year behind":               {apart: -year, boot: "two", want: 0},
		"another boot, a year ahead, synchronised":  {apart: year, boot: "two", synced: true, want: year},
		"another boot, a year behind, synchronised": {apart: -year, boot: "two", synced: true, want: 0},
		"another boot, an hour ahead, trusted":      {apart: time.Hour, boot: "two", trust: true, want: time.Hour},
		"a boot that is not known, an hour ahead":   {apart: time.Hour, boot: "", want: 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				last := Mark{HubMs: time.Now().Add(-tt.apart).UnixMilli(), BootMs: day, Boot: "one"}
				m := &machine{boot: tt.boot, since: day + time.Hour.Milliseconds(), synced: tt.synced}
				c := Continue(last, m.system(tt.trust))
				if got := c.NowMs() - last.HubMs; got != tt.want.Milliseconds() {
					t.Fatalf("hub time went on by %v, want %v", time.Duration(got)*time.Millisecond, tt.want)
				}
				if c.Coarse() != c.NowMs() {
					t.Fatal("Coarse is something else")
				}
			})
		})
	}
}

// Without a mark there is nothing but the machine's clock.
func TestContinueFromNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		want := time.Now().UnixMilli()
		if got := Continue(Mark{}, (&machine{boot: "one"}).system(false)).NowMs(); got != want {
			t.Fatalf("hub time %d, want %d", got, want)
		}
	})
}

// Hub time follows the machine's clock once that is synchronised and ahead, and counts the time of a suspension.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		last := Mark{HubMs: time.Now().Add(-year).UnixMilli(), Boot: "one"}
		m := &machine{boot: "two", since: 5000}
		c := Continue(last, m.system(false))
		pass := func(d time.Duration) {
			time.Sleep(d)
			m.since += d.Milliseconds()
		}
		for range 10 {
			pass(time.Second)
			if by := c.Follow(); by != 0 {
				t.Fatalf("it went forward by %v, and nothing has happened", by)
			}
		}
		m.since += time.Hour.Milliseconds() // suspended
		if by := c.Follow(); by != time.Hour {
			t.Fatalf("after an hour of suspension it went forward by %v", by)
		}
		if by := c.Follow(); by != 0 {
			t.Fatalf("and again by %v", by)
		}
		m.synced = true
		c.Follow()
		if behind := c.Behind(); behind != 0 {
			t.Fatalf("hub time is %v behind a synchronised clock", behind)
		}
		c.Raise(c.NowMs() + 5000)
		if by := c.Follow(); by != 0 || c.Behind() != -5*time.Second {
			t.Fatalf("it was ahead and moved by %v, now behind by %v", by, c.Behind())
		}
	})
}

func TestMarkBytes(t *testing.T) {
	for _, m := range []Mark{{}, {HubMs: 1}, {HubMs: 1 << 42, BootMs: 77, Boot: "e3b0c442-98fc"}} {
		if got, ok := ParseMark(m.Bytes()); !ok || got != m {
			t.Errorf("%+v came back as %+v, %v", m, got, ok)
		}
	}
	for _, b := range [][]byte{nil, make([]byte, 7), make([]byte, 9), make([]byte, 16)} {
		if m, ok := ParseMark(b); ok {
			t.Errorf("% x is %+v", b, m)
		}
	}
}

// The machine that the test runs on answers.
func TestMachine(t *testing.T) {
	sys := Machine(false)
	first := Continue(Mark{HubMs: 1_000_000}, sys)
	if sys.BootID == "" {
		t.Skip("this system has no id for its boots")
	}
	m := first.Mark()
	if m.Boot != sys.BootID || m.BootMs <= 0 {
		t.Fatalf("%+v", m)
	}
	if again := Continue(m, Machine(false)); again.NowMs() < m.HubMs {
		t.Fatalf("hub time went back from %d to %d", m.HubMs, again.NowMs())
	}
}
