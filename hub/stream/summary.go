package stream

import (
	"sync"
	"time"
)

// summarizeEvery is how often sealed segments are looked for that have no summary of their topics yet.
const summarizeEvery = 2 * time.Second

// summarizer makes the topic summaries of segments that were sealed since the start: off every path that others wait
// for, one at a time, while what they hold is likely still in memory. Older segments have theirs, or do without.
type summarizer struct {
	set  *Set
	at   []int64 // by partition id: the base from which segments have none
	done chan struct{}
	wg   sync.WaitGroup
}

func newSummarizer(s *Set) *summarizer {
	z := &summarizer{set: s, done: make(chan struct{})}
	for _, p := range s.Partitions {
		z.at = append(z.at, p.Log.ActiveBase())
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
			z.pass()
		}
	}
}

func (z *summarizer) pass() {
	for i, p := range z.set.Partitions {
		if !p.Stream.Configured || p.Log.ActiveBase() == z.at[i] {
			continue
		}
		at, err := p.Log.Summarize(z.at[i])
		if err != nil {
			z.set.o.Logger.Warn("a segment could not be summarized; readers will read it whole", "partition", p.Name, "err", err)
			at = p.Log.ActiveBase()
		}
		z.at[i] = at
	}
}

// Summarize makes the summaries that are missing now.
func (s *Set) Summarize() { s.summaries.pass() }
