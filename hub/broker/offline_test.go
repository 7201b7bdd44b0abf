package broker

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"edgehub/hub/auth"
	"edgehub/hub/stream"
	"edgehub/internal/vfs/vfstest"
)

// askNow has a loop answer at once: everything runs on the test's goroutine.
func (r *rig) askNow(l *Loop, fn func()) bool {
	done := false
	l.Post(func() { fn(); done = true })
	for !done && r.step(l.ID) {
	}
	if !done {
		r.t.Fatalf("loop %d sleeps with mail", l.ID)
	}
	return true
}

// trim deletes the oldest segments of a partition as retention does, all but the active one.
func (r *rig) trim(p *partition) {
	r.t.Helper()
	if err := r.b.Roll(p.Partition); err != nil {
		r.t.Fatal(err)
	}
	for segs := p.Log.Segments(); len(segs) > 1 && segs[0].Sealed; segs = p.Log.Segments() {
		if err := r.b.KeepRetained(p.Partition, segs[0]); err != nil {
			r.t.Fatal(err)
		}
		if err := r.b.keepOffline(p, segs[0], r.askNow); err != nil {
			r.t.Fatal(err)
		}
		if _, err := p.Log.DropOldest(); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *rig) tidy() {
	r.t.Helper()
	r.b.offline.snap = nil
	if err := r.b.tidyOffline(r.askNow); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) copies() int64 {
	to := r.b.offline.to
	return to.Log.Next() - to.Log.First()
}

// away makes a session with a subscription and leaves it.
func (r *rig) away(id string, subs ...SubRequest) {
	s := r.connect(0, persistent(id))
	s.ask(subs...)
	r.settle()
	s.drop()
	r.settle()
}

func texted(prefix string, n int) []string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprint(prefix, i))
	}
	return list
}

// flood publishes numbered messages, each 1 KiB.
func (r *rig) flood(cn *tconn, topic, prefix string, n int, qos byte) {
	pad := strings.Repeat(".", 1000)
	for i := range n {
		text := fmt.Sprint(prefix, i)
		if qos == 0 {
			text += pad
		}
		cn.pub(topic, text, qos, uint16(i%1000+1))
		if i%50 == 49 {
			cn.answerAll()
		}
	}
	cn.answerAll()
}

// What an absent session still has to receive outlives its segment, in order with what is in the log, through a kill
// after every step.
func TestOfflineOutlivesItsSegment(t *testing.T) {
	for _, qos := range []byte{1, 2} {
		t.Run(fmt.Sprint("QoS", qos), func(t *testing.T) {
			r := newRig(t, oneStream, 2)
			r.away("s", SubRequest{Filter: "cmd/#", QoS: qos})
			p := r.connect(1, ConnectRequest{ClientID: "p"})
			main := r.part("cmd/1")
			r.flood(p, "cmd/1", "a", 300, qos)
			r.flood(p, "telemetry", "t", 3000, 0)
			r.trim(main)
			r.flood(p, "cmd/1", "b", 10, qos)
			r.kill()
			p = r.connect(1, ConnectRequest{ClientID: "p"})
			main = r.part("cmd/1")
			r.flood(p, "telemetry", "t", 3000, 0)
			r.trim(main)
			r.flood(p, "cmd/1", "c", 10, qos)
			if n := r.copies(); n != 310 {
				t.Fatalf("%d copies, want the 310 commands", n)
			}
			s := r.connect(0, persistent("s"))
			got := texts(s.answerAll())
			if want := slices.Concat(texted("a", 300), texted("b", 10), texted("c", 10)); !slices.Equal(got, want) {
				t.Fatalf("got %d: %v", len(got), got)
			}
			if n := r.b.Stats.DroppedTrimmed.Load(); n != 0 {
				t.Errorf("%d counted as lost", n)
			}
			r.tidy()
			if n := r.copies(); n != 0 {
				t.Errorf("%d copies are left that nobody needs", n)
			}
			if k := r.meta.keys(prefixKept); len(k) != 0 {
				t.Errorf("index entries are left: %q", k)
			}
		})
	}
}

