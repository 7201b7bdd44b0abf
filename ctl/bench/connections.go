package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// link is one connection of the modes storm and idle: as little as a process can have for it.
type link interface {
	// alive reports whether the peer has closed it, without waiting; what it has sent is thrown away.
	alive() bool
	// write sends a few bytes.
	write(b []byte) error
	// close ends it. politely waits for the peer to close first, so that no port is blocked on this side.
	close(politely bool)
}

// links is the connections of a run.
type links struct {
	run     *run
	open    opener
	delays  recorders
	all     []link // by number; nil: failed or closed
	ok      atomic.Int64
	failed  atomic.Int64
	mu      sync.Mutex
	firstly string // the first error; guarded by mu
}

// opener makes a link: number i, with everything up to the broker's consent.
type opener func(i int, hello []byte) (link, error)

func (r *run) connections(ctx context.Context) (*Result, error) {
	l := r.load
	if per := l.Connections / l.Sources; l.Mode == Idle && per > portsPerPeer {
		return nil, fmt.Errorf("%d connections from %d source addresses are more than the %d ports that each has; give --sources %d or more",
			l.Connections, l.Sources, portsPerPeer, l.Connections/portsPerPeer+1)
	}
	open, err := newOpener(l)
	if err != nil {
		return nil, err
	}
	defer r.watch()()
	k := &links{run: r, open: open, delays: newRecorders(l.Window), all: make([]link, l.Connections)}
	defer k.closeAll()
	before := r.sums()
	r.setPhase("connecting")
	k.connect(ctx)
	connected := r.sums()
	res := &Result{Mode: l.Mode, Label: l.Label, Broker: l.Address, Protocol: l.Protocol(), Window: l.Window, RatePerS: l.RatePerS}
	c := &ConnectionResult{Asked: l.Connections, Connected: int(k.ok.Load()), Failed: int(k.failed.Load()), FirstError: k.firstly, Connect: k.delays.summary()}
	took := time.Duration(connected.at - before.at)
	res.MeasuredS, c.ConnectedPerS = round(took.Seconds(), 3), perSecond(k.ok.Load(), took)
	res.LoadCPUS = round((connected.self - before.self).Seconds(), 2)
	res.Connections, res.Target = c, cost(l.PID, before.usage.rss, before.usage, connected.usage, took, k.ok.Load())
	if l.Mode == Idle && c.Connected > 0 && ctx.Err() == nil {
		k.hold(ctx, c, before)
	}
	if res.Target != nil {
		c.CPUUsPerOne = res.Target.CPUUsPerMessage
		res.Target.RSSPeakBytes = r.target.peakRSS()
	}
	r.note("%s", res.Target.note())
	res.Notes = r.notes
	if c.Connected == 0 && ctx.Err() == nil {
		return nil, fmt.Errorf("none of %d connections was made: %s", l.Connections, c.FirstError)
	}
	return res, ctxError(ctx, res)
}

// connect makes all connections, Window at a time or at the rate.
func (k *links) connect(ctx context.Context) {
	l := k.run.load
	var next atomic.Int64
	var wg sync.WaitGroup
	s := schedule{k.run.now(), l.RatePerS}
	for w := range min(l.Window, l.Connections) {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= l.Connections || ctx.Err() != nil {
					return
				}
				at := k.run.now()
				if l.RatePerS > 0 {
					at = s.due(int64(i))
					if !sleep(ctx, time.Duration(at-k.run.now())) {
						return
					}
				}
				k.one(i, at, k.delays.of(w))
			}
		})
	}
	wg.Wait()
}

// sleep reports false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// one makes one connection, meant for that time, and in a storm ends it again.
func (k *links) one(i int, at int64, delays *recorder) {
	o := k.run.openOf("conn", i)
	o.KeepAliveS = uint16(k.run.load.KeepAlive / time.Second)
	x, err := k.open(i, k.run.load.codec().AppendOpen(nil, o))
	if err != nil {
		k.failed.Add(1)
		k.mu.Lock()
		if k.firstly == "" {
			k.firstly = connectError(k.run.load, err).Error()
		}
		k.mu.Unlock()
		return
	}
	delays.add(k.run.now() - at)
	k.ok.Add(1)
	if k.run.load.Mode == Storm {
		if err := x.write(k.run.load.codec().AppendClose(nil)); err == nil {
			x.close(true)
			return
		}
		x.close(false)
		return
	}
	k.all[i] = x
	k.run.connected.Add(1)
}

// hold keeps the connections, with pings before the keep-alive runs out, and looks what the broker does meanwhile.
func (k *links) hold(ctx context.Context, c *ConnectionResult, before sums) {
	l := k.run.load
	k.run.setPhase("holding")
	from := k.run.sums()
	pings := time.NewTicker(max(l.KeepAlive/2/time.Duration(len(k.all)), time.Nanosecond))
	defer pings.Stop()
	end := time.NewTimer(l.Hold)
	defer end.Stop()
	ping := l.codec().AppendPing(nil)
	pinged, start := int64(0), time.Now()
	for waiting := true; waiting; {
		select {
		case <-ctx.Done():
			waiting = false
		case <-end.C:
			waiting = false
		case <-pings.C:
			// Each connection once in half a keep-alive; the ticker may have left out some of them.
			for due := int64(time.Since(start) * time.Duration(len(k.all)) / (l.KeepAlive / 2)); pinged < due; pinged++ {
				if x := k.all[pinged%int64(len(k.all))]; x != nil {
					_ = x.write(ping) // whether it is alive is asked at the end
					x.alive()         // takes the answer of the last ping
				}
			}
		}
	}
	to := k.run.sums()
	held := time.Duration(to.at - from.at)
	c.HeldS = round(held.Seconds(), 1)
	for _, x := range k.all {
		if x != nil && x.alive() {
			c.AliveAfterHold++
		}
	}
	if l.PID != 0 && c.Connected > 0 {
		c.RSSPerOne = round(float64(to.usage.rss-before.usage.rss)/float64(c.Connected), 0)
		c.IdleCPUPercent = round(100*(to.usage.cpu-from.usage.cpu).Seconds()/held.Seconds(), 2)
	}
}

func (k *links) closeAll() {
	for _, x := range k.all {
		if x != nil {
			x.close(false)
		}
	}
}
