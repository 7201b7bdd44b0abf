package packet

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestPublishRefused(t *testing.T) {
	for _, c := range []struct {
		name    string
		version byte
		first   byte
		in      string
		want    *Error
		code    byte
	}{
		{"[MQTT-3.3.1-4] QoS 3", V311, 0x36, str("a") + "\x00\x01", ErrPublishQoS, 0x81},
		{"5 [MQTT-3.3.1-4] QoS 3 with DUP", V5, 0x3e, str("a") + "\x00\x01\x00", ErrPublishQoS, 0x81},
		{"[MQTT-3.3.1-2] DUP with QoS 0", V311, 0x38, str("a"), ErrPublishDup, 0x81},
		{"5 [MQTT-3.3.1-2] DUP with QoS 0", V5, 0x38, str("a") + "\x00", ErrPublishDup, 0x81},
		{"empty body", V311, 0x30, "", ErrTruncated, 0x81},
		{"half a length", V311, 0x30, "\x00", ErrTruncated, 0x81},
		{"topic longer than the packet", V311, 0x30, "\xff\xffa", ErrTruncated, 0x81},
		{"[MQTT-2.2.1-3] no packet id", V311, 0x32, str("a"), ErrTruncated, 0x81},
		{"half a packet id", V311, 0x34, str("a") + "\x01", ErrTruncated, 0x81},
		{"[MQTT-2.3.1-1] packet id 0", V311, 0x32, str("a") + "\x00\x00x", ErrPacketID, 0x82},
		{"5 [MQTT-2.2.1-3] packet id 0", V5, 0x34, str("a") + "\x00\x00\x00", ErrPacketID, 0x82},
		{"[MQTT-4.7.3-1] empty topic", V311, 0x30, str("") + "x", ErrTopicEmpty, 0x82},
		{"3.1 empty topic", V31, 0x30, str("") + "x", ErrTopicEmpty, 0x82},
		{"5 empty topic without alias", V5, 0x30, str("") + "\x00x", ErrTopicEmpty, 0x82},
		{"5 empty topic without alias, other properties", V5, 0x30, str("") + props("\x01\x01") + "x", ErrTopicEmpty, 0x82},
		{"[MQTT-3.3.2-2] topic with '+'", V311, 0x30, str("a/+"), ErrTopicName, 0x90},
		{"5 [MQTT-3.3.2-2] topic with '#'", V5, 0x30, str("sensors/device/#") + "\x00", ErrTopicName, 0x90},
		{"[MQTT-3.3.2-1] topic not UTF-8", V311, 0x30, str("a\xff"), ErrUTF8, 0x81},
		{"[MQTT-1.5.4-1] topic with a surrogate", V5, 0x30, str("a\xed\xbf\xbf") + "\x00", ErrUTF8, 0x81},
		{"[MQTT-1.5.4-2] topic with NUL", V5, 0x30, str("a\x00b") + "\x00", ErrNUL, 0x81},
		{"5 no property length", V5, 0x30, str("a"), ErrPropertyLen, 0x81},
		{"5 properties longer than the packet", V5, 0x30, str("a") + "\x05\x01\x01", ErrPropertyLen, 0x81},
		{"5 property cut short", V5, 0x30, str("a") + props("\x02\x00"), ErrPropertyLen, 0x81},
		{"5 string property cut short", V5, 0x30, str("a") + props("\x03\x00\x09abc"), ErrPropertyLen, 0x81},
		{"5 user property without a value", V5, 0x30, str("a") + props("\x26"+str("k")), ErrPropertyLen, 0x81},
		{"5 property identifier alone", V5, 0x30, str("a") + props("\x23"), ErrPropertyLen, 0x81},
		{"5 [MQTT-1.5.5-1] property length not in its shortest form", V5, 0x30, str("a") + "\x82\x00\x01\x01", ErrLengthForm, 0x81},
		{"5 property length of five bytes", V5, 0x30, str("a") + "\x80\x80\x80\x80\x01", ErrLength, 0x81},
		{"5 unknown property", V5, 0x30, str("a") + props("\x7f\x00"), ErrProperty, 0x81},
		{"5 property identifier 0", V5, 0x30, str("a") + props("\x00\x00"), ErrProperty, 0x81},
		{"5 property of CONNECT", V5, 0x30, str("a") + props("\x11\x00\x00\x00\x01"), ErrProperty, 0x81},
		{"5 will delay", V5, 0x30, str("a") + props("\x18\x00\x00\x00\x01"), ErrProperty, 0x81},
		{"5 reason string", V5, 0x30, str("a") + props("\x1f"+str("x")), ErrProperty, 0x81},
		{"5 payload format twice", V5, 0x30, str("a") + props("\x01\x01\x01\x01"), ErrPropertyDup, 0x82},
		{"5 expiry twice", V5, 0x30, str("a") + props("\x02\x00\x00\x00\x01\x02\x00\x00\x00\x01"), ErrPropertyDup, 0x82},
		{"5 alias twice", V5, 0x30, str("a") + props("\x23\x00\x01\x23\x00\x02"), ErrPropertyDup, 0x82},
		{"5 content type twice", V5, 0x30, str("a") + props("\x03"+str("x")+"\x03"+str("y")), ErrPropertyDup, 0x82},
		{"5 response topic twice", V5, 0x30, str("a") + props("\x08"+str("x")+"\x08"+str("y")), ErrPropertyDup, 0x82},
		{"5 correlation data twice", V5, 0x30, str("a") + props("\x09"+str("")+"\x09"+str("")), ErrPropertyDup, 0x82},
		{"5 payload format 2", V5, 0x30, str("a") + props("\x01\x02"), ErrPropertyBool, 0x82},
		{"5 [MQTT-3.3.2-8] alias 0", V5, 0x30, str("a") + props("\x23\x00\x00"), ErrAlias, 0x94},
		{"5 [MQTT-3.3.2-8] alias 0 and no topic", V5, 0x30, str("") + props("\x23\x00\x00"), ErrAlias, 0x94},
		{"5 [MQTT-3.3.2-14] response topic with '#'", V5, 0x30, str("a") + props("\x08"+str("#")), ErrResponseTopic, 0x82},
		{"5 empty response topic", V5, 0x30, str("a") + props("\x08"+str("")), ErrResponseTopic, 0x82},
		{"5 [MQTT-3.3.2-13] response topic not UTF-8", V5, 0x30, str("a") + props("\x08"+str("\xff")), ErrUTF8, 0x81},
		{"5 [MQTT-3.3.2-19] content type not UTF-8", V5, 0x30, str("a") + props("\x03"+str("\xc3")), ErrUTF8, 0x81},
		{"5 [MQTT-1.5.7-1] user property not UTF-8", V5, 0x30, str("a") + props("\x26"+str("k")+str("\x80")), ErrUTF8, 0x81},
		{"5 [MQTT-3.3.4-6] subscription identifier of a client", V5, 0x30, str("a") + props("\x0b\x01"), ErrSubIDSent, 0x82},
		{"5 subscription identifier 0", V5, 0x30, str("a") + props("\x0b\x00"), ErrSubID, 0x82},
		{"5 [MQTT-1.5.5-1] subscription identifier not in its shortest form", V5, 0x30, str("a") + props("\x0b\x81\x00"), ErrLengthForm, 0x81},
		{"5 subscription identifier cut short", V5, 0x30, str("a") + props("\x0b\x80"), ErrPropertyLen, 0x81},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := new(Publish).Decode(c.version, c.first, []byte(c.in))
			if !errors.Is(err, c.want) || Code(err) != c.code {
				t.Errorf("%v (%#x), want %v (%#x)", err, Code(err), c.want, c.code)
			}
		})
	}
}