// One copy, however many sessions need it, and none of what nobody does.
func TestOfflineCopiesWhatIsNeeded(t *testing.T) {
	cases := []struct {
		name string
		sub  SubRequest
		pub  pkt
		want int64
	}{
		{"QoS 1", SubRequest{Filter: "a/+", QoS: 1}, pkt{topic: "a/b", qos: 1}, 1},
		{"QoS 1 of QoS 2", SubRequest{Filter: "a/+", QoS: 1}, pkt{topic: "a/b", qos: 2}, 1},
		{"subscribed with QoS 0", SubRequest{Filter: "a/+"}, pkt{topic: "a/b", qos: 2}, 0},
		{"published with QoS 0", SubRequest{Filter: "a/+", QoS: 1}, pkt{topic: "a/b"}, 0},
		{"another topic", SubRequest{Filter: "a/+", QoS: 1}, pkt{topic: "b", qos: 1}, 0},
		{"shared subscription [MQTT-4.8.2]", SubRequest{Filter: "$share/g/a/+", QoS: 1}, pkt{topic: "a/b", qos: 1}, 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, oneStream, 2)
			for i := range 5 {
				r.away(fmt.Sprint("s", i), c.sub)
			}
			p := r.connect(1, ConnectRequest{ClientID: "p"})
			p.pub(c.pub.topic, "x", c.pub.qos, 1)
			p.answerAll()
			r.trim(r.part("a/b"))
			if n := r.copies(); n != c.want {
				t.Fatalf("%d copies, want %d", n, c.want)
			}
		})
	}
}

// Of connected sessions, those that are behind have their messages copied, and those that have been sent one and have
// not answered: it is sent again after a reconnect [MQTT-4.4.0-1].
func TestOfflineOfConnectedSessions(t *testing.T) {
	for _, qos := range []byte{1, 2} {
		r := newRig(t, oneStream, 2)
		s := r.connect(0, ConnectRequest{ClientID: "s", Expiry: 3600, Window: 3})
		s.subscribe(qos, "a")
		r.settle()
		p := r.connect(1, ConnectRequest{ClientID: "p"})
		r.flood(p, "a", "m", 10, qos)
		sent := kinds(s.take(), "publish")
		if len(sent) != 3 {
			t.Fatalf("%d sent, the window is 3", len(sent))
		}
		s.answer(sent[0])
		if qos == 2 {
			r.settle()
			s.answer(pkt{kind: "pubrel", id: sent[0].id})
		}
		r.settle()
		sent = append(sent[1:], kinds(s.take(), "publish")...)
		r.trim(r.part("a"))
		s.drop()
		r.settle()
		s = r.connect(0, ConnectRequest{ClientID: "s", Expiry: 3600, Window: 3})
		got := s.answerAll()
		want := texted("m", 10)[1:]
		if !slices.Equal(texts(got), want) {
			t.Fatalf("QoS %d: %v, want %v", qos, texts(got), want)
		}
		for i, x := range got {
			if x.dup != (i < len(sent)) || x.dup && x.id != sent[i].id {
				t.Errorf("QoS %d: %v, sent before: %v", qos, x, sent)
			}
		}
	}
}

// A group keeps its messages like a session, and gives them to whoever comes first.
func TestOfflineOfASharedSubscription(t *testing.T) {
	r := newRig(t, oneStream, 2)
	r.away("s", SubRequest{Filter: "$share/g/a/#", QoS: 1})
	p := r.connect(1, ConnectRequest{ClientID: "p"})
	r.flood(p, "a/1", "m", 20, 1)
	r.trim(r.part("a/1"))
	r.kill()
	p = r.connect(1, ConnectRequest{ClientID: "p"})
	r.flood(p, "a/1", "n", 5, 1)
	r.trim(r.part("a/1"))
	s := r.connect(0, persistent("s"))
	if got, want := texts(s.answerAll()), slices.Concat(texted("m", 20), texted("n", 5)); !slices.Equal(got, want) {
		t.Fatalf("%v", got)
	}
}

