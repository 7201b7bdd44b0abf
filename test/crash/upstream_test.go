package crash

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing/synctest"
	"time"

	"edgehub/hub/message"
	hubstream "edgehub/hub/stream"
	"edgehub/storage/datadir"
	"edgehub/storage/meta"
	"edgehub/storage/seglog"
	"edgehub/sync/uplink"
)

// upstream is the uplink of a minihub: all of its streams to one remote.
type upstream struct {
	r      *uplink.Replicator
	cancel context.CancelFunc
	done   chan struct{}
	wake   chan<- struct{} // set while somebody wants to know of syncs
}

// startUplink lets an uplink run in the background of the test's bubble.
func (h *minihub) startUplink(to *remote) error {
	u := &upstream{done: make(chan struct{})}
	r, err := uplink.New(uplink.Options{Name: "up", Hub: "edge", Instance: h.dir.Instance(), Source: uplinkSource{h, u}, Cursors: cursors{h.meta}, Sink: to,
		Create: true, Hold: true, Window: uplink.Window{Messages: 64, Bytes: 1 << 20}, Jitter: func() float64 { return 0.5 },
		Timing: uplink.Timing{BackoffMin: 10 * time.Millisecond, BackoffMax: time.Second, AckTimeout: 3 * time.Second}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	u.r, u.cancel = r, cancel
	go func() {
		defer close(u.done)
		_ = r.Run(ctx) // its errors are its status
	}()
	h.up = u
	synctest.Wait()
	return nil
}

// notify tells the uplink that more is synced.
func (u *upstream) notify() {
	if u != nil && u.wake != nil {
		select {
		case u.wake <- struct{}{}:
		default:
		}
	}
}

func (u *upstream) stop() {
	if u != nil {
		u.cancel()
		<-u.done
	}
}

// uplinkSource gives a minihub's logs to its uplink.
type uplinkSource struct {
	h *minihub
	u *upstream
}

// uplinked are the partitions that are forwarded.
func (h *minihub) uplinked() []*hubstream.Partition {
	return slices.DeleteFunc(slices.Clone(h.set.Partitions), func(p *hubstream.Partition) bool { return p.Stream.Name[0] == '$' })
}

func (s uplinkSource) Partitions() []uplink.Partition {
	var out []uplink.Partition
	for _, p := range s.h.uplinked() {
		out = append(out, p.Log)
	}
	return out
}

func (s uplinkSource) Notify(ch chan<- struct{}) func() {
	s.u.wake = ch
	return func() { s.u.wake = nil }
}

func (s uplinkSource) EpochAt(p string, offset int64) uint32 { return s.h.dir.EpochAt(p, offset) }

func (s uplinkSource) EpochStarts(p string) []uplink.EpochStart {
	var out []uplink.EpochStart
	for _, e := range s.h.dir.EpochStarts(p) {
		out = append(out, uplink.EpochStart(e))
	}
	return out
}

var _ = uplink.EpochStart(datadir.EpochStart{}) // the two are one

// cursors keeps the uplink's positions as the hub does.
type cursors struct{ m *meta.Store }

func cursorKey(up, part string) []byte { return []byte("u/" + up + "\x00" + part) }

func (c cursors) Load(up, part string) (int64, bool, error) {
	v, ok, err := c.m.Get(cursorKey(up, part))
	if err != nil || !ok || len(v) != 8 {
		return 0, false, err
	}
	return int64(binary.BigEndian.Uint64(v)), true, nil
}

func (c cursors) Save(up, part string, offset int64) error {
	c.m.Put(cursorKey(up, part), binary.BigEndian.AppendUint64(nil, uint64(offset)))
	return nil
}

func (c cursors) LoadState(up string) ([]byte, error) {
	v, _, err := c.m.Get([]byte("us/" + up))
	return v, err
}

func (c cursors) SaveState(up string, state []byte) error {
	c.m.Put([]byte("us/"+up), state)
	return c.m.Commit()
}

// drain lets everything arrive at the remote.
func (h *minihub) drain(to *remote, rng *rand.Rand) error {
	quiet, had := 0, -1
	for range 2000 {
		to.step(rng, 200)
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
		// Not by its lag: offsets of which a power cut has left nothing but the number are never sent.
		if st := h.up.r.Status(); st.State != uplink.Stream || st.InFlight > 0 || to.inFlight() > 0 || len(to.stored) != had {
			quiet, had = 0, len(to.stored)
		} else if quiet++; quiet == 20 {
			return nil
		}
	}
	return fmt.Errorf("the uplink does not come to rest: %+v", h.up.r.Status())
}

// forward starts an uplink to a remote that was there before, lets it drain, and says what is wrong with the remote
// then: it has every record of the log, once, in order, in its epoch, and none that the log does not have. What
// retention took before it was sent is named as lost, unless an earlier run had got beyond it (told).
func (h *minihub) forward(to *remote, told map[string]int64, rng *rand.Rand) error {
	had, err := to.last(h.dir.Instance())
	if err != nil {
		return err
	}
	for _, p := range h.uplinked() {
		// A power cut that took the uplink's own memory of a partition makes it new to the uplink, and what went before
		// it no loss of this one's.
		if _, known, err := (cursors{h.meta}).Load("up", p.Name); err != nil {
			return err
		} else if !known {
			had[p.Name] = max(had[p.Name], p.Log.First())
		}
		had[p.Name] = max(had[p.Name], told[p.Name])
	}
	if err := h.startUplink(to); err != nil {
		return err
	}
	if err := h.drain(to, rng); err != nil {
		return err
	}
	missing, err := h.compareRemote(to, had)
	if err != nil {
		return err
	}
	st := h.up.r.Status()
	for name, n := range missing {
		if st.Losses[name].Retention < n {
			return fmt.Errorf("%s: %d records were gone before they were sent, and not all are named: %+v", name, n, st)
		}
	}
	return nil
}

// compareRemote also returns how many records had gone from the log, by partition, before this run could send them.
func (h *minihub) compareRemote(to *remote, had map[string]int64) (missing map[string]int64, err error) {
	all, err := to.byPartition(h.dir.Instance())
	if err != nil {
		return nil, err
	}
	missing = map[string]int64{}
	for _, p := range h.uplinked() {
		below, err := h.comparePartition(p, all[p.Name])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name, err)
		}
		if n := p.Log.First() - max(below, had[p.Name]); n > 0 {
			missing[p.Name] = n
		}
	}
	return missing, nil
}

