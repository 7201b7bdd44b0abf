package packet

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"edgehub/hub/message"
)

func user(s ...string) (p []message.Pair) {
	for i := 0; i < len(s); i += 2 {
		p = append(p, message.Pair{Name: []byte(s[i]), Value: []byte(s[i+1])})
	}
	return p
}

// str is a string or binary data as packets have it.
func str(s string) string { return string(appendData(nil, s)) }

// props is a property block with its length.
func props(p ...string) string {
	all := strings.Join(p, "")
	return string(appendVarint(nil, uint32(len(all)))) + all
}

// connect is a CONNECT's body up to the payload.
func connect5(flags string, properties ...string) string {
	return str("MQTT") + "\x05" + flags + "\x00\x3c" + props(properties...)
}

func connect4(flags string) string { return str("MQTT") + "\x04" + flags + "\x00\x3c" }

func TestConnect(t *testing.T) {
	base := func(version byte, f func(*Connect)) Connect {
		c := Connect{Version: version, Clean: true, KeepAlive: 60, ClientID: []byte("c"), ReceiveMax: 65535, RequestProblemInfo: true}
		f(&c)
		return c
	}
	for _, c := range []struct {
		name string
		in   string
		want Connect
	}{
		{"3.1", str("MQIsdp") + "\x03\x02\x00\x3c" + str("c"), base(V31, func(*Connect) {})},
		{"3.1: strings missing in spite of their flags", str("MQIsdp") + "\x03\xc2\x00\x3c" + str("c"), base(V31, func(*Connect) {})},
		{"3.1: user name without its password", str("MQIsdp") + "\x03\xc2\x00\x3c" + str("c") + str("u"), base(V31, func(c *Connect) {
			c.HasUsername, c.Username = true, []byte("u")
		})},
		{"3.1.1", connect4("\x02") + str("c"), base(V311, func(*Connect) {})},
		{"3.1.1 [MQTT-3.1.3-7] empty client id with clean session", connect4("\x02") + str(""), base(V311, func(c *Connect) { c.ClientID = []byte{} })},
		{"3.1.1 persistent", connect4("\x00") + str("c"), base(V311, func(c *Connect) { c.Clean = false })},
		{"3.1.1 everything", connect4("\xf6") + str("c") + str("w/t") + str("bye") + str("u") + str("\x00\xff"), base(V311, func(c *Connect) {
			c.Will = &Will{QoS: 2, Retain: true, Topic: []byte("w/t"), Payload: []byte("bye")}
			c.HasUsername, c.Username, c.HasPassword, c.Password = true, []byte("u"), true, []byte{0, 0xff}
		})},
		{"3.1.1 empty will payload, user name and password", connect4("\xc6") + str("c") + str("w") + str("") + str("") + str(""), base(V311, func(c *Connect) {
			c.Will = &Will{Topic: []byte("w"), Payload: []byte{}}
			c.HasUsername, c.Username, c.HasPassword, c.Password = true, []byte{}, true, []byte{}
		})},
		{"5", connect5("\x02") + str("c"), base(V5, func(*Connect) {})},
		{"5 [MQTT-3.1.3-6] empty client id without clean start", connect5("\x00") + str(""), base(V5, func(c *Connect) {
			c.Clean, c.ClientID = false, []byte{}
		})},
		{"5 password without user name", connect5("\x42") + str("c") + str("p"), base(V5, func(c *Connect) { c.HasPassword, c.Password = true, []byte("p") })},
		{"5 all properties", connect5("\x02", "\x11\x00\x00\x0e\x10", "\x21\x00\x14", "\x27\x00\x01\x00\x00", "\x22\x00\x0a", "\x19\x01", "\x17\x00",
			"\x26"+str("k")+str("2"), "\x26"+str("k")+str("1"), "\x15"+str("SCRAM"), "\x16"+str("\x00x")) + str("c"), base(V5, func(c *Connect) {
			c.HasSessionExpiry, c.SessionExpiryS, c.ReceiveMax, c.MaxPacket, c.TopicAliasMax = true, 3600, 20, 65536, 10
			c.RequestResponseInfo, c.RequestProblemInfo = true, false
			c.User = user("k", "2", "k", "1")
			c.HasAuthMethod, c.AuthMethod, c.AuthData = true, []byte("SCRAM"), []byte("\x00x")
		})},
		{"5 session that never expires", connect5("\x02", "\x11\xff\xff\xff\xff") + str("c"), base(V5, func(c *Connect) {
			c.HasSessionExpiry, c.SessionExpiryS = true, 0xffffffff
		})},
		{"5 will with all properties", connect5("\x0e") + str("c") + props("\x18\x00\x00\x00\x05", "\x01\x01", "\x02\x00\x00\x00\x3c", "\x03"+str("t"), "\x08"+str("r"),
			"\x09"+str(""), "\x26"+str("")+str("")) + str("w") + str("bye"), base(V5, func(c *Connect) {
			c.Will = &Will{QoS: 1, Topic: []byte("w"), Payload: []byte("bye"), DelayS: 5, HasExpiry: true, ExpiryS: 60,
				Props: message.Props{UTF8: true, ContentType: []byte("t"), ResponseTopic: []byte("r"), Correlation: []byte{}, User: user("", "")}}
		})},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Connect{Will: &Will{}, ClientID: []byte("of an earlier packet"), MaxPacket: 9}
			if err := got.Decode([]byte(c.in)); err != nil {
				t.Fatal(err)
			}
			if c.want.Will != nil {
				c.want.will = *c.want.Will
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("decoded\n%+v\nwant\n%+v", got, c.want)
			}
			for n := range c.in { // every shorter form is refused, but for what 3.1 allows
				if err := new(Connect).Decode([]byte(c.in)[:n:n]); err == nil && got.Version != V31 {
					t.Errorf("the first %d bytes alone are accepted", n)
				}
			}
			if err := new(Connect).Decode([]byte(c.in + "x")); err == nil {
				t.Error("a byte too many is accepted")
			}
		})
	}
}

