package mqttc

import (
	"bufio"
	"fmt"
	"net"
)

// Over performs the CONNECT handshake on a connection that is there already:
// TLS, WebSocket, a Unix socket. As with Dial, a refusal is the CONNACK and a
// nil error.
func Over(n net.Conn, o Connect) (*Conn, Packet, error) {
	c := &Conn{Version: o.version(), net: n, br: bufio.NewReaderSize(n, 4<<10)}
	if err := c.SendRaw(o.Append(nil)); err != nil {
		return nil, Packet{}, err
	}
	p, err := c.Next(Patience)
	if err == nil && p.Kind != CONNACK {
		err = fmt.Errorf("mqttc: %v instead of CONNACK", p)
	}
	return c, p, err
}
