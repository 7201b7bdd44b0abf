package packet

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"edgehub/hub/message"

	mochi "github.com/mochi-mqtt/server/v2/packets"
)

// stricter are the causes for which this package refuses what the oracle lets through: the oracle looks for them elsewhere or not at
// all (of properties that are there twice it sees the last alone: an alias of 0 before another). Every other refusal must be
// the oracle's too.
var stricter = []*Error{
	ErrTrailing, ErrPropertyDup, ErrPropertyBool, ErrPropertyLen, ErrProperty, ErrLength, ErrLengthForm, ErrReasonCode, ErrResponseTopic,
	ErrSubOptions, ErrRetainHandling, ErrNoLocalShared, ErrFilterEmpty, ErrClientID, ErrReceiveMax, ErrMaxPacket, ErrAuthData,
	ErrAuthMethod, ErrWillTopic, ErrSubID, ErrWillFlags, ErrTypeVersion, ErrPasswordAlone,
	ErrAlias,
}

// oracle decodes and validates a packet with an independent implementation; a panic in there is an error.
func oracle(version, first byte, body []byte) (pk mochi.Packet, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("oracle panicked: %v", r)
		}
	}()
	pk = mochi.Packet{ProtocolVersion: version, FixedHeader: mochi.FixedHeader{Remaining: len(body)}}
	if err := pk.FixedHeader.Decode(first); err != nil {
		return pk, err
	}
	valid := mochi.CodeSuccess
	switch first >> 4 {
	case TypeConnect:
		if err = pk.ConnectDecode(body); err == nil {
			valid = pk.ConnectValidate()
		}
	case TypePublish:
		if err = pk.PublishDecode(body); err == nil {
			pk.Properties.SubscriptionIdentifier = slices.Clip(pk.Properties.SubscriptionIdentifier)
			ids := pk.Properties.SubscriptionIdentifier
			pk.Properties.SubscriptionIdentifier = nil // the decoder of deliveries is what is compared
			valid = pk.PublishValidate(65535)
			pk.Properties.SubscriptionIdentifier = ids
		}
	case TypePuback, TypePubrec, TypePubrel, TypePubcomp:
		err = pk.PubackDecode(body)
	case TypeSubscribe:
		if err = pk.SubscribeDecode(body); err == nil {
			valid = pk.SubscribeValidate()
		}
	case TypeUnsubscribe:
		if err = pk.UnsubscribeDecode(body); err == nil {
			valid = pk.UnsubscribeValidate()
		}
	case TypeDisconnect:
		err = pk.DisconnectDecode(body)
	case TypeAuth:
		if err = pk.AuthDecode(body); err == nil {
			valid = pk.AuthValidate()
		}
	}
	if err == nil && valid != mochi.CodeSuccess {
		err = valid
	}
	return pk, err
}

// decoded is what a packet says, in a form that both implementations can be brought to.
type decoded map[string]string

func (d decoded) set(key string, v any) {
	switch v := v.(type) {
	case []byte:
		d[key] = string(v)
	default:
		d[key] = fmt.Sprint(v)
	}
	if d[key] == "" || d[key] == "0" || d[key] == "false" {
		delete(d, key)
	}
}

func (d decoded) pairs(key string, n int, at func(int) (string, string)) {
	for i := range n {
		name, value := at(i)
		d[key+strconv.Itoa(i)] = name + "=" + value
	}
}

func (d decoded) ours(key string, p *message.Props, user []message.Pair) {
	if p != nil {
		d.set(key+"utf8", p.UTF8)
		d.set(key+"type", p.ContentType)
		d.set(key+"response", p.ResponseTopic)
		d.set(key+"correlation", p.Correlation)
		user = p.User
	}
	d.pairs(key+"user", len(user), func(i int) (string, string) { return string(user[i].Name), string(user[i].Value) })
}

func (d decoded) theirs(key string, p *mochi.Properties) {
	d.set(key+"utf8", p.PayloadFormat == 1)
	d.set(key+"type", p.ContentType)
	d.set(key+"response", p.ResponseTopic)
	d.set(key+"correlation", p.CorrelationData)
	d.set(key+"expiry", p.MessageExpiryInterval)
	d.pairs(key+"user", len(p.User), func(i int) (string, string) { return p.User[i].Key, p.User[i].Val })
}

