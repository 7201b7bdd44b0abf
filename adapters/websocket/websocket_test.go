package websocket

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/gobwas/ws"

	"edgehub/adapters/eventloop"
)

// socket is the connection below: it keeps what is written.
type socket struct {
	out     bytes.Buffer
	waiting int
	gone    bool
}

func (s *socket) Write(b []byte) (int, error) {
	if s.gone {
		return 0, net.ErrClosed
	}
	return s.out.Write(b)
}
func (s *socket) OutboundBuffered() int { return s.waiting }
func (s *socket) RemoteAddr() net.Addr  { return &net.TCPAddr{} }
func (s *socket) LocalAddr() net.Addr   { return &net.TCPAddr{} }
func (s *socket) Close() error          { s.gone = true; return nil }

// stream is what is above: it takes everything but the last keep bytes.
type stream struct {
	got  bytes.Buffer
	need int
	keep int
	stop bool
}

func (s *stream) Need() int { return s.need }
func (s *stream) Data(b []byte) (int, bool) {
	n := max(len(b)-s.keep, 0)
	s.got.Write(b[:n])
	return n, !s.stop
}

func options() Options {
	return Options{Protocols: []string{"mqtt", "mqttv3.1"}, Paths: []string{"/mqtt"}, Origins: []string{"https://panel.example.com"},
		FrameBytesMax: 100_000, Logger: slog.New(slog.DiscardHandler)}
}

type rig struct {
	*Conn
	ln   *Listener
	sock *socket
	up   *stream
	have []byte // received and not consumed
}

func newRig(o Options) *rig {
	r := &rig{ln: New(o), sock: &socket{}, up: &stream{}}
	layer, _ := r.ln.Wrap(r.sock, &eventloop.Loop{})
	r.Conn = layer.(*Conn)
	r.Attach(r.up)
	return r
}

// feed delivers b in pieces of at most size bytes, as a loop would. It reports whether the connection goes on.
func (r *rig) feed(b []byte, size int) bool {
	for len(b) > 0 {
		n := min(size, len(b))
		r.have = append(r.have, b[:n]...)
		b = b[n:]
		used, ok := r.Data(r.have)
		if used < 0 || used > len(r.have) {
			panic(fmt.Sprintf("used %d of %d", used, len(r.have)))
		}
		r.have = append([]byte(nil), r.have[used:]...)
		if !ok {
			return false
		}
	}
	return true
}

const request = "GET /mqtt HTTP/1.1\r\nHost: edge\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n" +
	"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"

const offer = "Sec-WebSocket-Protocol: mqtt\r\n"

// The accept key is that of RFC 6455, section 1.3.
const accepted = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
	"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"

