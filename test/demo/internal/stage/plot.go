package stage

import (
	"context"
	"errors"
	"fmt"
	"time"

	"edgehub/test/harness"
)

// act is one thing that happens, and how long it is watched afterwards.
type act struct {
	what string
	do   func(*stage) error
	last time.Duration
	// until ends the watch before last; never to come true is an error then.
	until func(*harness.Status) bool
}

func (s *stage) acts() []act {
	return []act{
		{"devices start", func(s *stage) error { s.fleet.Start(); return nil }, before, nil},
		{"the central server stops", func(s *stage) error { s.central.stop(); return nil }, s.o.Outage, nil},
		{"the central server is back", func(s *stage) error { return s.central.start() }, catchUp, s.caughtUp},
		{"the backlog has drained, in order and by itself", func(*stage) error { return nil }, calm, nil},
		{"the hub is killed with SIGKILL", func(s *stage) error { s.hub.Kill(); return nil }, 0, nil},
		{"the hub is started again", func(s *stage) error { return s.hub.Start() }, after, nil},
	}
}

// play lets the plot happen and waits until the remote has everything.
func (s *stage) play(ctx context.Context) error {
	s.begin = time.Now()
	s.say("\n  time  published      acked     logged     stored       lag  uplink")
	for _, a := range s.acts() {
		s.event(a.what)
		if err := a.do(s); err != nil {
			return err
		}
		if a.what == "the hub is started again" {
			s.event(fmt.Sprintf("the hub is ready after %v", s.hub.StartTook().Round(time.Millisecond)))
		}
		if err := s.watch(ctx, a.last, a.until); err != nil {
			return err
		}
	}
	s.event("devices stop; the rest drains")
	if err := s.fleet.Stop(30 * time.Second); err != nil {
		return err
	}
	drained := func(st *harness.Status) bool { return st.Drained(uplinkName, streamName) }
	if err := s.watch(ctx, drainMax, drained); err != nil {
		return err
	}
	return nil
}

// caughtUp: nothing but the last half second of the devices is missing at the central server.
func (s *stage) caughtUp(st *harness.Status) bool {
	u, ok := st.Uplink(uplinkName)
	return ok && u.Connected && float64(u.LagMessages) < s.o.Rate/2
}

func (s *stage) event(what string) {
	s.say("%5.0fs  ---- %s", time.Since(s.begin).Seconds(), what)
}

// watch prints a line each second for a time; with done, until done, and then
// running out of time is an error.
func (s *stage) watch(ctx context.Context, long time.Duration, done func(*harness.Status) bool) error {
	end := time.After(long)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return errors.New("interrupted")
		case <-end:
			if done != nil {
				return fmt.Errorf("the backlog has not drained within %v", long)
			}
			return nil
		case <-tick.C:
			if st := s.line(ctx); st != nil && done != nil && done(st) {
				return nil
			}
		}
	}
}

// line prints the numbers of this moment and returns the hub's status, nil
// when the hub does not answer.
func (s *stage) line(ctx context.Context) *harness.Status {
	c := s.fleet.Counters()
	head := fmt.Sprintf("%5.0fs  %9d  %9d", time.Since(s.begin).Seconds(), c.Published, c.Acked)
	stored := "        -"
	if n := s.central.count(ctx); n >= 0 {
		stored = fmt.Sprintf("%9d", n)
	}
	st, err := s.hub.Status()
	if err != nil {
		s.say("%s          -  %s         -  the hub does not answer", head, stored)
		return nil
	}
	_, logged := st.Next(streamName)
	u, _ := st.Uplink(uplinkName)
	state := u.State
	if !u.Connected {
		state += ", not connected"
	}
	s.say("%s  %9d  %s  %8d  %s", head, logged, stored, u.LagMessages, state)
	return &st
}
