package uplink

import "time"

// graceSamples bounds the history of one partition; the resolution is the grace
// time divided by it.
const graceSamples = 32

// grace remembers what was acknowledged when, to keep acknowledged records for
// a while: a remote may acknowledge before it syncs, lose power and come back
// with less.
type grace struct {
	keep    time.Duration
	floor   int64 // everything below it was acknowledged more than keep ago
	samples []graceSample
}

type graceSample struct {
	at    time.Time
	acked int64
}

// note records the cursor at a time. A cursor that moved back (the remote has
// less than it acknowledged) takes the history with it.
func (g *grace) note(now time.Time, acked int64) {
	if acked < g.floor {
		g.floor = acked
	}
	for len(g.samples) > 0 && g.samples[len(g.samples)-1].acked > acked {
		g.samples = g.samples[:len(g.samples)-1]
	}
	g.expire(now)
	if n := len(g.samples); n > 0 {
		last := &g.samples[n-1]
		if last.acked == acked || (n > 1 && last.at.Sub(g.samples[n-2].at) < g.keep/graceSamples) {
			// Fold it into the newest sample. Its time becomes the later one: kept
			// longer than asked, never shorter.
			if last.acked != acked {
				last.at, last.acked = now, acked
			}
			return
		}
	} else if acked == g.floor {
		return
	}
	if len(g.samples) == graceSamples+2 {
		g.samples = append(g.samples[:0], g.samples[1:]...)
	}
	g.samples = append(g.samples, graceSample{now, acked})
}

func (g *grace) expire(now time.Time) {
	n := 0
	for n < len(g.samples) && now.Sub(g.samples[n].at) >= g.keep {
		g.floor = g.samples[n].acked
		n++
	}
	g.samples = append(g.samples[:0], g.samples[n:]...)
}

// at returns the offset that retention may remove up to.
func (g *grace) at(now time.Time) int64 {
	g.expire(now)
	return g.floor
}
