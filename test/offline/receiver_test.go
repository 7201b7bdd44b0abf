package offline

import (
	"fmt"
	"time"

	"edgehub/test/harness"
	"edgehub/test/harness/load"
	"edgehub/test/harness/mqttc"
)

// receiver is the client of one persistent session. Like any MQTT client it
// keeps the packet ids of QoS 2 messages whose handshake is under way, and
// nothing else, over its connections.
type receiver struct {
	hub     *harness.Hub
	id      string
	version byte
	qos     byte

	held     map[uint16]bool // QoS 2: received, not yet released
	high     map[int]uint64  // by publisher: every number below was received
	expect   map[int]uint64  // by publisher: what must come next on this connection
	received int             // messages that were new
	repeated int             // QoS 1 messages that were not
}

func newReceiver(h *harness.Hub, id string, version, qos byte) *receiver {
	return &receiver{hub: h, id: id, version: version, qos: qos, held: map[uint16]bool{}, high: map[int]uint64{}}
}

func (r *receiver) connect() (*mqttc.Conn, mqttc.Packet, error) {
	c, ack, err := mqttc.Dial(r.hub.Addr(), mqttc.Connect{Version: r.version, ClientID: r.id, SessionExpiry: 3600, KeepAlive: 60})
	if err == nil && ack.Code != 0 {
		c.Abort()
		err = fmt.Errorf("%s: %v", r.id, ack)
	}
	return c, ack, err
}

// subscribe makes the session and leaves it.
func (r *receiver) subscribe(filter string) error {
	c, _, err := r.connect()
	if err != nil {
		return err
	}
	ack, err := c.Subscribe(mqttc.Filter{Name: filter, Options: r.qos})
	if err != nil {
		return err
	}
	if len(ack.Codes) != 1 || ack.Codes[0] != r.qos {
		return fmt.Errorf("%s: %v % x", r.id, ack, ack.Codes)
	}
	return c.Disconnect()
}

// drain connects and receives until the total of new messages is reached. It
// gives up when nothing comes for a while.
func (r *receiver) drain(total int) error {
	c, ack, err := r.connect()
	if err != nil {
		return err
	}
	defer c.Abort()
	if !ack.SessionPresent {
		return &violation{r.id + ": the session is gone"}
	}
	r.expect = map[int]uint64{}
	for r.received < total {
		if err := r.step(c, 15*time.Second); err != nil {
			return fmt.Errorf("%s: after %d messages: %w", r.id, r.received, err)
		}
	}
	return nil
}

// step handles one packet.
func (r *receiver) step(c *mqttc.Conn, patience time.Duration) error {
	p, err := c.Next(patience)
	if err != nil {
		return err
	}
	switch {
	case p.Kind == mqttc.PUBREL:
		delete(r.held, p.ID)
		return c.Ack(mqttc.PUBCOMP, p.ID)
	case p.Kind != mqttc.PUBLISH || p.QoS != r.qos:
		return &violation{fmt.Sprintf("%s: got %v", r.id, p)}
	case p.QoS == 1:
		if err := r.take(p); err != nil {
			return err
		}
		return c.Ack(mqttc.PUBACK, p.ID)
	}
	if r.held[p.ID] && !p.Dup {
		return &violation{fmt.Sprintf("%s: packet id %d is used for a new message before its release", r.id, p.ID)}
	}
	if !r.held[p.ID] {
		if err := r.take(p); err != nil {
			return err
		}
		r.held[p.ID] = true
	}
	return c.Ack(mqttc.PUBREC, p.ID)
}

// violation is a broken promise, as opposed to a broken connection.
type violation struct{ what string }

func (v *violation) Error() string { return v.what }

// take accounts for a message that is not known by its packet id.
func (r *receiver) take(p mqttc.Packet) error {
	_, pub, seq, ok := load.ParsePayload(p.Payload)
	if !ok {
		return &violation{fmt.Sprintf("%s: payload %.40q", r.id, p.Payload)}
	}
	high := r.high[pub]
	want, begun := r.expect[pub]
	switch {
	case begun && seq == want, !begun && seq == high:
	case !begun && seq < high && r.qos == 1:
		// A new connection may begin before what was acknowledged; from
		// there on the numbers rise one by one again.
	default:
		return &violation{fmt.Sprintf("%s: number %d of publisher %d; received on this connection: %t, up to %d; before: all below %d",
			r.id, seq, pub, begun, want-1, high)}
	}
	r.expect[pub] = seq + 1
	if seq < high {
		r.repeated++
		return nil
	}
	r.received++
	r.high[pub] = seq + 1
	return nil
}
