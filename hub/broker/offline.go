package broker

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sort"
	"sync"

	"edgehub/hub/message"
	"edgehub/hub/session"
	"edgehub/hub/stream"
	"edgehub/storage/seglog"
)

// OfflineStream is the internal stream that messages are copied to which sessions still have to receive when their
// segment is deleted.
const OfflineStream = "$offline"

// Copies for sessions that are behind.
//
// A session's inbox is a position in each partition, and the log above it. When retention deletes a segment, the
// messages in it that some session has still to receive move: they are appended to the internal stream, each with the
// place where it was, and an index says which stretch of a partition's past is where. Everything else goes on naming
// them by that place: positions, messages in flight, what was completed at QoS 2. So a reader that finds its position
// below the log reads the copies up to the log's first offset and then the log, in one order, and nothing that is
// stored of a session changes when a segment goes. That is why a kill at any step repeats and loses nothing that it
// would not have with the segment in place.
//
// The order of the steps is: copies written and synced, index entries committed and synced, segment deleted. A kill
// before the second leaves copies that nobody refers to, and the segment, which is gone through again.
//
// What is needed of a segment is matched once, against the distinct filters of the sessions that are behind in it, on
// the goroutine of retention (offline_pass.go). Who these are is asked of their owners (offline_needs.go) and holds for a
// while: of records that were handed out before somebody was asked, a session needs only ever fewer. Most
// segments are behind everybody, and cost nothing.
//
// Bounds: copies per session (offline_use.go) and bytes of the stream (offline_tidy.go). When copies cannot be made as fast as
// records come, the segment goes without them, and what was lost is counted for each session.

// prefixKept is the key of an index entry: its first offset in the internal stream.
const prefixKept = "o/"

// A run is written at once, and what a reader has to look through for one record.
const (
	runCopies = 256
	runBytes  = 64 << 10
)

// run is a stretch of a partition's past and where its copies are. Between the copies lies nothing that anybody needs.
type run struct {
	from, to int64 // offsets in the partition: of the first copy, and behind the last one
	at, end  int64 // offsets in the internal stream
	n        int
	bytes    int64 // of topics, payloads and headers
}

// offline is the index of the copies and the account of the sessions that they are for.
type offline struct {
	to *partition // of the internal stream; nil: there is none, and nothing is copied
	// slack is by how much at least a stream may exceed its limit while copies are made. Set at the start only.
	slack struct{ bytes, records int64 }

	// mu guards what follows. It is a leaf.
	mu    sync.RWMutex
	runs  [][]run            // by partition id, by rising offsets, without overlaps
	users map[string]*queued // by client id
	// judged says by partition id below which offset segments were gone through before they went: what was lost with
	// them is counted, and a reader need not.
	judged []int64

	// Owned by whoever enforces retention: one at a time.
	snap    *snapshot
	said    int64 // losses that the log has, by the tick only
	counted bool  // the copies that a start has found are in the sessions' accounts
	buf     []byte
}

func (o *offline) init(b *Broker) {
	o.slack.bytes, o.slack.records = overrunBytes, overrunRecords
	o.users = map[string]*queued{}
	o.runs = make([][]run, len(b.parts))
	for _, p := range b.parts {
		o.judged = append(o.judged, p.Log.First())
	}
	if st, err := b.o.Streams.Stream(OfflineStream); err == nil {
		o.to = b.parts[st.Partitions[0].ID]
	}
}

// find returns the first run of a partition that has a copy at or above from, if it begins below before.
func (o *offline) find(part uint32, from, before int64) (run, bool) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	runs := o.runs[part]
	i := sort.Search(len(runs), func(i int) bool { return runs[i].to > from })
	if i == len(runs) || runs[i].from >= before {
		return run{}, false
	}
	return runs[i], true
}

// lost is how many of the records from an offset to the log's first one went without being gone through.
func (o *offline) lost(part uint32, from, first int64) int64 {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return max(first-max(from, o.judged[part]), 0)
}

// add enters runs of a partition. Those that it has of the same stretch are of an earlier attempt, before which the
// segment could not be deleted, or are in a segment of the internal stream that is about to go: the new ones take their place.
func (b *Broker) addRuns(part uint32, from, to int64, runs []run) {
	o := &b.offline
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range runs {
		b.o.Meta.Put(keptKey(r.at), encodeRun(r, b.parts[part].Name))
	}
	o.runs[part] = slices.DeleteFunc(o.runs[part], func(r run) bool {
		gone := r.from < to && r.to > from
		if gone { // after what replaces it: the metadata keep their order
			b.o.Meta.Delete(keptKey(r.at))
		}
		return gone
	})
	i := sort.Search(len(o.runs[part]), func(i int) bool { return o.runs[part][i].from >= to })
	o.runs[part] = slices.Insert(o.runs[part], i, runs...)
}

// dropRuns forgets runs that nobody needs.
func (b *Broker) dropRuns(drop func(part uint32, r run) bool) {
	o := &b.offline
	o.mu.Lock()
	defer o.mu.Unlock()
	for part := range o.runs {
		o.runs[part] = slices.DeleteFunc(o.runs[part], func(r run) bool {
			gone := drop(uint32(part), r)
			if gone {
				b.o.Meta.Delete(keptKey(r.at))
			}
			return gone
		})
		if len(o.runs[part]) == 0 {
			o.runs[part] = nil
		}
	}
}

