package jetstream

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	njs "github.com/nats-io/nats.go/jetstream"

	"edgehub/hub/message"
	"edgehub/sync/uplink"
)

func ctxFor(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// departure is a reason to block: what is done to the remote, or to the hub's
// data, between two runs of the uplink.
type departure struct {
	name   string
	harm   func(t *testing.T, h *hub, js njs.JetStream)
	cause  uplink.Cause
	reason string
	left   int // records at the remote after the operator resumed
}

func departures() []departure {
	return []departure{
		{"recreated", func(t *testing.T, h *hub, js njs.JetStream) {
			s, err := js.Stream(ctxFor(t), remoteName)
			must(t, err)
			config := s.CachedInfo().Config
			must(t, js.DeleteStream(ctxFor(t), remoteName))
			_, err = js.CreateStream(ctxFor(t), config)
			must(t, err)
		}, uplink.CauseRecreated, "deleted and created again", 20},
		{"deleted", func(t *testing.T, h *hub, js njs.JetStream) {
			must(t, js.DeleteStream(ctxFor(t), remoteName))
		}, uplink.CauseRecreated, "was deleted", 20},
		{"purged", func(t *testing.T, h *hub, js njs.JetStream) {
			s, err := js.Stream(ctxFor(t), remoteName)
			must(t, err)
			must(t, s.Purge(ctxFor(t)))
		}, uplink.CausePurged, "was emptied after sequence 600", 20},
		{"second writer", func(t *testing.T, h *hub, js njs.JetStream) {
			_, err := js.PublishMsg(ctxFor(t), &nats.Msg{Subject: "edge.h1.x", Data: []byte("x"), Header: nats.Header{hdrMsgID: {"ffff0123456789abcdef0123456789ab/main/0-0/1/5"}}})
			must(t, err)
		}, uplink.CauseForeign, "by instance ffff0123456789abcdef0123456789ab at sequence 601", 621},
		{"hand-made record", func(t *testing.T, h *hub, js njs.JetStream) {
			_, err := js.Publish(ctxFor(t), "edge.h1.x", []byte("x"))
			must(t, err)
		}, uplink.CauseForeign, "without an id", 621},
		{"newest record deleted", func(t *testing.T, h *hub, js njs.JetStream) {
			s, err := js.Stream(ctxFor(t), remoteName)
			must(t, err)
			must(t, s.DeleteMsg(ctxFor(t), 600))
		}, uplink.CauseGap, "sequence 600 is missing", 619},
		{"older copy of the data directory", func(t *testing.T, h *hub, js njs.JetStream) {
			h.rollBack(150, false)
		}, uplink.CauseDiverged, "offset 150 with another time, topic or payload", 620},
		{"older copy that has grown as far", func(t *testing.T, h *hub, js njs.JetStream) {
			h.rollBack(150, false)
			h.append(140)
		}, uplink.CauseDiverged, "offset 150 with another time, topic or payload", 900},
		{"older copy that has grown further", func(t *testing.T, h *hub, js njs.JetStream) {
			h.rollBack(150, false)
			h.append(300)
		}, uplink.CauseDiverged, "offset 150 with another time, topic or payload", 1220},
		{"restored backup", func(t *testing.T, h *hub, js njs.JetStream) {
			h.rollBack(150, true)
		}, uplink.CauseDiverged, "here it is of epoch 2", 620},
	}
}

// TestNamedDepartures: whatever makes going on a guess is named, stays named
// over a restart, loses nothing that was acknowledged, and goes on by the
// operator's word.
func TestNamedDepartures(t *testing.T) {
	for _, c := range departures() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := embedded(t, nil)
			h := newHub(t, 2)
			h.append(300)
			l := h.uplink(s.ClientURL(), settings{})
			l.drains()
			l.stop()
			js := client(t, s.ClientURL())
			c.harm(t, h, js)
			h.append(10)

			for range 2 { // the second time after a restart
				c.staysBlocked(t, h, s.ClientURL(), js)
			}
			c.goesOn(t, h, s.ClientURL())
		})
	}
}