func TestConnectRefused(t *testing.T) {
	id := str("c")
	for _, c := range []struct {
		name    string
		in      string
		want    *Error
		code    byte
		version byte
	}{
		{"3.1.1 [MQTT-3.1.2-1] protocol name", str("MQTX") + "\x04\x02\x00\x3c" + id, ErrProtocolName, 0x84, 4},
		{"5 [MQTT-3.1.2-1] name in lower case", str("mqtt") + "\x05\x02\x00\x3c\x00" + id, ErrProtocolName, 0x84, 5},
		{"[MQTT-3.1.2-1] empty name", str("") + "\x04\x02\x00\x3c" + id, ErrProtocolName, 0x84, 4},
		{"[MQTT-3.1.2-2] version 6", str("MQTT") + "\x06\x02\x00\x3c" + id, ErrVersion, 0x84, 6},
		{"[MQTT-3.1.2-2] version 3 with the name of 4", str("MQTT") + "\x03\x02\x00\x3c" + id, ErrVersion, 0x84, 3},
		{"[MQTT-3.1.2-2] version 4 with the name of 3", str("MQIsdp") + "\x04\x02\x00\x3c" + id, ErrVersion, 0x84, 4},
		{"[MQTT-3.1.2-2] a bridge's private version", str("MQTT") + "\x84\x02\x00\x3c" + id, ErrVersion, 0x84, 0x84},
		{"empty body", "", ErrTruncated, 0x81, 0},
		{"name longer than the packet", "\xff\xffMQTT\x04", ErrTruncated, 0x81, 0},
		{"[MQTT-3.1.2-3] reserved flag", connect4("\x03") + id, ErrConnectFlags, 0x81, 4},
		{"5 [MQTT-3.1.2-3] reserved flag", connect5("\x01") + id, ErrConnectFlags, 0x81, 5},
		{"[MQTT-3.1.2-11] will QoS without will", connect4("\x0a") + id, ErrWillFlags, 0x81, 4},
		{"[MQTT-3.1.2-13] will retain without will", connect5("\x22") + id, ErrWillFlags, 0x81, 5},
		{"[MQTT-3.1.2-12] will QoS 3", connect5("\x1e") + id + "\x00" + str("w") + str(""), ErrWillQoS, 0x81, 5},
		{"3.1.1 [MQTT-3.1.2-14] will QoS 3", connect4("\x1e") + id + str("w") + str(""), ErrWillQoS, 0x81, 4},
		{"3.1.1 [MQTT-3.1.2-22] password without user name", connect4("\x42") + id + str("p"), ErrPasswordAlone, 0x81, 4},
		{"3.1.1 [MQTT-3.1.3-8] empty client id, session kept", connect4("\x00") + str(""), ErrClientID, 0x85, 4},
		{"3.1 empty client id", str("MQIsdp") + "\x03\x02\x00\x3c" + str(""), ErrClientID, 0x85, 3},
		{"[MQTT-3.1.3-4] client id not UTF-8", connect4("\x02") + str("\xff"), ErrUTF8, 0x81, 4},
		{"[MQTT-1.5.4-1] client id with a surrogate", connect5("\x02") + str("a\xed\xa0\x80"), ErrUTF8, 0x81, 5},
		{"[MQTT-1.5.4-2] client id with NUL", connect5("\x02") + str("a\x00b"), ErrNUL, 0x81, 5},
		{"[MQTT-3.1.3-12] user name not UTF-8", connect5("\x82") + id + str("\xc0\x80"), ErrUTF8, 0x81, 5},
		{"[MQTT-3.1.3-11] will topic not UTF-8", connect5("\x06") + id + "\x00" + str("\xf5") + str(""), ErrUTF8, 0x81, 5},
		{"will topic with wildcards", connect4("\x06") + id + str("w/#") + str(""), ErrWillTopic, 0x90, 4},
		{"[MQTT-4.7.3-1] empty will topic", connect5("\x06") + id + "\x00" + str("") + str(""), ErrWillTopic, 0x90, 5},
		{"will flag without a will", connect4("\x06") + id, ErrTruncated, 0x81, 4},
		{"user name flag without a name", connect4("\x82") + id, ErrTruncated, 0x81, 4},
		{"user name without its flag", connect4("\x02") + id + str("u"), ErrTrailing, 0x81, 4},
		{"3.1 byte behind", str("MQIsdp") + "\x03\x02\x00\x3c" + id + "x", ErrTrailing, 0x81, 3},
		{"receive maximum 0", connect5("\x02", "\x21\x00\x00") + id, ErrReceiveMax, 0x82, 5},
		{"maximum packet size 0", connect5("\x02", "\x27\x00\x00\x00\x00") + id, ErrMaxPacket, 0x82, 5},
		{"request problem information 2", connect5("\x02", "\x17\x02") + id, ErrPropertyBool, 0x82, 5},
		{"request response information 255", connect5("\x02", "\x19\xff") + id, ErrPropertyBool, 0x82, 5},
		{"authentication data alone", connect5("\x02", "\x16"+str("x")) + id, ErrAuthData, 0x82, 5},
		{"property twice", connect5("\x02", "\x22\x00\x01", "\x22\x00\x01") + id, ErrPropertyDup, 0x82, 5},
		{"session expiry twice", connect5("\x02", "\x11\x00\x00\x00\x01", "\x11\x00\x00\x00\x01") + id, ErrPropertyDup, 0x82, 5},
		{"unknown property", connect5("\x02", "\x04\x00") + id, ErrProperty, 0x81, 5},
		{"property identifier beyond all", connect5("\x02", "\xff\x01") + id, ErrProperty, 0x81, 5},
		{"property of PUBLISH", connect5("\x02", "\x01\x01") + id, ErrProperty, 0x81, 5},
		{"property of CONNACK", connect5("\x02", "\x24\x01") + id, ErrProperty, 0x81, 5},
		{"will delay among the properties of CONNECT", connect5("\x02", "\x18\x00\x00\x00\x01") + id, ErrProperty, 0x81, 5},
		{"topic alias in a will", connect5("\x06") + id + props("\x23\x00\x01") + str("w") + str(""), ErrProperty, 0x81, 5},
		{"will payload format 2", connect5("\x06") + id + props("\x01\x02") + str("w") + str(""), ErrPropertyBool, 0x82, 5},
		{"will expiry twice", connect5("\x06") + id + props("\x02\x00\x00\x00\x01\x02\x00\x00\x00\x01") + str("w") + str(""), ErrPropertyDup, 0x82, 5},
		{"[MQTT-3.3.2-14] will response topic with wildcard", connect5("\x06") + id + props("\x08"+str("a/+")) + str("w") + str(""), ErrResponseTopic, 0x82, 5},
		{"[MQTT-1.5.7-1] user property name not UTF-8", connect5("\x02", "\x26"+str("\xff")+str("")) + id, ErrUTF8, 0x81, 5},
		{"[MQTT-1.5.7-1] user property value with NUL", connect5("\x02", "\x26"+str("a")+str("\x00")) + id, ErrNUL, 0x81, 5},
		{"authentication method not UTF-8", connect5("\x02", "\x15"+str("\x80")) + id, ErrUTF8, 0x81, 5},
		{"property cut short", connect5("\x02", "\x27\x00\x01") + id, ErrPropertyLen, 0x81, 5},
		{"properties longer than the packet", str("MQTT") + "\x05\x02\x00\x3c\x7f" + id, ErrPropertyLen, 0x81, 5},
		{"property length of five bytes", str("MQTT") + "\x05\x02\x00\x3c\xff\xff\xff\xff\x01" + id, ErrLength, 0x81, 5},
		{"[MQTT-1.5.5-1] property length not in its shortest form", str("MQTT") + "\x05\x02\x00\x3c\x80\x00" + id, ErrLengthForm, 0x81, 5},
		{"property length missing", str("MQTT") + "\x05\x02\x00\x3c", ErrPropertyLen, 0x81, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p Connect
			err := p.Decode([]byte(c.in))
			if !errors.Is(err, c.want) || Code(err) != c.code {
				t.Fatalf("%v (%#x), want %v (%#x)", err, Code(err), c.want, c.code)
			}
			if p.Version != c.version {
				t.Errorf("Version = %d, want %d", p.Version, c.version)
			}
		})
	}
}
