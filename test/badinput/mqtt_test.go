package badinput

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"edgehub/test/harness"
	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/mqttc"
)

func connect(id string, version byte) mqttc.Connect {
	return mqttc.Connect{ClientID: id, Version: version, Clean: true}
}

// bystander is a well-behaved pair of clients beside the trouble.
type bystander struct {
	sub, pub *hubtest.Client
	n        int
}

func newBystander(t *testing.T, addr string) *bystander {
	t.Helper()
	b := &bystander{sub: hubtest.Dial(t, addr, connect("by-sub", 5)), pub: hubtest.Dial(t, addr, connect("by-pub", 4))}
	b.sub.Sub("calm", 1)
	return b
}

// unharmed sends one message through.
func (b *bystander) unharmed(t *testing.T) {
	t.Helper()
	b.n++
	b.pub.Pub("calm", fmt.Sprint(b.n), 1)
	b.sub.Want("calm", fmt.Sprint(b.n), 1)
}

// serve starts a hub, or mosquitto to check the tests (some of mosquitto's
// own answers are known to be wrong).
func serve(t *testing.T, limits ...string) string {
	t.Helper()
	if os.Getenv("HUB_TEST_BROKER") != "mosquitto" {
		return hubtest.Start(t, func(c *harness.Config) { c.Limits = limits }).Addr()
	}
	m, err := harness.StartMosquitto("")
	if errors.Is(err, harness.ErrNoMosquitto) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Remove() })
	return m.Addr
}

// closes is the expectation of a close without a word.
var closes []byte

// str is an MQTT string.
func str(s string) string { return string([]byte{byte(len(s) >> 8), byte(len(s))}) + s }

// packet frames a body.
func packet(first byte, body string) string {
	n := len(body)
	if n > 127 {
		panic("BUG: the test's bodies are short")
	}
	return string([]byte{first, byte(n)}) + body
}

// malformed is one wrong packet after a good CONNECT. Codes are the reason
// codes of MQTT 5 that the specification allows for it.
type malformed struct {
	name  string
	five  string // for MQTT 5; "" is not tried
	old   string // for MQTT 3.1.1; "" is not tried
	codes []byte
}

const (
	badPacket   = 0x81
	badProtocol = 0x82
	badFilter   = 0x8F
	badTopic    = 0x90
	tooMany     = 0x93
	badAlias    = 0x94
	tooLarge    = 0x95
)

