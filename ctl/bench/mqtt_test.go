package bench

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"strings"
	"testing"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestMQTTEncodes(t *testing.T) {
	three, five := NewMQTT(MQTT311), NewMQTT(MQTT5)
	long := bytes.Repeat([]byte{'x'}, 200)
	for _, c := range []struct {
		name, want string
		got        []byte
	}{
		{"connect", "10 0d 0004 4d515454 04 02 003c 0001 61", three.AppendOpen(nil, &Open{ClientID: "a", Fresh: true, KeepAliveS: 60})},
		{"connect with names", "10 13 0004 4d515454 04 c0 0000 0001 61 0001 75 0001 70", three.AppendOpen(nil, &Open{ClientID: "a", User: "u", Password: "p"})},
		{"connect 5", "10 0e 0004 4d515454 05 02 0000 00 0001 61", five.AppendOpen(nil, &Open{ClientID: "a", Fresh: true})},
		{"connect 5 kept", "10 13 0004 4d515454 05 00 0000 05 11 00000e10 0001 61", five.AppendOpen(nil, &Open{ClientID: "a", ExpiryS: 3600})},
		{"subscribe", "82 08 0007 0003 612f23 01", three.AppendSubscribe(nil, 7, "a/#", 1)},
		{"subscribe 5", "82 09 0007 00 0003 612f23 02", five.AppendSubscribe(nil, 7, "a/#", 2)},
		{"publish 0", "30 05 0001 61 6869", three.AppendMessage(nil, &Message{Topic: "a", Payload: []byte("hi"), ID: 9})},
		{"publish 1", "32 07 0001 61 0009 6869", three.AppendMessage(nil, &Message{Topic: "a", Payload: []byte("hi"), QoS: 1, ID: 9})},
		{"publish 5", "35 08 0001 61 0009 00 6869", five.AppendMessage(nil, &Message{Topic: "a", Payload: []byte("hi"), QoS: 2, Retain: true, ID: 9})},
		{"publish long", "30 cb01 0001 61" + hex.EncodeToString(long), three.AppendMessage(nil, &Message{Topic: "a", Payload: long})},
		{"ping", "c000", three.AppendPing(nil)},
		{"disconnect", "e000", five.AppendClose(nil)},
	} {
		if want := unhex(t, c.want); !bytes.Equal(c.got, want) {
			t.Errorf("%s: % x, want % x", c.name, c.got, want)
		}
	}
}