// What an earlier packet left in a reused struct must not show in the next one.
func TestPublishReuse(t *testing.T) {
	var p Publish
	full := str("a") + "\x00\x01" + props("\x01\x01", "\x02\x00\x00\x00\x05", "\x23\x00\x01", "\x03"+str("t"), "\x08"+str("r"), "\x09"+str("c"), "\x26"+str("k")+str("v"), "\x0b\x01") + "x"
	if err := p.DecodeDelivery(V5, 0x3d, []byte(full)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		version byte
		in      string
	}{{V311, str("b") + "y"}, {V5, str("b") + "\x00y"}, {V5, str("b") + props("\x01\x00") + "y"}} {
		q := p
		if err := q.Decode(c.version, 0x30, []byte(c.in)); err != nil {
			t.Fatal(err)
		}
		q.Props.User, q.SubIDs = nil, nil
		if want := (Publish{Topic: []byte("b"), Payload: []byte("y")}); !reflect.DeepEqual(q, want) {
			t.Errorf("decoded %+v, want %+v", q, want)
		}
	}
	// One packet with very many entries does not keep its memory for ever.
	many := str("a") + props(strings.Repeat("\x26\x00\x00\x00\x00", 10_000)+strings.Repeat("\x0b\x01", 1000))
	if err := p.DecodeDelivery(V5, 0x30, []byte(many)); err != nil || len(p.Props.User) != 10_000 || len(p.SubIDs) != 1000 {
		t.Fatalf("%v, %d user properties, %d subscription ids", err, len(p.Props.User), len(p.SubIDs))
	}
	if err := p.Decode(V311, 0x30, []byte(str("b"))); err != nil || cap(p.Props.User) != 0 || cap(p.SubIDs) != 0 {
		t.Errorf("%v, room kept for %d user properties and %d subscription ids", err, cap(p.Props.User), cap(p.SubIDs))
	}
}