// staysBlocked runs the uplink once: it names the cause, looks again from time
// to time, and still does not guess.
func (c *departure) staysBlocked(t *testing.T, h *hub, url string, js njs.JetStream) {
	t.Helper()
	l := h.uplink(url, settings{})
	st := l.blocked(10*time.Second, c.cause)
	if !strings.Contains(st.Blocked.Reason, c.reason) || strings.Contains(st.LastError, "\n") {
		t.Errorf("reason %q, want it to say %q in one line", st.Blocked.Reason, c.reason)
	}
	tries := st.Counters.Failures
	until(t, 10*time.Second, "looked again", func() bool { return l.Status().Counters.Failures >= tries+2 })
	if st := l.Status(); st.State != uplink.Blocked || st.Counters.Sent != 0 {
		t.Errorf("after looking again: %+v", st)
	}
	if _, err := js.Stream(ctxFor(t), remoteName); (err != nil) != (c.name == "deleted") {
		t.Errorf("remote stream: %v", err)
	}
	l.stop()
}

// goesOn resumes the uplink: what was never acknowledged follows, nothing twice,
// and from then on all is as ever.
func (c *departure) goesOn(t *testing.T, h *hub, url string) {
	t.Helper()
	l := h.uplink(url, settings{})
	l.blocked(10*time.Second, c.cause)
	must(t, l.Resume())
	l.drains()
	all := remote(t, url)
	if len(all) != c.left {
		t.Errorf("%d records at the remote, want %d", len(all), c.left)
	}
	seen := map[string]bool{}
	for _, m := range all {
		if id := m.Header.Get(hdrMsgID); id != "" {
			if seen[id] {
				t.Errorf("%s is there twice", id)
			}
			seen[id] = true
		}
	}
	l.stop()
	h.append(5)
	l = h.uplink(url, settings{})
	l.drains()
	if n := len(remote(t, url)); n != c.left+10 {
		t.Errorf("%d records after a restart, want %d", n, c.left+10)
	}
}

// TestRecreatedWhileStreaming: the stream goes away and comes back empty under a
// running uplink.
func TestRecreatedWhileStreaming(t *testing.T) {
	s := embedded(t, nil)
	h := newHub(t, 2)
	h.append(100)
	l := h.uplink(s.ClientURL(), settings{})
	l.drains()
	js := client(t, s.ClientURL())
	rs, err := js.Stream(ctxFor(t), remoteName)
	must(t, err)
	must(t, js.DeleteStream(ctxFor(t), remoteName))
	_, err = js.CreateStream(ctxFor(t), rs.CachedInfo().Config)
	must(t, err)
	h.append(10)
	l.blocked(10*time.Second, uplink.CauseRecreated)
	if n := len(remote(t, s.ClientURL())); n != 0 {
		t.Errorf("%d records were sent into the new stream", n)
	}
}

// TestNothingAcknowledgedYet: an empty stream that was created again is nobody's
// loss before the first acknowledgement, and neither is one under a new name.
func TestNothingAcknowledgedYet(t *testing.T) {
	s := embedded(t, nil)
	h := newHub(t, 1)
	l := h.uplink(s.ClientURL(), settings{})
	until(t, 10*time.Second, "connected", l.connectedIs(true))
	l.stop()
	js := client(t, s.ClientURL())
	must(t, js.DeleteStream(ctxFor(t), remoteName))
	h.append(10)
	l = h.uplink(s.ClientURL(), settings{})
	l.drains()
	h.compare(s.ClientURL())
	l.stop()
	must(t, js.DeleteStream(ctxFor(t), remoteName)) // its subjects are free again
	h.append(5)
	l = h.uplink(s.ClientURL(), settings{sink: func(o *Options) { o.RemoteStream = "OTHER" }})
	l.drains()
	other, err := js.Stream(ctxFor(t), "OTHER")
	must(t, err)
	if n := other.CachedInfo().State.Msgs; n != 5 {
		t.Errorf("the stream of the new name has %d records, want the 5 that no other acknowledged", n)
	}
}

// TestAgedOut: everything at the remote went by age. It is known exactly where
// to go on, so that is nobody's departure.
func TestAgedOut(t *testing.T) {
	s := embedded(t, nil)
	h := newHub(t, 2)
	js := client(t, s.ClientURL())
	_, err := js.CreateStream(ctxFor(t), njs.StreamConfig{Name: remoteName, Subjects: []string{"edge.h1.>"}, MaxAge: time.Second, Duplicates: 100 * time.Millisecond})
	must(t, err)
	h.append(20)
	l := h.uplink(s.ClientURL(), settings{})
	l.drains()
	l.stop()
	rs, err := js.Stream(ctxFor(t), remoteName)
	must(t, err)
	until(t, 10*time.Second, "aged out", func() bool { i, err := rs.Info(ctxFor(t)); return err == nil && i.State.Msgs == 0 })
	h.append(7)
	l = h.uplink(s.ClientURL(), settings{})
	l.drains()
	if n := l.Status().Counters.Sent; n != 14 {
		t.Errorf("%d records sent, want 14", n)
	}
}

