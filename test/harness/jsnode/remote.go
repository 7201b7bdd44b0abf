package jsnode

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Message is one stored message of the remote stream, with the headers that
// the hub fixed for ever.
type Message struct {
	Seq       uint64
	Subject   string
	Data      []byte
	MsgID     string
	Topic     string
	Hub       string
	Instance  string
	Stream    string
	Partition string // "0-0": partition and lane
	Offset    int64
	Time      time.Time
	QoS       byte
	Retain    bool
}

// Remote reads a JetStream server.
type Remote struct {
	nc *nats.Conn
	js jetstream.JetStream
}

// Connect opens a reader's connection, which is not the hub's.
func Connect(url string) (*Remote, error) {
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
	if err != nil {
		return nil, fmt.Errorf("jsnode: connect %s: %w", url, err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, err
	}
	return &Remote{nc: nc, js: js}, nil
}

// Close closes the connection.
func (r *Remote) Close() { r.nc.Close() }

// Count is the number of messages in a stream, 0 when there is no stream.
func (r *Remote) Count(ctx context.Context, stream string) (uint64, error) {
	s, err := r.js.Stream(ctx, stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return s.CachedInfo().State.Msgs, nil
}

// Read calls fn with every message that the stream holds now, in the order of
// its sequence. It returns an error unless it saw as many as the stream counts.
func (r *Remote) Read(ctx context.Context, stream string, fn func(*Message) error) error {
	s, err := r.js.Stream(ctx, stream)
	if err != nil {
		return fmt.Errorf("jsnode: stream %s: %w", stream, err)
	}
	want := s.CachedInfo().State.Msgs
	if want == 0 {
		return nil
	}
	c, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return err
	}
	it, err := c.Messages(jetstream.PullMaxMessages(4096))
	if err != nil {
		return err
	}
	defer it.Stop()
	stop := context.AfterFunc(ctx, it.Stop)
	defer stop()
	for seen := uint64(0); seen < want; seen++ {
		m, err := it.Next()
		if err != nil {
			return errors.Join(fmt.Errorf("jsnode: after %d of %d messages: %w", seen, want, err), ctx.Err())
		}
		parsed, err := parse(m)
		if err != nil {
			return err
		}
		if err := fn(parsed); err != nil {
			return err
		}
	}
	return nil
}

func parse(m jetstream.Msg) (*Message, error) {
	meta, err := m.Metadata()
	if err != nil {
		return nil, err
	}
	h := m.Headers()
	out := &Message{
		Seq: meta.Sequence.Stream, Subject: m.Subject(), Data: m.Data(), MsgID: h.Get(nats.MsgIdHdr),
		Topic: h.Get("Hub-Topic"), Hub: h.Get("Hub-Id"), Instance: h.Get("Hub-Instance"),
		Stream: h.Get("Hub-Stream"), Partition: h.Get("Hub-Partition"),
	}
	if !strings.Contains(out.Partition, "-") {
		out.Partition += "-0"
	}
	var errs [4]error
	out.Offset, errs[0] = strconv.ParseInt(h.Get("Hub-Offset"), 10, 64)
	out.Time, errs[1] = time.Parse(time.RFC3339Nano, h.Get("Hub-Time"))
	if q := h.Get("Hub-QoS"); q == "" {
		out.QoS = 1
	} else {
		var n uint64
		n, errs[2] = strconv.ParseUint(q, 10, 2)
		out.QoS = byte(n)
	}
	if r := h.Get("Hub-Retain"); r != "" {
		out.Retain, errs[3] = strconv.ParseBool(r)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("jsnode: headers of sequence %d, %v: %w", out.Seq, h, err)
	}
	return out, nil
}