func TestMQTTDecodesAndAnswers(t *testing.T) {
	for _, c := range []struct {
		name    string
		version byte
		in      string
		want    Event
		refused string
		answer  string
	}{
		{"connack", 4, "20 02 01 00", Event{Kind: Opened, Present: true}, "", ""},
		{"connack refused", 4, "20 02 00 05", Event{Kind: Opened}, "not authorised", ""},
		{"connack 5", 5, "20 06 00 00 03 21 000a", Event{Kind: Opened, Window: 10}, "", ""},
		{"connack 5 with others before", 5, "20 1b 00 00 18 25 01 22 000a 12 0001 61 26 0001 61 0001 62 27 00001000 21 0014", Event{Kind: Opened, Window: 20}, "", ""},
		{"connack 5 refused", 5, "20 03 00 87 00", Event{Kind: Opened}, "not authorised", ""},
		{"suback", 4, "90 03 0001 01", Event{Kind: Subscribed, ID: 1}, "", ""},
		{"suback refused", 5, "90 04 0001 00 9e", Event{Kind: Subscribed, ID: 1}, "shared subscriptions", ""},
		{"publish 0", 4, "30 05 0001 61 6869", Event{Kind: Received, Payload: []byte("hi")}, "", ""},
		{"publish 1", 4, "3a 07 0001 61 0102 6869", Event{Kind: Received, QoS: 1, ID: 258, Payload: []byte("hi")}, "", "40 02 0102"},
		{"publish 2", 4, "34 07 0001 61 0102 6869", Event{Kind: Received, QoS: 2, ID: 258, Payload: []byte("hi")}, "", "50 02 0102"},
		{"publish 5 with properties", 5, "32 0a 0001 61 0102 02 01 01 6869", Event{Kind: Received, QoS: 1, ID: 258, Payload: []byte("hi")}, "", "40 02 0102"},
		{"publish empty", 4, "30 03 0001 61", Event{Kind: Received, Payload: []byte{}}, "", ""},
		{"puback", 4, "40 02 0102", Event{Kind: Acked, ID: 258}, "", ""},
		{"puback nobody there", 5, "40 03 0102 10", Event{Kind: Acked, ID: 258}, "", ""},
		{"puback refused", 5, "40 04 0102 97 00", Event{Kind: Acked, ID: 258}, "quota", ""},
		{"pubrec", 4, "50 02 0102", Event{Kind: Step, ID: 258}, "", "62 02 0102"},
		{"pubrec refused ends there", 5, "50 03 0102 97", Event{Kind: Acked, ID: 258}, "quota", ""},
		{"pubrel", 4, "62 02 0102", Event{Kind: Step, ID: 258}, "", "70 02 0102"},
		{"pubcomp", 4, "70 02 0102", Event{Kind: Acked, ID: 258}, "", ""},
		{"pingresp", 4, "d0 00", Event{Kind: Pong}, "", ""},
		{"disconnect", 5, "e0 02 8e 00", Event{Kind: Closed}, "taken over", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			codec, b := NewMQTT(c.version), unhex(t, c.in)
			var e Event
			for n := range b {
				if size, err := codec.Next(b[:n], &e); size != 0 || err != nil {
					t.Fatalf("the first %d bytes: size %d, %v", n, size, err)
				}
			}
			size, err := codec.Next(append(b, 0xff, 0xff), &e)
			if err != nil || size != len(b) {
				t.Fatalf("size %d of %d, %v", size, len(b), err)
			}
			if answer := codec.AppendAnswer(nil, &e); !bytes.Equal(answer, unhex(t, c.answer)) {
				t.Errorf("answer % x, want %s", answer, c.answer)
			}
			if (e.Refused == nil) != (c.refused == "") || e.Refused != nil && !strings.Contains(e.Refused.Error(), c.refused) {
				t.Errorf("refused: %v, want %q", e.Refused, c.refused)
			}
			e.Refused, e.packet = nil, 0
			if !reflect.DeepEqual(e, c.want) {
				t.Errorf("%+v, want %+v", e, c.want)
			}
		})
	}
}

func TestMQTTRefusesMalformed(t *testing.T) {
	for _, in := range []string{"20 01 00", "90 02 0001", "30 01 00", "32 04 0001 61 01", "30 03 0009 61", "40 01 00", "30 80 80 80 80 01"} {
		var e Event
		if size, err := NewMQTT(MQTT311).Next(unhex(t, in), &e); err == nil {
			t.Errorf("%s: size %d and no error", in, size)
		}
	}
	var e Event
	if _, err := NewMQTT(MQTT5).Next(unhex(t, "30 06 0001 61 09 00"), &e); err != nil {
		t.Errorf("an incomplete packet: %v", err)
	}
	if _, err := NewMQTT(MQTT5).Next(unhex(t, "30 05 0001 61 09 00"), &e); err == nil {
		t.Error("properties longer than the packet")
	}
}

func FuzzMQTTNext(f *testing.F) {
	for _, s := range []string{"20020000", "2006000003 21000a", "3205000161 0102", "300500016100 61", "40020102", "d000", "e0028e00", "3080808001"} {
		f.Add(unhex(f, s), true)
		f.Add(unhex(f, s), false)
	}
	f.Fuzz(func(t *testing.T, b []byte, five bool) {
		version := MQTT311
		if five {
			version = MQTT5
		}
		codec := NewMQTT(version)
		var e Event
		n, err := codec.Next(b, &e)
		if n < 0 || n > len(b) || err != nil && n != 0 {
			t.Fatalf("size %d of %d, %v", n, len(b), err)
		}
		if n > 0 {
			var again Event
			if m, err := codec.Next(b[:n], &again); m != n || err != nil {
				t.Fatalf("the packet alone: size %d, %v; before %d", m, err, n)
			}
			codec.AppendAnswer(nil, &e)
		}
	})
}