func TestUpgrade(t *testing.T) {
	local := options()
	local.Origins, local.LocalOrigins = nil, true
	every := options()
	every.Origins = []string{"*"}
	for _, c := range []struct {
		name   string
		o      Options
		in     string
		status string // the line of the status, or of the sub-protocol for 101
	}{
		{"plain", options(), request + offer, "101"},
		{"several protocols", options(), request + "Sec-WebSocket-Protocol: chat, mqtt, other\r\n", "101"},
		{"several headers", options(), request + "Sec-WebSocket-Protocol: chat\r\nSec-WebSocket-Protocol: mqtt\r\n", "101"},
		{"3.1", options(), request + "Sec-WebSocket-Protocol: mqttv3.1\r\n", "101"},
		{"lower case", options(), strings.ToLower(strings.Split(request, "\r\n")[0][:3]) + request[3:] + offer, "400"},
		{"header names in any case", options(), strings.Replace(request, "Sec-WebSocket-Key", "sec-websocket-key", 1) + offer, "101"},
		{"query", options(), strings.Replace(request, "/mqtt", "/mqtt?client=1", 1) + offer, "101"},
		{"no protocol", options(), request, "400"},
		{"another protocol", options(), request + "Sec-WebSocket-Protocol: chat\r\n", "400"},
		{"path", options(), strings.Replace(request, "/mqtt", "/", 1) + offer, "404"},
		{"path below", options(), strings.Replace(request, "/mqtt", "/mqtt/x", 1) + offer, "404"},
		{"method", options(), strings.Replace(request, "GET", "POST", 1) + offer, "405"},
		{"no upgrade", options(), "GET /mqtt HTTP/1.1\r\nHost: edge\r\n", "426"},
		{"another upgrade", options(), strings.Replace(request, "Upgrade: websocket", "Upgrade: h2c", 1) + offer, "426"},
		{"no connection", options(), strings.Replace(request, "keep-alive, Upgrade", "close", 1) + offer, "400"},
		{"version 8", options(), strings.Replace(request, "Version: 13", "Version: 8", 1) + offer, "426"},
		{"short key", options(), strings.Replace(request, "dGhl", "", 1) + offer, "400"},
		{"no host", options(), strings.Replace(request, "Host: edge\r\n", "", 1) + offer, "400"},
		{"HTTP/1.0", options(), strings.Replace(request, "HTTP/1.1", "HTTP/1.0", 1) + offer, "505"},
		{"HTTP/2", options(), "PRI * HTTP/2.0\r\n\r\nSM\r\n", "505"},
		{"MQTT", options(), "\x10\x0e\x00\x04MQTT\x04\x02\x00\x00\x00\x02ab", "400"},
		{"TLS", options(), "\x16\x03\x01\x02\x00", "400"},
		{"malformed header", options(), request + "nonsense\r\n" + offer, "400"},
		{"large header", options(), request + "X: " + strings.Repeat("x", requestBytesMax) + "\r\n" + offer, "431"},
		{"as large as may be", options(), request + offer + "X: " + strings.Repeat("x", requestBytesMax-len(request+offer)-7) + "\r\n", "101"},
		{"no end", options(), strings.Repeat("GET ", requestBytesMax/4), "431"},
		{"origin allowed", options(), request + offer + "Origin: https://PANEL.example.com\r\n", "101"},
		{"origin refused", options(), request + offer + "Origin: https://example.com\r\n", "403"},
		{"origin null", options(), request + offer + "Origin: null\r\n", "403"},
		{"every origin", every, request + offer + "Origin: https://example.com\r\n", "101"},
		{"local origin", local, request + offer + "Origin: http://localhost:3000\r\n", "101"},
		{"local address", local, request + offer + "Origin: http://[::1]:3000\r\n", "101"},
		{"not local", local, request + offer + "Origin: http://localhost.example.com\r\n", "403"},
	} {
		for _, size := range []int{1 << 20, 1, 7} {
			t.Run(fmt.Sprintf("%s by %d", c.name, size), func(t *testing.T) {
				r := newRig(c.o)
				ok := r.feed([]byte(c.in+"\r\n"), size)
				line, _, _ := strings.Cut(r.sock.out.String(), "\r\n")
				if !strings.HasPrefix(line, "HTTP/1.1 "+c.status+" ") {
					t.Fatalf("answer %q", r.sock.out.String())
				}
				upgraded := c.status == "101"
				if ok != upgraded || (r.ln.Stats.Upgrades.Load() == 1) != upgraded || (r.ln.Stats.Refused.Load() == 1) == upgraded {
					t.Errorf("goes on: %v; upgrades %d, refused %d", ok, r.ln.Stats.Upgrades.Load(), r.ln.Stats.Refused.Load())
				}
				if !upgraded {
					checkRefusal(t, r.sock.out.String())
				}
			})
		}
	}
}

// checkRefusal holds the answer against what HTTP wants of it.
func checkRefusal(t *testing.T, answer string) {
	t.Helper()
	head, body, ok := strings.Cut(answer, "\r\n\r\n")
	if !ok || !strings.Contains(head, "\r\nConnection: close") || !strings.Contains(head, fmt.Sprintf("\r\nContent-Length: %d", len(body))) {
		t.Errorf("answer %q", answer)
	}
	for status, header := range map[string]string{"405": "Allow: GET", "426": "Sec-WebSocket-Version: 13"} {
		if strings.HasPrefix(head, "HTTP/1.1 "+status) && !strings.Contains(head, "\r\n"+header) {
			t.Errorf("no %s in %q", header, head)
		}
	}
}

func TestUpgradeAnswer(t *testing.T) {
	r := newRig(options())
	if !r.feed([]byte(request+offer+"\r\n"), 1<<20) || r.sock.out.String() != accepted {
		t.Errorf("%q", r.sock.out.String())
	}
}

