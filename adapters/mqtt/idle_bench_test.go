package mqtt

import (
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"edgehub/adapters/eventloop"
	"edgehub/internal/scaletest"
)

// still is a socket of which there is one for all connections: it takes everything and says nothing.
type still struct{}

func (still) Write(b []byte) (int, error) { return len(b), nil }
func (still) OutboundBuffered() int       { return 0 }
func (still) LocalAddr() net.Addr         { return farAddr }
func (still) RemoteAddr() net.Addr        { return farAddr }
func (still) Close() error                { return nil }

// BenchmarkIdleConnections is what half of HUB_BENCH_SCALE connected clients cost on one loop, with a keep-alive of 60 s
// and a ping in each half of it: bytes each in protocol and broker (without socket and event loop), the time of one tick,
// of which there are four a second, and of one ping.
func BenchmarkIdleConnections(b *testing.B) {
	for _, filter := range []string{"", "devices/%d/commands"} {
		name := "without subscription"
		if filter != "" {
			name = "with a subscription each"
		}
		b.Run(name, func(b *testing.B) { benchmarkIdle(b, filter) })
	}
}

func benchmarkIdle(b *testing.B, filter string) {
	const keepAlive = 60
	n := scaletest.Size(b) / 2
	s, l := hotServer(b)
	conns := make([]*Conn, 0, n)
	before := scaletest.Heap()
	el, on := &eventloop.Loop{State: l}, &eventloop.Listener{}
	for i := range n {
		c := s.OnOpen(still{}, el, on).(*Conn)
		s.OnData(c, connectPacket(4, 2, fmt.Sprintf("device-%d", i), keepAlive))
		if filter != "" {
			s.OnData(c, subscribePacket(4, 1, fmt.Sprintf(filter, i), 1))
		}
		conns = append(conns, c)
		if i%256 == 255 {
			l.b.Round()
		}
	}
	l.b.Round()
	bytes := float64(scaletest.Heap()-before) / float64(n)

	// Time goes on four ticks a second, and the clients' pings are spread over half a keep-alive.
	const pingTicks = keepAlive * 1000 / 2 / wheelStepMs
	now, ping := s.o.Clock.NowMs(), frame(0xC0)
	var ticks []time.Duration
	var pings time.Duration
	var ticked, pinged int
	step := func() {
		now += wheelStepMs
		start := time.Now()
		l.tick(now)
		ticks = append(ticks, time.Since(start))
		start = time.Now()
		for i := ticked % pingTicks; i < n; i += pingTicks {
			s.OnData(conns[i], ping)
			conns[i].seenMs = now
			if pinged++; pinged%64 == 0 {
				l.b.Round()
			}
		}
		l.b.Round()
		pings += time.Since(start)
		ticked++
	}
	for range 2 * keepAlive * 1500 / wheelStepMs { // until deadlines are spread as the pings are
		step()
	}
	ticks, pings, ticked, pinged = ticks[:0], 0, 0, 0
	for b.Loop() {
		step()
	}
	if closed := s.Stats.KeepAlive.Load(); closed > 0 || len(conns) != n || s.Open() != int64(n) {
		b.Fatalf("%d of %d are open, %d closed for being silent", s.Open(), n, closed)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(bytes, "B/connection")
	sum := time.Duration(0)
	for _, d := range ticks {
		sum += d
	}
	slices.Sort(ticks)
	b.ReportMetric(float64(sum.Microseconds())/float64(len(ticks)), "µs/tick")
	b.ReportMetric(float64(ticks[len(ticks)*99/100].Microseconds()), "µs/tick-p99")
	b.ReportMetric(float64(pings.Nanoseconds())/float64(max(pinged, 1)), "ns/ping")
}
