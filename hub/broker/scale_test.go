package broker

import (
	"fmt"
	"log/slog"
	"testing"

	"edgehub/hub/message"
	"edgehub/hub/stream"
	"edgehub/internal/hubtime"
	"edgehub/internal/scaletest"
	"edgehub/internal/vfs"
)

// scaleBatch is how many publishes a round commits: a busy hub's.
const scaleBatch = 64

// scaleHub is a broker on a real disk with one loop, whose clients are connections in name only: they take everything
// and acknowledge it.
type scaleHub struct {
	b    *Broker
	l    *Loop
	open []scaleAck
	acks int
}

type scaleAck struct {
	c  *Client
	id uint16
}

// scaleConn is the least that a Conn can be.
type scaleConn struct {
	hub *scaleHub
	c   *Client
}

func (s *scaleConn) Attached(c *Client, _ bool) { s.c = c }
func (s *scaleConn) Room(int) bool              { return true }
func (s *scaleConn) Send(d *Delivery) bool {
	if d.QoS > 0 {
		s.hub.open = append(s.hub.open, scaleAck{s.c, d.ID})
	}
	return true
}
func (s *scaleConn) SendRelease(uint16) {}
func (s *scaleConn) Ack(_ uint32, code byte) {
	if code == CodeOK {
		s.hub.acks++
	}
}
func (s *scaleConn) Close(byte) {}
func (s *scaleConn) Flush()     {}

func newScaleHub(tb testing.TB) *scaleHub {
	tb.Helper()
	dir, logger, clock := tb.TempDir(), slog.New(slog.DiscardHandler), hubtime.New(0)
	set, err := stream.Open([]stream.Spec{{Name: "main", Filters: []string{"#"}, Partitions: 1, SegmentBytes: 64 << 20},
		{Name: RetainedStream, Partitions: 1, SegmentBytes: 16 << 20}},
		stream.Options{FS: vfs.OS, Dir: dir + "/streams", QuarantineDir: dir + "/quarantine", Salt: 7, Clock: clock, Logger: logger})
	if err != nil {
		tb.Fatal(err)
	}
	lim := rigLimits
	lim.SubsPerClient, lim.InboundBytes = 1<<30, 1<<30
	h := &scaleHub{b: New(Options{Streams: set, Meta: lossyMeta{}, Clock: clock, Logger: logger, Limits: lim})}
	if _, err := h.b.Recover(); err != nil {
		tb.Fatal(err)
	}
	h.l = h.b.NewLoop(func(func()) {})
	tb.Cleanup(func() {
		if err := set.Close(); err != nil {
			tb.Error(err)
		}
	})
	return h
}

func (h *scaleHub) connect(tb testing.TB, id string) *scaleConn {
	conn := &scaleConn{hub: h}
	h.l.Connect(conn, ConnectRequest{ClientID: id, Clean: true, Window: 1000})
	if conn.c == nil {
		tb.Fatal("not attached")
	}
	return conn
}

func (h *scaleHub) subscribe(tb testing.TB, conn *scaleConn, filter string) {
	if codes := h.l.Subscribe(conn.c, []SubRequest{{Filter: filter, QoS: 1, RetainHandling: 2}}, nil); codes[0] != 1 {
		tb.Fatalf("subscription to %q: %#x", filter, codes[0])
	}
}

// publish takes a message, and commits at the end of each batch.
func (h *scaleHub) publish(tb testing.TB, i int, m *message.Message, from *scaleConn) {
	if code := h.l.Publish(from.c, from, uint32(i), m); code != CodeOK {
		tb.Fatalf("refused: %#x", code)
	}
	if i%scaleBatch == scaleBatch-1 {
		h.l.Round()
		for _, a := range h.open {
			h.l.Acked(a.c, a.id)
		}
		h.open = h.open[:0]
	}
}

var scalePayload = make([]byte, 100)

// publishes returns the step of a comparison: QoS 1 to one of the topics.
func (h *scaleHub) publishes(tb testing.TB, topics [][]byte, retain bool) func(int) {
	from := h.connect(tb, "publisher")
	m := &message.Message{Payload: scalePayload, QoS: 1, Retain: retain, TimeMs: 1}
	return func(i int) {
		m.Topic = topics[i%len(topics)]
		h.publish(tb, i, m, from)
	}
}

func scaleTopics(n, use int) [][]byte {
	list := make([][]byte, use)
	for i := range list {
		list[i] = fmt.Appendf(nil, "devices/%d/telemetry", i*7_919_003%n)
	}
	return list
}

