package jetstream

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"edgehub/hub/message"
	"edgehub/sync/uplink"
)

// TestDigestOfWhatIsStored: whatever a record is like, read back it has the digest
// that the log's own record has. A false difference would block the uplink.
func TestDigestOfWhatIsStored(t *testing.T) {
	s := embedded(t, nil)
	h := newHub(t, 1)
	topics := []string{"devices/17/telemetry", " a b/ü/%\t/", "/", " ", "\u00a0x\u2028\u0085", "a:b", strings.Repeat("long/", 10000), "\x7f\x01", "tail \t ", "%25", "日本/語"}
	payloads := []string{"", "21.5", "\x00\xff\r\n", strings.Repeat("x", 300<<10)}
	var want []uplink.Digest
	h.builder.Reset(0)
	for i, topic := range topics {
		for j, payload := range payloads {
			ms := 1795953600000 + int64(i*1000+j)
			h.add(&message.Message{Topic: []byte(topic), Payload: []byte(payload), QoS: 1, TimeMs: ms})
			want = append(want, uplink.DigestOf(ms, []byte(topic), []byte(payload)))
		}
	}
	h.commit(0)
	l := h.uplink(s.ClientURL(), settings{})
	until(t, 20*time.Second, "drained", l.drained)
	l.stop()
	session, err := h.sink(s.ClientURL(), nil).Connect(ctxFor(t))
	must(t, err)
	defer session.Close()
	got, err := session.Stored(ctxFor(t), 1, uint64(len(want)))
	must(t, err)
	seen := map[uplink.Digest]bool{}
	for i := range want {
		if got[i].Digest != want[i] || want[i] == 0 || seen[want[i]] {
			t.Errorf("topic %.20q, payload %.20q: digest %x, want %x and no other record's", topics[i/len(payloads)], payloads[i%len(payloads)], got[i].Digest, want[i])
		}
		seen[want[i]] = true
	}
	l = h.uplink(s.ClientURL(), settings{})
	until(t, 20*time.Second, "goes on", l.drained)
}

// TestRefused: only a connection that every server refuses is a cheap failure.
func TestRefused(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer silent.Close()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	nobody := "nats://" + free.Addr().String()
	must(t, free.Close())
	h := newHub(t, 1)
	for url, refused := range map[string]bool{
		nobody:                             true,
		nobody + "," + nobody:              true,
		"nats://" + silent.Addr().String(): false,
		nobody + ",nats://" + silent.Addr().String():      false,
		"nats://" + silent.Addr().String() + "," + nobody: false,
		"nats://no-such-host.invalid:4222":                false,
	} {
		_, err := h.sink(url, func(o *Options) { o.ConnectTimeout = 100 * time.Millisecond }).Connect(context.Background())
		if err == nil || errors.Is(err, uplink.ErrRefused) != refused || strings.Count(err.Error(), "refused") > 1 {
			t.Errorf("%s: %v, want refused: %t", url, err, refused)
		}
	}
}
