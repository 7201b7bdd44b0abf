package topic

import (
	"runtime"
	"testing"
)

func heapBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A hundred thousand subscriptions and as many retained names stay within what their entries need.
func TestMemoryPerEntry(t *testing.T) {
	const n = 100_000
	before := heapBytes()
	var exact, wild Tree[uint32, uint64]
	for i := range n {
		exact.Set("devices/"+itoa(i)+"/telemetry", uint32(i), 0)
	}
	afterExact := heapBytes()
	for i := range n {
		wild.Set("devices/"+itoa(i)+"/#", uint32(i), 0)
	}
	afterWild := heapBytes()
	var names Names[[2]int64]
	for i := range n {
		names.Set("devices/"+itoa(i)+"/telemetry", [2]int64{})
	}
	afterNames := heapBytes()
	for _, c := range []struct {
		what string
		got  uint64
		max  uint64
	}{
		{"exact filter", (afterExact - before) / n, 200},
		{"wildcard filter", (afterWild - afterExact) / n, 300},
		{"name", (afterNames - afterWild) / n, 200},
	} {
		t.Logf("%d bytes per %s", c.got, c.what)
		if c.got > c.max {
			t.Errorf("%d bytes per %s, want at most %d", c.got, c.what, c.max)
		}
	}
	runtime.KeepAlive(&exact)
	runtime.KeepAlive(&wild)
	runtime.KeepAlive(&names)
}
