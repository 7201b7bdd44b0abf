package stream

import (
	"sync"
	"time"
)

// summarizeEvery is how often sealed segments are looked for that have no summary of their topics yet.
const summarizeEvery = 2 * time.Second

// summarizeBytes bounds what one look reads for it, more or less a segment: older segments whose summary is lost, or that
// are from before there were any, get theirs bit by bit, without the disk being busy with it.
const summarizeBytes = 16 << 20

// summarizer makes the topic summaries of sealed segments that have none: off every path that others wait for, one at a
// time, those sealed since the start while what they hold is likely still in memory.
type summarizer struct {
	set  *Set
	at   []int64 // by partition id: the base below which segments have one, or never will
	turn int     // the partition that comes next
	done chan struct{}
	wg   sync.WaitGroup
}

func newSummarizer(s *Set) *summarizer {
	z := &summarizer{set: s, done: make(chan struct{})}
	for _, p := range s.Partitions {
		z.at = append(z.at, p.Log.First())
	}
	return z
}

func (z *summarizer) start() {
	z.wg.Add(1)
	go z.run()
}

func (z *summarizer) stop() {
	select {
	case <-z.done:
	default:
		close(z.done)
	}
	z.wg.Wait()
}

func (z *summarizer) run() {
	defer z.wg.Done()
	t := time.NewTicker(summarizeEvery)
	defer t.Stop()
	for {
		select {
		case <-z.done:
			return
		case <-t.C:
			z.pass(summarizeBytes)
		}
	}
}

// pass makes summaries, the partitions in turn, until it has read about maxBytes.
func (z *summarizer) pass(maxBytes int64) {
	parts := z.set.Partitions
	for range parts {
		if maxBytes <= 0 {
			return
		}
		i := z.turn
		z.turn = (z.turn + 1) % len(parts)
		p, from := parts[i], z.at[i]
		if !p.Stream.Configured || p.Log.ActiveBase() == from {
			continue
		}
		at, err := p.Log.Summarize(from, maxBytes)
		if err != nil {
			z.set.o.Logger.Warn("a segment could not be summarized; readers will read it whole", "partition", p.Name, "err", err)
			at = p.Log.ActiveBase()
		}
		maxBytes -= p.Log.BytesFrom(from) - p.Log.BytesFrom(at)
		z.at[i] = at
	}
}

// Summarize makes the summaries that are missing now.
func (s *Set) Summarize() { s.summaries.pass(1 << 62) }
