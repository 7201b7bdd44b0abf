package bench

import (
	"sync"
	"time"
)

// Progress is told about each second; memory is looked at more often, for its peak.
const (
	progressEvery = time.Second
	sampleEvery   = 100 * time.Millisecond
)

// watch tells progress until the returned function is called.
func (r *run) watch() (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(sampleEvery)
		defer tick.Stop()
		last := r.sums()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			r.target.now()
			if r.progress == nil || r.now()-last.at < int64(progressEvery) {
				continue
			}
			now := r.sums()
			r.progress(r.between(last, now))
			last = now
		}
	})
	return func() {
		close(done)
		wg.Wait()
	}
}

func (r *run) between(last, now sums) Progress {
	d := time.Duration(now.at - last.at)
	p := Progress{ElapsedS: time.Duration(now.at).Seconds(), Sent: now.sent, Received: now.received, SentPerS: perSecond(now.sent-last.sent, d),
		ReceivedPerS: perSecond(now.received-last.received, d), Connected: r.connected.Load(), CPUPercent: -1, RSSBytes: now.usage.rss}
	if phase := r.phase.Load(); phase != nil {
		p.Phase = *phase
	}
	if r.target.pid != 0 {
		p.CPUPercent = round(100*(now.usage.cpu-last.usage.cpu).Seconds()/d.Seconds(), 1)
	}
	return p
}
