package daemon

import (
	"context"
	"net"
	"strconv"
	"time"
)

// notifier tells systemd how the hub is, by the protocol of sd_notify(3): a datagram of lines to the socket that
// NOTIFY_SOCKET names. Without one it does nothing.
type notifier struct {
	conn  net.Conn // nil: nobody listens
	every time.Duration
}

// watched is what a notifier looks at: server.Server.
type watched interface {
	// Started is closed once the hub serves.
	Started() <-chan struct{}
	// Alive reports that the hub's parts answer, within some time; false: it hangs.
	Alive(ctx context.Context) bool
}

func newNotifier(getenv func(string) string) *notifier {
	n := &notifier{}
	name := getenv("NOTIFY_SOCKET")
	if name == "" {
		return n
	}
	if name[0] == '@' { // in the abstract name space
		name = "\x00" + name[1:]
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return n // systemd will say that it has heard nothing
	}
	n.conn = conn
	// Half the time that systemd waits, as it advises.
	if us, err := strconv.ParseInt(getenv("WATCHDOG_USEC"), 10, 64); err == nil && us > 0 {
		n.every = time.Duration(us) * time.Microsecond / 2
	}
	return n
}

func (n *notifier) say(state string) {
	if n.conn != nil {
		_, _ = n.conn.Write([]byte(state)) // nobody to tell
	}
}

// run says READY when the hub serves, WATCHDOG while it is alive, and STOPPING when ctx ends.
func (n *notifier) run(ctx context.Context, hub watched) {
	if n.conn == nil {
		return
	}
	defer func() { _ = n.conn.Close() }()
	select {
	case <-hub.Started():
		n.say("READY=1\nSTATUS=serving")
	case <-ctx.Done():
		n.say("STOPPING=1")
		return
	}
	var tick <-chan time.Time
	if n.every > 0 {
		t := time.NewTicker(n.every)
		defer t.Stop()
		tick = t.C
	}
	for {
		select {
		case <-ctx.Done():
			n.say("STOPPING=1\nSTATUS=syncing")
			return
		case <-tick:
			// A hub that hangs says nothing, and is started again.
			alive, cancel := context.WithTimeout(ctx, n.every/2)
			if hub.Alive(alive) {
				n.say("WATCHDOG=1")
			}
			cancel()
		}
	}
}
