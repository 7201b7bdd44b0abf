package server

import (
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// Memory that a burst needed (thousands of devices that connect at once, a backlog that is drained) would stay with the
// process for as long as nothing else happens: the collector runs when something is allocated, and what it has freed it
// keeps for the next burst. A gateway has other programs. So once the hub has become quiet, it collects, and gives what
// is free back to the system. While it is busy this never happens.

const (
	memoryEvery = 2 * time.Second
	// quietAllocs is how much a quiet hub allocates in memoryEvery: keep-alive and its own topics, nothing else.
	quietAllocs = 2 << 20
	// settleAllocs is how much must have been allocated since the last time.
	settleAllocs = 8 << 20
)

// memoryUse is what one look at the heap says, in bytes.
type memoryUse struct {
	allocated int64 // since the start, freed or not
	resident  int64 // objects, garbage, and free room that the system has not got back
}

func lookAtMemory() memoryUse {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"}, {Name: "/memory/classes/heap/free:bytes"}}
	metrics.Read(s)
	return memoryUse{allocated: int64(s[0].Value.Uint64()),
		resident: int64(s[1].Value.Uint64() + s[2].Value.Uint64() + s[3].Value.Uint64())}
}

// settler decides when memory is given back.
type settler struct {
	allocated int64 // at the last look
	settled   int64 // allocated when memory was given back last
}

// due reports whether memory is to be given back now: the hub was quiet since the last look, and has allocated half as
// much as it holds since the last time. How much of that is garbage only a collection can tell; at this rate it costs no
// more than those that the hub's own allocations bring about.
func (s *settler) due(m memoryUse) bool {
	quiet := m.allocated-s.allocated < quietAllocs
	s.allocated = m.allocated
	if !quiet || m.allocated-s.settled < max(settleAllocs, m.resident/2) {
		return false
	}
	s.settled = m.allocated
	return true
}

// watchMemory gives memory back when the hub is quiet, until stop is closed.
func (s *Server) watchMemory(stop <-chan struct{}) {
	t := time.NewTicker(memoryEvery)
	defer t.Stop()
	var st settler
	for {
		select {
		case <-stop:
			return
		case <-t.C:
		}
		if st.due(lookAtMemory()) {
			debug.FreeOSMemory()
		}
	}
}
