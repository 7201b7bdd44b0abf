package netfault

import (
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Link is what a network between two places is like. Both ways are the same.
type Link struct {
	BytesPerS int64         // what it carries; 0: without limit
	RTT       time.Duration // there and back
	Loss      float64       // of packets, each of which TCP sends again a round trip later
}

// kernelBytes bounds what waits before the link, outside of it.
const kernelBytes = 64 << 10

// segment is the payload of a packet.
const segment = 1460

// counted counts what is written.
type counted struct {
	net.Conn
	n *atomic.Int64
}

func (c counted) Write(b []byte) (int, error) {
	c.n.Add(int64(len(b))) // before the other side can have it
	return c.Conn.Write(b)
}

// shaper delivers what is written to it as a link would: at its speed, after its
// delay, in order, a lost packet and all behind it a round trip later. It holds no
// more than what is on such a link; then Write waits.
type shaper struct {
	dst  io.WriteCloser
	link Link
	rng  *rand.Rand
	free time.Time // when the link can take the next packet
	last time.Time // when the newest packet arrives
	wire chan packet
	quit chan struct{}
	end  func()
	wg   sync.WaitGroup
}

type packet struct {
	at   time.Time
	data []byte
}

func newShaper(dst io.WriteCloser, link Link, seed uint64) *shaper {
	onWay := 64 // packets: the buffer of a small router
	if link.BytesPerS > 0 {
		onWay += int(link.RTT.Seconds() * float64(link.BytesPerS) / segment)
	} else {
		onWay += 1024
	}
	s := &shaper{dst: dst, link: link, rng: rand.New(rand.NewPCG(seed, 5)), wire: make(chan packet, onWay), quit: make(chan struct{})}
	s.end = sync.OnceFunc(func() { close(s.quit) })
	s.wg.Go(s.deliver)
	return s
}

// Write puts bytes on the link.
func (s *shaper) Write(b []byte) (int, error) {
	n := 0
	for n < len(b) {
		data := append([]byte(nil), b[n:min(len(b), n+segment)]...)
		now := time.Now()
		if s.free.Before(now) {
			s.free = now
		}
		if s.link.BytesPerS > 0 {
			s.free = s.free.Add(time.Duration(float64(len(data)) / float64(s.link.BytesPerS) * float64(time.Second)))
		}
		at := s.free.Add(s.link.RTT / 2)
		if s.rng.Float64() < s.link.Loss {
			at = at.Add(s.link.RTT)
		}
		if at.Before(s.last) {
			at = s.last
		}
		s.last = at
		select {
		case s.wire <- packet{at, data}:
		case <-s.quit:
			return n, net.ErrClosed
		}
		n += len(data)
	}
	return n, nil
}

// Close ends the link at once, in both meanings: what is on the way is lost.
func (s *shaper) Close() error {
	s.end()
	return s.dst.Close()
}

// stop ends the link and waits for its goroutine.
func (s *shaper) stop() {
	s.end()
	s.wg.Wait()
}

func (s *shaper) deliver() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case p := <-s.wire:
			timer.Reset(time.Until(p.at))
			select {
			case <-timer.C:
			case <-s.quit:
				return
			}
			if _, err := s.dst.Write(p.data); err != nil {
				_ = s.Close()
				return
			}
		case <-s.quit:
			return
		}
	}
}