var malformeds = []malformed{
	{"reserved type 0", packet(0x00, ""), packet(0x00, ""), []byte{badPacket, badProtocol}},
	{"reserved type 15", "", packet(0xF0, ""), nil},
	{"length of five bytes", "\x30\xff\xff\xff\xff\x01", "\x30\xff\xff\xff\xff\x01", []byte{badPacket}},
	{"too large", "\x30\xff\xff\xff\x7f", "\x30\xff\xff\xff\x7f", []byte{tooLarge}},
	{"flags of PINGREQ", packet(0xC1, ""), packet(0xC1, ""), []byte{badPacket}},
	{"flags of PUBREL", packet(0x60, "\x00\x01"), packet(0x60, "\x00\x01"), []byte{badPacket}},
	{"flags of SUBSCRIBE", packet(0x80, "\x00\x01\x00"+str("a")+"\x00"), packet(0x80, "\x00\x01"+str("a")+"\x00"), []byte{badPacket}},
	{"flags of UNSUBSCRIBE", packet(0xA0, "\x00\x01\x00"+str("a")), packet(0xA0, "\x00\x01"+str("a")), []byte{badPacket}},
	{"flags of DISCONNECT", packet(0xE1, ""), packet(0xE1, ""), []byte{badPacket}},
	{"second CONNECT", string((&mqttc.Connect{Version: 5, ClientID: "x", Clean: true}).Append(nil)),
		string((&mqttc.Connect{Version: 4, ClientID: "x", Clean: true}).Append(nil)), []byte{badProtocol}},
	{"CONNACK from a client", packet(0x20, "\x00\x00\x00"), packet(0x20, "\x00\x00"), []byte{badPacket, badProtocol}},
	{"SUBACK from a client", packet(0x90, "\x00\x01\x00\x00"), packet(0x90, "\x00\x01\x00"), []byte{badPacket, badProtocol}},
	{"PINGRESP from a client", packet(0xD0, ""), packet(0xD0, ""), []byte{badPacket, badProtocol}},
	{"AUTH without a method", packet(0xF0, ""), "", []byte{badProtocol}},

	{"PUBLISH with QoS 3", packet(0x36, str("a")+"\x00\x01\x00"), packet(0x36, str("a")+"\x00\x01"), []byte{badPacket}},
	{"PUBLISH with DUP and QoS 0", packet(0x38, str("a")+"\x00"), packet(0x38, str("a")), []byte{badPacket, badProtocol}},
	{"PUBLISH without a topic", packet(0x30, ""), packet(0x30, ""), []byte{badPacket}},
	{"PUBLISH with an empty topic", packet(0x30, str("")+"\x00x"), packet(0x30, str("")+"x"), []byte{badProtocol, badTopic}},
	{"PUBLISH to a wildcard +", packet(0x30, str("a/+")+"\x00"), packet(0x30, str("a/+")), []byte{badTopic, badPacket, badProtocol}},
	{"PUBLISH to a wildcard #", packet(0x32, str("#")+"\x00\x01\x00"), packet(0x32, str("#")+"\x00\x01"), []byte{badTopic, badPacket, badProtocol}},
	{"PUBLISH with a topic beyond its end", packet(0x30, "\x00\x09abc"), packet(0x30, "\x00\x09abc"), []byte{badPacket}},
	{"PUBLISH with a topic that is no UTF-8", packet(0x30, str("a\xff")+"\x00"), packet(0x30, str("a\xff")), []byte{badPacket, badTopic}},
	{"PUBLISH with a surrogate", packet(0x30, str("a\xed\xa0\x80")+"\x00"), packet(0x30, str("a\xed\xa0\x80")), []byte{badPacket, badTopic}},
	{"PUBLISH with an overlong form", packet(0x30, str("a\xc0\x80")+"\x00"), packet(0x30, str("a\xc0\x80")), []byte{badPacket, badTopic}},
	{"PUBLISH with U+0000", packet(0x30, str("a\x00b")+"\x00"), packet(0x30, str("a\x00b")), []byte{badPacket, badTopic}},
	{"PUBLISH with packet id 0", packet(0x32, str("a")+"\x00\x00\x00"), packet(0x32, str("a")+"\x00\x00"), []byte{badPacket, badProtocol}},
	{"PUBLISH without its packet id", packet(0x32, str("a")), packet(0x32, str("a")), []byte{badPacket}},
	{"PUBLISH with alias 0", packet(0x30, str("a")+"\x03\x23\x00\x00"), "", []byte{badAlias, badProtocol}},
	{"PUBLISH with an alias beyond the maximum", packet(0x30, str("a")+"\x03\x23\xff\xff"), "", []byte{badAlias}},
	{"PUBLISH with a subscription identifier", packet(0x30, str("a")+"\x02\x0b\x01"), "", []byte{badProtocol}},
	{"PUBLISH with an unknown property", packet(0x30, str("a")+"\x02\x7f\x01"), "", []byte{badPacket, badProtocol}},
	{"PUBLISH with a property of CONNECT", packet(0x30, str("a")+"\x03\x21\x00\x01"), "", []byte{badPacket, badProtocol}},
	{"PUBLISH with a property twice", packet(0x30, str("a")+"\x04\x01\x00\x01\x00"), "", []byte{badProtocol}},
	{"PUBLISH with a wrong format indicator", packet(0x30, str("a")+"\x02\x01\x02"), "", []byte{badPacket, badProtocol}},
	{"PUBLISH with properties beyond its end", packet(0x30, str("a")+"\x40\x01"), "", []byte{badPacket}},
	{"PUBLISH with a property cut off", packet(0x30, str("a")+"\x02\x02\x00"), "", []byte{badPacket}},
	{"PUBLISH with a response topic with a wildcard", packet(0x30, str("a")+"\x06\x08"+str("b/#")), "", []byte{badProtocol, badTopic, badPacket}},
	{"PUBACK of one byte", packet(0x40, "\x00"), packet(0x40, "\x00"), []byte{badPacket}},
	{"PUBACK with a wrong reason", packet(0x40, "\x00\x01\x01\x00"), "", []byte{badPacket, badProtocol}},

	{"SUBSCRIBE without filters", packet(0x82, "\x00\x01\x00"), packet(0x82, "\x00\x01"), []byte{badPacket, badProtocol}},
	{"SUBSCRIBE without its options", packet(0x82, "\x00\x01\x00"+str("a")), packet(0x82, "\x00\x01"+str("a")), []byte{badPacket}},
	{"SUBSCRIBE with packet id 0", packet(0x82, "\x00\x00\x00"+str("a")+"\x00"), packet(0x82, "\x00\x00"+str("a")+"\x00"), []byte{badPacket, badProtocol}},
	{"SUBSCRIBE with QoS 3", packet(0x82, "\x00\x01\x00"+str("a")+"\x03"), packet(0x82, "\x00\x01"+str("a")+"\x03"), []byte{badPacket, badProtocol}},
	{"SUBSCRIBE with reserved options", packet(0x82, "\x00\x01\x00"+str("a")+"\x40"), packet(0x82, "\x00\x01"+str("a")+"\x40"), []byte{badPacket, badProtocol}},
	{"SUBSCRIBE with retain handling 3", packet(0x82, "\x00\x01\x00"+str("a")+"\x30"), "", []byte{badProtocol, badPacket}},
	{"SUBSCRIBE with a filter that is no UTF-8", packet(0x82, "\x00\x01\x00"+str("\xff")+"\x00"), packet(0x82, "\x00\x01"+str("\xff")+"\x00"), []byte{badPacket, badFilter}},
	{"SUBSCRIBE with identifier 0", packet(0x82, "\x00\x01\x02\x0b\x00"+str("a")+"\x00"), "", []byte{badProtocol, badPacket}},
	{"UNSUBSCRIBE without filters", packet(0xA2, "\x00\x01\x00"), packet(0xA2, "\x00\x01"), []byte{badPacket, badProtocol}},
	{"DISCONNECT that begins an expiry", packet(0xE0, "\x00\x05\x11\x00\x00\x00\x09"), "", []byte{badProtocol}},
	{"bytes after UNSUBSCRIBE's last filter", packet(0xA2, "\x00\x01\x00"+str("a")+"\x00"), packet(0xA2, "\x00\x01"+str("a")+"\x00"), []byte{badPacket}},
}