// What comes behind the request belongs to the WebSocket.
func TestFrameBehindRequest(t *testing.T) {
	for _, size := range []int{1 << 20, 1, 5} {
		r := newRig(options())
		if !r.feed(append([]byte(request+offer+"\r\n"), masked(ws.NewBinaryFrame([]byte("hello")))...), size) || r.up.got.String() != "hello" {
			t.Errorf("by %d: %q", size, r.up.got.String())
		}
	}
}

func TestSlowRequest(t *testing.T) {
	r := newRig(options())
	r.feed([]byte(request), 100)
	r.Shut(true)
	if !strings.HasPrefix(r.sock.out.String(), "HTTP/1.1 408 ") {
		t.Errorf("%q", r.sock.out.String())
	}
	r = newRig(options())
	r.Shut(true)
	if r.sock.out.Len() != 0 {
		t.Errorf("silent client was told %q", r.sock.out.String())
	}
}

// open returns a rig behind its upgrade.
func open(t testing.TB, o Options) *rig {
	t.Helper()
	r := newRig(o)
	if !r.feed([]byte(request+offer+"\r\n"), 1<<20) {
		t.Fatalf("not upgraded: %q", r.sock.out.String())
	}
	r.sock.out.Reset()
	return r
}

func masked(f ws.Frame) []byte {
	return compiled(ws.MaskFrameWith(f, [4]byte{0x12, 0x34, 0x56, 0x78}))
}

