package jetstream

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	njs "github.com/nats-io/nats.go/jetstream"

	"edgehub/hub/message"
	"edgehub/internal/vfs"
	"edgehub/storage/seglog"
	"edgehub/sync/uplink"
)

// hub is the log side of a hub: partitions, epochs, cursors.
type hub struct {
	t    testing.TB
	dir  string
	logs []*seglog.Log

	mu      sync.Mutex
	epochs  map[string][]uplink.EpochStart
	notify  map[chan<- struct{}]bool
	cursors *cursors
	builder seglog.Builder
	headers seglog.Headers
	count   int
	link    *link // the newest
}

const instance = "0123456789abcdef0123456789abcdef"

func newHub(t testing.TB, partitions int) *hub {
	h := &hub{t: t, dir: t.TempDir(), epochs: map[string][]uplink.EpochStart{}, notify: map[chan<- struct{}]bool{}, cursors: newCursors()}
	h.open(partitions)
	t.Cleanup(func() {
		for _, l := range h.logs {
			_ = l.Close()
		}
	})
	return h
}

func (h *hub) open(partitions int) {
	h.t.Helper()
	h.logs = nil
	for i := range partitions {
		name := fmt.Sprintf("main/%d-0", i)
		l, _, err := seglog.Open(seglog.Options{FS: vfs.OS, Dir: filepath.Join(h.dir, strconv.Itoa(i)), Name: name, Salt: 7, SegmentBytes: 1 << 20})
		if err != nil {
			h.t.Fatal(err)
		}
		h.logs = append(h.logs, l)
	}
}

// restart closes the logs and opens them in a new epoch, as after a kill.
func (h *hub) restart() {
	h.t.Helper()
	n := len(h.logs)
	for _, l := range h.logs {
		if err := l.Close(); err != nil {
			h.t.Fatal(err)
		}
	}
	h.open(n)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.logs {
		e := h.epochs[l.Name()]
		h.epochs[l.Name()] = append(e, uplink.EpochStart{Epoch: uint32(len(e) + 2), First: l.Next()})
	}
}

// rollBack puts the first keep records of each partition in place of the log, as
// an older copy of the data directory does; a restored backup begins an epoch.
func (h *hub) rollBack(keep int64, newEpoch bool) {
	h.t.Helper()
	old := h.logs
	h.dir = h.t.TempDir()
	h.open(len(old))
	for i, l := range old {
		h.builder = seglog.Builder{} // or the times would be clamped to the newest
		chunk, err := l.Read(0, 8<<20, nil)
		if err != nil {
			h.t.Fatal(err)
		}
		for rec := range seglog.Records(chunk) {
			if rec.Offset < keep {
				h.builder.Append(rec.TimeMs, rec.Key, rec.Value, rec.Headers)
			}
		}
		h.commit(i)
		_ = l.Close()
		if newEpoch {
			h.mu.Lock()
			h.epochs[l.Name()] = append(h.epochs[l.Name()], uplink.EpochStart{Epoch: uint32(len(h.epochs[l.Name()]) + 2), First: keep})
			h.mu.Unlock()
		}
	}
}

// append adds n small records to each partition and syncs.
func (h *hub) append(n int) {
	h.t.Helper()
	for i, l := range h.logs {
		h.builder.Reset(l.Next())
		for range n {
			h.count++
			m := message.Message{Topic: []byte(fmt.Sprintf("devices/%d/t", h.count%50)), Payload: []byte(strconv.Itoa(h.count)), QoS: 1, TimeMs: time.Now().UnixMilli()}
			h.add(&m)
		}
		h.commit(i)
	}
}

func (h *hub) add(m *message.Message) {
	h.headers.Reset()
	m.AppendHeaders(&h.headers)
	h.builder.Append(m.TimeMs, m.Topic, m.Payload, h.headers)
}