func TestMalformedPackets(t *testing.T) {
	addr := serve(t)
	calm := newBystander(t, addr)
	for _, m := range malformeds {
		for version, raw := range map[byte]string{5: m.five, 4: m.old} {
			if raw == "" {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d", m.name, version), func(t *testing.T) {
				c := hubtest.Dial(t, addr, connect("bad", version))
				if err := c.SendRaw([]byte(raw)); err != nil {
					t.Fatal(err)
				}
				codes := m.codes
				if version == 4 {
					codes = closes
				}
				endsWith(t, c.Conn, mqttc.DISCONNECT, codes)
				calm.unharmed(t)
			})
		}
	}
}

// endsWith reads to the server's close. With codes the last packet is of that
// kind and has one of them; without there is none.
func endsWith(t *testing.T, c *mqttc.Conn, kind byte, codes []byte) {
	t.Helper()
	got, err := c.AwaitClose(5 * time.Second)
	switch {
	case err != nil:
		t.Errorf("not closed: %v, got %v", err, got)
	case len(codes) == 0 && len(got) != 0:
		t.Errorf("got %v, want only a close", got)
	case len(codes) > 0 && (len(got) != 1 || got[0].Kind != kind || !slices.Contains(codes, got[0].Code)):
		t.Errorf("got %v, want %s with one of % x", got, mqttc.KindName(kind), codes)
	}
}

