package mqtt

import (
	"net"

	"edgehub/adapters/mqtt/packet"
)

// Info describes a connection for operators. It is taken on the connection's loop.
type Info struct {
	Remote, Local net.Addr
	Protocol      string
	ConnectedMs   int64 // hub time
	KeepAliveS    int
	Clean         bool
	Outbound      int // bytes that the socket has not taken
	In, Out       uint64
}

// Info returns what operators see of the connection.
func (c *Conn) Info() Info {
	return Info{Remote: c.t.RemoteAddr(), Local: c.t.LocalAddr(), Protocol: protocolName(c.version), ConnectedMs: int64(c.sinceS) * 1000,
		KeepAliveS: int(c.keepAlive), Clean: c.clean, Outbound: int(c.buffered) + len(c.out), In: c.in, Out: c.sent}
}

func protocolName(v byte) string {
	switch v {
	case packet.V31:
		return "mqtt 3.1"
	case packet.V311:
		return "mqtt 3.1.1"
	}
	return "mqtt 5"
}
