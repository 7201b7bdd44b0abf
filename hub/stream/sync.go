package stream

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// followEvery bounds how far the synced offset of a partition that an uplink reads is behind: an uplink sends only
	// what is synced.
	followEvery = 20 * time.Millisecond
	// lazyEvery is how often a partition of a Written stream that nobody waits for is synced: the most that a power cut
	// takes from it.
	lazyEvery = time.Second
)

// syncer is the group fdatasync: one goroutine syncs whatever was asked for since its last pass. While one pass runs,
// the next one gathers, so that under load each fdatasync serves many commits. It sleeps when nothing is unsynced.
type syncer struct {
	set      *Set
	wake     chan struct{} // a sync was asked for
	armed    chan struct{} // something is unsynced
	arm      atomic.Bool   // armed was sent and not yet seen
	done     chan struct{}
	wg       sync.WaitGroup
	onSynced func(p *Partition, synced int64)
	failed   map[*Partition]bool // said already; owned by the goroutine
}

func newSyncer(s *Set) *syncer {
	return &syncer{set: s, wake: make(chan struct{}, 1), armed: make(chan struct{}, 1), done: make(chan struct{}),
		failed: map[*Partition]bool{}}
}

func (y *syncer) start(onSynced func(*Partition, int64)) {
	y.onSynced = onSynced
	y.wg.Add(1)
	go y.run()
}

func (y *syncer) stop() {
	select {
	case <-y.done:
	default:
		close(y.done)
	}
	y.wg.Wait()
}

// RequestSync asks for p to be synced now; the outcome comes through onSynced. Never blocks.
func (s *Set) RequestSync(p *Partition) {
	if !p.syncing.Swap(true) {
		poke(s.sync.wake)
	}
}

// Follow keeps the synced offset of p close to its end from now on: an uplink reads it.
func (s *Set) Follow(p *Partition) {
	p.follow.Store(true)
	s.sync.noteUnsynced()
}

// noteUnsynced has the syncer look around within followEvery.
func (y *syncer) noteUnsynced() {
	if !y.arm.Swap(true) {
		poke(y.armed)
	}
}

func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

func (y *syncer) run() {
	defer y.wg.Done()
	t := time.NewTimer(0)
	defer t.Stop()
	ticking := true
	var lazy time.Time // when everything was last synced
	for {
		select {
		case <-y.done:
			return
		case <-y.wake:
			for _, p := range y.set.Partitions {
				if p.syncing.Load() {
					y.sync(p)
				}
			}
		case <-y.armed:
			if !ticking {
				ticking = true
				t.Reset(followEvery)
			}
		case now := <-t.C:
			ticking = false
			y.arm.Store(false) // an append from here on arms anew
			all := now.Sub(lazy) >= lazyEvery
			if all {
				lazy = now
			}
			if wait := y.pass(all); wait > 0 {
				ticking = true
				t.Reset(wait)
			}
		}
	}
}

// pass syncs what is due and returns when to come again, 0 when nothing is left.
func (y *syncer) pass(all bool) (wait time.Duration) {
	for _, p := range y.set.Partitions {
		if p.Log.Synced() >= p.Log.Next() {
			continue
		}
		if all || p.follow.Load() || p.Stream.Durability == Synced {
			y.sync(p)
		}
		if p.Log.Synced() < p.Log.Next() {
			if wait == 0 || p.follow.Load() {
				wait = lazyEvery
				if p.follow.Load() {
					wait = followEvery
				}
			}
		}
	}
	return wait
}

// sync syncs p if anything is unsynced. The request flag is cleared first: an append during the fdatasync asks again.
// A request is answered in any case: a sync that ran between the append and the request has covered it, and whoever
// appended was not ready to be told then.
func (y *syncer) sync(p *Partition) {
	asked := p.syncing.Swap(false)
	before := p.Log.Synced()
	if before >= p.Log.Next() {
		if asked {
			y.onSynced(p, before)
		}
		return
	}
	unsynced := p.unsynced.Load()
	op := y.set.Slow.Begin(SlowSync, p.Name, time.Now())
	synced, err := p.Log.Sync()
	y.set.Slow.End(op)
	if err != nil {
		if !y.failed[p] {
			y.failed[p] = true
			y.set.o.Logger.Error("sync failed; nothing in doubt is acknowledged", "partition", p.Name, "err", err)
		}
		return
	}
	p.unsynced.Add(-unsynced)
	if y.failed[p] {
		delete(y.failed, p)
		y.set.o.Logger.Info("sync works again", "partition", p.Name)
	}
	if synced > before {
		y.onSynced(p, synced)
	}
}
