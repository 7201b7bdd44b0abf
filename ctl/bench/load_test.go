package bench

import (
	"strings"
	"testing"
	"time"
)

func TestDefaultsAreComplete(t *testing.T) {
	for _, m := range Modes() {
		l := Defaults(m)
		l.Complete()
		if err := l.Check(); err != nil {
			t.Errorf("%s: %v", m, err)
		}
		bare := Load{Mode: m, QoS: 1, SubQoS: -1}
		bare.Complete()
		if err := bare.Check(); err != nil {
			t.Errorf("%s without anything given: %v", m, err)
		}
	}
}

func TestCheckNamesTheCure(t *testing.T) {
	for _, c := range []struct {
		mode   Mode
		change func(*Load)
		want   string
	}{
		{"fan", nil, `no mode "fan"`},
		{FanIn, func(l *Load) { l.Address = "localhost" }, "HOST:PORT"},
		{FanIn, func(l *Load) { l.Address = "localhost:x" }, "HOST:PORT"},
		{FanIn, func(l *Load) { l.Version = 3 }, "3.1.1 or 5"},
		{FanIn, func(l *Load) { l.Password = "p" }, "--user"},
		{FanIn, func(l *Load) { l.SizeBytes = 10 }, "--size 10; it is 16 to"},
		{FanIn, func(l *Load) { l.QoS = 3 }, "--qos 3; it is 0 to 2"},
		{FanIn, func(l *Load) { l.Window = -1 }, "--window -1"},
		{FanIn, func(l *Load) { l.Publishers = -1 }, "--publishers -1"},
		{FanIn, func(l *Load) { l.RatePerS = -1 }, "--rate"},
		{FanIn, func(l *Load) { l.WarmUp = -time.Second }, "--warm-up"},
		{FanIn, func(l *Load) { l.PID = -1 }, "--pid"},
		{FanIn, func(l *Load) { l.Topic = "a" }, "--topics 1"},
		{FanIn, func(l *Load) { l.Topic = "a/%d/%s" }, "one %d and no other %"},
		{FanIn, func(l *Load) { l.Topic = "a/x%d" }, "--filter"},
		{FanIn, func(l *Load) { l.Topic = "a/#/%d" }, "--topic"},
		{FanIn, func(l *Load) { l.Filter = "b/+" }, "does not match"},
		{FanIn, func(l *Load) { l.Messages, l.Duration = 0, 0 }, ""}, // the default ends it
		{FanIn, func(l *Load) { l.Topics, l.Subscribers = 1_000_000, 1000 }, "take fewer"},
		{Offline, func(l *Load) { l.QoS = 0 }, "--qos 1 or 2"},
		{Idle, func(l *Load) { l.Connections = -5 }, "--connections"},
		{Idle, func(l *Load) { l.KeepAlive = time.Hour * 24 }, "--keep-alive"},
		{Idle, func(l *Load) { l.Sources = 300 }, "--sources 300; it is 1 to 250"},
		{Pairs, func(l *Load) { l.Publishers = 5000 }, ""},
	} {
		l := Defaults(c.mode)
		if c.change != nil {
			c.change(&l)
		}
		l.Complete()
		err := l.Check()
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.mode, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.mode, err, c.want)
		case err != nil && strings.Contains(err.Error(), "\n"):
			t.Errorf("%q is not one line", err)
		}
	}
}

func TestShareAddsUp(t *testing.T) {
	for _, c := range []struct {
		n     int64
		parts int
	}{{10, 3}, {2, 5}, {0, 4}, {7, 7}, {1_000_003, 50}} {
		sum := int64(0)
		for i := range c.parts {
			s := share(c.n, c.parts, i)
			if s < c.n/int64(c.parts) || s > c.n/int64(c.parts)+1 {
				t.Errorf("%d in %d: part %d has %d", c.n, c.parts, i, s)
			}
			sum += s
		}
		if sum != c.n {
			t.Errorf("%d in %d parts make %d", c.n, c.parts, sum)
		}
	}
}

func TestFlowsOfPublishersCoverEachTopicOnce(t *testing.T) {
	for _, c := range []struct{ publishers, topics int }{{3, 3}, {3, 10}, {5, 1}, {4, 2}} {
		l := &Load{Mode: FanIn, Publishers: c.publishers, Topics: c.topics, Topic: "t/%d", Subscribers: 1}
		r := &run{load: l}
		r.plan()
		topics, n := map[string]bool{}, 0
		for _, p := range r.pubs {
			for i := range p.flows.count() {
				topics[l.topic(p.flows.at(i))] = true
				n++
			}
		}
		if len(topics) != c.topics || n != max(c.publishers, c.topics) {
			t.Errorf("%d publishers and %d topics: %d flows to %d topics", c.publishers, c.topics, n, len(topics))
		}
	}
}
