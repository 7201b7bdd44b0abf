package mqtt

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"testing"
	"time"

	"edgehub/adapters/eventloop"
	"edgehub/adapters/mqtt/packet"
	"edgehub/hub/auth"
	"edgehub/hub/broker"
	"edgehub/hub/stream"
	"edgehub/internal/hubtime"
	"edgehub/internal/vfs"
)

// nullMeta keeps nothing: what the metadata cost is storage/meta's to hold.
type nullMeta struct{}

func (nullMeta) Put(_, _ []byte)                            {}
func (nullMeta) PutNew(_, _ []byte)                         {}
func (nullMeta) Delete([]byte)                              {}
func (nullMeta) Commit() error                              { return nil }
func (nullMeta) Backlog() int                               { return 0 }
func (nullMeta) Sync() error                                { return nil }
func (nullMeta) Scan([]byte, func(_, _ []byte) error) error { return nil }

// hotServer is a server with one loop on a real broker and disk. Its sockets are farEnds.
func hotServer(tb testing.TB) (*Server, *loop) {
	tb.Helper()
	dir, logger, clock := tb.TempDir(), slog.New(slog.DiscardHandler), hubtime.New(0)
	set, err := stream.Open([]stream.Spec{{Name: "main", Filters: []string{"#"}, Partitions: 1, SegmentBytes: 1 << 30}},
		stream.Options{FS: vfs.OS, Dir: dir, QuarantineDir: dir, Clock: clock, Logger: logger})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = set.Close() })
	b := broker.New(broker.Options{Streams: set, Meta: nullMeta{}, Clock: clock, Logger: logger, Limits: broker.Limits{
		ReceiveMaximum: 1000, SessionExpiryMax: 3600, SubsPerClient: 10, TopicLevels: 8, QoS0LagMs: 60_000, CatchupBytes: 8 << 20, InboundBytes: 64 << 20}})
	a, err := auth.New(auth.Options{Logger: logger})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(a.Close)
	s := New(Options{Broker: b, Auth: a, Clock: clock, Logger: logger, Listeners: []Listener{{AllowAnonymous: true}}, MaxPacket: 4096, QoSMax: 2,
		TopicLevels: 8, ReceiveMaximum: 1000, SessionExpiryMax: 3600, ConnectTimeout: time.Hour, OutboundPerClient: 1 << 20, Outbound: 256 << 20})
	l := &loop{s: s, last: time.Now()}
	l.b = b.NewLoop(func(func()) {})
	l.wheel.init(clock.NowMs())
	s.loops = []*loop{l}
	return s, l
}

// farEnd is a socket that takes everything, and a client that answers as it must.
type farEnd struct {
	s        *Server
	c        *Conn
	version  byte
	answer   []byte // what the client has to say next
	received int    // PUBLISH
	finished int    // PUBACK and PUBCOMP of its own publishes
}

var farAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1883}

func (w *farEnd) OutboundBuffered() int { return 0 }
func (w *farEnd) LocalAddr() net.Addr   { return farAddr }
func (w *farEnd) RemoteAddr() net.Addr  { return farAddr }
func (w *farEnd) Close() error          { return nil }

// Write is the client's side: it takes the hub's packets and notes its answers.
func (w *farEnd) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		first, body, size, err := packet.Frame(rest, 1<<20)
		if err != nil || size == 0 {
			return 0, fmt.Errorf("the hub wrote no packet: %x (%w)", rest, err)
		}
		rest = rest[size:]
		kind := byte(0)
		id := body[:min(2, len(body))]
		switch first >> 4 {
		case packet.TypePublish:
			w.received++
			switch first >> 1 & 3 {
			case 1:
				kind = packet.TypePuback << 4
			case 2:
				kind = packet.TypePubrec << 4
			}
			if kind != 0 {
				at := 2 + int(binary.BigEndian.Uint16(body))
				id = body[at : at+2]
			}
		case packet.TypePubrec:
			kind = packet.TypePubrel<<4 | 2
		case packet.TypePubrel:
			kind = packet.TypePubcomp << 4
		case packet.TypePuback, packet.TypePubcomp:
			w.finished++
		}
		if kind != 0 {
			w.answer = append(w.answer, kind, 2, id[0], id[1])
		}
	}
	return len(b), nil
}

func (w *farEnd) send(b []byte) {
	if used, ok := w.s.OnData(w.c, b); !ok || used != len(b) {
		panic(fmt.Sprintf("%d of %d bytes taken", used, len(b)))
	}
}

// speak sends the answers that have gathered, and reports whether there were any.
func (w *farEnd) speak() bool {
	if len(w.answer) == 0 {
		return false
	}
	w.send(w.answer)
	w.answer = w.answer[:0]
	return true
}

func dialFar(s *Server, l *loop, version byte, id string, keepAlive uint16) *farEnd {
	w := &farEnd{s: s, version: version}
	w.c = s.OnOpen(w, &eventloop.Loop{State: l}, &eventloop.Listener{}).(*Conn)
	w.send(connectPacket(version, 2, id, keepAlive))
	return w
}

// A PUBLISH costs no allocation once everything has its size: from the bytes of the publisher's socket through codec,
// broker, log and fan-out to the bytes of the subscribers' sockets, and back with their acknowledgements.
func TestNoAllocationFromSocketToSocket(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	const batch = 64
	for _, tt := range []struct {
		version, in, out byte // QoS
		subscribers      int
	}{{4, 0, 0, 0}, {4, 1, 1, 0}, {4, 2, 2, 0}, {5, 0, 0, 1}, {5, 1, 1, 1}, {5, 2, 2, 1}, {4, 0, 0, 500}, {4, 1, 1, 500}, {5, 1, 0, 500}, {5, 1, 1, 500}} {
		t.Run(fmt.Sprintf("MQTT %d, QoS %d in, QoS %d to %d", tt.version, tt.in, tt.out, tt.subscribers), func(t *testing.T) {
			s, l := hotServer(t)
			pub := dialFar(s, l, tt.version, "publisher", 0)
			all := []*farEnd{pub}
			for i := range tt.subscribers {
				w := dialFar(s, l, tt.version, fmt.Sprint("subscriber", i), 0)
				w.send(subscribePacket(tt.version, 1, "devices/+/telemetry", tt.out))
				all = append(all, w)
			}
			l.b.Round()
			var publishes []byte
			for i := range batch {
				publishes = append(publishes, publishPacket(tt.version, tt.in, "devices/17/telemetry", string(make([]byte, 100)), uint16(i+1))...)
			}
			round := func() {
				pub.send(publishes)
				for more := true; more; {
					l.b.Round()
					more = false
					for _, w := range all {
						more = w.speak() || more
					}
				}
			}
			for range 20 {
				round()
			}
			const runs = 20
			before := pub.finished
			if per := testing.AllocsPerRun(runs, round) / batch; per > 0.05 {
				t.Errorf("%.2f allocations per PUBLISH", per)
			}
			if got := pub.finished - before; tt.in > 0 && got != (runs+1)*batch {
				t.Errorf("%d of %d are acknowledged", got, (runs+1)*batch)
			}
			for _, w := range all[1:] {
				if w.received != (20+runs+1)*batch {
					t.Fatalf("a subscriber has %d of %d", w.received, (20+runs+1)*batch)
				}
			}
		})
	}
}
