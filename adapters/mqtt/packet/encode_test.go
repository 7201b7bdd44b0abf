package packet

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"edgehub/hub/message"

	mochi "github.com/mochi-mqtt/server/v2/packets"
)

// read decodes what this package has encoded with the independent implementation.
func read(t *testing.T, version byte, packet []byte) mochi.Packet {
	t.Helper()
	first, body := frame(t, packet)
	if err := CheckLength(version, len(packet), len(body)); err != nil {
		t.Fatal(err)
	}
	pk := mochi.Packet{ProtocolVersion: version, FixedHeader: mochi.FixedHeader{Remaining: len(body)}}
	if err := pk.FixedHeader.Decode(first); err != nil {
		t.Fatal(err)
	}
	var err error
	switch first >> 4 {
	case TypeConnack:
		err = pk.ConnackDecode(body)
	case TypePublish:
		err = pk.PublishDecode(body)
	case TypePuback, TypePubrec, TypePubrel, TypePubcomp:
		err = pk.PubackDecode(body)
	case TypeSuback:
		err = pk.SubackDecode(body)
	case TypeUnsuback:
		err = pk.UnsubackDecode(body)
	case TypeDisconnect:
		err = pk.DisconnectDecode(body)
	case TypeAuth:
		err = pk.AuthDecode(body)
	}
	if err != nil {
		t.Fatalf("% x: %v", packet, err)
	}
	return pk
}

func TestConnackBytes(t *testing.T) {
	for _, c := range []struct {
		name    string
		version byte
		in      Connack
		want    string
	}{
		{"3.1.1 accepted", V311, Connack{}, "\x20\x02\x00\x00"},
		{"3.1.1 [MQTT-3.2.2-2] session present", V311, Connack{SessionPresent: true}, "\x20\x02\x01\x00"},
		{"3.1.1 [MQTT-3.2.2-4] no session present with a refusal", V311, Connack{SessionPresent: true, Code: CodeNotAuthorized}, "\x20\x02\x00\x05"},
		{"3.1 has no session present", V31, Connack{SessionPresent: true}, "\x20\x02\x00\x00"},
		{"3.1.1 [MQTT-3.1.2-2] version", V311, Connack{Code: CodeUnsupportedProtocolVersion}, "\x20\x02\x00\x01"},
		{"3.1.1 [MQTT-3.1.3-9] identifier", V311, Connack{Code: CodeClientIDNotValid}, "\x20\x02\x00\x02"},
		{"3.1.1 server unavailable", V311, Connack{Code: CodeServerBusy}, "\x20\x02\x00\x03"},
		{"3.1.1 bad password", V31, Connack{Code: CodeBadUserNameOrPassword}, "\x20\x02\x00\x04"},
		{"3.1.1 banned", V311, Connack{Code: CodeBanned}, "\x20\x02\x00\x05"},
		{"3.1.1 [MQTT-3.2.2-6] no return code applies", V311, Connack{Code: CodeMalformedPacket}, ""},
		{"5 accepted", V5, Connack{SessionPresent: true}, "\x20\x03\x01\x00\x00"},
		{"5 [MQTT-3.2.2-6] refused", V5, Connack{SessionPresent: true, Code: CodeMalformedPacket}, "\x20\x03\x00\x81\x00"},
		{"5 maximum QoS 2 is said by nothing", V5, Connack{HasMaxQoS: true, MaxQoS: 2}, "\x20\x03\x00\x00\x00"},
		{"5 server keep alive 0", V5, Connack{HasServerKeepAlive: true}, "\x20\x06\x00\x00\x03\x13\x00\x00"},
	} {
		if got := AppendConnack([]byte("x"), c.version, &c.in); string(got) != "x"+c.want {
			t.Errorf("%s: % x, want % x", c.name, got[1:], c.want)
		}
	}
}

