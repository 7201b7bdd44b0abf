package packet

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"edgehub/hub/message"
)

// body returns what is behind the fixed header of a packet that Frame accepts.
func frame(t testing.TB, packet []byte) (first byte, body []byte) {
	t.Helper()
	first, body, size, err := Frame(packet, 0)
	if err != nil || size != len(packet) {
		t.Fatalf("Frame(% x) = size %d, %v; want size %d", packet, size, err, len(packet))
	}
	return first, body
}

func TestPublishRoundTrip(t *testing.T) {
	full := &message.Props{
		UTF8: true, ContentType: []byte("text/plain"), ResponseTopic: []byte("r/1"), Correlation: []byte{0, 1},
		User: []message.Pair{{Name: []byte("a"), Value: []byte("1")}, {Name: []byte("a"), Value: []byte("")}},
	}
	long := bytes.Repeat([]byte("x"), 200)
	for _, c := range []struct {
		name    string
		version byte
		in      PublishOut
	}{
		{"3.1.1 QoS 0", V311, PublishOut{Topic: []byte("a/b"), Payload: []byte("hello")}},
		{"3.1.1 QoS 2 dup retain", V311, PublishOut{Dup: true, Retain: true, QoS: 2, ID: 65535, Topic: []byte("a"), Payload: long}},
		{"3.1 QoS 1", V31, PublishOut{QoS: 1, ID: 1, Topic: []byte("a"), Payload: []byte{}}},
		{"5 no properties", V5, PublishOut{QoS: 1, ID: 7, Topic: []byte("a/b/c"), Payload: []byte("x")}},
		{"5 all properties", V5, PublishOut{QoS: 1, ID: 7, Topic: []byte("ä/b"), Payload: long, Alias: 3, HasExpiry: true, ExpiryS: 60, Props: full}},
		{"5 alias only", V5, PublishOut{Topic: []byte{}, Alias: 65535, Payload: []byte("x")}},
		{"5 subscription ids", V5, PublishOut{Topic: []byte("a"), SubIDs: []uint32{1, 127, 128, 268435455}, Payload: []byte("x")}},
		{"5 long properties", V5, PublishOut{Topic: []byte("a"), Props: &message.Props{Correlation: long}, Payload: long}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := AppendPublish([]byte("before"), c.version, &c.in)[6:]
			if got := PublishSize(c.version, &c.in); got != len(b) {
				t.Errorf("PublishSize = %d, packet has %d bytes", got, len(b))
			}
			var p Publish
			first, body := frame(t, b)
			if err := p.DecodeDelivery(c.version, first, body); err != nil {
				t.Fatal(err)
			}
			props := &p.Props
			if c.in.Props == nil && props.Empty() {
				props = nil
			}
			out := PublishOut{p.Dup, p.Retain, p.QoS, p.ID, p.Topic, p.Payload, p.Alias, p.HasExpiry, p.ExpiryS, props, p.SubIDs}
			if !reflect.DeepEqual(out, c.in) {
				t.Errorf("decoded\n%+v\nwant\n%+v", out, c.in)
			}
			if c.in.QoS > 0 {
				o := PublishIDOffset(len(b), len(c.in.Topic))
				if id := uint16(b[o])<<8 | uint16(b[o+1]); id != c.in.ID {
					t.Errorf("packet id at PublishIDOffset is %d, want %d", id, c.in.ID)
				}
			}
			err := new(Publish).Decode(c.version, first, body)
			if want := len(c.in.SubIDs) > 0; errors.Is(err, ErrSubIDSent) != want {
				t.Errorf("a server's Decode: %v, refused wanted: %v", err, want)
			}
		})
	}
}
