package packet

import (
	"bytes"
	"errors"
	"testing"
)

func TestFrame(t *testing.T) {
	big := append([]byte{0x30, 0x80, 0x80, 0x01}, make([]byte, 16384)...)
	for _, c := range []struct {
		name string
		in   string
		max  int
		size int // 0: incomplete
		body int
		err  error
	}{
		{"nothing", "", 0, 0, 0, nil},
		{"one byte", "\x30", 0, 0, 0, nil},
		{"PINGREQ", "\xc0\x00", 0, 2, 0, nil},
		{"PINGREQ and more", "\xc0\x00\xc0\x00", 0, 2, 0, nil},
		{"body incomplete", "\x40\x02\x00", 0, 0, 0, nil},
		{"body complete", "\x40\x02\x00\x01", 0, 4, 2, nil},
		{"length incomplete after 1", "\x30\x80", 0, 0, 0, nil},
		{"length incomplete after 3", "\x30\xff\xff\xff", 0, 0, 0, nil},
		{"length of three bytes", string(big), 0, len(big), 16384, nil},
		{"greatest length, body incomplete", "\x30\xff\xff\xff\x7f\x00", 0, 0, 0, nil},
		{"[MQTT-1.5.5-1] five length bytes", "\x30\xff\xff\xff\xff\x01", 0, 0, 0, ErrLength},
		{"[MQTT-1.5.5-1] fourth byte goes on", "\x30\x80\x80\x80\x80", 0, 0, 0, ErrLength},
		{"[MQTT-3.1.2-24] as large as the limit", "\x40\x02\x00\x01", 4, 4, 2, nil},
		{"[MQTT-3.1.2-24] larger than the limit, known from the header", "\x30\x03", 4, 0, 0, ErrTooLarge},
		{"[MQTT-3.1.2-24] greatest length and a limit", "\x30\xff\xff\xff\x7f", 1 << 20, 0, 0, ErrTooLarge},
		{"length not in its shortest form is for CheckLength", "\xc0\x80\x00", 0, 3, 0, nil},
		{"[MQTT-2.1.2] type 0", "\x00", 0, 0, 0, ErrType},
		{"[MQTT-2.1.3-1] CONNECT", "\x11\x00", 0, 0, 0, ErrFlags},
		{"[MQTT-2.1.3-1] CONNACK", "\x21\x00", 0, 0, 0, ErrFlags},
		{"[MQTT-2.1.3-1] PUBACK", "\x42", 0, 0, 0, ErrFlags},
		{"[MQTT-2.1.3-1] PUBREC", "\x58\x00", 0, 0, 0, ErrFlags},
		{"[MQTT-3.6.1-1] PUBREL", "\x60", 0, 0, 0, ErrFlags},
		{"[MQTT-3.6.1-1] PUBREL with bit 0", "\x63", 0, 0, 0, ErrFlags},
		{"[MQTT-2.1.3-1] PUBCOMP", "\x72\x00", 0, 0, 0, ErrFlags},
		{"[MQTT-3.8.1-1] SUBSCRIBE", "\x80\x00", 0, 0, 0, ErrFlags},
		{"[MQTT-3.10.1-1] UNSUBSCRIBE", "\xa6\x00", 0, 0, 0, ErrFlags},
		{"[MQTT-2.1.3-1] PINGREQ", "\xc1\x00", 0, 0, 0, ErrFlags},
		{"[MQTT-3.14.1-1] DISCONNECT", "\xe8\x00", 0, 0, 0, ErrFlags},
		{"[MQTT-3.15.1-1] AUTH", "\xf2\x00", 0, 0, 0, ErrFlags},
		{"[MQTT-3.3.1-4] PUBLISH with QoS 3", "\x36\x00", 0, 0, 0, ErrPublishQoS},
		{"a web browser", "GET / HTTP/1.1\r\n", 0, 0, 0, ErrFlags},
		{"a TLS client", "\x16\x03\x01\x00\xa5", 0, 0, 0, ErrFlags},
		{"MQTT 3.1 has DUP on SUBSCRIBE: the decoder decides", "\x8a\x00", 0, 2, 0, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			first, body, size, err := Frame([]byte(c.in), c.max)
			if size != c.size || len(body) != c.body || !errors.Is(err, c.err) || err != nil && c.err == nil {
				t.Fatalf("Frame = size %d, body of %d, %v; want %d, %d, %v", size, len(body), err, c.size, c.body, c.err)
			}
			if size > 0 && (first != c.in[0] || !bytes.Equal(body, []byte(c.in)[size-len(body):size]) || cap(body) != len(body)) {
				t.Errorf("Frame = first %#x, body % x with room for %d", first, body, cap(body))
			}
		})
	}
}

func TestCheckLength(t *testing.T) {
	for _, c := range []struct {
		name    string
		version byte
		in      string
		want    error
	}{
		{"5, shortest", V5, "\x40\x02\x00\x01", nil},
		{"5, two bytes needed", V5, "\x30\x80\x01" + string(make([]byte, 128)), nil},
		{"[MQTT-1.5.5-1] two bytes for 2", V5, "\x40\x82\x00\x00\x01", ErrLengthForm},
		{"[MQTT-1.5.5-1] four bytes for 0", V5, "\xc0\x80\x80\x80\x00", ErrLengthForm},
		{"3.1.1 has no such rule", V311, "\x40\x82\x00\x00\x01", nil},
	} {
		_, body, size, err := Frame([]byte(c.in), 0)
		if err != nil || size != len(c.in) {
			t.Fatalf("%s: Frame = %d, %v", c.name, size, err)
		}
		if got := CheckLength(c.version, size, len(body)); !errors.Is(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// A stream cut anywhere gives the same packets as one that arrives whole.
func TestFrameByteByByte(t *testing.T) {
	stream := AppendPublish(nil, V5, &PublishOut{QoS: 1, ID: 5, Topic: []byte("a"), Payload: make([]byte, 300)})
	first := len(stream)
	stream = AppendAck(stream, V5, TypePubrel, 7, CodePacketIDNotFound)
	for cut := range stream {
		_, _, size, err := Frame(stream[:cut], 0)
		if want := cut >= first; err != nil || (size == first) != want {
			t.Fatalf("with %d bytes of %d: size %d, %v", cut, first, size, err)
		}
	}
}