func (h *hub) commit(i int) {
	h.t.Helper()
	if err := h.logs[i].Append(&h.builder); err != nil {
		h.t.Fatal(err)
	}
	if _, err := h.logs[i].Sync(); err != nil {
		h.t.Fatal(err)
	}
	h.mu.Lock()
	for ch := range h.notify {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
	h.mu.Unlock()
}

func (h *hub) total() int64 {
	n := int64(0)
	for _, l := range h.logs {
		n += l.Next()
	}
	return n
}

// Partitions implements uplink.Source.
func (h *hub) Partitions() []uplink.Partition {
	var out []uplink.Partition
	for _, l := range h.logs {
		out = append(out, l)
	}
	return out
}

// Notify implements uplink.Source.
func (h *hub) Notify(ch chan<- struct{}) func() {
	h.mu.Lock()
	h.notify[ch] = true
	h.mu.Unlock()
	return func() {
		h.mu.Lock()
		delete(h.notify, ch)
		h.mu.Unlock()
	}
}

// EpochAt implements uplink.Source.
func (h *hub) EpochAt(partition string, offset int64) uint32 {
	h.mu.Lock()
	defer h.mu.Unlock()
	epoch := uint32(1)
	for _, e := range h.epochs[partition] {
		if e.First <= offset {
			epoch = e.Epoch
		}
	}
	return epoch
}

// EpochStarts implements uplink.Source.
func (h *hub) EpochStarts(partition string) []uplink.EpochStart {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.epochs[partition])
}

// cursors is an uplink.Cursors in memory. frozen ones lose every save, as a
// killed hub loses what was not yet written.
type cursors struct {
	mu     sync.Mutex
	frozen bool
	pos    map[string]int64
	state  []byte
}

func newCursors() *cursors { return &cursors{pos: map[string]int64{}} }

func (c *cursors) freeze() {
	c.mu.Lock()
	c.frozen = true
	c.mu.Unlock()
}

func (c *cursors) thawed() *cursors {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &cursors{pos: maps.Clone(c.pos), state: slices.Clone(c.state)}
}

func (c *cursors) Load(u, p string) (int64, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, ok := c.pos[u+" "+p]
	return n, ok, nil
}

func (c *cursors) Save(u, p string, offset int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.frozen {
		c.pos[u+" "+p] = offset
	}
	return nil
}

func (c *cursors) LoadState(string) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.state), nil
}

func (c *cursors) SaveState(_ string, b []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.frozen {
		c.state = slices.Clone(b)
	}
	return nil
}

const remoteName = "EDGE-h1"

// link is a running uplink.
type link struct {
	*uplink.Replicator
	t      testing.TB
	cancel context.CancelFunc
	done   chan struct{}
}

type settings struct {
	sink func(*Options)
	up   func(*uplink.Options)
}