// The limits of a session, by policy of the stream. What it loses is counted.
func TestOfflineLimits(t *testing.T) {
	cases := []struct {
		name    string
		policy  stream.Offline
		lim     Limits
		want    []string // of m0 … m39
		dropped int64
	}{
		{"no limit", stream.OfflineDropOldest, Limits{}, texted("m", 40), 0},
		{"messages, oldest", stream.OfflineDropOldest, Limits{QueuedMessages: 10}, texted("m", 40)[30:], 30},
		{"bytes, oldest", stream.OfflineDropOldest, Limits{QueuedBytes: 40}, texted("m", 40)[30:], 30}, // topic and payload of 4 bytes
		{"messages, newest", stream.OfflineDropNew, Limits{QueuedMessages: 10}, texted("m", 40)[:10], 30},
		{"bytes, newest", stream.OfflineDropNew, Limits{QueuedBytes: 4*9 + 3*1 + 1}, texted("m", 40)[:12], 28},
		{"none", stream.OfflineNone, Limits{}, nil, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			specs := slices.Clone(oneStream)
			specs[0].Offline = c.policy
			r := newRig(t, specs, 2)
			r.b.o.Limits.QueuedMessages, r.b.o.Limits.QueuedBytes = c.lim.QueuedMessages, c.lim.QueuedBytes
			r.away("s", SubRequest{Filter: "a", QoS: 1})
			p := r.connect(1, ConnectRequest{ClientID: "p"})
			for i, text := range texted("m", 40) {
				p.pub("a", text, 1, uint16(i+1))
				if i%4 == 3 {
					p.answerAll()
					r.trim(r.part("a"))
				}
			}
			info, _ := r.b.Session("s")
			if int(info.Queued.Messages) != len(c.want) || info.Queued.Dropped != c.dropped || r.b.Stats.OfflineSessionFull.Load() != c.dropped {
				t.Errorf("%+v, %d counted; want %d and %d dropped", info.Queued, r.b.Stats.OfflineSessionFull.Load(), len(c.want), c.dropped)
			}
			p.pub("a", "end", 1, 1)
			p.answerAll()
			s := r.connect(0, persistent("s"))
			if got := texts(s.answerAll()); !slices.Equal(got, append(slices.Clone(c.want), "end")) {
				t.Fatalf("%v", got)
			}
			if n := r.b.Stats.DroppedTrimmed.Load(); (n > 0) != (c.policy == stream.OfflineNone) {
				t.Errorf("%d counted as trimmed", n)
			}
			s.drop()
			r.settle()
			if info, _ := r.b.Session("s"); info.Queued.Messages != 0 {
				t.Errorf("still counted: %+v", info.Queued)
			}
		})
	}
}