func TestUnsuitableStreams(t *testing.T) {
	for _, c := range []struct {
		name   string
		config njs.StreamConfig
		want   string
	}{
		{"subjects", njs.StreamConfig{Name: remoteName, Subjects: []string{"edge.h1.devices.>", "edge.*"}}, "does not cover edge.h1.>"},
		{"work queue", njs.StreamConfig{Name: remoteName, Subjects: []string{"edge.>"}, Retention: njs.WorkQueuePolicy}, "must be limits"},
		{"last value", njs.StreamConfig{Name: remoteName, Subjects: []string{"edge.*.>"}, MaxMsgsPerSubject: 1}, "max_msgs_per_subject"},
		{"few", njs.StreamConfig{Name: remoteName, Subjects: []string{"edge.h1.>"}, MaxMsgs: 100}, "a resume needs"},
		{"no ack", njs.StreamConfig{Name: remoteName, Subjects: []string{"edge.h1.>"}, NoAck: true}, "does not acknowledge"},
		{"overlap", njs.StreamConfig{Name: "OTHER", Subjects: []string{"edge.*.devices.>"}}, "another remote stream already stores subjects"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := embedded(t, nil)
			h := newHub(t, 1)
			h.append(10)
			js := client(t, s.ClientURL())
			_, err := js.CreateStream(ctxFor(t), c.config)
			must(t, err)
			l := h.uplink(s.ClientURL(), settings{})
			st := l.blocked(10*time.Second, uplink.CauseUnsuitable)
			if !strings.Contains(st.Blocked.Reason, c.want) {
				t.Errorf("reason %q, want it to say %q", st.Blocked.Reason, c.want)
			}
			// Once the cause is gone, it goes on by itself.
			must(t, js.DeleteStream(ctxFor(t), c.config.Name))
			l.drains()
			h.compare(s.ClientURL())
		})
	}
}

func TestWithoutCreateItWaits(t *testing.T) {
	s := embedded(t, nil)
	h := newHub(t, 1)
	h.append(10)
	l := h.uplink(s.ClientURL(), settings{up: func(o *uplink.Options) { o.Create = false }})
	until(t, 10*time.Second, "says so", func() bool {
		return strings.Contains(l.Status().LastError, "does not exist: create it, or set create = true")
	})
	js := client(t, s.ClientURL())
	_, err := js.CreateStream(ctxFor(t), njs.StreamConfig{Name: remoteName, Subjects: []string{"edge.h1.>"}})
	must(t, err)
	l.drains()
	h.compare(s.ClientURL())
}

func TestJetStreamNotEnabled(t *testing.T) {
	s := embedded(t, func(o *server.Options) { o.JetStream = false })
	h := newHub(t, 1)
	l := h.uplink(s.ClientURL(), settings{})
	until(t, 10*time.Second, "says so", func() bool { return strings.Contains(l.Status().LastError, "JetStream is not enabled") })
}

// poison appends a record of a size to the first partition, between others.
func (h *hub) poison(m *message.Message) {
	h.t.Helper()
	h.append(10)
	h.builder.Reset(h.logs[0].Next())
	m.QoS, m.TimeMs = 1, time.Now().UnixMilli()
	h.add(m)
	h.commit(0)
	h.append(10)
}

// limits are the sizes that a remote may refuse, each with how it is raised.
func limits(t *testing.T, name string) (url string, raise func()) {
	var opts server.Options
	s := embedded(t, func(o *server.Options) {
		if name == "server" {
			o.MaxPayload = 64 << 10
		}
		opts = *o
	})
	js := client(t, s.ClientURL())
	config := njs.StreamConfig{Name: remoteName, Subjects: []string{"edge.h1.>"}}
	if name == "stream" {
		config.MaxMsgSize = 64 << 10
	}
	_, err := js.CreateStream(ctxFor(t), config)
	must(t, err)
	return s.ClientURL(), func() {
		if name == "server" {
			opts.MaxPayload = 1 << 20
			must(t, s.ReloadOptions(&opts))
			return
		}
		config.MaxMsgSize = -1
		_, err = js.UpdateStream(ctxFor(t), config)
		must(t, err)
	}
}

