package stage

import (
	"context"
	"errors"
	"fmt"
	"time"

	"edgehub/test/harness/hublog"
	"edgehub/test/harness/jsnode"
	"edgehub/test/harness/load"
)

// judge reads the hub's log as an operator would, compares it with what the
// devices know and with what the central server stores, and says the result.
func (s *stage) judge(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	s.say("\nreading the hub's log (hubctl tail) and the central stream, comparing record by record")
	log, check := hublog.Collect{}, load.NewChecker(s.fleet)
	err := hublog.ReadTail(ctx, s.hub, streamName, func(r *hublog.Record) error {
		check.Add(r.Partition, r.Offset, r.Topic, r.Payload)
		return log.Add(r)
	})
	if err != nil {
		return false, err
	}
	devices := check.Report()
	s.central.mu.Lock()
	defer s.central.mu.Unlock()
	if s.central.reader == nil {
		return false, errors.New("the central server is away")
	}
	remote, err := jsnode.Compare(ctx, s.central.reader, remoteStream, streamName, log)
	if err != nil {
		return false, err
	}
	s.result(&devices, remote)
	// A run in which nothing went wrong on the way proves nothing.
	eventful := devices.Lost > 0 && devices.Checked > 0 && devices.Acked == devices.Published
	if !eventful {
		s.say("nothing happened in this run: %v", devices.Counters)
	}
	return devices.OK() && remote.Exact() && eventful, nil
}

func (s *stage) result(d *load.Report, r *jsnode.Comparison) {
	resent := ""
	if d.Resent > 0 {
		resent = fmt.Sprintf("  (%d messages were sent again after the kill: an honest second record)", d.Resent)
	}
	s.say("")
	s.say("published     %9d", d.Published)
	s.say("acknowledged  %9d", d.Acked)
	s.say("logged        %9d%s", d.Logged, resent)
	s.say("stored        %9d", r.Stored)
	s.say("missing       %9d  acknowledged and not logged: %d; logged and not stored: %d", d.Missing+int64(r.Missing), d.Missing, r.Missing)
	s.say("duplicated    %9d", d.Duplicated+int64(r.Duplicated))
	s.say("out of order  %9d", d.OutOfOrder+int64(r.OutOfOrder))
	if d.OK() && r.Exact() {
		s.say("\nThe central stream is the hub's log, record for record and in order, and the log has every acknowledged message.")
		return
	}
	s.say("\nThe promise is broken.\n%s\n%v", d.String(), r)
}
