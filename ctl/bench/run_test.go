package bench

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"edgehub/hub/topic"
)

// tinyBroker is just enough of MQTT 3.1.1 to see the load from the other side: QoS 0 and 1, sessions that are kept by
// id, and faults on request. It shares no code with the load.
type tinyBroker struct {
	l      net.Listener
	mangle func(n int, packet []byte) [][]byte // what a subscriber is sent for its n-th message; nil: as it is
	refuse byte                                // return code of CONNACK

	mu       sync.Mutex
	sessions map[string]*tinySession
	members  int // of shared subscriptions, in turn
	wg       sync.WaitGroup
}

type tinySession struct {
	filter string
	conn   net.Conn // nil: away
	queue  [][]byte
	n      int
}

func startTiny(t *testing.T, b *tinyBroker) string {
	t.Helper()
	var err error
	if b.l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	b.sessions = map[string]*tinySession{}
	b.wg.Go(func() {
		for {
			c, err := b.l.Accept()
			if err != nil {
				return
			}
			b.wg.Go(func() { b.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = b.l.Close()
		b.wg.Wait()
	})
	return b.l.Addr().String()
}

func tinyRead(r *bufio.Reader) (first byte, body []byte, err error) {
	if first, err = r.ReadByte(); err != nil {
		return 0, nil, err
	}
	n, err := binary.ReadUvarint(r)
	if err != nil {
		return 0, nil, err
	}
	body = make([]byte, n)
	_, err = io.ReadFull(r, body)
	return first, body, err
}

func (b *tinyBroker) serve(c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(c)
	var s *tinySession
	for {
		first, body, err := tinyRead(r)
		if err != nil {
			break
		}
		b.mu.Lock()
		switch first >> 4 {
		case 1:
			id := string(body[12:])
			old, present := b.sessions[id]
			if present = present && body[7]&2 == 0; !present {
				old = &tinySession{}
				b.sessions[id] = old
			}
			s = old
			s.conn = c
			flag := byte(0)
			if present {
				flag = 1
			}
			_, _ = c.Write([]byte{0x20, 2, flag, b.refuse})
			for _, p := range s.queue {
				_, _ = c.Write(p)
			}
			s.queue = nil
		case 8:
			s.filter = string(body[4 : len(body)-1])
			_, _ = c.Write([]byte{0x90, 3, body[0], body[1], 1})
		case 3:
			b.publish(c, first, body)
		case 12:
			_, _ = c.Write([]byte{0xd0, 0})
		case 14:
			s.conn = nil
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if s != nil && s.conn == c {
		s.conn = nil
	}
}

// publish acknowledges and hands out. Under mu.
func (b *tinyBroker) publish(c net.Conn, first byte, body []byte) {
	n := 2 + int(binary.BigEndian.Uint16(body))
	name, rest := string(body[2:n]), body[n:]
	if first&6 != 0 {
		_, _ = c.Write([]byte{0x40, 2, rest[0], rest[1]})
		rest = rest[2:]
	}
	// Everything goes out with QoS 1 and the same id: the load need not mind.
	packet := binary.AppendUvarint([]byte{0x32}, uint64(n+2+len(rest)))
	packet = append(append(append(packet, body[:n]...), 0, 1), rest...)
	var shared []*tinySession
	for _, s := range b.sessions {
		filter, isShared := s.filter, false
		if after, ok := strings.CutPrefix(filter, "$share/"); ok {
			_, filter, _ = strings.Cut(after, "/")
			isShared = true
		}
		if filter == "" || !topic.Match(filter, name) {
			continue
		}
		if isShared {
			shared = append(shared, s)
			continue
		}
		b.deliver(s, packet)
	}
	if len(shared) > 0 {
		b.members++
		b.deliver(shared[b.members%len(shared)], packet)
	}
}

func (b *tinyBroker) deliver(s *tinySession, packet []byte) {
	out := [][]byte{packet}
	if b.mangle != nil {
		out = b.mangle(s.n, packet)
	}
	s.n++
	for _, p := range out {
		if s.conn == nil {
			s.queue = append(s.queue, p)
			continue
		}
		_, _ = s.conn.Write(p)
	}
}

func runLoad(t *testing.T, l Load) *Result {
	t.Helper()
	l.Complete()
	if err := l.Check(); err != nil {
		t.Fatal(err)
	}
	r, err := Run(t.Context(), &l, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestLoadsAgainstTinyBroker(t *testing.T) {
	for _, c := range []struct {
		name     string
		load     Load
		expected int64
	}{
		{"fan-in", Load{Mode: FanIn, Publishers: 5, Messages: 1003, QoS: 1, SubQoS: -1}, 1003},
		{"fan-in QoS 0", Load{Mode: FanIn, Publishers: 5, Messages: 1000}, 1000},
		{"fan-in, more topics", Load{Mode: FanIn, Publishers: 3, Topics: 20, Messages: 1000, QoS: 1}, 1000},
		{"fan-in, one topic", Load{Mode: FanIn, Publishers: 3, Topics: 1, Messages: 1000, QoS: 1}, 1000},
		{"large messages", Load{Mode: FanIn, Publishers: 2, Messages: 20, SizeBytes: 300_000, QoS: 1}, 20},
		{"fan-out", Load{Mode: FanOut, Subscribers: 20, Messages: 100, QoS: 1}, 2000},
		{"pairs", Load{Mode: Pairs, Publishers: 10, Messages: 500, QoS: 1}, 500},
		{"shared", Load{Mode: Shared, Publishers: 4, Messages: 500, QoS: 1}, 500},
		{"at a rate", Load{Mode: FanIn, Publishers: 3, Messages: 500, QoS: 1, RatePerS: 5000}, 500},
		{"at a rate, QoS 0", Load{Mode: FanIn, Publishers: 3, Messages: 500, RatePerS: 5000}, 500},
		{"at a rate, window 1", Load{Mode: FanIn, Publishers: 2, Messages: 300, QoS: 1, RatePerS: 10000, Window: 1}, 300},
		{"offline", Load{Mode: Offline, Publishers: 4, Subscribers: 3, Messages: 500, QoS: 1, SubQoS: -1}, 1500},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.load.Address = startTiny(t, &tinyBroker{})
			r := runLoad(t, c.load)
			if r.Received != c.expected || r.Expected != c.expected || r.Published != c.load.Messages {
				t.Errorf("published %d, received %d of %d, want %d", r.Published, r.Received, r.Expected, c.expected)
			}
			if r.Lost+r.Duplicated+r.Disordered+r.Foreign+r.Refused != 0 || r.Stalled || len(r.Notes) > 0 {
				t.Errorf("%+v", r)
			}
			if c.load.QoS > 0 && (r.Acked != r.Published || r.Ack == nil || r.Ack.Count != r.Published) {
				t.Errorf("acknowledged %d of %d: %+v", r.Acked, r.Published, r.Ack)
			}
			if c.load.Mode == Offline {
				if r.Offline == nil || r.Offline.DrainedPerS <= 0 || r.Offline.QueuedPerS <= 0 {
					t.Errorf("phases: %+v", r.Offline)
				}
			} else if r.Delivery == nil || r.Delivery.Count != c.expected {
				t.Errorf("delays: %+v", r.Delivery)
			}
			if c.load.RatePerS > 0 && (r.SendDelay == nil || r.SendDelay.Count != r.Published) {
				t.Errorf("lateness: %+v", r.SendDelay)
			}
		})
	}
}

// The broker errs in known places: the load must find exactly these.
func TestFaultsAreCounted(t *testing.T) {
	var held []byte
	addr := startTiny(t, &tinyBroker{mangle: func(n int, p []byte) [][]byte {
		switch n % 100 {
		case 10: // lost
			return nil
		case 20: // twice
			return [][]byte{p, p}
		case 30: // held back, and sent behind the next one
			held = p
			return nil
		case 31:
			return [][]byte{p, held}
		}
		return [][]byte{p}
	}})
	r := runLoad(t, Load{Mode: FanIn, Address: addr, Publishers: 1, Messages: 1000, QoS: 1, SubQoS: -1, Settle: 300 * time.Millisecond})
	if r.Lost != 10 || r.Duplicated != 10 || r.Disordered != 10 || r.Received != 990 || !r.Stalled {
		t.Errorf("lost %d, duplicated %d, out of order %d, received %d, stalled %v; want 10, 10, 10, 990, true", r.Lost, r.Duplicated, r.Disordered, r.Received, r.Stalled)
	}
}

func TestWarmUpIsNotMeasured(t *testing.T) {
	addr := startTiny(t, &tinyBroker{})
	r := runLoad(t, Load{Mode: FanIn, Address: addr, Publishers: 2, QoS: 1, SubQoS: -1, RatePerS: 2000, WarmUp: 200 * time.Millisecond, Duration: 300 * time.Millisecond})
	if r.Published != 1000 || r.Received != 1000 || r.Delivery.Count != 600 || r.Ack.Count != 600 {
		t.Errorf("published %d and received %d of 1000; delays of %d and %d, want 600", r.Published, r.Received, r.Delivery.Count, r.Ack.Count)
	}
}

func TestConnectionsAgainstTinyBroker(t *testing.T) {
	for _, m := range []Mode{Storm, Idle} {
		addr := startTiny(t, &tinyBroker{})
		r := runLoad(t, Load{Mode: m, Address: addr, Connections: 100, Window: 8, Hold: 50 * time.Millisecond})
		c := r.Connections
		if c.Connected != 100 || c.Failed != 0 || c.Connect.Count != 100 || m == Idle && c.AliveAfterHold != 100 {
			t.Errorf("%s: %+v", m, c)
		}
	}
}

func TestRunErrorsAreOneLine(t *testing.T) {
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = gone.Close()
	refusing := startTiny(t, &tinyBroker{refuse: 5})
	for _, c := range []struct {
		addr, want string
	}{{gone.Addr().String(), "nobody listens"}, {refusing, "not authorised"}} {
		for _, m := range Modes() {
			l := Load{Mode: m, Address: c.addr, QoS: 1, SubQoS: -1, Messages: 10, Connections: 3}
			l.Complete()
			_, err := Run(t.Context(), &l, nil)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v, want %q", m, err, c.want)
			}
		}
	}
}

func TestInterrupt(t *testing.T) {
	l := Load{Mode: FanIn, Address: startTiny(t, &tinyBroker{}), Duration: time.Hour, QoS: 1, SubQoS: -1}
	l.Complete()
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Run(ctx, &l, func(p Progress) {
		if p.Received > 0 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