func TestAck(t *testing.T) {
	reason := "\x1f" + str("why")
	for _, c := range []struct {
		name    string
		version byte
		first   byte
		in      string
		want    Ack
		err     *Error
	}{
		{"3.1.1 PUBACK", V311, 0x40, "\x00\x01", Ack{ID: 1}, nil},
		{"3.1.1 PUBREL", V311, 0x62, "\xff\xff", Ack{ID: 65535}, nil},
		{"3.1 PUBREL with DUP", V31, 0x6a, "\x00\x01", Ack{ID: 1}, nil},
		{"5 short form", V5, 0x50, "\x00\x01", Ack{ID: 1}, nil},
		{"5 with code", V5, 0x40, "\x00\x01\x10", Ack{1, 0x10}, nil},
		{"5 with code and no properties", V5, 0x50, "\x00\x01\x97\x00", Ack{1, 0x97}, nil},
		{"5 with reason and user properties", V5, 0x62, "\x00\x01\x92" + props(reason, "\x26"+str("a")+str("b"), "\x26"+str("a")+str("b")), Ack{1, 0x92}, nil},
		{"3.1.1 [MQTT-3.6.1-1] PUBREL with DUP", V311, 0x6a, "\x00\x01", Ack{}, ErrFlags},
		{"[MQTT-2.1.3-1] PUBACK with flags", V5, 0x42, "\x00\x01", Ack{}, ErrFlags},
		{"[MQTT-2.1.3-1] PUBREL without flags", V5, 0x60, "\x00\x01", Ack{}, ErrFlags},
		{"empty", V311, 0x40, "", Ack{}, ErrTruncated},
		{"one byte", V5, 0x40, "\x01", Ack{}, ErrTruncated},
		{"[MQTT-2.2.1-3] packet id 0", V5, 0x40, "\x00\x00", Ack{}, ErrPacketID},
		{"3.1.1 a byte behind", V311, 0x40, "\x00\x01\x00", Ack{}, ErrTrailing},
		{"[MQTT-3.4.2-1] PUBACK with a code of PUBREL", V5, 0x40, "\x00\x01\x92", Ack{}, ErrReasonCode},
		{"[MQTT-3.5.2-1] PUBREC with an unknown code", V5, 0x50, "\x00\x01\x01", Ack{}, ErrReasonCode},
		{"[MQTT-3.6.2-1] PUBREL with a code of PUBACK", V5, 0x62, "\x00\x01\x80", Ack{}, ErrReasonCode},
		{"[MQTT-3.7.2-1] PUBCOMP with an unknown code", V5, 0x70, "\x00\x01\x10", Ack{}, ErrReasonCode},
		{"5 reason string twice", V5, 0x40, "\x00\x01\x00" + props(reason, reason), Ack{}, ErrPropertyDup},
		{"5 property of PUBLISH", V5, 0x40, "\x00\x01\x00" + props("\x01\x01"), Ack{}, ErrProperty},
		{"5 properties cut short", V5, 0x40, "\x00\x01\x00\x05\x1f", Ack{}, ErrPropertyLen},
		{"5 bytes behind the properties", V5, 0x40, "\x00\x01\x00\x00\x00", Ack{}, ErrTrailing},
		{"5 reason not UTF-8", V5, 0x70, "\x00\x01\x92" + props("\x1f"+str("\xff")), Ack{}, ErrUTF8},
	} {
		got, err := DecodeAck(c.version, c.first, []byte(c.in))
		if got != c.want || c.err == nil && err != nil || c.err != nil && !errors.Is(err, c.err) {
			t.Errorf("%s: %+v, %v; want %+v, %v", c.name, got, err, c.want, c.err)
		}
	}
}