func TestMalformedConnects(t *testing.T) {
	addr := serve(t)
	calm := newBystander(t, addr)
	const five, four = "\x00\x04MQTT\x05", "\x00\x04MQTT\x04"
	id := str("c")
	for _, tt := range []struct {
		name    string
		version byte
		raw     string
		codes   []byte // nil: a close without a word
		silent  bool   // a close without a word is right, too
	}{
		{"PINGREQ first", 5, packet(0xC0, ""), nil, true},
		{"PUBLISH first", 4, packet(0x30, str("a")+"x"), nil, true},
		{"unknown protocol", 5, packet(0x10, "\x00\x04MQXX\x05\x02\x00\x00\x00"+id), []byte{0x84}, true},
		{"unknown version of MQTT 5's age", 5, packet(0x10, "\x00\x04MQTT\x06\x02\x00\x00\x00"+id), []byte{0x84, 0x01}, true},
		{"unknown version of 3.1", 4, packet(0x10, "\x00\x06MQIsdp\x07\x02\x00\x00"+id), []byte{0x01, 0x84}, true},
		{"reserved flag", 5, packet(0x10, five+"\x03\x00\x00\x00"+id), []byte{badPacket}, true},
		{"reserved flag", 4, packet(0x10, four+"\x03\x00\x00"+id), nil, true},
		{"flags of the header", 5, packet(0x11, five+"\x02\x00\x00\x00"+id), []byte{badPacket}, true},
		{"will with QoS 3", 5, packet(0x10, five+"\x1e\x00\x00\x00"+id+"\x00"+str("w")+str("p")), []byte{badPacket}, true},
		{"will QoS without a will", 4, packet(0x10, four+"\x0a\x00\x00"+id), nil, true},
		{"will retain without a will", 5, packet(0x10, five+"\x22\x00\x00\x00"+id), []byte{badPacket}, true},
		{"will to a wildcard", 5, packet(0x10, five+"\x06\x00\x00\x00"+id+"\x00"+str("w/#")+str("p")), []byte{badTopic, badPacket, badProtocol}, true},
		{"password without a user", 4, packet(0x10, four+"\x42\x00\x00"+id+str("pw")), nil, true},
		{"no client id", 4, packet(0x10, four+"\x02\x00\x00"), nil, true},
		{"empty client id, kept session", 4, packet(0x10, four+"\x00\x00\x00"+str("")), []byte{0x02}, false},
		{"client id that is no UTF-8", 5, packet(0x10, five+"\x02\x00\x00\x00"+str("\xff")), []byte{badPacket, 0x85}, true},
		{"client id with U+0000", 4, packet(0x10, four+"\x02\x00\x00"+str("a\x00")), []byte{0x02}, true},
		{"cut off", 5, packet(0x10, five+"\x02"), []byte{badPacket}, true},
		{"bytes after its end", 5, packet(0x10, five+"\x02\x00\x00\x00"+id+"zz"), []byte{badPacket}, true},
		{"receive maximum 0", 5, packet(0x10, five+"\x02\x00\x00\x03\x21\x00\x00"+id), []byte{badProtocol}, true},
		{"maximum packet size 0", 5, packet(0x10, five+"\x02\x00\x00\x05\x27\x00\x00\x00\x00"+id), []byte{badProtocol}, true},
		{"property twice", 5, packet(0x10, five+"\x02\x00\x00\x06\x21\x00\x01\x21\x00\x01"+id), []byte{badProtocol}, true},
		{"authentication method", 5, packet(0x10, five+"\x02\x00\x00\x06\x15"+str("abc")+id), []byte{0x8C}, false},
		{"authentication data alone", 5, packet(0x10, five+"\x02\x00\x00\x06\x16"+str("abc")+id), []byte{badProtocol}, true},
		{"HTTP", 4, "GET / HTTP/1.1\r\nHost: hub\r\n\r\n", nil, true},
		{"TLS", 4, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + strings.Repeat("r", 600), nil, true},
	} {
		t.Run(fmt.Sprintf("%s/%d", tt.name, tt.version), func(t *testing.T) {
			c, err := mqttc.Open(addr, tt.version)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Abort()
			if err := c.SendRaw([]byte(tt.raw)); err != nil {
				t.Fatal(err)
			}
			got, err := c.AwaitClose(5 * time.Second)
			switch {
			case errors.Is(err, mqttc.ErrMalformed) && strings.HasPrefix(tt.name, "unknown version"):
				// Nobody knows what the CONNACK of that version looks like.
			case err != nil:
				t.Errorf("not closed: %v, got %v", err, got)
			case len(got) == 0 && (tt.silent || len(tt.codes) == 0):
			case len(got) != 1 || got[0].Kind != mqttc.CONNACK || !slices.Contains(tt.codes, got[0].Code):
				t.Errorf("got %v, want CONNACK with one of % x (or only a close: %t)", got, tt.codes, tt.silent)
			}
			calm.unharmed(t)
		})
	}
}

