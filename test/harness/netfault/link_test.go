package netfault

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"
)

// TestLink: a link carries what it says, after its delay, and nothing is lost or
// out of order.
func TestLink(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	type got struct {
		first, last time.Time
		data        []byte
	}
	all := make(chan got, 1)
	data := make([]byte, 60_000)
	for i := range data {
		data[i] = byte(i * 7)
	}
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		var g got
		b := make([]byte, 1)
		_, _ = io.ReadFull(c, b)
		g.first = time.Now()
		rest := make([]byte, len(data)-1)
		_, _ = io.ReadFull(c, rest)
		g.last, g.data = time.Now(), append(b, rest...)
		all <- g
	}()
	p, err := Listen("127.0.0.1:0", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	p.Slow(Link{BytesPerS: 100_000, RTT: 200 * time.Millisecond, Loss: 0.05})
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	begin := time.Now()
	if _, err := c.Write(data); err != nil {
		t.Fatal(err)
	}
	select {
	case g := <-all:
		if !bytes.Equal(g.data, data) {
			t.Error("what arrived is not what was sent")
		}
		if d := g.first.Sub(begin); d < 100*time.Millisecond {
			t.Errorf("the first byte arrived after %v, half a round trip is 100 ms", d)
		}
		if d := g.last.Sub(begin); d < 600*time.Millisecond {
			t.Errorf("60,000 bytes took %v at 100,000 a second", d)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it does not arrive")
	}
	if p.Accepted() != 1 || p.Forwarded() != int64(len(data)) {
		t.Errorf("%d connections, %d bytes forwarded", p.Accepted(), p.Forwarded())
	}
}
