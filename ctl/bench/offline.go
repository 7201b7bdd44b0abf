package bench

import (
	"context"
	"fmt"
	"time"
)

// sessionKept is how long the brokers are asked to keep the sessions of mode offline: the run's limit is below it.
const sessionKept = 48 * time.Hour

func (r *run) offlineOpen(i int) *Open {
	o := r.openOf("off", i)
	o.Fresh, o.ExpiryS = false, uint32(sessionKept/time.Second)
	return o
}

// offline makes sessions, publishes while nobody is there, and lets the sessions take everything.
func (r *run) offline(ctx context.Context) (*Result, error) {
	before := r.target.now()
	r.plan()
	r.setPhase("connecting")
	defer r.watch()()
	defer r.forget()
	if err := r.makeSessions(ctx); err != nil {
		return nil, err
	}
	if err := r.connectPublishers(ctx); err != nil {
		return nil, err
	}
	from, stalled := r.flow(ctx)
	queued := r.sums()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("the limit of %v was reached while messages were being queued; raise --limit", r.load.Limit)
	}
	r.setPhase("draining")
	drain := r.sums()
	r.ending.Store(false)
	err := each(ctx, len(r.subs), func(i int) error { return r.subs[i].open(ctx, r.offlineOpen(i), true) })
	if err != nil {
		return nil, err
	}
	readers := r.startReaders()
	end := r.awaitDeliveries(ctx, &stalled)
	r.stopReaders(readers)
	res := r.result(from, end, stalled)
	res.Offline = r.phases(from, queued, drain, end, before)
	if res.Target != nil {
		res.Target.RSSBeforeBytes, res.Target.RSSPeakBytes = before.rss, r.target.peakRSS()
	}
	// How old the messages were says how long they lay, not how fast the broker is; nor is a rate over both phases one.
	res.Delivery, res.PublishedPerS, res.ReceivedPerS = nil, res.Offline.QueuedPerS, res.Offline.DrainedPerS
	return res, ctxError(ctx, res)
}

// makeSessions subscribes and goes away.
func (r *run) makeSessions(ctx context.Context) error {
	return each(ctx, len(r.subs), func(i int) error {
		s := r.subs[i]
		if err := s.open(ctx, r.offlineOpen(i), false); err != nil {
			return err
		}
		s.c.goodbye()
		s.c = nil
		return nil
	})
}

// phases splits a run into queueing and draining.
func (r *run) phases(from, queued, drain, end sums, before usage) *OfflineResult {
	queue, took := time.Duration(r.publishedNs.Load()-from.at), time.Duration(max(end.lastDone-drain.at, 0))
	o := &OfflineResult{QueueS: round(queue.Seconds(), 3), QueuedPerS: perSecond(queued.sent-from.sent, queue), DrainS: round(took.Seconds(), 3),
		DrainedPerS: perSecond(end.fresh-drain.fresh, took)}
	first := int64(0)
	for _, s := range r.subs {
		if at := s.firstNs.Load(); at > 0 && (first == 0 || at < first) {
			first = at
		}
	}
	o.FirstMessageAfterMs = ms(float64(max(first-drain.at, 0)))
	if r.target.pid != 0 {
		o.RSSQueuedBytes, o.RSSGrowthPeakBytes = queued.usage.rss, r.target.peakRSS()-before.rss
		o.QueueCPUUsPerMsg = cost(r.target.pid, 0, from.usage, queued.usage, queue, queued.sent-from.sent).CPUUsPerMessage
		o.DrainCPUUsPerMsg = cost(r.target.pid, 0, drain.usage, end.usage, took, end.fresh-drain.fresh).CPUUsPerMessage
	}
	return o
}

// forget ends the sessions: a broker would keep what is left of them.
func (r *run) forget() {
	r.goodbyes()
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	_ = each(ctx, len(r.subs), func(i int) error { // best effort: the result is known
		c, _, err := dial(ctx, r.load, r.openOf("off", i), bufferMin)
		if err == nil {
			c.goodbye()
		}
		return err
	})
}
