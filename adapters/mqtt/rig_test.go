package mqtt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"edgehub/adapters/eventloop"
	"edgehub/adapters/mqtt/packet"
	"edgehub/hub/auth"
	"edgehub/hub/broker"
	"edgehub/hub/stream"
	"edgehub/internal/hubtime"
	"edgehub/internal/vfs/vfstest"
)

// A rig is a server on a real broker with a disk in memory. Its loops run when the test steps them, its sockets are
// slices.
type rig struct {
	t     testing.TB
	s     *Server
	fs    *vfstest.Faults
	loops []*loop
	mu    sync.Mutex // logins can be decided on another goroutine
	wakes [][]func()
}

func newRig(t testing.TB, loops int, change ...func(*Options)) *rig {
	t.Helper()
	r := &rig{t: t, fs: vfstest.New(vfstest.NewMem())}
	clock, logger := hubtime.New(0), slog.New(slog.DiscardHandler)
	set, err := stream.Open([]stream.Spec{
		{Name: "main", Filters: []string{"#"}, Partitions: 2, SegmentBytes: 1 << 20},
		{Name: broker.RetainedStream, Partitions: 1, SegmentBytes: 1 << 20},
	}, stream.Options{FS: r.fs, Dir: "/streams", QuarantineDir: "/quarantine", Clock: clock, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	b := broker.New(broker.Options{Streams: set, Meta: mapMeta{}, Clock: clock, Logger: logger, Limits: broker.Limits{
		ReceiveMaximum: 100, SessionExpiryMax: 3600, SubsPerClient: 10, TopicLevels: 8, QoS0LagMs: 60_000, CatchupBytes: 8 << 20, InboundBytes: 8 << 20}})
	if _, err := b.Recover(); err != nil {
		t.Fatal(err)
	}
	b.Start()
	t.Cleanup(b.Stop)
	a, err := auth.New(auth.Options{Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	o := Options{Broker: b, Auth: a, Clock: clock, Logger: logger, Listeners: []Listener{{AllowAnonymous: true}, {}},
		MaxPacket: 4096, TopicLevels: 8, ReceiveMaximum: 10, QoSMax: 2, SessionExpiryMax: 3600, ConnectTimeout: 10 * time.Second,
		OutboundPerClient: 8 << 10, Outbound: 64 << 10}
	for _, fn := range change {
		fn(&o)
	}
	r.s = New(o)
	for i := range loops {
		l := &loop{s: r.s, last: time.Now()}
		r.wakes = append(r.wakes, nil)
		l.b = b.NewLoop(func(fn func()) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.wakes[i] = append(r.wakes[i], fn)
		})
		l.wheel.init(clock.NowMs())
		r.loops = append(r.loops, l)
	}
	r.s.loops = r.loops
	return r
}

// step runs what a loop was woken for.
func (r *rig) step(i int) bool {
	r.mu.Lock()
	fns := r.wakes[i]
	r.wakes[i] = nil
	r.mu.Unlock()
	for _, fn := range fns {
		fn()
	}
	return len(fns) > 0
}

func (r *rig) settle() {
	for busy := true; busy; {
		busy = false
		for i := range r.loops {
			busy = r.step(i) || busy
		}
	}
}

// mapMeta is metadata that are not asked to survive anything.
type mapMeta map[string][]byte

func (m mapMeta) Put(key, value []byte)    { m[string(key)] = slices.Clone(value) }
func (m mapMeta) PutNew(key, value []byte) { m.Put(key, value) }
func (m mapMeta) Delete(key []byte)        { delete(m, string(key)) }
func (m mapMeta) Commit() error            { return nil }
func (m mapMeta) Backlog() int             { return 0 }
func (m mapMeta) Sync() error              { return nil }
func (m mapMeta) Scan(prefix []byte, fn func(key, value []byte) error) error {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		if strings.HasPrefix(k, string(prefix)) {
			if err := fn([]byte(k), m[k]); err != nil {
				return err
			}
		}
	}
	return nil
}

// socket is a connection of the rig.
type socket struct {
	r       *rig
	l       *loop
	c       *Conn
	version byte
	in      []byte // sent by the client, not consumed
	got     []byte // written by the hub
	stuck   bool   // takes nothing
	waiting []byte // not taken
	broken  bool   // the next write fails
	closed  bool
}

var errBroken = errors.New("broken pipe")

// dial opens a connection.
func (r *rig) dial(loop int, listener int) *socket {
	s := &socket{r: r, l: r.loops[loop]}
	if st := r.s.OnOpen(s, &eventloop.Loop{State: s.l}, &eventloop.Listener{Index: listener}); st != nil {
		s.c = st.(*Conn)
	}
	return s
}

func (s *socket) Write(b []byte) (int, error) {
	if s.broken {
		s.shut()
		return 0, errBroken
	}
	if s.stuck {
		s.waiting = append(s.waiting, b...)
	} else {
		s.got = append(s.got, b...)
	}
	return len(b), nil
}

func (s *socket) OutboundBuffered() int { return len(s.waiting) }
func (s *socket) LocalAddr() net.Addr   { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1883} }
func (s *socket) RemoteAddr() net.Addr  { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 40000} }