func compiled(f ws.Frame) []byte {
	b, err := ws.CompileFrame(f)
	if err != nil {
		panic(err)
	}
	return b
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func closeFrame(code ws.StatusCode) []byte {
	return compiled(ws.NewCloseFrame(ws.NewCloseFrameBody(code, "")))
}

func TestFrames(t *testing.T) {
	bin := func(s string) []byte { return masked(ws.NewBinaryFrame([]byte(s))) }
	part := func(op ws.OpCode, fin bool, s string) []byte { return masked(ws.NewFrame(op, fin, []byte(s))) }
	long, longer := strings.Repeat("0123456789", 50), strings.Repeat("0123456789", 7000)
	noMask := compiled(ws.NewBinaryFrame([]byte("x")))
	rsv := bin("x")
	rsv[0] |= 0x40
	// A length of 5 written in two bytes, one of 130 written in eight, and one with its highest bit set.
	wide16 := append([]byte{0x82, 0x80 | 126, 0, 5, 0, 0, 0, 0}, "hello"...)
	wide64 := append([]byte{0x82, 0x80 | 127, 0, 0, 0, 0, 0, 0, 0, 130, 0, 0, 0, 0}, make([]byte, 130)...)
	negative := []byte{0x82, 0x80 | 127, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	for _, c := range []struct {
		name string
		in   []byte
		up   string
		out  []byte // what is sent; for a fault only its code is compared
		ok   bool
	}{
		{"one", bin("hello"), "hello", nil, true},
		{"empty", bin(""), "", nil, true},
		{"two", join(bin("hello "), bin("world")), "hello world", nil, true},
		{"126 bytes and more", join(bin(long), bin("x")), long + "x", nil, true},
		{"64 KiB and more", join(bin(longer), bin("x")), longer + "x", nil, true},
		{"fragments", join(part(ws.OpBinary, false, "a"), part(ws.OpContinuation, false, "b"), part(ws.OpContinuation, true, "c"), bin("d")), "abcd", nil, true},
		{"ping", masked(ws.NewPingFrame([]byte("are you there"))), "", compiled(ws.NewPongFrame([]byte("are you there"))), true},
		{"ping without body", masked(ws.NewPingFrame(nil)), "", compiled(ws.NewPongFrame(nil)), true},
		{"ping between fragments", join(part(ws.OpBinary, false, "a"), masked(ws.NewPingFrame([]byte("p"))), part(ws.OpContinuation, true, "b")), "ab", compiled(ws.NewPongFrame([]byte("p"))), true},
		{"pong", join(masked(ws.NewPongFrame([]byte("x"))), bin("a")), "a", nil, true},
		{"close", join(bin("a"), masked(ws.NewCloseFrame(ws.NewCloseFrameBody(1000, "bye")))), "a", closeFrame(1000), false},
		{"close without code", masked(ws.NewCloseFrame(nil)), "", compiled(ws.NewCloseFrame(nil)), false},
		{"close of an application", masked(ws.NewCloseFrame(ws.NewCloseFrameBody(4711, ""))), "", closeFrame(4711), false},
		{"close, then more", join(masked(ws.NewCloseFrame(ws.NewCloseFrameBody(1001, ""))), bin("x")), "", closeFrame(1001), false},
		{"close with half a code", masked(ws.NewCloseFrame([]byte{3})), "", closeFrame(1002), false},
		{"close with a code for nobody", masked(ws.NewCloseFrame(ws.NewCloseFrameBody(1005, ""))), "", closeFrame(1002), false},
		{"close with a code that is none", masked(ws.NewCloseFrame(ws.NewCloseFrameBody(999, ""))), "", closeFrame(1002), false},
		{"close with a reason that is no text", masked(ws.NewCloseFrame(append([]byte{3, 0xe8}, 0xff))), "", closeFrame(1007), false},
		{"text", join(bin("a"), masked(ws.NewTextFrame([]byte("b"))), bin("c")), "a", closeFrame(1003), false},
		{"not masked", noMask, "", closeFrame(1002), false},
		{"reserved bit", rsv, "", closeFrame(1002), false},
		{"reserved opcode", masked(ws.NewFrame(3, true, nil)), "", closeFrame(1002), false},
		{"reserved control opcode", masked(ws.NewFrame(0xb, true, nil)), "", closeFrame(1002), false},
		{"continuation of nothing", part(ws.OpContinuation, true, "a"), "", closeFrame(1002), false},
		{"message within a message", join(part(ws.OpBinary, false, "a"), bin("b")), "a", closeFrame(1002), false},
		{"fragmented ping", masked(ws.NewFrame(ws.OpPing, false, nil)), "", closeFrame(1002), false},
		{"long ping", masked(ws.NewFrame(ws.OpPing, true, make([]byte, 126))), "", closeFrame(1002), false},
		{"too large", masked(ws.NewBinaryFrame(make([]byte, 100_001))), "", closeFrame(1009), false},
		{"length of two bytes for a short one", wide16, "", closeFrame(1002), false},
		{"length of eight bytes for a short one", wide64, "", closeFrame(1002), false},
		{"negative length", negative, "", closeFrame(1002), false},
	} {
		for _, size := range []int{1 << 20, 1, 3, 13} {
			if len(c.in) > 5000 && size == 1 {
				size = 997
			}
			t.Run(fmt.Sprintf("%s by %d", c.name, size), func(t *testing.T) {
				r := open(t, options())
				ok := r.feed(append([]byte(nil), c.in...), size)
				if ok != c.ok || r.up.got.String() != c.up {
					t.Errorf("goes on %v, delivered %q", ok, r.up.got.String())
				}
				got := r.sock.out.Bytes()
				fault := !c.ok && r.ln.Stats.Broken.Load() > 0
				if fault && len(got) > 4 { // without its reason
					got = append([]byte{got[0], 2}, got[2:4]...)
				}
				if !bytes.Equal(got, c.out) {
					t.Errorf("sent %x, want %x", r.sock.out.Bytes(), c.out)
				}
				sent := r.sock.out.Len()
				r.Shut(true)
				if !c.ok && r.sock.out.Len() != sent {
					t.Error("a second close frame")
				}
			})
		}
	}
}

// A packet may span frames and a frame may hold many packets: what the layer above leaves is given to it again, once
// there is as much as it needs.
func TestHeldBytes(t *testing.T) {
	r := open(t, options())
	r.up.keep, r.up.need = 3, 0
	r.feed(masked(ws.NewBinaryFrame([]byte("abcdef"))), 1<<20)
	if r.up.got.String() != "abc" || r.carry.Held() != 3 {
		t.Fatalf("%q, held %d", r.up.got.String(), r.carry.Held())
	}
	r.up.keep, r.up.need = 0, 6
	r.feed(masked(ws.NewBinaryFrame([]byte("gh"))), 1<<20)
	if r.up.got.String() != "abc" {
		t.Fatalf("delivered too early: %q", r.up.got.String())
	}
	r.feed(masked(ws.NewBinaryFrame([]byte("ij"))), 1<<20)
	if r.up.got.String() != "abcdefghij" || r.carry.Held() != 0 {
		t.Fatalf("%q, held %d", r.up.got.String(), r.carry.Held())
	}
}

func TestPongsAreBounded(t *testing.T) {
	r := open(t, options())
	r.sock.waiting = pongBacklogMax
	if !r.feed(masked(ws.NewPingFrame([]byte("x"))), 1<<20) || r.sock.out.Len() != 0 {
		t.Error("a pong to a client that does not read")
	}
	r.sock.waiting = 0
	all := join(masked(ws.NewPingFrame([]byte("1"))), masked(ws.NewPingFrame([]byte("2"))))
	if !r.feed(all, 1<<20) || !bytes.Equal(r.sock.out.Bytes(), compiled(ws.NewPongFrame([]byte("2")))) {
		t.Errorf("sent %x", r.sock.out.Bytes())
	}
}

func TestWrite(t *testing.T) {
	for _, n := range []int{0, 1, 125, 126, 65535, 65536, 65537, 1_000_000} {
		r := open(t, options())
		want := make([]byte, n)
		for i := range want {
			want[i] = byte(i * 7)
		}
		if m, err := r.Write(want); m != n || err != nil {
			t.Fatalf("%d: %d %v", n, m, err)
		}
		var got []byte
		for r.sock.out.Len() > 0 {
			f, err := ws.ReadFrame(&r.sock.out)
			if err != nil || !f.Header.Fin || f.Header.OpCode != ws.OpBinary || f.Header.Masked || f.Header.Length > messageBytesMax {
				t.Fatalf("%d: %+v %v", n, f.Header, err)
			}
			got = append(got, f.Payload...)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%d bytes came as %d", n, len(got))
		}
	}
}

func TestWriteBeforeAndAfter(t *testing.T) {
	r := newRig(options())
	if n, err := r.Write([]byte("early")); n != 5 || err != nil || r.OutboundBuffered() != 5 {
		t.Fatalf("%d %v, %d wait", n, err, r.OutboundBuffered())
	}
	r.feed([]byte(request+offer+"\r\n"), 1<<20)
	if want := accepted + string(compiled(ws.NewBinaryFrame([]byte("early")))); r.sock.out.String() != want {
		t.Errorf("%q", r.sock.out.String())
	}
	r.sock.out.Reset()
	r.Shut(true)
	if !bytes.Equal(r.sock.out.Bytes(), closeFrame(1000)) {
		t.Errorf("goodbye %x", r.sock.out.Bytes())
	}
	if n, err := r.Write([]byte("late")); n != 4 || err != nil || r.sock.out.Len() != 4 {
		t.Errorf("after the goodbye: %d %v, %x", n, err, r.sock.out.Bytes())
	}
	r.Shut(false)
	if _, err := r.Write([]byte("later")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("on a closed connection: %v", err)
	}
}

// oracle reads the same bytes with the library's own reader.
func oracle(in []byte, frameMax int64) (up []byte, code ws.StatusCode, ended bool) {
	rd := bytes.NewReader(in)
	state := ws.StateServerSide
	for {
		at, _ := rd.Seek(0, io.SeekCurrent)
		h, err := ws.ReadHeader(rd)
		if err != nil {
			if errors.Is(err, ws.ErrHeaderLengthMSB) {
				return up, ws.StatusProtocolError, true
			}
			return up, 0, false
		}
		if end, _ := rd.Seek(0, io.SeekCurrent); int64(ws.HeaderSize(h)) != end-at { // not in its shortest form
			return up, ws.StatusProtocolError, true
		}
		if ws.CheckHeader(h, state) != nil {
			return up, ws.StatusProtocolError, true
		}
		if h.Length > frameMax {
			return up, ws.StatusMessageTooBig, true
		}
		if h.OpCode == ws.OpText {
			return up, ws.StatusUnsupportedData, true
		}
		p := make([]byte, min(h.Length, int64(rd.Len())))
		_, _ = io.ReadFull(rd, p)
		ws.Cipher(p, h.Mask, 0)
		if !h.OpCode.IsControl() {
			up = append(up, p...)
			state = ws.StateServerSide
			if !h.Fin {
				state = state.Set(ws.StateFragmented)
			}
		}
		if int64(len(p)) < h.Length {
			return up, 0, false
		}
		if h.OpCode == ws.OpClose {
			return up, closeCode(p), true
		}
	}
}

func closeCode(p []byte) ws.StatusCode {
	if len(p) == 0 {
		return 0
	}
	if len(p) == 1 {
		return ws.StatusProtocolError
	}
	code, reason := ws.ParseCloseFrameData(p)
	switch err := ws.CheckCloseFrameData(code, reason); {
	case errors.Is(err, ws.ErrProtocolInvalidUTF8):
		return ws.StatusInvalidFramePayloadData
	case err != nil:
		return ws.StatusProtocolError
	}
	return code
}

// lastCode is the code of the close frame at the end of what was sent; false when there is none.
func lastCode(out []byte) (ws.StatusCode, bool) {
	rd := bytes.NewReader(out)
	for {
		f, err := ws.ReadFrame(rd)
		if err != nil {
			return 0, false
		}
		if f.Header.OpCode == ws.OpClose {
			if len(f.Payload) < 2 {
				return 0, true
			}
			return ws.StatusCode(binary.BigEndian.Uint16(f.Payload)), true
		}
	}
}

// FuzzFrames holds the layer, fed in pieces, against the library's reader, which gets everything at once.
func FuzzFrames(f *testing.F) {
	f.Add(join(masked(ws.NewBinaryFrame([]byte("hello"))), masked(ws.NewPingFrame([]byte("x"))), masked(ws.NewCloseFrame(ws.NewCloseFrameBody(1000, "")))), uint8(1))
	f.Add(join(masked(ws.NewFrame(ws.OpBinary, false, []byte("a"))), masked(ws.NewFrame(ws.OpContinuation, true, []byte("b")))), uint8(3))
	f.Add([]byte{0x82, 0x80 | 127, 0, 0, 0, 0, 0, 1, 0, 0, 1, 2, 3, 4, 5}, uint8(2))
	f.Fuzz(func(t *testing.T, in []byte, size uint8) {
		up, code, ended := oracle(in, 100_000)
		r := open(t, options())
		ok := r.feed(append([]byte(nil), in...), int(size)+1)
		if !bytes.Equal(r.up.got.Bytes(), up) {
			t.Fatalf("delivered %x, want %x", r.up.got.Bytes(), up)
		}
		got, said := lastCode(r.sock.out.Bytes())
		if ok == ended || said != ended || got != code {
			t.Fatalf("goes on %v, code %d (%v); want ended %v, code %d", ok, got, said, ended, code)
		}
	})
}

// FuzzUpgrade: whatever comes, there is no answer, or one whole answer.
func FuzzUpgrade(f *testing.F) {
	f.Add([]byte(request+offer+"\r\n"), uint8(255))
	f.Add([]byte("POST / HTTP/1.1\r\n\r\n"), uint8(1))
	f.Add([]byte("\x10\x0e\x00\x04MQTT"), uint8(0))
	f.Fuzz(func(t *testing.T, in []byte, size uint8) {
		r := newRig(options())
		ok := r.feed(append([]byte(nil), in...), int(size)+1)
		answer := r.sock.out.String()
		switch {
		case r.ln.Stats.Upgrades.Load() == 1:
			if !strings.HasPrefix(answer, "HTTP/1.1 101 ") {
				t.Fatalf("answer %q", answer)
			}
		case r.ln.Stats.Refused.Load() == 1:
			if ok {
				t.Fatal("refused and goes on")
			}
			checkRefusal(t, answer)
		case answer != "" || !ok || len(r.have) >= requestBytesMax:
			t.Fatalf("%q after %d bytes, goes on %v", answer, len(in), ok)
		}
	})
}

func BenchmarkFrame(b *testing.B) {
	r := open(b, options())
	frame := masked(ws.NewBinaryFrame(make([]byte, 105)))
	in := make([]byte, len(frame))
	b.ReportAllocs()
	for b.Loop() {
		copy(in, frame)
		r.up.got.Reset()
		r.Data(in)
	}
}
