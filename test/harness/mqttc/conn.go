package mqttc

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// Patience is how long the waiting methods wait unless told otherwise. It is
// generous because suites share few cores with the hub and the race detector.
const Patience = 10 * time.Second

// ErrTimeout is returned when nothing arrived in time.
var ErrTimeout = errors.New("mqttc: nothing arrived in time")

// Conn is one network connection. It has no goroutines: one caller at a time
// reads, and one writes.
type Conn struct {
	Version byte
	net     net.Conn
	br      *bufio.Reader
	stash   []Packet // read while waiting for something else
	lastID  uint16
}

// Open connects TCP only, for callers that speak for themselves.
func Open(addr string, version byte) (*Conn, error) {
	n, err := net.DialTimeout("tcp", addr, Patience)
	if err != nil {
		return nil, err
	}
	if n.LocalAddr().String() == addr {
		_ = n.Close()
		return nil, errors.New("mqttc: connected to itself; nobody listens there")
	}
	return &Conn{Version: version, net: n, br: bufio.NewReaderSize(n, 16<<10)}, nil
}

// Dial connects and performs the CONNECT handshake. A refusal is returned as
// the CONNACK and a nil error: the caller looks at its Code.
func Dial(addr string, o Connect) (*Conn, Packet, error) {
	c, err := Open(addr, o.version())
	if err != nil {
		return nil, Packet{}, err
	}
	if err := c.SendRaw(o.Append(nil)); err != nil {
		c.Abort()
		return nil, Packet{}, err
	}
	p, err := c.Next(Patience)
	if err == nil && p.Kind != CONNACK {
		err = fmt.Errorf("mqttc: %v instead of CONNACK", p)
	}
	if err != nil {
		c.Abort()
		return nil, p, err
	}
	return c, p, nil
}

// NextID returns a packet id that this connection has not used lately.
func (c *Conn) NextID() uint16 {
	c.lastID++
	if c.lastID == 0 {
		c.lastID = 1
	}
	return c.lastID
}

// SendRaw writes bytes as they are.
func (c *Conn) SendRaw(b []byte) error {
	if err := c.net.SetWriteDeadline(time.Now().Add(Patience)); err != nil {
		return err
	}
	_, err := c.net.Write(b)
	return err
}

// Send writes one packet.
func (c *Conn) Send(p Packet) error { return c.SendRaw(p.Append(nil, c.Version)) }

// Ack sends an acknowledgement without a reason code.
func (c *Conn) Ack(kind byte, id uint16) error { return c.Send(Packet{Kind: kind, ID: id}) }

// Next returns the next packet: one set aside by Await, else from the network.
func (c *Conn) Next(timeout time.Duration) (Packet, error) {
	if len(c.stash) > 0 {
		p := c.stash[0]
		c.stash = c.stash[1:]
		return p, nil
	}
	return c.read(timeout)
}

func (c *Conn) read(timeout time.Duration) (Packet, error) {
	if err := c.net.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return Packet{}, err
	}
	p, err := ReadPacket(c.br, c.Version)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = ErrTimeout
	}
	return p, err
}

