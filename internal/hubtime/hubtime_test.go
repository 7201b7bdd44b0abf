package hubtime

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestClockContinuesFromTheFloor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		floor := time.Now().Add(24 * time.Hour).UnixMilli()
		c := New(floor)
		if got := c.NowMs(); got != floor {
			t.Fatalf("NowMs at start = %d, want the floor %d", got, floor)
		}
		time.Sleep(1500 * time.Millisecond)
		if got := c.NowMs() - floor; got != 1500 {
			t.Fatalf("hub time moved by %d ms in 1500 ms", got)
		}
		if c.Coarse() != floor {
			t.Fatalf("Coarse moved without a tick")
		}
		if c.Tick() != floor+1500 || c.Coarse() != floor+1500 {
			t.Fatalf("Tick did not move Coarse to now")
		}
	})
}

func TestClockStartsAtWallTimeWhenTheFloorIsOlder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		want := time.Now().UnixMilli()
		if got := New(1).NowMs(); got != want {
			t.Fatalf("NowMs = %d, want %d", got, want)
		}
	})
}

func TestRaiseNeverGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(0)
		start := c.NowMs()
		c.Raise(start - 1000)
		if c.NowMs() != start {
			t.Fatal("an older floor moved the clock")
		}
		c.Raise(start + 5000)
		if c.NowMs() != start+5000 || c.Coarse() != start+5000 {
			t.Fatalf("hub time is %d ms after the floor", c.NowMs()-start-5000)
		}
	})
}

func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		floor := time.Now().Add(time.Hour).UnixMilli()/1000*1000 + 130
		c := New(floor)
		for _, want := range []time.Duration{120, 250, 250} {
			d := c.Until(250 * time.Millisecond)
			if d != want*time.Millisecond {
				t.Fatalf("%v at %d", d, c.NowMs())
			}
			time.Sleep(d)
			if c.NowMs()%250 != 0 {
				t.Fatalf("woken at %d", c.NowMs())
			}
		}
		if d := c.Until(100 * time.Millisecond); d != 50*time.Millisecond && d != 100*time.Millisecond {
			t.Fatalf("%v to the next tenth at %d", d, c.NowMs())
		}
	})
}