// All copies together stay below their limit: the oldest go, but what is still needed of little moves on.
func TestOfflineFitsItsLimit(t *testing.T) {
	r := newRig(t, oneStream, 2)
	r.b.o.Limits.OfflineBytes = 256 << 10
	r.away("rare", SubRequest{Filter: "cmd/rare", QoS: 1})
	p := r.connect(1, ConnectRequest{ClientID: "p"})
	p.pub("cmd/rare", "first", 1, 1)
	p.answerAll()
	pad := strings.Repeat("x", 1000)
	for round := range 20 { // each: a session that is away, misses 100 KiB, and comes back
		r.away("often", SubRequest{Filter: "cmd/often", QoS: 1})
		for i := range 100 {
			p.pub("cmd/often", fmt.Sprint(round, "-", i, pad), 1, uint16(i+1))
		}
		p.answerAll()
		r.trim(r.part("cmd/rare"))
		if n := r.b.OfflineBytes(); n > 256<<10+64<<10 {
			t.Fatalf("round %d: %d bytes", round, n)
		}
		s := r.connect(0, persistent("often"))
		if got := len(s.answerAll()); got != 100 {
			t.Fatalf("round %d: %d messages", round, got)
		}
		s.drop()
		r.settle()
		r.tidy()
	}
	s := r.connect(0, persistent("rare"))
	wantTexts(t, s.answerAll(), "first")
	if n := r.b.Stats.OfflineHubFull.Load(); n != 0 {
		t.Fatalf("%d lost although little was needed", n)
	}

	r.away("often", SubRequest{Filter: "cmd/often", QoS: 1})
	for i := range 1000 {
		p.pub("cmd/often", fmt.Sprint(i, pad), 1, uint16(i+1))
		if i%100 == 99 {
			p.answerAll()
			r.trim(r.part("cmd/rare"))
		}
	}
	if n := r.b.OfflineBytes(); n > 256<<10+64<<10 {
		t.Fatalf("%d bytes", n)
	}
	lost := r.b.Stats.OfflineHubFull.Load()
	s = r.connect(0, persistent("often"))
	got := texts(s.answerAll())
	if lost == 0 || int(lost)+len(got) != 1000 {
		t.Fatalf("%d lost and %d delivered of 1000", lost, len(got))
	}
	for i, text := range got {
		if text != fmt.Sprint(i+int(lost), pad) {
			t.Fatalf("message %d: %.10s, want number %d", i, text, i+int(lost))
		}
	}
}

// After a start the copies count as before, and are there.
func TestOfflineAccountsAfterAKill(t *testing.T) {
	r := newRig(t, oneStream, 2)
	r.away("s", SubRequest{Filter: "a", QoS: 1})
	r.away("t", SubRequest{Filter: "+", QoS: 1})
	p := r.connect(1, ConnectRequest{ClientID: "p"})
	r.flood(p, "a", "m", 700, 1)
	r.flood(p, "b", "m", 5, 1)
	r.trim(r.part("a"))
	before, _ := r.b.Session("s")
	other, _ := r.b.Session("t")
	r.kill()
	r.tidy()
	after, _ := r.b.Session("s")
	if before.Queued.Messages != 700 || after.Queued != before.Queued {
		t.Errorf("before %+v, after %+v", before.Queued, after.Queued)
	}
	if x, _ := r.b.Session("t"); other.Queued.Messages != 705 || x.Queued != other.Queued {
		t.Errorf("before %+v, after %+v", other.Queued, x.Queued)
	}
}

// The copies are as durable as the segment was when it goes: a power cut right after that takes none.
func TestOfflineOutlivesAPowerCut(t *testing.T) {
	r := newRig(t, oneStream, 1)
	r.away("s", SubRequest{Filter: "a", QoS: 1})
	p := r.connect(0, ConnectRequest{ClientID: "p"})
	r.flood(p, "a", "m", 300, 1)
	r.trim(r.part("a"))
	r.disk = r.disk.Crash(rand.New(rand.NewPCG(1, 1)), 0, false)
	r.meta = r.meta.kill(0)
	r.start(1)
	s := r.connect(0, persistent("s"))
	wantTexts(t, s.answerAll(), texted("m", 300)...)
}

// A segment stays while what is needed of it cannot be copied; the next attempt begins anew, and nothing comes twice.
func TestOfflineCopyFails(t *testing.T) {
	r := newRig(t, oneStream, 1)
	r.away("s", SubRequest{Filter: "a", QoS: 2})
	p := r.connect(0, ConnectRequest{ClientID: "p"})
	r.flood(p, "a", "m", 600, 2)
	part := r.part("a")
	if err := r.b.Roll(part.Partition); err != nil {
		t.Fatal(err)
	}
	seg := part.Log.Segments()[0]
	for fail := range 3 {
		r.fs.Clear()
		r.fs.Add(vfstest.Fault{Op: vfstest.OpWrite, Pattern: "*.log", Err: errInjected, After: fail})
		r.b.offline.snap = nil
		if err := r.b.keepOffline(part, seg, r.askNow); err == nil {
			t.Fatalf("write %d failed and the segment may go", fail)
		}
		r.fs.Clear()
	}
	r.trim(part)
	s := r.connect(0, persistent("s"))
	wantTexts(t, s.answerAll(), texted("m", 600)...)
	s.drop()
	r.settle()
	if info, _ := r.b.Session("s"); info.Queued.Messages != 0 {
		t.Errorf("%+v", info.Queued)
	}
}