// BenchmarkScale publishes with QoS 1 through the whole broker, to the log on disk, with ten times more of one thing.
// Each message goes to one subscriber, but for "topics", where nobody listens to most.
func BenchmarkScale(b *testing.B) {
	n := scaletest.Size(b)
	for _, c := range []struct{ name, filter string }{{"exact", "devices/%d/telemetry"}, {"wildcard", "devices/%d/+"}} {
		b.Run("filters/"+c.name, func(b *testing.B) {
			scaletest.Compare(b, scaleFilters(b, c.filter, n/10), scaleFilters(b, c.filter, n))
		})
	}
	b.Run("topics", func(b *testing.B) {
		scaletest.Compare(b, scaleDistinct(b, n/10), scaleDistinct(b, n))
	})
	b.Run("retained", func(b *testing.B) {
		scaletest.Compare(b, scaleRetained(b, n/10), scaleRetained(b, n))
	})
	b.Run("connections", func(b *testing.B) {
		scaletest.Compare(b, scaleConnected(b, n/20), scaleConnected(b, n/2))
	})
}

// scaleFilters has n subscriptions of clients with a hundred each; a thousand topics are in use.
func scaleFilters(b *testing.B, filter string, n int) func(int) {
	h := newScaleHub(b)
	var conn *scaleConn
	for i := range n {
		if i%100 == 0 {
			conn = h.connect(b, fmt.Sprintf("subscriber-%d", i))
		}
		h.subscribe(b, conn, fmt.Sprintf(filter, i))
	}
	return h.publishes(b, scaleTopics(n, min(n, 1000)), false)
}

// scaleDistinct publishes to n topics in turn.
func scaleDistinct(b *testing.B, n int) func(int) {
	h := newScaleHub(b)
	h.subscribe(b, h.connect(b, "subscriber"), "devices/1/#")
	return h.publishes(b, scaleTopics(n, n), false)
}

// scaleRetained replaces one of n retained messages.
func scaleRetained(b *testing.B, n int) func(int) {
	h := newScaleHub(b)
	topics, used := scaleTopics(n, n), scaleTopics(n, min(n, 1000))
	from, m := h.connect(b, "publisher"), &message.Message{Payload: scalePayload, QoS: 1, Retain: true, TimeMs: 1}
	for i := range (n + scaleBatch - 1) / scaleBatch * scaleBatch {
		m.Topic = topics[i%n]
		h.publish(b, i, m, from)
	}
	if got := h.b.Retained(); got != n {
		b.Fatalf("%d of %d are retained", got, n)
	}
	return func(i int) {
		m.Topic = used[i%len(used)]
		h.publish(b, i, m, from)
	}
}

// scaleConnected has n connected sessions with a subscription each.
func scaleConnected(b *testing.B, n int) func(int) {
	h := newScaleHub(b)
	for i := range n {
		h.subscribe(b, h.connect(b, fmt.Sprintf("device-%d", i)), fmt.Sprintf("devices/%d/telemetry", i))
	}
	return h.publishes(b, scaleTopics(n, min(n, 1000)), false)
}

// BenchmarkSessions is what connected sessions that do nothing cost: bytes each in the broker, without the protocol's
// connection, and the time of one checkpoint tick.
func BenchmarkSessions(b *testing.B) {
	n := scaletest.Size(b) / 2
	before := scaletest.Heap()
	h := newScaleHub(b)
	for i := range n {
		h.subscribe(b, h.connect(b, fmt.Sprintf("device-%d", i)), fmt.Sprintf("devices/%d/commands", i))
	}
	bytes := float64(scaletest.Heap()-before) / float64(n)
	for b.Loop() {
		h.l.checkpoint()
	}
	b.ReportMetric(bytes, "B/session")
}

// lossyMeta keeps nothing: what metadata cost is storage/meta's to measure, and a map of all that
// was ever stored would be measured instead of the broker.
type lossyMeta struct{}

func (lossyMeta) Put(_, _ []byte)                            {}
func (lossyMeta) PutNew(_, _ []byte)                         {}
func (lossyMeta) Delete([]byte)                              {}
func (lossyMeta) Commit() error                              { return nil }
func (lossyMeta) Backlog() int                               { return 0 }
func (lossyMeta) Sync() error                                { return nil }
func (lossyMeta) Scan([]byte, func(_, _ []byte) error) error { return nil }