func tooBig() *message.Message {
	return &message.Message{Topic: []byte("big"), Payload: bytes.Repeat([]byte("x"), 100<<10)}
}

// TestTooLarge: one record that the remote never takes is named, not dropped,
// and passes when the limit is raised. Meanwhile the other partitions go on.
func TestTooLarge(t *testing.T) {
	for _, limit := range []string{"server", "stream"} {
		t.Run(limit, func(t *testing.T) {
			url, raise := limits(t, limit)
			h := newHub(t, 3)
			h.poison(tooBig())
			l := h.uplink(url, settings{})
			for range 2 { // before and after a look at the remote that changed nothing
				h.append(10)
				until(t, 10*time.Second, "the others go on", func() bool {
					s := l.Status()
					return s.State == uplink.Stream && len(s.Stuck) == 1 && s.LagMessages == h.logs[0].Next()-10
				})
				connects := l.Status().Counters.Connects
				until(t, 10*time.Second, "it looks again", func() bool { return l.Status().Counters.Connects > connects })
			}
			s := l.Status()
			if k := s.Stuck[0]; k.Partition != "main/0-0" || k.Offset != 10 || k.Cause != uplink.CauseTooLarge || !strings.Contains(k.Reason, "main/0-0 offset 10: 10") || !strings.Contains(k.Cure, "raise max_") ||
				!strings.Contains(k.Cure, "hubctl uplink skip cloud main/0-0") || !strings.Contains(s.LastError, k.Reason) || !s.RecoveredAt.IsZero() {
				t.Errorf("%+v", s)
			}
			if s.Counters.Failures != 0 {
				t.Errorf("%d connections failed, want none: %+v", s.Counters.Failures, s)
			}
			raise()
			l.drains()
			until(t, 10*time.Second, "recovered", func() bool { s := l.Status(); return len(s.Stuck) == 0 && !s.RecoveredAt.IsZero() })
			h.compare(url)
		})
	}
}

// TestTooLargeAndNothingElse: an uplink of which no partition can go on is shown
// as blocked.
func TestTooLargeAndNothingElse(t *testing.T) {
	url, raise := limits(t, "server")
	h := newHub(t, 1)
	h.poison(tooBig())
	l := h.uplink(url, settings{})
	st := l.blocked(10*time.Second, uplink.CauseTooLarge)
	if !strings.Contains(st.Blocked.Reason, "main/0-0 offset 10") {
		t.Errorf("reason %q does not name the record", st.Blocked.Reason)
	}
	raise()
	l.drains()
	h.compare(url)
}

// TestTooLargeNow: the limit is lowered under a running uplink, so that the server
// refuses a record in the middle of many in flight.
func TestTooLargeNow(t *testing.T) {
	s := embedded(t, nil)
	js := client(t, s.ClientURL())
	config := njs.StreamConfig{Name: remoteName, Subjects: []string{"edge.h1.>"}}
	_, err := js.CreateStream(ctxFor(t), config)
	must(t, err)
	h := newHub(t, 3)
	h.append(10)
	l := h.uplink(s.ClientURL(), settings{})
	l.drains()
	config.MaxMsgSize = 64 << 10
	_, err = js.UpdateStream(ctxFor(t), config)
	must(t, err)
	h.poison(tooBig())
	h.append(500)
	until(t, 10*time.Second, "the others go on", func() bool { s := l.Status(); return s.State == uplink.Stream && s.LagMessages == h.logs[0].Next()-20 })
	must(t, l.Skip("", -1))
	l.drains()
	if n, want := len(remote(t, s.ClientURL())), int(h.total())-1; n != want {
		t.Errorf("%d records at the remote, want all %d but the one", n, want)
	}
}