func TestConnackProperties(t *testing.T) {
	long := strings.Repeat("i", 200) // lengths of two bytes for packet and properties
	pk := read(t, V5, AppendConnack(nil, V5, &Connack{
		HasSessionExpiry: true, SessionExpiryS: 3600, ReceiveMax: 20, HasMaxQoS: true, MaxQoS: 1, NoRetain: true, MaxPacket: 1 << 20,
		AssignedClientID: []byte(long), TopicAliasMax: 9, Reason: "why", User: user("k", "2", "k", "1"), NoWildcards: true, NoSubIDs: true,
		NoShared: true, HasServerKeepAlive: true, ServerKeepAlive: 30, ResponseInfo: "resp", ServerReference: "other:1883",
		AuthMethod: []byte("m"), AuthData: []byte{},
	}))
	p := pk.Properties
	if p.SessionExpiryInterval != 3600 || p.ReceiveMaximum != 20 || !p.MaximumQosFlag || p.MaximumQos != 1 || !p.RetainAvailableFlag ||
		p.RetainAvailable != 0 || p.MaximumPacketSize != 1<<20 || p.AssignedClientID != long || p.TopicAliasMaximum != 9 ||
		p.ReasonString != "why" || len(p.User) != 2 || p.User[0].Val != "2" || p.User[1].Val != "1" ||
		!p.WildcardSubAvailableFlag || p.WildcardSubAvailable != 0 || !p.SubIDAvailableFlag || p.SubIDAvailable != 0 ||
		!p.SharedSubAvailableFlag || p.SharedSubAvailable != 0 || p.ServerKeepAlive != 30 || p.ResponseInfo != "resp" ||
		p.ServerReference != "other:1883" || p.AuthenticationMethod != "m" || p.AuthenticationData == nil {
		t.Errorf("read back: %+v", p)
	}
}

// An aliased packet made from another receiver's is the one that would have been encoded for this receiver alone, but for
// the place of the property.
func TestAppendAliased(t *testing.T) {
	for _, size := range []int{0, 90, 115, 120, 16300, 16380} {
		for _, props := range []*message.Props{nil, {ContentType: []byte("text"), User: user("k", "2", "k", "1")},
			{Correlation: bytes.Repeat([]byte("c"), 123)}} {
			for qos := range byte(3) {
				for _, with := range []bool{true, false} {
					out := PublishOut{QoS: qos, Retain: size == 90, Topic: []byte("a/topic"), Payload: make([]byte, size), Props: props,
						HasExpiry: size == 120, ExpiryS: 7}
					if qos > 0 {
						out.ID = 1
					}
					full := AppendPublish(nil, V5, &out)
					if qos > 0 {
						out.ID = 513
					}
					got := AppendAliased([]byte("x"), full, len(out.Topic), out.ID, 9, with)[1:]
					if out.Alias = 9; !with {
						out.Topic = nil
					}
					want := AppendPublish(nil, V5, &out)
					a, b := read(t, V5, got), read(t, V5, want)
					if len(got) != len(want) || fmt.Sprintf("%+v", a) != fmt.Sprintf("%+v", b) {
						t.Fatalf("size %d, QoS %d, topic %v: got % x, want % x", size, qos, with, got[:40], want[:40])
					}
				}
			}
		}
	}
}

