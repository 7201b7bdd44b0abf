package server

import (
	"runtime"
	"runtime/debug"
	"testing"
)

func TestMemoryIsGivenBackWhenQuiet(t *testing.T) {
	const MiB = 1 << 20
	for _, c := range []struct {
		name string
		st   settler
		use  memoryUse
		want bool
	}{
		{"busy", settler{allocated: 100 * MiB}, memoryUse{allocated: 200 * MiB, resident: 60 * MiB}, false},
		{"quiet after a burst", settler{allocated: 200 * MiB}, memoryUse{allocated: 200 * MiB, resident: 60 * MiB}, true},
		{"quiet for long", settler{allocated: 200 * MiB, settled: 200 * MiB}, memoryUse{allocated: 200 * MiB, resident: 60 * MiB}, false},
		{"quiet after little", settler{allocated: 200 * MiB, settled: 193 * MiB}, memoryUse{allocated: 200 * MiB, resident: 10 * MiB}, false},
		{"quiet after little beside what is held", settler{allocated: 200 * MiB, settled: 180 * MiB}, memoryUse{allocated: 200 * MiB, resident: 60 * MiB}, false},
		{"another burst", settler{allocated: 200 * MiB, settled: 165 * MiB}, memoryUse{allocated: 200 * MiB, resident: 60 * MiB}, true},
	} {
		if got := c.st.due(c.use); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// The figures mean what the decision takes them for.
func TestLookAtMemory(t *testing.T) {
	const size = 64 << 20
	debug.FreeOSMemory()
	before := lookAtMemory()
	b := make([]byte, size)
	for i := range b {
		b[i] = 1
	}
	used := lookAtMemory()
	if used.allocated-before.allocated < size || used.resident-before.resident < size/2 {
		t.Errorf("64 MiB more in use: %+v, then %+v", before, used)
	}
	runtime.KeepAlive(b)
	b = nil
	var st settler
	st.allocated, st.settled = used.allocated, before.allocated
	if !st.due(lookAtMemory()) {
		t.Errorf("64 MiB of garbage are not worth it: %+v", lookAtMemory())
	}
	debug.FreeOSMemory()
	if after := lookAtMemory(); used.resident-after.resident < size/2 || st.due(after) {
		t.Errorf("64 MiB freed: %+v, then %+v", used, after)
	}
}