// A copy of the data directory can have the metadata from before a segment went and the logs from after: the copies are
// found without their index. Those of an attempt that failed are not taken for more than they are.
func TestOfflineWithoutItsIndex(t *testing.T) {
	r := newRig(t, oneStream, 1)
	r.away("s", SubRequest{Filter: "a", QoS: 2})
	p := r.connect(0, ConnectRequest{ClientID: "p"})
	r.flood(p, "a", "m", 600, 2)
	part := r.part("a")
	if err := r.b.Roll(part.Partition); err != nil {
		t.Fatal(err)
	}
	r.fs.Add(vfstest.Fault{Op: vfstest.OpWrite, Pattern: "*.log", Err: errInjected, After: 2, Count: 1})
	if err := r.b.keepOffline(part, part.Log.Segments()[0], r.askNow); err == nil {
		t.Fatal("the third write failed and the segment may go")
	}
	r.fs.Clear()
	r.checkpoint()
	r.checkpoint()
	before := r.meta.kill(0)
	r.trim(part)
	r.flood(p, "a", "n", 5, 2)
	r.disk, r.meta = r.disk.Kill(), before
	r.start(1)
	s := r.connect(0, persistent("s"))
	wantTexts(t, s.answerAll(), slices.Concat(texted("m", 600), texted("n", 5))...)
}

// A stream that is far above its limit has its segments go without copies. What each session loses is counted.
func TestOfflineIsLate(t *testing.T) {
	specs := slices.Clone(oneStream)
	specs[0].MaxRecords = 10
	r := newRig(t, specs, 1)
	r.b.offline.slack.records = 100
	r.away("s", SubRequest{Filter: "a", QoS: 1})
	r.away("t", SubRequest{Filter: "#", QoS: 1})
	p := r.connect(0, ConnectRequest{ClientID: "p"})
	r.flood(p, "a", "m", 20, 1)
	r.trim(r.part("a"))
	r.flood(p, "a", "late", 300, 1)
	r.trim(r.part("a"))
	r.flood(p, "a", "n", 20, 1)
	r.trim(r.part("a"))
	if n := r.b.Stats.OfflineLate.Load(); n != 600 {
		t.Errorf("%d counted, want 300 for each of two sessions", n)
	}
	if x, _ := r.b.Session("t"); x.Queued.Dropped != 300 || x.Queued.Messages != 40 {
		t.Errorf("%+v", x.Queued)
	}
	s := r.connect(0, persistent("s"))
	wantTexts(t, s.answerAll(), slices.Concat(texted("m", 20), texted("n", 20))...)
}

// Rights count when the copies are made: what a session may not receive is not kept for it.
func TestOfflineHeedsRights(t *testing.T) {
	r := newRig(t, oneStream, 1)
	r.away("s", SubRequest{Filter: "#", QoS: 1})
	p := r.connect(0, ConnectRequest{ClientID: "p"})
	p.pub("open/1", "x", 1, 1)
	p.pub("closed/1", "y", 1, 2)
	p.answerAll()
	acl, err := auth.ParseACL("acl", "allow everyone subscribe open/#\n")
	if err != nil {
		t.Fatal(err)
	}
	r.b.o.Rights = func(user, client string) *auth.Rights { return acl.Rights(user, nil, client) }
	r.trim(r.part("open/1"))
	if n := r.copies(); n != 1 {
		t.Fatalf("%d copies", n)
	}
}