// TestWrongFilterIsRefusedAlone has one bad filter among good ones.
func TestWrongFilterIsRefusedAlone(t *testing.T) {
	addr := serve(t)
	for _, filter := range []string{"a/#/b", "a#", "+a", "a/b+/c", "##", ""} {
		for _, version := range []byte{4, 5} {
			c := hubtest.Dial(t, addr, connect("filters", version))
			good := mqttc.Filter{Name: "good", Options: 1}
			p, err := c.Subscribe(good, mqttc.Filter{Name: filter, Options: 1})
			if err != nil { // an ill-formed filter may also end the connection
				if got := c.WantClose(mqttc.Patience); version == 5 && len(got) > 0 && got[len(got)-1].Code < 0x80 {
					t.Errorf("%q: told %v", filter, got)
				}
				continue
			}
			if len(p.Codes) != 2 || p.Codes[0] != 1 || p.Codes[1] != map[byte]byte{4: 0x80, 5: badFilter}[version] {
				t.Errorf("%q, version %d: codes % x", filter, version, p.Codes)
			}
			c.Pub("good", "x", 1)
			c.Want("good", "x", 1)
		}
	}
}

func TestLimits(t *testing.T) {
	addr := serve(t, `max_packet_bytes = "4KiB"`, `receive_maximum = 4`, `connect_timeout = "1s"`)
	calm := newBystander(t, addr)
	t.Run("maximum packet size", func(t *testing.T) {
		for _, version := range []byte{4, 5} {
			c := hubtest.Dial(t, addr, connect("big", version))
			if most, ok := c.Connack.Props.Get(mqttc.PropMaxPacket); version == 5 && (!ok || most.Num != 4096) {
				t.Errorf("CONNACK says %v", c.Connack)
			}
			// Exactly the limit: one byte, two bytes of length, topic, id, properties.
			fits := 4096 - 3 - 3 - 2 - map[byte]int{4: 0, 5: 1}[version]
			c.Pub("a", strings.Repeat("x", fits), 1)
			c.Send(mqttc.Packet{Kind: mqttc.PUBLISH, QoS: 1, ID: 9, Topic: "a", Payload: make([]byte, fits+1)})
			endsWith(t, c.Conn, mqttc.DISCONNECT, map[byte][]byte{4: closes, 5: {tooLarge}}[version])
			calm.unharmed(t)
		}
	})
	t.Run("receive maximum", func(t *testing.T) {
		c := hubtest.Dial(t, addr, connect("many", 5))
		if most, ok := c.Connack.Props.Get(mqttc.PropReceiveMaximum); !ok || most.Num != 4 {
			t.Errorf("CONNACK says %v", c.Connack)
		}
		for id := range uint16(5) {
			c.Send(mqttc.Packet{Kind: mqttc.PUBLISH, QoS: 2, ID: id + 1, Topic: "a"})
			if id < 4 {
				c.WantPacket(mqttc.PUBREC)
			}
		}
		endsWith(t, c.Conn, mqttc.DISCONNECT, []byte{tooMany})
		calm.unharmed(t)
	})
	t.Run("silence instead of CONNECT", func(t *testing.T) {
		for _, raw := range []string{"", "\x10", "\x10\x20\x00\x04MQ"} {
			c, err := mqttc.Open(addr, 4)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Abort()
			if err := c.SendRaw([]byte(raw)); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			endsWith(t, c, 0, closes)
			if took := time.Since(begin); took < 900*time.Millisecond || took > 4*time.Second {
				t.Errorf("closed after %v, want about 1 s", took)
			}
		}
		calm.unharmed(t)
	})
}