func TestSubscribe(t *testing.T) {
	long := strings.Repeat("x", 65535)
	for _, c := range []struct {
		name    string
		version byte
		first   byte
		in      string
		want    Subscribe
		err     *Error
	}{
		{"3.1.1", V311, 0x82, "\x00\x0a" + str("a/b") + "\x01" + str("#") + "\x02", Subscribe{ID: 10,
			Filters: []SubFilter{{Filter: []byte("a/b"), QoS: 1}, {Filter: []byte("#"), QoS: 2}}}, nil},
		{"3.1 with DUP", V31, 0x8a, "\x00\x0a" + str("a") + "\x00", Subscribe{ID: 10, Filters: []SubFilter{{Filter: []byte("a")}}}, nil},
		{"3.1.1 longest filter", V311, 0x82, "\x00\x0a" + str(long) + "\x00", Subscribe{ID: 10, Filters: []SubFilter{{Filter: []byte(long)}}}, nil},
		{"5 all options and properties", V5, 0x82, "\x00\x0a" + props("\x0b\xff\xff\xff\x7f", "\x26"+str("k")+str("v")) + str("a") + "\x2d" + str("b") + "\x12",
			Subscribe{ID: 10, SubID: 268435455, User: user("k", "v"), Filters: []SubFilter{
				{Filter: []byte("a"), QoS: 1, NoLocal: true, RetainAsPublished: true, RetainHandling: 2}, {Filter: []byte("b"), QoS: 2, RetainHandling: 1}}}, nil},
		{"5 shared", V5, 0x82, "\x00\x0a\x00" + str("$share/g/a") + "\x01", Subscribe{ID: 10, Filters: []SubFilter{{Filter: []byte("$share/g/a"), QoS: 1}}}, nil},
		{"syntax of the filter is for the server to judge", V5, 0x82, "\x00\x0a\x00" + str("a/#/b") + "\x01", Subscribe{ID: 10, Filters: []SubFilter{{Filter: []byte("a/#/b"), QoS: 1}}}, nil},
		{"3.1.1 [MQTT-3.8.1-1] DUP", V311, 0x8a, "\x00\x0a" + str("a") + "\x00", Subscribe{}, ErrFlags},
		{"[MQTT-3.8.1-1] no flags", V5, 0x80, "\x00\x0a\x00" + str("a") + "\x00", Subscribe{}, ErrFlags},
		{"empty", V311, 0x82, "", Subscribe{}, ErrTruncated},
		{"[MQTT-2.2.1-3] packet id 0", V311, 0x82, "\x00\x00" + str("a") + "\x00", Subscribe{}, ErrPacketID},
		{"3.1.1 [MQTT-3.8.3-3] no filter", V311, 0x82, "\x00\x0a", Subscribe{}, ErrNoFilters},
		{"5 [MQTT-3.8.3-2] no filter", V5, 0x82, "\x00\x0a\x00", Subscribe{}, ErrNoFilters},
		{"filter without options", V311, 0x82, "\x00\x0a" + str("a"), Subscribe{}, ErrTruncated},
		{"5 filter without options", V5, 0x82, "\x00\x0a\x00" + str("a"), Subscribe{}, ErrTruncated},
		{"5 second filter without options", V5, 0x82, "\x00\x0a\x00" + str("a") + "\x00" + str("b"), Subscribe{}, ErrTruncated},
		{"filter cut short", V311, 0x82, "\x00\x0a\x00\x05ab", Subscribe{}, ErrTruncated},
		{"[MQTT-4.7.3-1] empty filter", V311, 0x82, "\x00\x0a" + str("") + "\x00", Subscribe{}, ErrFilterEmpty},
		{"[MQTT-3.8.3-1] filter not UTF-8", V5, 0x82, "\x00\x0a\x00" + str("a\xff") + "\x00", Subscribe{}, ErrUTF8},
		{"[MQTT-4.7.3-2] filter with NUL", V311, 0x82, "\x00\x0a" + str("a\x00") + "\x00", Subscribe{}, ErrNUL},
		{"3.1.1 [MQTT-3-8.3-4] QoS 3", V311, 0x82, "\x00\x0a" + str("a") + "\x03", Subscribe{}, ErrSubOptions},
		{"3.1.1 [MQTT-3-8.3-4] reserved bits", V311, 0x82, "\x00\x0a" + str("a") + "\x04", Subscribe{}, ErrSubOptions},
		{"3.1.1 [MQTT-3-8.3-4] second filter", V311, 0x82, "\x00\x0a" + str("a") + "\x00" + str("b") + "\x80", Subscribe{}, ErrSubOptions},
		{"5 [MQTT-3.8.3-5] bit 6", V5, 0x82, "\x00\x0a\x00" + str("a") + "\x40", Subscribe{}, ErrSubOptions},
		{"5 [MQTT-3.8.3-5] bit 7", V5, 0x82, "\x00\x0a\x00" + str("a") + "\x80", Subscribe{}, ErrSubOptions},
		{"5 QoS 3", V5, 0x82, "\x00\x0a\x00" + str("a") + "\x03", Subscribe{}, ErrSubQoS},
		{"5 retain handling 3", V5, 0x82, "\x00\x0a\x00" + str("a") + "\x30", Subscribe{}, ErrRetainHandling},
		{"5 [MQTT-3.8.3-4] no local on a shared subscription", V5, 0x82, "\x00\x0a\x00" + str("$share/g/a") + "\x04", Subscribe{}, ErrNoLocalShared},
		{"5 subscription identifier 0", V5, 0x82, "\x00\x0a" + props("\x0b\x00") + str("a") + "\x00", Subscribe{}, ErrSubID},
		{"5 subscription identifier twice", V5, 0x82, "\x00\x0a" + props("\x0b\x01\x0b\x02") + str("a") + "\x00", Subscribe{}, ErrPropertyDup},
		{"5 subscription identifier of five bytes", V5, 0x82, "\x00\x0a" + props("\x0b\xff\xff\xff\xff\x01") + str("a") + "\x00", Subscribe{}, ErrLength},
		{"5 property of PUBLISH", V5, 0x82, "\x00\x0a" + props("\x01\x01") + str("a") + "\x00", Subscribe{}, ErrProperty},
		{"5 no property length", V5, 0x82, "\x00\x0a", Subscribe{}, ErrPropertyLen},
		{"5 properties longer than the packet", V5, 0x82, "\x00\x0a\x7f" + str("a") + "\x00", Subscribe{}, ErrPropertyLen},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Subscribe{SubID: 7, User: user("old", "old")}
			err := got.Decode(c.version, c.first, []byte(c.in))
			if c.err != nil {
				if !errors.Is(err, c.err) {
					t.Errorf("%v, want %v", err, c.err)
				}
			} else if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v, %v; want %+v", got, err, c.want)
			}
		})
	}
}