func (h *hub) sink(url string, change func(*Options)) *Sink {
	h.t.Helper()
	subjects, err := NewSubjects("edge.{hub}.{topic}", "h1")
	if err != nil {
		h.t.Fatal(err)
	}
	o := Options{URL: url, Hub: "h1", RemoteStream: remoteName, Subjects: subjects, ConnectTimeout: time.Second, RequestTimeout: 2 * time.Second}
	if change != nil {
		change(&o)
	}
	s, err := New(o)
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

func (h *hub) uplink(url string, set settings) *link {
	h.t.Helper()
	o := uplink.Options{Name: "cloud", Hub: "h1", Instance: instance, Source: h, Cursors: h.cursors, Sink: h.sink(url, set.sink), Create: true, Hold: true,
		Timing: uplink.Timing{BackoffMin: 20 * time.Millisecond, BackoffMax: 200 * time.Millisecond, AckTimeout: 2 * time.Second}}
	if testing.Verbose() {
		o.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	if set.up != nil {
		set.up(&o)
	}
	r, err := uplink.New(o)
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &link{Replicator: r, t: h.t, cancel: cancel, done: make(chan struct{})}
	h.link = l
	go func() {
		defer close(l.done)
		if err := r.Run(ctx); err != nil {
			h.t.Errorf("Run: %v", err)
		}
	}()
	h.t.Cleanup(func() {
		if h.t.Failed() {
			h.t.Logf("status of the uplink: %+v", l.Status())
		}
		l.stop()
	})
	return l
}

func (l *link) stop() {
	l.cancel()
	<-l.done
}

// kill stops the uplink so that nothing of it reaches the cursors any more, and
// gives the hub a new run on the same files.
func (h *hub) kill(l *link) {
	h.cursors.freeze()
	l.stop()
	h.cursors = h.cursors.thawed()
	h.restart()
}

// until polls a condition about the outside world.
func until(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	end := time.After(limit)
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}

func (l *link) drained() bool {
	s := l.Status()
	return s.State == uplink.Stream && s.LagMessages == 0
}

func (l *link) blocked(limit time.Duration, cause uplink.Cause) uplink.Status {
	l.t.Helper()
	until(l.t, limit, "blocked: "+string(cause), func() bool { s := l.Status(); return s.Blocked != nil && s.Blocked.Cause == cause })
	s := l.Status()
	if s.State != uplink.Blocked || s.LastError == "" || s.Blocked == nil || s.Blocked.Cure == "" {
		l.t.Errorf("blocked status lacks a state, reason or cure: %+v", s)
	}
	return s
}

// client connects to a server for looking at it.
func client(t testing.TB, url string, opts ...nats.Option) njs.JetStream {
	t.Helper()
	nc, err := nats.Connect(url, append(opts, nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true), nats.ReconnectWait(50*time.Millisecond))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := njs.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// remote reads the whole remote stream, in order.
func remote(t testing.TB, url string, opts ...nats.Option) []*njs.RawStreamMsg {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := client(t, url, opts...).Stream(ctx, remoteName)
	if err != nil {
		t.Fatal(err)
	}
	info, err := s.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.OrderedConsumer(ctx, njs.OrderedConsumerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	var out []*njs.RawStreamMsg
	if info.State.Msgs == 0 {
		return nil
	}
	messages, err := c.Messages(njs.PullMaxMessages(4000))
	if err != nil {
		t.Fatal(err)
	}
	defer messages.Stop()
	defer context.AfterFunc(ctx, messages.Stop)()
	for uint64(len(out)) < info.State.Msgs {
		m, err := messages.Next()
		if err != nil {
			t.Fatalf("read %d of %d records: %v", len(out), info.State.Msgs, err)
		}
		md, err := m.Metadata()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, &njs.RawStreamMsg{Subject: m.Subject(), Sequence: md.Sequence.Stream, Header: m.Headers(), Data: m.Data()})
	}
	return out
}

// compare checks that the remote holds exactly the log, record for record, in
// order per partition, and that Hub-Positions are never more than 256 apart.
func (h *hub) compare(url string, opts ...nats.Option) int {
	h.t.Helper()
	got := map[string][]*njs.RawStreamMsg{}
	since := 0
	all := remote(h.t, url, opts...)
	for i, m := range all {
		key := m.Header.Get(hdrStream) + "/" + m.Header.Get(hdrPartition)
		got[key] = append(got[key], m)
		if since++; m.Header.Get(hdrPositions) != "" {
			since = 0
		}
		if m.Sequence%256 == 0 && since != 0 || since >= 256 || (i == 0 && since != 0) {
			h.t.Errorf("sequence %d is %d records after the last positions", m.Sequence, since)
			since = 0
		}
	}
	checked, bad := 0, 0
	for _, l := range h.logs {
		rest := got[l.Name()]
		for from := l.First(); from < l.Next(); {
			chunk, err := l.Read(from, 1<<20, nil)
			if err != nil {
				h.t.Fatal(err)
			}
			var sc seglog.Scanner
			for sc.Reset(chunk); sc.Next(); {
				rec := sc.Record()
				from = rec.Offset + 1
				if len(rest) == 0 {
					h.t.Fatalf("%s: remote ends before offset %d", l.Name(), rec.Offset)
				}
				if m := rest[0]; m.Header.Get(hdrOffset) != strconv.FormatInt(rec.Offset, 10) || string(m.Data) != string(rec.Value) || m.Header.Get(hdrTopic) != string(rec.Key) {
					h.t.Errorf("%s offset %d: remote has offset %s, %q, %q", l.Name(), rec.Offset, m.Header.Get(hdrOffset), m.Header.Get(hdrTopic), m.Data)
					if bad++; bad > 5 {
						h.t.FailNow()
					}
				}
				rest = rest[1:]
				checked++
			}
		}
		if len(rest) != 0 {
			h.t.Errorf("%s: remote has %d records beyond the log", l.Name(), len(rest))
		}
	}
	if checked != len(all) {
		h.t.Errorf("compared %d records, remote has %d", checked, len(all))
	}
	return checked
}
