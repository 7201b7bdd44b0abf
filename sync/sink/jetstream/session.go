package jetstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/nats-io/nats.go"

	"edgehub/sync/uplink"
)

// session is one connection. Records are published with a reply subject that
// ends in their token; one subscription receives all acknowledgements.
type session struct {
	s      *Sink
	d      *dialer
	nc     *nats.Conn
	inbox  string // prefix of the reply subjects, with its dot
	remote uplink.Remote
	ackOK  []byte // how an acknowledgement of this stream begins

	replicated bool // the stream has more than one replica
	sizeMax    int  // max_msg_size of the stream; 0: none

	// Owned by the caller of Publish.
	hdr     *headers
	msg     nats.Msg
	subject []byte
	reply   []byte

	ready chan struct{}
	mu    sync.Mutex // guards all below
	acks  []uplink.Ack
	err   error
}

func newSession(s *Sink, d *dialer) *session {
	return &session{s: s, d: d, hdr: newHeaders(), ready: make(chan struct{}, 1)}
}

// open subscribes to the acknowledgements and reads the remote stream.
func (n *session) open(ctx context.Context) error {
	n.inbox = nats.NewInbox() + "."
	name, err := json.Marshal(n.s.o.RemoteStream)
	if err != nil {
		return err
	}
	n.ackOK = append(append([]byte(`{"stream":`), name...), ',')
	sub, err := n.nc.Subscribe(n.inbox+"*", n.onAck)
	if err != nil {
		return fmt.Errorf("subscribing to acknowledgements: %w", err)
	}
	// The uplink's window bounds what can arrive here.
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return fmt.Errorf("subscribing to acknowledgements: %w", err)
	}
	return n.readRemote(ctx)
}

// Remote implements uplink.Session.
func (n *session) Remote() uplink.Remote { return n.remote }

// Ready implements uplink.Session.
func (n *session) Ready() <-chan struct{} { return n.ready }

// Publish implements uplink.Session.
func (n *session) Publish(o *uplink.Out) (int, error) {
	n.subject = n.s.o.Subjects.Append(n.subject[:0], o.Stream, o.Message.Topic)
	n.reply = strconv.AppendUint(append(n.reply[:0], n.inbox...), o.Token, 36)
	n.msg.Subject, n.msg.Reply = alias(n.subject), alias(n.reply)
	n.msg.Header = n.hdr.build(n.s.o.Hub, o, n.replicated)
	n.msg.Data = o.Message.Payload
	size := len(n.msg.Data) + n.hdr.size
	if err := n.tooLarge(size); err != nil {
		return 0, err
	}
	if err := n.nc.PublishMsg(&n.msg); err != nil {
		if errors.Is(err, nats.ErrMaxPayload) { // lowered since it was looked at
			return 0, &uplink.SizeError{Reason: fmt.Sprintf("%d bytes with its headers: %v", size, err), Cure: curePayload}
		}
		return 0, n.lost(err)
	}
	return len(n.subject) + len(n.reply) + size + 16, nil
}

// headerMax is how many bytes of headers JetStream stores with a record.
const headerMax = 65535

const (
	curePayload = "raise max_payload at the server, and it goes on by itself"
	cureStream  = "raise max_msg_size of the stream, and it goes on by itself"
	cureHeader  = "have its publisher use a shorter topic or less user properties"
)

// tooLarge judges the record of hdr and msg before it is sent: behind one that the
// server refuses, it refuses all that is in flight.
func (n *session) tooLarge(size int) error {
	switch limit := n.nc.MaxPayload(); {
	case n.hdr.size > headerMax:
		return &uplink.SizeError{Reason: fmt.Sprintf("%d bytes of topic, properties and other headers, JetStream stores %d at most", n.hdr.size, headerMax), Cure: cureHeader}
	case int64(size) > limit:
		return &uplink.SizeError{Reason: fmt.Sprintf("%d bytes with its headers, max_payload of the server is %d", size, limit), Cure: curePayload}
	case n.sizeMax > 0 && size > n.sizeMax:
		return &uplink.SizeError{Reason: fmt.Sprintf("%d bytes with its headers, max_msg_size of the stream is %d", size, n.sizeMax), Cure: cureStream}
	}
	return nil
}

