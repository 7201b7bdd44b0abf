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