// comparePartition returns the offset behind the last record that the remote has from before the log begins.
func (h *minihub) comparePartition(p *hubstream.Partition, list []forwarded) (below int64, err error) {
	log, err := h.records(p)
	if err != nil {
		return 0, err
	}
	prev := int64(-1)
	for _, x := range list {
		switch text, there := log[x.offset]; {
		case x.offset <= prev:
			return 0, fmt.Errorf("the remote has %d behind %d", x.offset, prev)
		case x.epoch != h.dir.EpochAt(p.Name, x.offset):
			return 0, fmt.Errorf("the remote has %d in epoch %d, the log in %d", x.offset, x.epoch, h.dir.EpochAt(p.Name, x.offset))
		case x.offset < p.Log.First():
			below = x.offset + 1
		case !there:
			return 0, fmt.Errorf("the remote has %d, the log does not", x.offset)
		case text != x.payload:
			return 0, fmt.Errorf("%d is %.40q at the remote and %.40q in the log", x.offset, x.payload, text)
		}
		prev = x.offset
		delete(log, x.offset)
	}
	for offset := range log {
		return 0, fmt.Errorf("the remote lacks %d (and %d more)", offset, len(log)-1)
	}
	return below, nil
}

// holed reports that retention has taken records that the remote does not have.
func (h *minihub) holed(to *remote) bool {
	had, err := to.last(h.dir.Instance())
	return err != nil || slices.ContainsFunc(h.uplinked(), func(p *hubstream.Partition) bool { return p.Log.First() > had[p.Name] })
}

// records returns the content of a partition by offset.
func (h *minihub) records(p *hubstream.Partition) (map[int64]string, error) {
	got := map[int64]string{}
	var chunk []byte
	for at := p.Log.First(); at < p.Log.Next(); {
		var err error
		if chunk, err = p.Log.Read(at, 1<<20, chunk[:0]); err != nil {
			return nil, err
		}
		if len(chunk) == 0 {
			break
		}
		for r := range seglog.Records(chunk) {
			var m message.Message
			if err := m.Decode(r); err != nil {
				return nil, err
			}
			if r.Offset >= at {
				got[r.Offset] = string(m.Topic) + " " + string(m.Payload)
				at = r.Offset + 1
			}
		}
	}
	return got, nil
}
