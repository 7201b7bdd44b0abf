package crash

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"edgehub/sync/uplink"
)

// remote is a stream on a server that survives the hub's crashes, checked as JetStream checks it: the sequence expected,
// then the id of the newest record. What is sent is on the wire until somebody delivers it, also when the hub that sent
// it is long dead. It remembers no duplicates, so that nothing but the hub keeps them out.
type remote struct {
	mu      sync.Mutex
	exists  bool
	created time.Time
	stored  []stored
	wires   []*wire
	late    int // records that arrived after the hub that sent them had gone
}

// stored is a record that the remote has; its sequence is its place, from 1.
type stored struct {
	id, positions, payload string
	digest                 uplink.Digest
}

// wire is a connection and what is on its way.
type wire struct {
	r     *remote
	seen  uplink.Remote
	ready chan struct{}

	// Guarded by r.mu.
	queue  []sending
	acks   []uplink.Ack
	closed bool
}

type sending struct {
	stored
	token   uint64
	prev    string
	lastSeq uint64
}

// after returns the remote as a hub finds it that starts after a crash now: no connection to it is left, and what was on
// its wire may still arrive.
func (r *remote) after() *remote {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := &remote{exists: r.exists, created: r.created, stored: slices.Clone(r.stored)}
	for _, w := range r.wires {
		if len(w.queue) > 0 && !w.closed {
			c.wires = append(c.wires, &wire{r: c, queue: slices.Clone(w.queue), closed: true, ready: make(chan struct{}, 1)})
		}
	}
	return c
}

// reset has what closed connections had on the wire never arrive.
func (r *remote) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wires = slices.DeleteFunc(r.wires, func(w *wire) bool { return w.closed })
}

// inFlight is how many records are on the wires.
func (r *remote) inFlight() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, w := range r.wires {
		n += len(w.queue)
	}
	return n
}

// step delivers up to n records, of the connections at random, in bursts.
func (r *remote) step(rng *rand.Rand, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n > 0 {
		busy := slices.DeleteFunc(slices.Clone(r.wires), func(w *wire) bool { return len(w.queue) == 0 })
		if len(busy) == 0 {
			r.wires = slices.DeleteFunc(r.wires, func(w *wire) bool { return w.closed })
			return
		}
		w := busy[rng.IntN(len(busy))]
		for k := 1 + rng.IntN(8); k > 0 && n > 0 && len(w.queue) > 0; k-- {
			w.deliver()
			n--
		}
	}
}

// deliver stores the oldest record on the wire, or refuses it.
func (w *wire) deliver() {
	x, r := w.queue[0], w.r
	w.queue = w.queue[1:]
	a := uplink.Ack{Token: x.token}
	last := ""
	if n := len(r.stored); n > 0 {
		last = r.stored[n-1].id
	}
	switch {
	case !r.exists:
		a.Err = errors.New("no stream")
	case x.lastSeq != uint64(len(r.stored)):
		a.Err = fmt.Errorf("wrong last sequence: %d", len(r.stored))
	case x.prev != "" && x.prev != last:
		a.Err = fmt.Errorf("wrong last msg ID: %s", last)
	default:
		if r.stored = append(r.stored, x.stored); w.closed {
			r.late++
		}
		a.Seq = uint64(len(r.stored))
	}
	w.acks = append(w.acks, a)
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

// Connect implements uplink.Sink.
func (r *remote) Connect(context.Context) (uplink.Session, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := &wire{r: r, seen: r.describe(), ready: make(chan struct{}, 1)}
	r.wires = append(r.wires, w)
	return w, nil
}

func (r *remote) describe() uplink.Remote {
	n := uint64(len(r.stored))
	return uplink.Remote{Name: "EDGE", Exists: r.exists, Created: r.created, Messages: n, First: 1, Last: n}
}

func (w *wire) Remote() uplink.Remote  { return w.seen }
func (w *wire) Ready() <-chan struct{} { return w.ready }

func (w *wire) Create(context.Context) error {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	w.r.exists, w.r.created = true, time.Now()
	w.seen = w.r.describe()
	return nil
}

func (w *wire) Stored(_ context.Context, from, to uint64) ([]uplink.Stored, error) {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	var out []uplink.Stored
	for q := from; q <= to; q++ {
		s := uplink.Stored{Seq: q}
		if q >= 1 && q <= uint64(len(w.r.stored)) {
			x := &w.r.stored[q-1]
			s.Found, s.ID, s.Positions, s.Digest = true, x.id, x.positions, x.digest
		}
		out = append(out, s)
	}
	return out, nil
}

func (w *wire) Publish(o *uplink.Out) (int, error) {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	m := o.Message
	w.queue = append(w.queue, sending{token: o.Token, prev: string(o.Prev), lastSeq: o.LastSeq, stored: stored{id: string(o.ID),
		positions: string(o.Positions), payload: string(m.Topic) + " " + string(m.Payload), digest: uplink.DigestOf(m.TimeMs, m.Topic, m.Payload)}})
	return len(m.Payload), nil
}

func (w *wire) Acks(dst []uplink.Ack) ([]uplink.Ack, error) {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	dst = append(dst, w.acks...)
	w.acks = w.acks[:0]
	return dst, nil
}

// Close ends the connection as a hub does that lives on: with a reset. That what is given up arrives even so is tested
// where the uplink is simulated, in sync/uplink.
func (w *wire) Close() {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	w.closed, w.queue = true, nil
}

// forwarded is one record of a partition at the remote.
type forwarded struct {
	offset  int64
	epoch   uint32
	payload string
}

// byPartition returns what the remote has of an instance, in its order; an error when the id of something is not one.
func (r *remote) byPartition(instance string) (map[string][]forwarded, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string][]forwarded{}
	for _, x := range r.stored {
		f := strings.Split(x.id, "/") // instance, stream, partition-lane, epoch, offset
		if len(f) != 5 || f[0] != instance {
			return nil, fmt.Errorf("id %q at the remote of %s", x.id, instance)
		}
		epoch, err1 := strconv.ParseUint(f[3], 10, 32)
		offset, err2 := strconv.ParseInt(f[4], 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		name := f[1] + "/" + f[2]
		out[name] = append(out[name], forwarded{offset, uint32(epoch), x.payload})
	}
	return out, nil
}

// last returns the offset behind the newest record of each partition.
func (r *remote) last(instance string) (map[string]int64, error) {
	all, err := r.byPartition(instance)
	out := map[string]int64{}
	for name, list := range maps.All(all) {
		out[name] = list[len(list)-1].offset + 1
	}
	return out, err
}