func TestUnsubscribe(t *testing.T) {
	for _, c := range []struct {
		name    string
		version byte
		first   byte
		in      string
		want    Unsubscribe
		err     *Error
	}{
		{"3.1.1", V311, 0xa2, "\x00\x0a" + str("a/b") + str("#"), Unsubscribe{ID: 10, Filters: [][]byte{[]byte("a/b"), []byte("#")}}, nil},
		{"3.1 with DUP", V31, 0xaa, "\x00\x0a" + str("a"), Unsubscribe{ID: 10, Filters: [][]byte{[]byte("a")}}, nil},
		{"5", V5, 0xa2, "\x00\x0a" + props("\x26"+str("k")+str("v")) + str("a"), Unsubscribe{ID: 10, Filters: [][]byte{[]byte("a")}, User: user("k", "v")}, nil},
		{"[MQTT-3.10.1-1] flags", V5, 0xa0, "\x00\x0a\x00" + str("a"), Unsubscribe{}, ErrFlags},
		{"[MQTT-2.2.1-3] packet id 0", V5, 0xa2, "\x00\x00\x00" + str("a"), Unsubscribe{}, ErrPacketID},
		{"[MQTT-3.10.3-2] no filter", V5, 0xa2, "\x00\x0a\x00", Unsubscribe{}, ErrNoFilters},
		{"3.1.1 [MQTT-3.10.3-2] no filter", V311, 0xa2, "\x00\x0a", Unsubscribe{}, ErrNoFilters},
		{"[MQTT-3.10.3-1] filter not UTF-8", V311, 0xa2, "\x00\x0a" + str("\xff"), Unsubscribe{}, ErrUTF8},
		{"[MQTT-4.7.3-1] empty filter", V5, 0xa2, "\x00\x0a\x00" + str(""), Unsubscribe{}, ErrFilterEmpty},
		{"filter cut short", V5, 0xa2, "\x00\x0a\x00\x00\x02a", Unsubscribe{}, ErrTruncated},
		{"5 subscription identifier", V5, 0xa2, "\x00\x0a" + props("\x0b\x01") + str("a"), Unsubscribe{}, ErrProperty},
		{"5 no property length", V5, 0xa2, "\x00\x0a", Unsubscribe{}, ErrPropertyLen},
		{"empty", V5, 0xa2, "", Unsubscribe{}, ErrTruncated},
	} {
		var got Unsubscribe
		err := got.Decode(c.version, c.first, []byte(c.in))
		if c.err != nil {
			if !errors.Is(err, c.err) {
				t.Errorf("%s: %v, want %v", c.name, err, c.err)
			}
		} else if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, %v; want %+v", c.name, got, err, c.want)
		}
	}
}

