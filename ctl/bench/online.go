package bench

import (
	"context"
	"sync"
	"time"
)

// pollEvery is how often the end of a run is looked for. The times of a result come from the messages, not from it.
const pollEvery = 2 * time.Millisecond

// online runs the modes in which subscribers are connected all the time.
func (r *run) online(ctx context.Context) (*Result, error) {
	before := r.target.now()
	r.plan()
	r.setPhase("connecting")
	defer r.watch()()
	defer r.goodbyes()
	if err := r.connectSubscribers(ctx); err != nil {
		return nil, err
	}
	if err := r.connectPublishers(ctx); err != nil {
		return nil, err
	}
	readers := r.startReaders()
	from, stalled := r.flow(ctx)
	end := r.awaitDeliveries(ctx, &stalled)
	r.stopReaders(readers)
	res := r.result(from, end, stalled)
	if res.Target != nil {
		res.Target.RSSBeforeBytes, res.Target.RSSPeakBytes = before.rss, r.target.peakRSS()
	}
	return res, ctxError(ctx, res)
}

// ctxError tells an interruption from the limit: the limit gives a result, marked as stalled.
func ctxError(ctx context.Context, res *Result) error {
	if ctx.Err() == context.Canceled {
		return ctx.Err()
	}
	if ctx.Err() != nil {
		res.Stalled = true
		res.Notes = append(res.Notes, "the limit of the run was reached; --limit raises it")
	}
	return nil
}

func (r *run) startReaders() *sync.WaitGroup {
	var wg sync.WaitGroup
	for _, s := range r.subs {
		wg.Go(s.read)
	}
	return &wg
}

func (r *run) stopReaders(wg *sync.WaitGroup) {
	r.ending.Store(true)
	for _, s := range r.subs {
		s.close()
	}
	wg.Wait()
}

// flow warms up and publishes. It returns the counters at the beginning of the measured part.
func (r *run) flow(ctx context.Context) (from sums, stalled bool) {
	stop := make(chan struct{})
	halt := sync.OnceFunc(func() { close(stop) })
	done := make(chan struct{})
	r.setPhase("warm-up")
	from = r.sums() // without a warm-up
	r.begin()
	go func() {
		r.publish(stop)
		close(done)
	}()
	warm := time.NewTimer(r.load.WarmUp)
	defer warm.Stop()
	tick := time.NewTicker(r.load.Settle / 10)
	defer tick.Stop()
	last, lastChange := sums{}, time.Now()
	for {
		select {
		case <-warm.C:
			if r.load.WarmUp > 0 {
				from = r.sums()
			}
			r.setPhase("measuring")
		case <-done:
			r.publishedNs.Store(r.now())
			return from, stalled
		case <-ctx.Done():
			stalled = true
			halt()
			<-done
			r.publishedNs.Store(r.now())
			return from, stalled
		case <-tick.C:
			now := r.sums()
			if now.sent != last.sent || now.acked != last.acked || now.received != last.received {
				last, lastChange = now, time.Now()
			} else if time.Since(lastChange) > r.load.Settle && r.owes(now) {
				stalled = true
				halt()
			}
		}
	}
}

// owes tells a stall from a slow rate: something is on its way and does not arrive.
func (r *run) owes(s sums) bool { return r.load.RatePerS == 0 || s.sent > s.acked && r.load.QoS > 0 }

// awaitDeliveries waits until everything sent has arrived or nothing comes any more, and returns the counters when the
// last message came.
func (r *run) awaitDeliveries(ctx context.Context, stalled *bool) sums {
	r.setPhase("last messages")
	want := r.expected()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	last, lastChange := r.sums(), time.Now()
	for last.fresh < want {
		select {
		case <-ctx.Done():
			return last
		case <-tick.C:
		}
		if r.countOnly() != last.received {
			last, lastChange = r.sums(), time.Now()
		} else if time.Since(lastChange) > r.load.Settle {
			*stalled = true
			break
		}
	}
	return last
}

func (r *run) countOnly() (n int64) {
	for _, x := range r.subs {
		n += x.received.Load()
	}
	return n
}

func (r *run) goodbyes() {
	var all []*conn
	for _, p := range r.pubs {
		if p.c != nil {
			all = append(all, p.c)
		}
	}
	for _, s := range r.subs {
		if s.c != nil {
			all = append(all, s.c)
		}
	}
	_ = each(context.Background(), len(all), func(i int) error { all[i].goodbye(); return nil })
}

// result sums up. Nothing moves any more.
func (r *run) result(from, end sums, stalled bool) *Result {
	l := r.load
	res := &Result{Mode: l.Mode, Label: l.Label, Broker: l.Address, Protocol: l.Protocol(), Publishers: l.Publishers, Subscribers: l.Subscribers,
		Topics: l.Topics, QoS: l.QoS, SubQoS: l.SubQoS, SizeBytes: l.SizeBytes, Window: l.Window, RatePerS: l.RatePerS, Stalled: stalled}
	res.Published, res.Acked, res.Expected = end.sent, end.acked, r.expected()
	for _, s := range r.subs {
		res.Received += s.tally.fresh
		res.Duplicated += s.tally.duplicated
		res.Disordered += s.tally.disordered
		res.Foreign += s.tally.foreign
	}
	res.Lost = r.lost()
	last := end.lastDone
	if !stalled || last == 0 {
		last = max(last, r.publishedNs.Load())
	}
	took := time.Duration(max(last-from.at, 0))
	res.MeasuredS = round(took.Seconds(), 3)
	published, received := end.sent-from.sent, end.fresh-from.fresh
	res.PublishedPerS, res.ReceivedPerS = perSecond(published, took), perSecond(received, took)
	res.Delivery, res.Ack, res.SendDelay = r.delays.summary(), r.acks.summary(), r.late.summary()
	res.Target = cost(l.PID, 0, from.usage, end.usage, took, max(published, received))
	res.LoadCPUS = round((end.self - from.self).Seconds(), 2)
	r.note("%s", res.Target.note())
	for _, s := range r.subs {
		if s.err != nil {
			r.note("a subscriber ended early: %v", s.err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	res.Refused, res.Notes = r.refused, r.notes
	return res
}

func (r *run) lost() (n int64) {
	for _, g := range r.groups {
		n += lost(flows{0, 1, len(g.logs)}, g.logs, r.sentOf)
	}
	for _, s := range r.subs {
		n += lost(s.tally.flows, s.tally.logs, r.sentOf)
	}
	return n
}