// alias is the string of bytes that outlive its use: PublishMsg copies.
func alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// onAck runs on nats.go's goroutine for the subscription, in the order of
// arrival.
func (n *session) onAck(m *nats.Msg) {
	a, ok := n.parseAck(m)
	if !ok {
		return
	}
	n.mu.Lock()
	first := len(n.acks) == 0
	n.acks = append(n.acks, a)
	n.mu.Unlock()
	if first {
		n.signal()
	}
}

func (n *session) signal() {
	select {
	case n.ready <- struct{}{}:
	default:
	}
}

// Acks implements uplink.Session.
func (n *session) Acks(dst []uplink.Ack) ([]uplink.Ack, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	dst = append(dst, n.acks...)
	n.acks = n.acks[:0]
	return dst, n.err
}

// fail records the connection's end. Only the first reason counts.
func (n *session) fail(err error) {
	n.mu.Lock()
	if n.err == nil {
		n.err = err
	}
	n.mu.Unlock()
	n.signal()
}

// lost wraps a connection's error with the server that it was to.
func (n *session) lost(err error) error {
	addr, _ := n.d.last()
	if err == nil {
		return fmt.Errorf("connection to %s was closed", addr)
	}
	return fmt.Errorf("connection to %s: %w", addr, err)
}

// Close implements uplink.Session. The socket goes first: nats.go would flush.
func (n *session) Close() {
	n.d.close()
	n.nc.Close()
}

// pubAck is the server's answer to one publish.
type pubAck struct {
	Stream    string    `json:"stream"`
	Seq       uint64    `json:"seq"`
	Duplicate bool      `json:"duplicate"`
	Error     *apiError `json:"error"`
}

// parseAck reads an acknowledgement. ok is false for messages that are none.
func (n *session) parseAck(m *nats.Msg) (a uplink.Ack, ok bool) {
	token, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, n.inbox), 36, 64)
	if err != nil {
		return a, false
	}
	a.Token = token
	if seq, ok := quickAck(m.Data, n.ackOK); ok {
		a.Seq = seq
		return a, true
	}
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		a.Err = fmt.Errorf("no stream stores subject %s: remote stream %s is gone or has other subjects", n.s.o.Subjects.All(), n.s.o.RemoteStream)
		return a, true
	}
	var p pubAck
	switch err := json.Unmarshal(m.Data, &p); {
	case err != nil:
		a.Err = fmt.Errorf("answer is not an acknowledgement: %w", err)
	case p.Error != nil && p.Error.ErrCode == codeTooLarge:
		a.Err = &uplink.SizeError{Reason: p.Error.Error(), Cure: cureStream}
	case p.Error != nil:
		a.Err = p.Error
	case p.Stream != n.s.o.RemoteStream:
		a.Err = fmt.Errorf("stream %s stored it instead of %s", p.Stream, n.s.o.RemoteStream)
	default:
		a.Seq, a.Duplicate = p.Seq, p.Duplicate
	}
	return a, true
}

// quickAck reads the usual acknowledgement, {"stream":"S",…"seq":N}, and leaves
// everything else to the JSON decoder.
func quickAck(data, prefix []byte) (uint64, bool) {
	rest, ok := bytes.CutPrefix(data, prefix)
	if !ok || len(rest) < 2 || rest[len(rest)-1] != '}' {
		return 0, false
	}
	rest = bytes.TrimLeft(rest[:len(rest)-1], " ")
	if rest, ok = bytes.CutPrefix(rest, []byte(`"seq":`)); !ok {
		return 0, false
	}
	rest = bytes.TrimLeft(rest, " ")
	if len(rest) == 0 || len(rest) > 19 {
		return 0, false
	}
	seq := uint64(0)
	for _, c := range rest {
		if c < '0' || c > '9' {
			return 0, false
		}
		seq = seq*10 + uint64(c-'0')
	}
	return seq, true
}