// One packet with very many filters does not keep its memory for ever.
func TestFiltersShrink(t *testing.T) {
	var s Subscribe
	var u Unsubscribe
	many := "\x00\x01" + strings.Repeat(str("a")+"\x00", 5000)
	if err := s.Decode(V311, 0x82, []byte(many)); err != nil || len(s.Filters) != 5000 {
		t.Fatalf("%v, %d filters", err, len(s.Filters))
	}
	if err := u.Decode(V311, 0xa2, []byte("\x00\x01"+strings.Repeat(str("a"), 5000))); err != nil || len(u.Filters) != 5000 {
		t.Fatalf("%v, %d filters", err, len(u.Filters))
	}
	err := errors.Join(s.Decode(V311, 0x82, []byte(many[:6])), u.Decode(V311, 0xa2, []byte(many[:5])))
	if err != nil || cap(s.Filters) > 8 || cap(u.Filters) > 8 {
		t.Errorf("%v, room kept for %d and %d filters", err, cap(s.Filters), cap(u.Filters))
	}
}

func TestDisconnect(t *testing.T) {
	for _, c := range []struct {
		name    string
		version byte
		in      string
		want    Disconnect
		err     *Error
	}{
		{"3.1.1", V311, "", Disconnect{}, nil},
		{"5 short form", V5, "", Disconnect{}, nil},
		{"5 with will", V5, "\x04", Disconnect{Code: 4}, nil},
		{"5 all properties", V5, "\x00" + props("\x11\x00\x00\x00\x3c", "\x1f"+str("bye"), "\x26"+str("k")+str("v")),
			Disconnect{HasSessionExpiry: true, SessionExpiryS: 60, Reason: []byte("bye"), User: user("k", "v")}, nil},
		{"3.1.1 with a body", V311, "\x00", Disconnect{}, ErrTrailing},
		{"[MQTT-3.14.2-1] unknown code", V5, "\x01", Disconnect{}, ErrReasonCode},
		{"[MQTT-3.14.2-1] a code that only a server sends", V5, "\x8e", Disconnect{}, ErrReasonCode},
		{"session expiry twice", V5, "\x00" + props("\x11\x00\x00\x00\x01\x11\x00\x00\x00\x01"), Disconnect{}, ErrPropertyDup},
		{"server reference of a client", V5, "\x00" + props("\x1c"+str("x")), Disconnect{}, ErrProperty},
		{"properties cut short", V5, "\x00\x05\x11", Disconnect{}, ErrPropertyLen},
		{"bytes behind", V5, "\x00\x00x", Disconnect{}, ErrTrailing},
	} {
		got := Disconnect{Code: 9, User: user("old", "old")}
		err := got.Decode(c.version, []byte(c.in))
		if c.err != nil {
			if !errors.Is(err, c.err) {
				t.Errorf("%s: %v, want %v", c.name, err, c.err)
			}
		} else if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, %v; want %+v", c.name, got, err, c.want)
		}
	}
}