// TestUnknownPacketIDs are answered, not punished.
func TestUnknownPacketIDs(t *testing.T) {
	addr := serve(t)
	for _, version := range []byte{4, 5} {
		c := hubtest.Dial(t, addr, connect("ids", version))
		c.Send(mqttc.Packet{Kind: mqttc.PUBREL, ID: 77})
		if p := c.WantPacket(mqttc.PUBCOMP); p.ID != 77 || version == 5 && p.Code != 0x92 {
			t.Errorf("got %v", p)
		}
		c.Pub("a", "x", 2)
	}
}

// TestGarbage throws seeded noise at the hub, half of it after a good
// CONNECT, and half of that a good packet with one byte changed.
func TestGarbage(t *testing.T) {
	addr := serve(t)
	calm := newBystander(t, addr)
	rng := rand.New(rand.NewPCG(1, 2))
	good := []mqttc.Packet{
		{Kind: mqttc.PUBLISH, QoS: 1, ID: 5, Topic: "g/a", Payload: []byte("payload"), Props: mqttc.Props{{ID: mqttc.PropUser, Str: "k", Pair: "v"}}},
		{Kind: mqttc.SUBSCRIBE, ID: 6, Filters: []mqttc.Filter{{Name: "g/#", Options: 1}, {Name: "h", Options: 2}}},
		{Kind: mqttc.UNSUBSCRIBE, ID: 7, Filters: []mqttc.Filter{{Name: "g/#"}}},
		{Kind: mqttc.PUBREL, ID: 8},
		{Kind: mqttc.DISCONNECT, Code: 4, Props: mqttc.Props{{ID: mqttc.PropSessionExpiry, Num: 1}}},
	}
	for i := range hubtest.Scale(t, "HUB_GARBAGE", 5000, 600, 200) {
		version := byte(4 + i%2)
		c, err := mqttc.Open(addr, version)
		if err != nil {
			t.Fatal(err)
		}
		hello := connect(fmt.Sprintf("g%d", i%7), version)
		noise := hello.Append(nil)
		switch i % 4 {
		case 0: // nothing but noise
			noise = nil
			fallthrough
		case 1:
			for range rng.IntN(200) {
				noise = append(noise, byte(rng.Uint32()))
			}
		case 2, 3:
			p := good[rng.IntN(len(good))]
			b := p.Append(nil, version)
			b[rng.IntN(len(b))] ^= byte(1 << rng.IntN(8))
			noise = append(noise, b...)
		}
		// The hub may close at any byte of it; that is its right.
		_ = c.SendRaw(noise)
		if i%5 > 0 {
			c.Abort()
		} else {
			t.Cleanup(c.Abort)
		}
		if i%20 == 0 {
			calm.unharmed(t)
		}
	}
	calm.unharmed(t)
}
