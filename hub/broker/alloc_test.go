package broker

import (
	"fmt"
	"log/slog"
	"testing"

	"edgehub/hub/message"
	"edgehub/hub/stream"
	"edgehub/internal/hubtime"
	"edgehub/internal/vfs"
)

// nullConn takes everything and answers at once.
type nullConn struct {
	l     *Loop
	c     *Client
	ids   []uint16
	acked int
	sent  int
}

func (n *nullConn) Attached(c *Client, _ bool) { n.c = c }
func (n *nullConn) Room(int) bool              { return true }
func (n *nullConn) Send(d *Delivery) bool {
	n.sent++
	if d.QoS > 0 {
		n.ids = append(n.ids, d.ID)
	}
	return true
}
func (n *nullConn) SendRelease(uint16) {}
func (n *nullConn) Ack(uint32, byte)   { n.acked++ }
func (n *nullConn) Close(byte)         {}
func (n *nullConn) Flush()             {}

func (n *nullConn) answer() {
	for _, id := range n.ids {
		n.l.Acked(n.c, id)
	}
	n.ids = n.ids[:0]
}

// A PUBLISH costs no allocation once everything has its size: not on its way to the disk, not on its way to its
// subscribers, on whichever loop they are.
func TestNoAllocationPerPublish(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	const batch = 64
	for _, tt := range []struct {
		subscribers, loops int
		qos                byte
	}{{0, 1, 1}, {1, 1, 0}, {1, 1, 1}, {10, 1, 1}, {10, 2, 1}, {10, 2, 0}} {
		t.Run(fmt.Sprintf("%d subscribers of QoS %d, %d loops", tt.subscribers, tt.qos, tt.loops), func(t *testing.T) {
			dir, logger, clock := t.TempDir(), slog.New(slog.DiscardHandler), hubtime.New(0)
			specs := []stream.Spec{{Name: "main", Filters: []string{"#"}, Partitions: 1, SegmentBytes: 1 << 30}}
			set, err := stream.Open(specs, stream.Options{FS: vfs.OS, Dir: dir, QuarantineDir: dir, Clock: clock, Logger: logger})
			if err != nil {
				t.Fatal(err)
			}
			defer set.Close()
			lim := rigLimits
			lim.ReceiveMaximum = 1000
			b := New(Options{Streams: set, Meta: newMemMeta(), Clock: clock, Logger: logger, Limits: lim})
			var loops []*Loop
			var conns []*nullConn
			for range tt.loops {
				loops = append(loops, b.NewLoop(func(func()) {}))
			}
			connect := func(id string, l *Loop) *nullConn {
				n := &nullConn{l: l}
				l.Connect(n, ConnectRequest{ClientID: id, Window: 1000})
				l.Round()
				return n
			}
			pub := connect("p", loops[0])
			for i := range tt.subscribers {
				n := connect(fmt.Sprintf("s%d", i), loops[i%tt.loops])
				n.l.Subscribe(n.c, []SubRequest{{Filter: "devices/+/telemetry", QoS: tt.qos}}, nil)
				conns = append(conns, n)
			}
			m := &message.Message{Topic: []byte("devices/17/telemetry"), Payload: make([]byte, 100), QoS: 1}
			round := func() {
				for i := range batch {
					m.TimeMs = clock.NowMs()
					loops[0].Publish(pub.c, pub, uint32(i), m)
				}
				for _, l := range loops {
					l.Round()
				}
				for _, n := range conns {
					n.answer()
				}
			}
			for range 50 {
				round()
			}
			if per := testing.AllocsPerRun(50, round) / batch; per > 0.05 {
				t.Errorf("%.2f allocations per PUBLISH", per)
			}
			if pub.acked == 0 || tt.subscribers > 0 && conns[tt.subscribers-1].sent != pub.acked {
				t.Fatalf("%d acknowledged, %d delivered to the last subscriber", pub.acked, conns[tt.subscribers-1].sent)
			}
		})
	}
}
