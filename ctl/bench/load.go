package bench

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"time"

	"edgehub/hub/topic"
)

// Mode is what kind of load it is.
type Mode string

// The modes.
const (
	FanIn   Mode = "fan-in"  // many publishers, every subscriber gets everything
	FanOut  Mode = "fan-out" // the same with few publishers and many subscribers
	Pairs   Mode = "pairs"   // one subscriber for each publisher
	Shared  Mode = "shared"  // the subscribers share one subscription
	Offline Mode = "offline" // published while the subscribers' sessions are offline, then drained
	Mixed   Mode = "mixed"   // wildcard and exact subscribers, every QoS, two sizes
	Storm   Mode = "storm"   // connect and disconnect
	Idle    Mode = "idle"    // connect and stay
)

// Load is one run. Zero values are replaced by the mode's defaults in Complete; Check says what cannot be.
type Load struct {
	Mode           Mode
	Address        string // host:port
	Version        byte   // MQTT311 or MQTT5
	User, Password string
	Label          string // copied into the result
	PID            int    // of the broker, 0: not known

	// Messages.
	Publishers, Subscribers int
	Topics                  int    // distinct topics, at least one for each publisher unless 1 is given; 0: one each
	Topic                   string // %d stands for the topic's number
	Filter                  string // "": Topic with + in place of %d
	Messages                int64  // of all publishers after the warm-up; 0: until Duration has passed
	Duration, WarmUp        time.Duration
	SizeBytes               int
	QoS, SubQoS             int // SubQoS -1: as QoS
	Window                  int // unacknowledged publishes per publisher
	RatePerS                float64

	// Connections.
	Connections int
	Sources     int // loopback addresses that connections come from
	Hold        time.Duration
	KeepAlive   time.Duration

	Limit  time.Duration // of the whole run
	Settle time.Duration // without any progress, after which it has stalled
}

// Bounds that keep a slip of the finger from filling the machine.
const (
	topicsMax     = 10_000_000
	flowStateMax  = 200_000_000 // flows × subscribers that get them
	sizeBytesMax  = 64 << 20
	windowMax     = 1 << 14
	sourcesMax    = 250
	portsPerPeer  = 28_000 // the kernel's default range of source ports
	messagesMax   = 1 << 40
	limitDefault  = 2 * time.Minute
	settleDefault = 5 * time.Second
)

// modeDefaults are the loads of the tables in docs/BENCHMARKS.md.
var modeDefaults = map[Mode]Load{
	FanIn:   {Publishers: 50, Subscribers: 1, Window: 64},
	FanOut:  {Publishers: 1, Subscribers: 500, Window: 4},
	Pairs:   {Publishers: 200, Subscribers: 200, Window: 8},
	Shared:  {Publishers: 50, Subscribers: 4, Window: 64},
	Offline: {Publishers: 50, Subscribers: 1, Window: 64, Messages: 200_000},
	Mixed:   {Publishers: 60, Subscribers: 30, Window: 16, SizeBytes: 1024},
	Storm:   {Connections: 10_000, Window: 64},
	Idle:    {Connections: 10_000, Window: 64, Hold: 10 * time.Second},
}

// Modes lists the modes in the order of their documentation.
func Modes() []Mode { return []Mode{FanIn, FanOut, Pairs, Shared, Offline, Mixed, Storm, Idle} }

// Defaults returns what Complete fills in for a mode.
func Defaults(m Mode) Load {
	l := modeDefaults[m]
	l.Mode, l.Address, l.Version, l.Topic = m, "127.0.0.1:1883", MQTT311, "bench/%d"
	l.SizeBytes, l.QoS, l.SubQoS = cmp.Or(l.SizeBytes, 100), 1, -1
	l.Sources, l.KeepAlive, l.Limit, l.Settle = 16, time.Minute, limitDefault, settleDefault
	if l.Messages == 0 && m.flows() {
		l.Duration = 10 * time.Second
	}
	return l
}

// flows tells the modes that send messages from those that only connect.
func (m Mode) flows() bool { return m != Storm && m != Idle }

// Complete fills in what is zero and follows from the rest.
func (l *Load) Complete() {
	d := Defaults(l.Mode)
	l.Address, l.Topic = cmp.Or(l.Address, d.Address), cmp.Or(l.Topic, d.Topic)
	l.Version, l.SizeBytes = cmp.Or(l.Version, d.Version), cmp.Or(l.SizeBytes, d.SizeBytes)
	l.Publishers, l.Subscribers, l.Window = cmp.Or(l.Publishers, d.Publishers), cmp.Or(l.Subscribers, d.Subscribers), cmp.Or(l.Window, d.Window)
	l.Connections, l.Sources, l.Hold = cmp.Or(l.Connections, d.Connections), cmp.Or(l.Sources, d.Sources), cmp.Or(l.Hold, d.Hold)
	l.KeepAlive, l.Limit, l.Settle = cmp.Or(l.KeepAlive, d.KeepAlive), cmp.Or(l.Limit, d.Limit), cmp.Or(l.Settle, d.Settle)
	if l.Messages == 0 && l.Duration == 0 {
		l.Messages, l.Duration = d.Messages, d.Duration
	}
	if l.SubQoS < 0 {
		l.SubQoS = l.QoS
	}
	if l.Mode == Pairs {
		l.Subscribers = l.Publishers
	}
	if l.Mode == Pairs || l.Mode == Mixed || l.Topics == 0 {
		l.Topics = l.Publishers
	}
	if l.Filter == "" {
		l.Filter = strings.Replace(l.Topic, "%d", "+", 1)
	}
	l.Limit = max(l.Limit, l.WarmUp+l.Duration+l.Hold+2*l.Settle)
}