func TestAuth(t *testing.T) {
	method := "\x15" + str("SCRAM")
	for _, c := range []struct {
		name    string
		version byte
		in      string
		want    Auth
		err     *Error
	}{
		{"continue", V5, "\x18" + props(method, "\x16"+str("data"), "\x1f"+str("r"), "\x26"+str("k")+str("v")),
			Auth{Code: 0x18, Method: []byte("SCRAM"), Data: []byte("data"), Reason: []byte("r"), User: user("k", "v")}, nil},
		{"authenticate again", V5, "\x19" + props(method), Auth{Code: 0x19, Method: []byte("SCRAM")}, nil},
		{"3.1.1 has no AUTH", V311, "\x18" + props(method), Auth{}, ErrTypeVersion},
		{"short form means success, which a client does not say", V5, "", Auth{}, ErrReasonCode},
		{"success in full", V5, "\x00" + props(method), Auth{}, ErrReasonCode},
		{"[MQTT-3.15.2-1] unknown code", V5, "\x01" + props(method), Auth{}, ErrReasonCode},
		{"code alone", V5, "\x18", Auth{}, ErrAuthMethod},
		{"no method", V5, "\x18" + props("\x16"+str("x")), Auth{}, ErrAuthMethod},
		{"method twice", V5, "\x18" + props(method, method), Auth{}, ErrPropertyDup},
		{"property of DISCONNECT", V5, "\x18" + props(method, "\x11\x00\x00\x00\x01"), Auth{}, ErrProperty},
		{"bytes behind", V5, "\x18" + props(method) + "x", Auth{}, ErrTrailing},
	} {
		var got Auth
		err := got.Decode(c.version, []byte(c.in))
		if c.err != nil {
			if !errors.Is(err, c.err) {
				t.Errorf("%s: %v, want %v", c.name, err, c.err)
			}
		} else if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, %v; want %+v", c.name, got, err, c.want)
		}
	}
}

func TestPingreq(t *testing.T) {
	if err := DecodePingreq(nil); err != nil {
		t.Error(err)
	}
	if err := DecodePingreq([]byte{0}); !errors.Is(err, ErrTrailing) {
		t.Errorf("a PINGREQ with a body: %v", err)
	}
}

func TestCode(t *testing.T) {
	for _, c := range []struct {
		err  error
		want byte
	}{{nil, 0}, {errors.New("x"), 0x80}, {ErrTooLarge, 0x95}, {errors.Join(errors.New("x"), ErrAlias), 0x94}} {
		if got := Code(c.err); got != c.want {
			t.Errorf("Code(%v) = %#x, want %#x", c.err, got, c.want)
		}
	}
	if s := ErrAlias.Error(); !strings.HasPrefix(s, "mqtt: ") || !strings.Contains(s, "[MQTT-3.3.2-8]") {
		t.Errorf("text of an error: %q", s)
	}
}

// The property sets of the packets are what table 2-4 of the standard says.
func TestPropertySets(t *testing.T) {
	all := map[string]uint64{"CONNECT": connectProps, "will": willProps, "PUBLISH": publishProps, "ack": ackProps, "SUBSCRIBE": subscribeProps,
		"UNSUBSCRIBE": unsubscribeProps, "DISCONNECT": disconnectProps, "AUTH": authProps}
	table := map[byte]string{
		0x01: "PUBLISH will", 0x02: "PUBLISH will", 0x03: "PUBLISH will", 0x08: "PUBLISH will", 0x09: "PUBLISH will", 0x0b: "PUBLISH SUBSCRIBE",
		0x11: "CONNECT DISCONNECT", 0x15: "CONNECT AUTH", 0x16: "CONNECT AUTH", 0x17: "CONNECT", 0x18: "will", 0x19: "CONNECT",
		0x1f: "ack DISCONNECT AUTH", 0x21: "CONNECT", 0x22: "CONNECT", 0x23: "PUBLISH", 0x27: "CONNECT",
		0x26: "CONNECT PUBLISH will ack SUBSCRIBE UNSUBSCRIBE DISCONNECT AUTH",
	}
	for id := range byte(64) {
		for packet, set := range all {
			if got, want := set>>id&1 == 1, slices.Contains(strings.Fields(table[id]), packet); got != want {
				t.Errorf("property %#x in %s: %v, want %v", id, packet, got, want)
			}
		}
	}
}