func TestReplies(t *testing.T) {
	codes := []byte{0, 1, 2, CodeNotAuthorized, CodeTopicFilterInvalid}
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"3.1.1 SUBACK [MQTT-3.9.3-2]", AppendSuback(nil, V311, 10, codes, "ignored"), "\x90\x07\x00\x0a\x00\x01\x02\x80\x80"},
		{"5 SUBACK", AppendSuback(nil, V5, 10, codes, ""), "\x90\x08\x00\x0a\x00\x00\x01\x02\x87\x8f"},
		{"5 SUBACK with a reason", AppendSuback(nil, V5, 10, codes[:1], "no"), "\x90\x09\x00\x0a\x05\x1f\x00\x02no\x00"},
		{"3.1.1 UNSUBACK has no payload", AppendUnsuback(nil, V311, 10, codes, "ignored"), "\xb0\x02\x00\x0a"},
		{"5 UNSUBACK", AppendUnsuback(nil, V5, 10, []byte{0, 0x11}, ""), "\xb0\x05\x00\x0a\x00\x00\x11"},
		{"3.1.1 PUBACK", AppendAck(nil, V311, TypePuback, 258, CodeQuotaExceeded), "\x40\x02\x01\x02"},
		{"5 PUBREC success", AppendAck(nil, V5, TypePubrec, 258, CodeSuccess), "\x50\x02\x01\x02"},
		{"5 PUBACK with code", AppendAck(nil, V5, TypePuback, 258, CodeNoMatchingSubscribers), "\x40\x03\x01\x02\x10"},
		{"5 PUBREL flags [MQTT-3.6.1-1]", AppendAck(nil, V5, TypePubrel, 258, CodePacketIDNotFound), "\x62\x03\x01\x02\x92"},
		{"3.1.1 PUBCOMP", AppendAck(nil, V311, TypePubcomp, 258, 0), "\x70\x02\x01\x02"},
		{"5 PUBREC with a reason", AppendAckReason(nil, TypePubrec, 258, CodeQuotaExceeded, "full"), "\x50\x0b\x01\x02\x97\x07\x1f\x00\x04full"},
		{"5 PUBREL with a reason", AppendAckReason(nil, TypePubrel, 1, 0x92, "x"), "\x62\x08\x00\x01\x92\x04\x1f\x00\x01x"},
		{"5 PUBACK without a reason", AppendAckReason(nil, TypePuback, 258, 0, ""), "\x40\x02\x01\x02"},
		{"DISCONNECT", AppendDisconnect(nil, CodeSessionTakenOver, ""), "\xe0\x01\x8e"},
		{"DISCONNECT with a reason", AppendDisconnect(nil, CodeMalformedPacket, "bad"), "\xe0\x08\x81\x06\x1f\x00\x03bad"},
		{"DISCONNECT with a server", AppendDisconnectTo(nil, CodeServerMoved, "", "b"), "\xe0\x06\x9d\x04\x1c\x00\x01b"},
		{"PINGRESP", AppendPingresp(nil), "\xd0\x00"},
		{"AUTH", AppendAuth(nil, CodeContinueAuthentication, []byte("m"), nil, ""), "\xf0\x06\x18\x04\x15\x00\x01m"},
		{"AUTH with empty data", AppendAuth(nil, CodeContinueAuthentication, []byte("m"), []byte{}, "r"), "\xf0\x0d\x18\x0b\x15\x00\x01m\x16\x00\x00\x1f\x00\x01r"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if string(c.got) != c.want {
				t.Fatalf("% x, want % x", c.got, c.want)
			}
			version := V5
			if strings.HasPrefix(c.name, "3.1.1") {
				version = V311
			}
			read(t, version, c.got)
		})
	}
}

// A thousand filters: the length field grows behind what is written already.
func TestLongReplies(t *testing.T) {
	codes := bytes.Repeat([]byte{1}, 20_000)
	for _, version := range []byte{V311, V5} {
		prefix := []byte("what was there before")
		b := AppendSuback(bytes.Clone(prefix), version, 10, codes, strings.Repeat("r", 900))
		if !bytes.HasPrefix(b, prefix) {
			t.Fatal("what was there before is gone")
		}
		pk := read(t, version, b[len(prefix):])
		if pk.PacketID != 10 || !bytes.Equal(pk.ReasonCodes, codes) || version == V5 && len(pk.Properties.ReasonString) != 900 {
			t.Errorf("version %d: id %d, %d codes, reason of %d", version, pk.PacketID, len(pk.ReasonCodes), len(pk.Properties.ReasonString))
		}
	}
}

func TestReasonIsClipped(t *testing.T) {
	long := strings.Repeat("ä", 100_000)
	pk := read(t, V5, AppendDisconnect(nil, CodeProtocolError, long))
	if s := pk.Properties.ReasonString; len(s) > reasonMax || len(s) < reasonMax-4 || !utf8.ValidString(s) {
		t.Errorf("reason of %d bytes, valid: %v", len(s), utf8.ValidString(s))
	}
}