// ReadPacket reads one packet of the protocol version.
func ReadPacket(br *bufio.Reader, version byte) (Packet, error) {
	first, err := br.ReadByte()
	if err != nil {
		return Packet{}, err
	}
	size := 0
	for shift := 0; ; shift += 7 {
		b, err := br.ReadByte()
		if err != nil {
			return Packet{}, err
		}
		size |= int(b&127) << shift
		if b < 128 {
			break
		}
		if shift == 21 {
			return Packet{}, fmt.Errorf("%w: length of five bytes", ErrMalformed)
		}
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(br, body); err != nil {
		return Packet{}, err
	}
	return Decode(version, first, body)
}

// Await returns the next packet of that type and sets others aside for Next.
func (c *Conn) Await(kind byte) (Packet, error) {
	for i, p := range c.stash {
		if p.Kind == kind {
			c.stash = append(c.stash[:i:i], c.stash[i+1:]...)
			return p, nil
		}
	}
	deadline := time.Now().Add(Patience)
	for {
		p, err := c.read(time.Until(deadline))
		if err != nil {
			return p, fmt.Errorf("mqttc: waiting for %s: %w", KindName(kind), err)
		}
		if p.Kind == kind {
			return p, nil
		}
		c.stash = append(c.stash, p)
	}
}

// Subscribe sends one SUBSCRIBE and waits for its SUBACK.
func (c *Conn) Subscribe(filters ...Filter) (Packet, error) {
	return c.Request(Packet{Kind: SUBSCRIBE, ID: c.NextID(), Filters: filters}, SUBACK)
}

// Unsubscribe sends one UNSUBSCRIBE and waits for its UNSUBACK.
func (c *Conn) Unsubscribe(filters ...string) (Packet, error) {
	p := Packet{Kind: UNSUBSCRIBE, ID: c.NextID()}
	for _, f := range filters {
		p.Filters = append(p.Filters, Filter{Name: f})
	}
	return c.Request(p, UNSUBACK)
}

// Request sends p and waits for the answer of that type with p's packet id.
func (c *Conn) Request(p Packet, answer byte) (Packet, error) {
	if err := c.Send(p); err != nil {
		return Packet{}, err
	}
	got, err := c.Await(answer)
	if err == nil && got.ID != p.ID {
		err = fmt.Errorf("mqttc: %s has packet id %d, want %d", KindName(answer), got.ID, p.ID)
	}
	return got, err
}

// Publish sends p, which needs no id, and performs its whole handshake. A
// reason code of 0x80 or more is an error.
func (c *Conn) Publish(p Packet) error {
	p.Kind = PUBLISH
	if p.QoS == 0 {
		return c.Send(p)
	}
	p.ID = c.NextID()
	steps := [][2]byte{{0, PUBACK}}
	if p.QoS == 2 {
		steps = [][2]byte{{0, PUBREC}, {PUBREL, PUBCOMP}}
	}
	for _, s := range steps {
		out := p
		if s[0] != 0 {
			out = Packet{Kind: s[0], ID: p.ID}
		}
		got, err := c.Request(out, s[1])
		if err != nil {
			return err
		}
		if got.Code >= 0x80 {
			return fmt.Errorf("mqttc: %v", got)
		}
	}
	return nil
}

// Receive returns the next PUBLISH and acknowledges it, for QoS 2 through its
// whole handshake. Packets of other types are skipped.
func (c *Conn) Receive(timeout time.Duration) (Packet, error) {
	deadline := time.Now().Add(timeout)
	for {
		p, err := c.Next(time.Until(deadline))
		if err != nil {
			return p, err
		}
		if p.Kind != PUBLISH {
			continue
		}
		switch p.QoS {
		case 1:
			err = c.Ack(PUBACK, p.ID)
		case 2:
			if _, err = c.Request(Packet{Kind: PUBREC, ID: p.ID}, PUBREL); err == nil {
				err = c.Ack(PUBCOMP, p.ID)
			}
		}
		return p, err
	}
}

// Ping sends PINGREQ and waits for PINGRESP: whatever the server sent for
// earlier packets on this connection's behalf is in the stash by then.
func (c *Conn) Ping() error {
	if err := c.Send(Packet{Kind: PINGREQ}); err != nil {
		return err
	}
	_, err := c.Await(PINGRESP)
	return err
}

// Quiet returns an error when any packet arrives within d.
func (c *Conn) Quiet(d time.Duration) error {
	p, err := c.Next(d)
	switch {
	case errors.Is(err, ErrTimeout):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("mqttc: unexpected %v", p)
}

// AwaitClose reads until the server closes and returns the packets before.
func (c *Conn) AwaitClose(timeout time.Duration) ([]Packet, error) {
	var got []Packet
	deadline := time.Now().Add(timeout)
	for {
		p, err := c.Next(time.Until(deadline))
		switch {
		case errors.Is(err, ErrTimeout), errors.Is(err, ErrMalformed):
			return got, err
		case err != nil: // EOF or a reset: closed
			return got, nil
		}
		got = append(got, p)
	}
}

// Disconnect says goodbye and closes.
func (c *Conn) Disconnect() error {
	return errors.Join(c.Send(Packet{Kind: DISCONNECT}), c.net.Close())
}

// Abort closes with a reset, as a crashed client or a lost link would.
func (c *Conn) Abort() {
	if t, ok := c.net.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // best effort: Close follows
	}
	_ = c.net.Close()
}

// Net is the connection below, for callers that need its deadlines.
func (c *Conn) Net() net.Conn { return c.net }