// connect takes what a CONNECT says.
func (d decoded) connect(body []byte) error {
	var c Connect
	err := c.Decode(body)
	d.set("version", c.Version)
	d.set("clean", c.Clean)
	d.set("keepalive", c.KeepAlive)
	d.set("client", c.ClientID)
	d.set("username", c.Username)
	d.set("password", c.Password)
	d.set("flags", fmt.Sprint(c.HasUsername, c.HasPassword, c.Will != nil))
	d.set("session expiry", c.SessionExpiryS)
	d.set("has session expiry", c.HasSessionExpiry)
	d.set("receive", c.ReceiveMax)
	d.set("max packet", c.MaxPacket)
	d.set("aliases", c.TopicAliasMax)
	d.set("response info", c.RequestResponseInfo)
	d.set("no problem info", !c.RequestProblemInfo)
	d.set("method", c.AuthMethod)
	d.set("data", c.AuthData)
	d.ours("", nil, c.User)
	if w := c.Will; w != nil {
		d.set("will topic", w.Topic)
		d.set("will payload", w.Payload)
		d.set("will flags", fmt.Sprint(w.QoS, w.Retain))
		d.set("will delay", w.DelayS)
		d.set("will expiry", w.ExpiryS)
		d.ours("will ", &w.Props, nil)
	}
	return err
}

// decodeOurs decodes a packet with this package.
func decodeOurs(version, first byte, body []byte) (decoded, error) {
	d := decoded{}
	var err error
	switch first >> 4 {
	case TypeConnect:
		err = d.connect(body)
	case TypePublish:
		var p Publish
		err = p.DecodeDelivery(version, first, body)
		d.set("topic", p.Topic)
		d.set("payload", p.Payload)
		d.set("flags", fmt.Sprint(p.Dup, p.QoS, p.Retain))
		d.set("id", p.ID)
		d.set("alias", p.Alias)
		d.set("expiry", p.ExpiryS)
		d.set("sub ids", fmt.Sprint(p.SubIDs))
		d.ours("", &p.Props, nil)
	case TypePuback, TypePubrec, TypePubrel, TypePubcomp:
		var a Ack
		a, err = DecodeAck(version, first, body)
		d.set("id", a.ID)
		d.set("code", a.Code)
	case TypeSubscribe:
		var s Subscribe
		err = s.Decode(version, first, body)
		d.set("id", s.ID)
		d.set("sub id", s.SubID)
		d.ours("", nil, s.User)
		for i, f := range s.Filters {
			d.set("filter"+strconv.Itoa(i), fmt.Sprint(string(f.Filter), f.QoS, f.NoLocal, f.RetainAsPublished, f.RetainHandling))
		}
	case TypeUnsubscribe:
		var u Unsubscribe
		err = u.Decode(version, first, body)
		d.set("id", u.ID)
		d.ours("", nil, u.User)
		for i, f := range u.Filters {
			d.set("filter"+strconv.Itoa(i), "f"+string(f))
		}
	case TypeDisconnect:
		var p Disconnect
		err = p.Decode(version, body)
		if len(body) > 1 { // the oracle does not read a code that stands alone
			d.set("code", p.Code)
		}
		d.set("session expiry", p.SessionExpiryS)
		d.set("has session expiry", p.HasSessionExpiry)
		d.set("reason", p.Reason)
		d.ours("", nil, p.User)
	case TypeAuth:
		var a Auth
		err = a.Decode(version, body)
		d.set("code", a.Code)
		d.set("method", a.Method)
		d.set("data", a.Data)
		d.set("reason", a.Reason)
		d.ours("", nil, a.User)
	}
	return d, err
}