// eachRun calls fn with every run.
func (o *offline) eachRun(fn func(part uint32, r run)) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	for part := range o.runs {
		for _, r := range o.runs[part] {
			fn(uint32(part), r)
		}
	}
}

func keptKey(at int64) []byte { return binary.BigEndian.AppendUint64([]byte(prefixKept), uint64(at)) }

// encodeRun: offsets, count and size, then the name of the partition.
func encodeRun(r run, part string) []byte {
	v := binary.AppendUvarint(nil, uint64(r.from))
	v = binary.AppendUvarint(v, uint64(r.to-r.from))
	v = binary.AppendUvarint(v, uint64(r.end-r.at))
	v = binary.AppendUvarint(v, uint64(r.n))
	v = binary.AppendUvarint(v, uint64(r.bytes))
	return append(v, part...)
}

func decodeRun(key, v []byte) (r run, part string, ok bool) {
	if len(key) != len(prefixKept)+8 {
		return run{}, "", false
	}
	d := &decoder{v: v}
	r.at = int64(binary.BigEndian.Uint64(key[len(prefixKept):]))
	r.from = int64(d.uvarint())
	r.to = r.from + int64(d.uvarint())
	r.end = r.at + int64(d.uvarint())
	r.n, r.bytes = int(d.uvarint()), int64(d.uvarint())
	return r, string(d.v), !d.bad && r.from >= 0 && r.to > r.from && r.at >= 0 && r.end > r.at && r.n > 0 && r.bytes >= 0
}

// offline takes the index of the copies up again. Where a kill came between new entries and the end of those that they
// replace, the older ones are complete and their copies are still there.
func (r *recovery) offline() error {
	o := &r.b.offline
	err := r.b.o.Meta.Scan([]byte(prefixKept), func(key, v []byte) error { // by rising at
		x, name, ok := decodeRun(key, v)
		p := r.b.o.Streams.Partition(name)
		switch {
		case !ok:
			r.drop(key)
		case o.to == nil || p == nil || x.at < o.to.Log.First() || x.end > o.to.Log.Next():
			r.leave(key) // of a stream that is no more, or the power cut that took the copies has left the segment
		case overlaps(o.runs[p.ID], x):
			r.leave(key)
		default:
			o.runs[p.ID] = append(o.runs[p.ID], x)
		}
		return nil
	})
	for part := range o.runs {
		slices.SortFunc(o.runs[part], func(a, b run) int { return int(min(max(a.from-b.from, -1), 1)) })
	}
	if err != nil {
		return err
	}
	return r.adopt()
}

// adopt takes up copies behind those that the index knows, if their records are gone from where they were: a backup has
// its logs as of different moments, and may have the index from before a segment went, and the rest from after. Copies of
// a record that is still there are of an attempt that a kill ended.
func (r *recovery) adopt() error {
	o := &r.b.offline
	if o.to == nil {
		return nil
	}
	at := o.to.Log.First()
	o.eachRun(func(_ uint32, x run) { at = max(at, x.end) })
	found := make([][]run, len(r.b.parts))
	var cur run
	var part *partition
	end := func() {
		if part == nil || cur.n == 0 || cur.to > part.Log.First() || overlaps(o.runs[part.ID], cur) {
			return
		}
		// Of two attempts the later one is whole.
		found[part.ID] = append(slices.DeleteFunc(found[part.ID], func(x run) bool { return overlaps([]run{x}, cur) }), cur)
	}
	var buf []byte
	for at < o.to.Log.Next() {
		var err error
		if buf, err = o.to.Log.Read(at, readBytes, buf[:0]); err != nil {
			return fmt.Errorf("read %s from %d: %w", o.to.Name, at, err)
		}
		before := at
		for rec := range seglog.Records(buf) {
			if rec.Offset < at {
				continue
			}
			at = rec.Offset + 1
			place, ok := message.PeekPlace(rec.Headers)
			sp := r.b.o.Streams.Partition(string(place.Partition))
			if !ok || sp == nil {
				continue
			}
			p, size := r.b.parts[sp.ID], copySize(&rec)
			if p != part || place.Offset < cur.to || rec.Offset != cur.end || cur.n >= runCopies || cur.bytes >= runBytes {
				end()
				part, cur = p, run{from: place.Offset, at: rec.Offset}
			}
			cur.to, cur.end, cur.n, cur.bytes = place.Offset+1, at, cur.n+1, cur.bytes+size
		}
		if at == before {
			break
		}
	}
	end()
	for part, list := range found {
		for _, x := range list {
			r.b.addRuns(uint32(part), x.from, x.to, []run{x})
		}
	}
	return nil
}

func overlaps(runs []run, x run) bool {
	return slices.ContainsFunc(runs, func(y run) bool { return y.from < x.to && x.from < y.to })
}

// OfflineBytes is the size of the copies on disk.
func (b *Broker) OfflineBytes() int64 {
	if b.offline.to == nil {
		return 0
	}
	return b.offline.to.Log.Bytes()
}

// isKept reports whether a stream's messages are copied for sessions.
func (o *offline) isKept(p *partition) bool {
	return o.to != nil && p.Stream.Configured && p.Stream.Name[0] != '$' && p.Stream.Offline != stream.OfflineNone
}

// position returns an offset of a list of positions.
func position(list []session.Position, part uint32) (int64, bool) {
	for _, at := range list {
		if at.Part == part {
			return at.Offset, true
		}
	}
	return 0, false
}