// Many sessions that are away cost references: a command is copied once for all of them, and the metadata say nothing of
// it that grows with their number.
func TestOfflineCostsReferences(t *testing.T) {
	r := newRig(t, oneStream, 1)
	const sessions, commands = 2000, 300
	for i := range sessions {
		r.away(fmt.Sprint("s", i), SubRequest{Filter: "cmd/#", QoS: 1})
	}
	p := r.connect(0, ConnectRequest{ClientID: "p"})
	r.flood(p, "telemetry", "t", 2000, 0)
	r.flood(p, "cmd/1", "c", commands, 1)
	r.checkpoint()
	keys := len(r.meta.keys(""))
	r.trim(r.part("cmd/1"))
	if n := r.copies(); n != commands {
		t.Errorf("%d copies of %d commands", n, commands)
	}
	if n := len(r.meta.keys("")) - keys; n > commands/runCopies+1 {
		t.Errorf("%d keys more in the metadata", n)
	}
	for _, id := range []string{"s0", "s1999"} {
		s := r.connect(0, persistent(id))
		wantTexts(t, s.answerAll(), texted("c", commands)...)
	}
}

// A retained message that a new subscriber has been sent and has not acknowledged comes again after its segment, too.
func TestOfflineOfARetainedMessageInFlight(t *testing.T) {
	for _, qos := range []byte{1, 2} {
		r := newRig(t, oneStream, 1)
		p := r.connect(0, ConnectRequest{ClientID: "p"})
		p.publish(pkt{topic: "a", payload: "kept", qos: 2, id: 1, retain: true})
		p.answerAll()
		s := r.connect(0, persistent("s"))
		s.subscribe(qos, "a")
		r.settle()
		sent := kinds(s.take(), "publish")
		s.drop()
		r.settle()
		r.trim(r.part("a"))
		r.kill()
		s = r.connect(0, persistent("s"))
		got := s.answerAll()
		if len(sent) != 1 || len(got) != 1 || !got[0].dup || !got[0].retain || got[0].id != sent[0].id || got[0].payload != "kept" {
			t.Errorf("QoS %d: sent %v, again %v", qos, sent, got)
		}
	}
}

// A message of a shared subscription that a member has not acknowledged goes to another one after its segment went
// [MQTT-4.8.2-5].
func TestOfflineOfAMemberThatLeaves(t *testing.T) {
	r := newRig(t, oneStream, 2)
	a := r.connect(0, ConnectRequest{ClientID: "a"})
	a.subscribe(1, "$share/g/t")
	r.settle()
	p := r.connect(1, ConnectRequest{ClientID: "p"})
	r.flood(p, "t", "m", 5, 1)
	if n := len(kinds(a.take(), "publish")); n != 5 {
		t.Fatalf("%d given", n)
	}
	r.trim(r.part("t"))
	b := r.connect(1, persistent("b"))
	b.subscribe(1, "$share/g/t")
	r.settle()
	a.drop()
	r.settle()
	wantTexts(t, b.answerAll(), texted("m", 5)...)
}

// What sessions lose is in the log, in one line for many messages.
func TestLossesOfSessionsAreSaid(t *testing.T) {
	r := newRig(t, oneStream, 1)
	var out bytes.Buffer
	r.b.log = slog.New(slog.NewTextHandler(&out, nil))
	r.b.sayLost()
	if out.Len() > 0 {
		t.Fatalf("nothing is lost, and it says %s", out.String())
	}
	r.b.Stats.OfflineSessionFull.Add(700)
	r.b.Stats.OfflineLate.Add(7)
	r.b.sayLost()
	r.b.sayLost()
	if s := out.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, "messages=707 queue_full_total=700") {
		t.Fatalf("%q", s)
	}
	r.b.Stats.OfflineHubFull.Add(1)
	r.b.sayLost()
	if n := strings.Count(out.String(), "\n"); n != 1 {
		t.Fatalf("%d lines within ten seconds", n)
	}
	r.b.o.Clock.Raise(r.b.o.Clock.NowMs() + sayEveryMs)
	if r.b.sayLost(); !strings.Contains(out.String(), "messages=1 ") {
		t.Fatalf("%q", out.String())
	}
}