// decodeTheirs brings the oracle's packet to the same form.
func decodeTheirs(first byte, body []byte, pk *mochi.Packet) decoded {
	d := decoded{}
	p := &pk.Properties
	switch first >> 4 {
	case TypeConnect:
		c := &pk.Connect
		d.set("version", pk.ProtocolVersion)
		d.set("clean", c.Clean)
		d.set("keepalive", c.Keepalive)
		d.set("client", c.ClientIdentifier)
		d.set("username", c.Username)
		d.set("password", c.Password)
		d.set("flags", fmt.Sprint(c.UsernameFlag, c.PasswordFlag, c.WillFlag))
		d.set("session expiry", p.SessionExpiryInterval)
		d.set("has session expiry", p.SessionExpiryIntervalFlag)
		if d.set("receive", p.ReceiveMaximum); p.ReceiveMaximum == 0 {
			d.set("receive", 65535)
		}
		d.set("max packet", p.MaximumPacketSize)
		d.set("aliases", p.TopicAliasMaximum)
		d.set("response info", p.RequestResponseInfo == 1)
		d.set("no problem info", p.RequestProblemInfoFlag && p.RequestProblemInfo == 0)
		d.set("method", p.AuthenticationMethod)
		d.set("data", p.AuthenticationData)
		d.theirs("", p)
		if c.WillFlag {
			d.set("will topic", c.WillTopic)
			d.set("will payload", c.WillPayload)
			d.set("will flags", fmt.Sprint(c.WillQos, c.WillRetain))
			d.set("will delay", c.WillProperties.WillDelayInterval)
			d.theirs("will ", &c.WillProperties)
		}
	case TypePublish:
		d.set("topic", pk.TopicName)
		d.set("payload", pk.Payload)
		d.set("flags", fmt.Sprint(pk.FixedHeader.Dup, pk.FixedHeader.Qos, pk.FixedHeader.Retain))
		d.set("id", pk.PacketID)
		d.set("alias", p.TopicAlias)
		d.set("sub ids", fmt.Sprint(p.SubscriptionIdentifier))
		d.theirs("", p)
	case TypeDisconnect, TypeAuth:
		d.set("code", pk.ReasonCode)
		d.set("session expiry", p.SessionExpiryInterval)
		d.set("has session expiry", p.SessionExpiryIntervalFlag)
		d.set("reason", p.ReasonString)
		d.set("method", p.AuthenticationMethod)
		d.set("data", p.AuthenticationData)
		d.theirs("", p)
	default:
		d.set("id", pk.PacketID)
		d.set("code", pk.ReasonCode)
		if first>>4 == TypeSubscribe || first>>4 == TypeUnsubscribe {
			d.theirs("", p)
		}
		if len(p.SubscriptionIdentifier) > 0 {
			d.set("sub id", p.SubscriptionIdentifier[0])
		}
		for i, f := range pk.Filters {
			if d.set("filter"+strconv.Itoa(i), "f"+f.Filter); first>>4 == TypeSubscribe {
				d.set("filter"+strconv.Itoa(i), fmt.Sprint(f.Filter, f.Qos, f.NoLocal, f.RetainAsPublished, f.RetainHandling))
			}
		}
	}
	return d
}

// compare decodes one packet with both implementations.
func compare(t *testing.T, version byte, packet []byte) {
	t.Helper()
	first, body, size, err := Frame(packet, 1<<20)
	if err != nil {
		var fh mochi.FixedHeader
		if (errors.Is(err, ErrFlags) || errors.Is(err, ErrPublishQoS)) && fh.Decode(packet[0]) == nil {
			t.Fatalf("% x: %v, and the oracle takes the first byte", packet, err)
		}
		return
	}
	if size == 0 {
		return
	}
	kept := bytes.Clone(body)
	ours, err := decodeOurs(version, first, body)
	if !bytes.Equal(kept, body) {
		t.Fatal("decoding changed the packet")
	}
	if first>>4 == TypeConnack || first>>4 == TypeSuback || first>>4 == TypeUnsuback || first>>4 == TypePingresp || first>>4 == TypePingreq {
		return
	}
	pk, theirErr := oracle(version, first, bytes.Clone(body))
	if err == nil {
		if pk.ProtocolVersion == V31 || version == V31 {
			return // MQTT 3.1 has rules of its own that the oracle does not have
		}
		if errors.Is(theirErr, mochi.ErrProtocolViolationFlagNoPassword) || errors.Is(theirErr, mochi.ErrProtocolViolationFlagNoUsername) {
			return // it takes empty ones for absent; a string may be empty, and a password has 0 to 65,535 bytes
		}
		if theirErr != nil {
			t.Fatalf("version %d, % x: accepted, the oracle says %v", version, packet[:size], theirErr)
		}
		if theirs := decodeTheirs(first, body, &pk); fmt.Sprint(ours) != fmt.Sprint(theirs) {
			t.Fatalf("version %d, % x:\nours   %q\ntheirs %q", version, packet[:size], ours, theirs)
		}
		return
	}
	var e *Error
	if !errors.As(err, &e) || e.Code < CodeUnspecified || !strings.Contains(e.Text, "[MQTT-") {
		t.Fatalf("version %d, % x: %v is no reason", version, packet[:size], err)
	}
	if theirErr == nil && !slices.Contains(stricter, e) && !lenient(first, body, e) {
		t.Fatalf("version %d, % x: %v, the oracle accepts %+v", version, packet[:size], err, decodeTheirs(first, body, &pk))
	}
}

// lenient are the other cases in which the oracle is known to let a packet through.
func lenient(first byte, body []byte, e *Error) bool {
	switch first >> 4 {
	case TypePuback, TypePubrec, TypePubrel, TypePubcomp:
		return e == ErrPacketID // it never looks
	case TypeConnect:
		// It takes a user name for bytes, and protocol versions below 5 as they come.
		return e == ErrUTF8 || e == ErrNUL || e == ErrVersion || e == ErrProtocolName
	case TypeDisconnect, TypeAuth, TypeUnsubscribe, TypeSubscribe:
		// A property block that overruns its length is read to the end.
		return false
	}
	return false
}