// Check says in one line what is wrong with the load, and what would be right. Complete comes before.
func (l *Load) Check() error {
	if _, ok := modeDefaults[l.Mode]; !ok {
		return fmt.Errorf("there is no mode %q", l.Mode)
	}
	if host, port, err := net.SplitHostPort(l.Address); err != nil || host == "" || !isPort(port) {
		return fmt.Errorf("--broker %q; write HOST:PORT, as 127.0.0.1:1883", l.Address)
	}
	if l.Version != MQTT311 && l.Version != MQTT5 {
		return errors.New("--mqtt is 3.1.1 or 5")
	}
	if l.Version == MQTT311 && l.Password != "" && l.User == "" {
		return errors.New("MQTT 3.1.1 has no password without a user name; add --user, or --mqtt 5")
	}
	if l.PID < 0 {
		return fmt.Errorf("--pid %d; it is a process id", l.PID)
	}
	ranges := append([]bound{{"window", l.Window, 1, windowMax}, {"sources", l.Sources, 1, sourcesMax}}, l.messageBounds()...)
	for _, b := range ranges {
		if b.value < b.least || b.value > b.most {
			return fmt.Errorf("--%s %d; it is %d to %d", b.flag, b.value, b.least, b.most)
		}
	}
	for name, d := range map[string]time.Duration{"duration": l.Duration, "warm-up": l.WarmUp, "hold": l.Hold, "limit": l.Limit, "settle": l.Settle} {
		if d < 0 || d > 24*time.Hour {
			return fmt.Errorf("--%s %v; it is 0s to 24h", name, d)
		}
	}
	if k := l.KeepAlive; k < time.Second || k > math.MaxUint16*time.Second {
		return fmt.Errorf("--keep-alive %v; it is 1s to 65535s", k)
	}
	if l.RatePerS < 0 || l.RatePerS > 1e8 {
		return fmt.Errorf("--rate %v; it is messages per second of all publishers together, or 0 for as fast as it goes", l.RatePerS)
	}
	if !l.Mode.flows() {
		return nil
	}
	return l.checkFlows()
}

// bound is a flag with its range.
type bound struct {
	flag               string
	value, least, most int
}

func (l *Load) messageBounds() []bound {
	if !l.Mode.flows() {
		return []bound{{"connections", l.Connections, 1, 10_000_000}}
	}
	return []bound{{"publishers", l.Publishers, 1, 1_000_000}, {"subscribers", l.Subscribers, 1, 1_000_000}, {"topics", l.Topics, 1, topicsMax},
		{"size", l.SizeBytes, stampBytes, sizeBytesMax}, {"qos", l.QoS, 0, 2}, {"sub-qos", l.SubQoS, 0, 2}}
}

func isPort(s string) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n > 0 && n < 1<<16
}

func (l *Load) checkFlows() error {
	if l.Messages < 0 || l.Messages > messagesMax {
		return fmt.Errorf("--messages %d; it is 1 to %d", l.Messages, int64(messagesMax))
	}
	if l.Messages == 0 && l.Duration == 0 {
		return errors.New("a run needs an end: give --messages or --duration")
	}
	if l.Mode == Offline && (l.QoS == 0 || l.SubQoS == 0) {
		return errors.New("brokers keep nothing of QoS 0 for a session that is offline; give --qos 1 or 2")
	}
	if l.Topics > 1 && !strings.Contains(l.Topic, "%d") {
		return fmt.Errorf("--topic %q has no %%d for the number of the topic; add it, or give --topics 1", l.Topic)
	}
	if strings.Count(l.Topic, "%") > strings.Count(l.Topic, "%d") || strings.Count(l.Topic, "%d") > 1 {
		return fmt.Errorf("--topic %q; it takes one %%d and no other %%", l.Topic)
	}
	if err := topic.ValidateName([]byte(l.topic(0))); err != nil {
		return fmt.Errorf("--topic %q: %w", l.Topic, err)
	}
	if err := topic.ValidateFilter(l.Filter); err != nil {
		return fmt.Errorf("--filter %q: %w; %%d in --topic must be a level of its own, or give --filter", l.Filter, err)
	}
	if !topic.Match(l.Filter, l.topic(0)) {
		return fmt.Errorf("--filter %q does not match the topic %q", l.Filter, l.topic(0))
	}
	if l.Mode != Pairs && l.flowCount()*l.Subscribers > flowStateMax {
		return fmt.Errorf("%d topics × %d subscribers are more than the %d that order is checked for; take fewer", l.flowCount(), l.Subscribers, flowStateMax)
	}
	return nil
}

// flowCount: each topic belongs to one publisher and is one flow; when there are fewer topics than publishers, each
// publisher is one flow.
func (l *Load) flowCount() int { return max(l.Topics, l.Publishers) }

func (l *Load) topic(flow int) string {
	return strings.Replace(l.Topic, "%d", strconv.Itoa(flow%max(l.Topics, 1)), 1)
}

// codec makes the codec of one connection. Another protocol is chosen here.
func (l *Load) codec() Codec { return NewMQTT(l.Version) }

// Protocol names what is spoken.
func (l *Load) Protocol() string {
	if l.Version == MQTT5 {
		return "MQTT 5"
	}
	return "MQTT 3.1.1"
}

// share splits n among parts as evenly as it goes: the i-th part.
func share(n int64, parts, i int) int64 {
	s := n / int64(parts)
	if int64(i) < n%int64(parts) {
		s++
	}
	return s
}
