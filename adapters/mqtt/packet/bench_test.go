package packet

import (
	"testing"

	"edgehub/hub/message"
)

func newProps(contentType, name, value []byte) message.Props {
	p := message.Props{}
	if len(contentType) > 0 {
		p.ContentType = contentType
	}
	if len(name) > 0 {
		p.User = []message.Pair{{Name: name, Value: value}, {Name: name, Value: nil}}
	}
	return p
}

// hot are the packets of which a busy hub sees millions.
func hot() map[string]struct {
	version byte
	p       PublishOut
} {
	topic := []byte("site/7/devices/17/telemetry")
	user := newProps([]byte("text/plain"), []byte("trace"), []byte("4711"))
	type c = struct {
		version byte
		p       PublishOut
	}
	return map[string]c{
		"3.1.1 QoS 0 16 B":             {V311, PublishOut{Topic: topic, Payload: make([]byte, 16)}},
		"3.1.1 QoS 1 1 KB":             {V311, PublishOut{QoS: 1, ID: 9, Topic: topic, Payload: make([]byte, 1024)}},
		"5 QoS 1 16 B":                 {V5, PublishOut{QoS: 1, ID: 9, Topic: topic, Payload: make([]byte, 16)}},
		"5 QoS 1 16 B with properties": {V5, PublishOut{QoS: 1, ID: 9, Topic: topic, Payload: make([]byte, 16), HasExpiry: true, ExpiryS: 60, Props: &user}},
		"5 QoS 1 16 B by alias":        {V5, PublishOut{QoS: 1, ID: 9, Alias: 5, Payload: make([]byte, 16)}},
	}
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	dst := make([]byte, 0, 4096)
	var p Publish
	for name, c := range hot() {
		b := AppendPublish(nil, c.version, &c.p)
		if n := testing.AllocsPerRun(100, func() { dst = AppendPublish(dst[:0], c.version, &c.p) }); n != 0 {
			t.Errorf("%s: encoding allocates %v times", name, n)
		}
		if n := testing.AllocsPerRun(100, func() {
			first, body, _, err := Frame(b, 1<<20)
			if err == nil {
				err = p.Decode(c.version, first, body)
			}
			if err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: decoding allocates %v times", name, n)
		}
	}
	long := AppendAckReason(nil, TypePubrec, 7, CodeQuotaExceeded, "quota")
	if n := testing.AllocsPerRun(100, func() {
		dst = AppendAck(dst[:0], V5, TypePuback, 7, CodeQuotaExceeded)
		for _, b := range [][]byte{dst, long} {
			first, body, _, err := Frame(b, 1<<20)
			if err == nil {
				_, err = DecodeAck(V5, first, body)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}); n != 0 {
		t.Errorf("acknowledgements allocate %v times", n)
	}
	var s Subscribe
	sub := []byte("\x00\x01\x00" + str("a/+") + "\x01" + str("b/#") + "\x02")
	if n := testing.AllocsPerRun(100, func() {
		if err := s.Decode(V5, 0x82, sub); err != nil {
			t.Fatal(err)
		}
		dst = AppendSuback(dst[:0], V5, s.ID, []byte{1, 2}, "")
	}); n != 0 {
		t.Errorf("SUBSCRIBE and SUBACK allocate %v times", n)
	}
	bad := []byte(str("sensors/+/x"))
	if n := testing.AllocsPerRun(100, func() { _ = p.Decode(V311, 0x30, bad) }); n != 0 {
		t.Errorf("refusing a packet allocates %v times", n)
	}
}

func BenchmarkDecodePublish(b *testing.B) {
	for name, c := range hot() {
		packet := AppendPublish(nil, c.version, &c.p)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var p Publish
			for range b.N {
				first, body, _, err := Frame(packet, 1<<20)
				if err == nil {
					err = p.Decode(c.version, first, body)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkEncodePublish(b *testing.B) {
	for name, c := range hot() {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			dst := make([]byte, 0, 4096)
			for range b.N {
				dst = AppendPublish(dst[:0], c.version, &c.p)
			}
		})
	}
}

func BenchmarkAck(b *testing.B) {
	b.ReportAllocs()
	dst := make([]byte, 0, 64)
	for range b.N {
		dst = AppendAck(dst[:0], V311, TypePuback, 7, CodeSuccess)
		first, body, _, _ := Frame(dst, 1<<20)
		if a, err := DecodeAck(V311, first, body); err != nil || a.ID != 7 {
			b.Fatal(a, err)
		}
	}
}