// FuzzPacket throws any bytes at all decoders and holds them against the oracle.
func FuzzPacket(f *testing.F) {
	for _, version := range []byte{V31, V311, V5} {
		for _, p := range seeds() {
			f.Add(version, []byte(p))
		}
	}
	f.Fuzz(func(t *testing.T, version byte, packet []byte) {
		compare(t, V31+version%3, packet)
	})
}

// seeds are well-formed packets of every type.
func seeds() []string {
	raw := func(first byte, body string) string {
		return string(append(appendVarint([]byte{first}, uint32(len(body))), body...))
	}
	all := props("\x01\x01", "\x02\x00\x00\x00\x05", "\x23\x00\x01", "\x03"+str("t"), "\x08"+str("r"), "\x09"+str("c"), "\x26"+str("k")+str("v"), "\x0b\x01")
	return []string{
		raw(0x10, str("MQIsdp")+"\x03\x02\x00\x3c"+str("c")),
		raw(0x10, connect4("\xf6")+str("c")+str("w/t")+str("bye")+str("u")+str("p")),
		raw(0x10, connect5("\x02", "\x11\x00\x00\x0e\x10", "\x21\x00\x14", "\x27\x00\x01\x00\x00", "\x22\x00\x0a", "\x19\x01", "\x17\x00",
			"\x26"+str("k")+str("2"), "\x15"+str("SCRAM"), "\x16"+str("x"))+str("c")),
		raw(0x10, connect5("\xce")+str("c")+props("\x18\x00\x00\x00\x05", "\x01\x01", "\x02\x00\x00\x00\x3c", "\x03"+str("t"), "\x08"+str("r"), "\x09"+str("d"))+
			str("w")+str("bye")+str("u")+str("p")),
		raw(0x30, str("a/b")+"hello"),
		raw(0x3d, str("a/b")+"\x00\x07"+all+"hello"),
		raw(0x30, str("")+props("\x23\x00\x01")+"x"),
		raw(0x40, "\x00\x01"),
		raw(0x50, "\x00\x01\x97"),
		raw(0x62, "\x00\x01\x92"+props("\x1f"+str("why"), "\x26"+str("k")+str("v"))),
		raw(0x82, "\x00\x0a"+str("a/+")+"\x01"+str("#")+"\x02"),
		raw(0x82, "\x00\x0a"+props("\x0b\xff\x01", "\x26"+str("k")+str("v"))+str("a")+"\x2d"+str("$share/g/b")+"\x12"),
		raw(0xa2, "\x00\x0a"+str("a/b")+str("#")),
		raw(0xa2, "\x00\x0a"+props("\x26"+str("k")+str("v"))+str("a")),
		raw(0xc0, ""),
		raw(0xe0, ""),
		raw(0xe0, "\x04"+props("\x11\x00\x00\x00\x3c", "\x1f"+str("bye"))),
		raw(0xf0, "\x18"+props("\x15"+str("SCRAM"), "\x16"+str("data"))),
	}
}

// Every single byte of the seeds changed to every value (in version 5), and every seed cut everywhere: cheap, and it reaches each branch.
func TestMutations(t *testing.T) {
	for _, seed := range seeds() {
		for version, step := range map[byte]int{V31: 5, V311: 3, V5: 1} { // the older versions have little of their own
			for cut := range len(seed) {
				b := []byte(seed)[:cut:cut]
				if cut > 1 {
					b[1] = byte(cut - 2)
				}
				compare(t, version, b)
			}
			for i := range len(seed) {
				for v := 0; v < 256; v += step {
					b := []byte(seed)
					b[i] = byte(v)
					compare(t, version, b)
				}
			}
		}
	}
}

// Nothing that a client sends has a decoder that allocates by a length it has only been told.
func TestAllocationIsBounded(t *testing.T) {
	for _, seed := range seeds() {
		for i := range len(seed) {
			for _, v := range []byte{0x7f, 0xff} {
				b := []byte(seed)
				b[i] = v
				first, body, size, err := Frame(b, 0)
				if err != nil || size == 0 {
					continue
				}
				var c Connect
				var p Publish
				var s Subscribe
				var u Unsubscribe
				n := testing.AllocsPerRun(1, func() {
					_ = c.Decode(body)
					_ = p.Decode(V5, first, body)
					_ = s.Decode(V5, first, body)
					_ = u.Decode(V5, first, body)
				})
				if n > 8 { // slices of filters and user properties, which grow as these come
					t.Errorf("% x: %v allocations", b, n)
				}
			}
		}
	}
}

// The committed corpus is there: without it the fuzz test of a plain run has seeds only.
func TestCorpusIsCommitted(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "fuzz", "FuzzPacket", "*"))
	if err != nil || len(files) < 50 {
		t.Fatalf("%d files in the corpus of FuzzPacket, %v", len(files), err)
	}
	if _, err := os.ReadFile(files[0]); err != nil {
		t.Fatal(err)
	}
}