// Close is soon, not now.
func (s *socket) Close() error {
	s.l.b.Post(s.shut)
	return nil
}

func (s *socket) shut() {
	if !s.closed {
		s.closed = true
		s.r.s.OnClose(s.c, nil)
	}
}

// send is what the loop does with bytes that have arrived.
func (s *socket) send(b ...byte) {
	if s.closed {
		return
	}
	s.in = append(s.in, b...)
	if len(s.in) < s.r.s.Need(s.c) {
		return
	}
	used, ok := s.r.s.OnData(s.c, slices.Clone(s.in))
	s.in = s.in[used:]
	if !ok {
		s.shut()
		return
	}
	s.r.s.AfterData(s.c)
}

// nudge offers again what was held.
func (s *socket) nudge() { s.send() }

// take returns the packets written so far.
func (s *socket) take() []reply {
	s.r.settle()
	var list []reply
	for len(s.got) > 0 {
		first, body, size, err := packet.Frame(s.got, 1<<20)
		if err != nil || size == 0 {
			s.r.t.Fatalf("the hub wrote no packet: %x (%v)", s.got, err)
		}
		list = append(list, reply{first, slices.Clone(body)})
		s.got = s.got[size:]
	}
	return list
}

// reply is a packet of the hub.
type reply struct {
	first byte
	body  []byte
}

func (p reply) kind() byte { return p.first >> 4 }
func (p reply) String() string {
	return fmt.Sprintf("%d %x", p.kind(), p.body)
}

func frame(first byte, parts ...[]byte) []byte {
	body := slices.Concat(parts...)
	return slices.Concat([]byte{first}, binary.AppendUvarint(nil, uint64(len(body))), body)
}

func str(s string) []byte { return append(binary.BigEndian.AppendUint16(nil, uint16(len(s))), s...) }

// connectPacket: version 3, 4 or 5.
func connectPacket(version byte, flags byte, id string, keepAlive uint16, props ...byte) []byte {
	name := "MQTT"
	if version == 3 {
		name = "MQIsdp"
	}
	var p []byte
	if version == 5 {
		p = append([]byte{byte(len(props))}, props...)
	}
	return frame(0x10, str(name), []byte{version, flags}, binary.BigEndian.AppendUint16(nil, keepAlive), p, str(id))
}

func publishPacket(version, qos byte, topic, payload string, id uint16) []byte {
	var x []byte
	if qos > 0 {
		x = binary.BigEndian.AppendUint16(x, id)
	}
	if version == 5 {
		x = append(x, 0)
	}
	return frame(0x30|qos<<1, str(topic), x, []byte(payload))
}

func subscribePacket(version byte, id uint16, filter string, qos byte) []byte {
	x := binary.BigEndian.AppendUint16(nil, id)
	if version == 5 {
		x = append(x, 0)
	}
	return frame(0x82, x, str(filter), []byte{qos})
}

// login connects and returns the connection once CONNACK is here.
func (r *rig) login(loop int, version byte, id string, keepAlive uint16, props ...byte) *socket {
	r.t.Helper()
	s := r.dial(loop, 0)
	s.version = version
	s.send(connectPacket(version, 2, id, keepAlive, props...)...)
	got := s.take()
	if len(got) != 1 || got[0].kind() != packet.TypeConnack || got[0].body[1] != 0 {
		r.t.Fatalf("CONNECT was answered by %v", got)
	}
	return s
}