// TestHeadersTooLarge: what a device may put into topic and user properties is more
// than a server stores as headers. It must not stop anything but its partition.
func TestHeadersTooLarge(t *testing.T) {
	s := embedded(t, nil)
	h := newHub(t, 2)
	l := h.uplink(s.ClientURL(), settings{})
	for i, n := range []int{64000, 65535} {
		h.poison(&message.Message{Topic: []byte("t"), Payload: []byte("x"), Props: message.Props{User: []message.Pair{{Name: []byte("n"), Value: bytes.Repeat([]byte("v"), n)}}}})
		if i == 0 {
			until(t, 10*time.Second, "it just fits", l.drained)
			continue
		}
		until(t, 10*time.Second, "one is stuck", func() bool { return len(l.Status().Stuck) == 1 })
		if k := l.Status().Stuck[0]; !strings.Contains(k.Reason, "JetStream stores 65535 at most") || k.Offset != 31 {
			t.Errorf("%+v", k)
		}
		must(t, l.Skip("main/0", -1))
		l.drains()
	}
	if n, want := len(remote(t, s.ClientURL())), int(h.total())-1; n != want {
		t.Errorf("%d records at the remote, want all %d but the one", n, want)
	}
}

// TestSkip: the operator leaves records out. That is counted, and holds over kills
// and when the remote asks anew.
func TestSkip(t *testing.T) {
	url, _ := limits(t, "server")
	h := newHub(t, 2)
	h.poison(tooBig())
	l := h.uplink(url, settings{})
	until(t, 10*time.Second, "stuck", func() bool { return len(l.Status().Stuck) == 1 })
	for name, bad := range map[string]struct {
		partition string
		offset    int64
	}{"no such": {"main/7", -1}, "not stuck": {"main/1", -1}, "behind": {"main/0-0", 0}, "too far": {"main/0-0", 22}, "which": {"", 15}} {
		if err := l.Skip(bad.partition, bad.offset); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, l.Skip("main/0", 13))
	l.drains()
	want := uplink.Loss{Skipped: 3}
	if got := l.Status().Losses["main/0-0"]; got.Skipped != want.Skipped || got.Retention != 0 || got.Unseen != 0 {
		t.Errorf("losses %+v, want %+v", got, want)
	}
	h.kill(l)
	l = h.uplink(url, settings{})
	h.append(5)
	until(t, 10*time.Second, "drained after a kill", l.drained)
	if s := l.Status(); s.Losses["main/0-0"].Skipped != 3 || len(s.Stuck) != 0 || len(s.Pending) != 0 {
		t.Errorf("after a kill: %+v", s)
	}
	for _, m := range remote(t, url) {
		if o := m.Header.Get(hdrOffset); m.Header.Get(hdrPartition) == "0-0" && (o == "10" || o == "11" || o == "12") {
			t.Errorf("offset %s is at the remote", o)
		}
	}
	if n, want := len(remote(t, url)), int(h.total())-3; n != want {
		t.Errorf("%d records at the remote, want %d", n, want)
	}
}

// TestRewind: the operator has records sent again. They come behind what is there,
// in order, under ids of their own, through a kill in between.
func TestRewind(t *testing.T) {
	s := embedded(t, nil)
	h := newHub(t, 2)
	h.append(300)
	l := h.uplink(s.ClientURL(), settings{})
	l.drains()
	if err := l.Rewind("main/1", 300); err == nil {
		t.Error("took an offset that was never acknowledged")
	}
	must(t, l.Rewind("main/1", 100))
	until(t, 10*time.Second, "it lags no more", func() bool { s := l.Status(); return l.drained() && len(s.Pending) == 0 && s.Counters.Acked == 800 })
	h.kill(l)
	l = h.uplink(s.ClientURL(), settings{})
	h.append(5)
	l.drains()
	var got []string
	ids := map[string]bool{}
	for _, m := range remote(t, s.ClientURL()) {
		if ids[m.Header.Get(hdrMsgID)] {
			t.Errorf("%s is there twice", m.Header.Get(hdrMsgID))
		}
		ids[m.Header.Get(hdrMsgID)] = true
		if m.Header.Get(hdrPartition) == "1-0" {
			got = append(got, m.Header.Get(hdrOffset))
		}
	}
	var want []string
	for i := range 300 {
		want = append(want, strconv.Itoa(i))
	}
	for i := 100; i < 305; i++ {
		want = append(want, strconv.Itoa(i))
	}
	if !slices.Equal(got, want) {
		t.Errorf("offsets at the remote are not 0 to 299 and then 100 to 304, but %d: %v", len(got), got)
	}
}