func TestVarint(t *testing.T) {
	for _, x := range []uint32{0, 1, 127, 128, 16383, 16384, 2097151, 2097152, RemainingMax} {
		b := appendVarint(nil, x)
		r := reader{rest: b}
		if got := r.varint(); got != x || r.err != nil || len(r.rest) > 0 || len(b) != varintLen(x) {
			t.Errorf("%d: % x, read back %d, %v; varintLen %d", x, b, got, r.err, varintLen(x))
		}
		size := 1 + len(b) + int(x)
		if got := remainingLen(size); got != len(b) {
			t.Errorf("remainingLen(%d) = %d, want %d", size, got, len(b))
		}
	}
}

func TestPublishThatNoPacketCanHold(t *testing.T) {
	defer func() {
		if r := recover(); r == nil || !strings.HasPrefix(r.(string), "BUG: ") {
			t.Errorf("recovered %v, want a BUG", r)
		}
	}()
	AppendPublish(nil, V5, &PublishOut{Topic: make([]byte, math.MaxUint16+1)})
}

func TestConnackV3(t *testing.T) {
	n := 0
	for code := range 256 {
		rc, ok := ConnackV3(byte(code))
		if ok != (rc > 0 || code == 0) || rc > V3NotAuthorized {
			t.Errorf("ConnackV3(%#x) = %d, %v", code, rc, ok)
		}
		if ok {
			n++
		}
	}
	if n != 14 {
		t.Errorf("%d codes have a return code of MQTT 3.1.1", n)
	}
}

func FuzzEncodePublish(f *testing.F) {
	f.Add(byte(0), byte(0x3b), uint16(7), []byte("a/b"), []byte("hello"), uint16(3), uint32(60), []byte("ct"), []byte("name"), []byte("value"), uint32(5))
	f.Add(byte(2), byte(0x30), uint16(0), []byte("ä"), bytes.Repeat([]byte{1}, 20_000), uint16(0), uint32(0), []byte{}, bytes.Repeat([]byte("n"), 300), []byte{}, uint32(1<<27))
	f.Fuzz(func(t *testing.T, v, first byte, id uint16, topic, payload []byte, alias uint16, expiry uint32, ct, name, value []byte, sub uint32) {
		version := V31 + v%3
		first = 0x30 | first&15
		p := PublishOut{Dup: first&8 != 0, Retain: first&1 != 0, QoS: first >> 1 & 3, ID: id, Topic: topic, Payload: payload, Alias: alias,
			HasExpiry: expiry > 0, ExpiryS: expiry}
		if len(topic)+len(ct)+len(name)+len(value) > math.MaxUint16 {
			return
		}
		in := Publish{Props: newProps(ct, name, value)}
		if !in.Props.Empty() {
			p.Props = &in.Props
		}
		if sub = sub % (RemainingMax + 1); sub > 0 {
			p.SubIDs = []uint32{sub}
		}
		b := AppendPublish(nil, version, &p)
		if len(b) != PublishSize(version, &p) {
			t.Fatalf("PublishSize = %d, packet has %d bytes", PublishSize(version, &p), len(b))
		}
		var got Publish
		if p.QoS == 3 {
			return
		}
		_, body := frame(t, b)
		if err := CheckLength(V5, len(b), len(body)); err != nil {
			t.Fatal(err)
		}
		if got.DecodeDelivery(version, b[0], body) != nil {
			return // topic, strings or ids that no sender may use
		}
		again := PublishOut{got.Dup, got.Retain, got.QoS, got.ID, got.Topic, got.Payload, got.Alias, got.HasExpiry, got.ExpiryS, &got.Props, got.SubIDs}
		if !bytes.Equal(AppendPublish(nil, version, &again), b) {
			t.Fatalf("% x\nencoded again differs from\n% x", AppendPublish(nil, version, &again), b)
		}
		compare(t, version, b)
	})
}
