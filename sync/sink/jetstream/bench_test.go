package jetstream

import (
	"syscall"
	"testing"
	"time"

	"edgehub/hub/message"
)

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkCatchUp drains a backlog of 100 B records into a server in a process
// of its own, and says the uplink's own CPU time per record.
func BenchmarkCatchUp(b *testing.B) {
	c := newChild(b, b.TempDir())
	c.start()
	h := newHub(b, 4)
	payload := make([]byte, 100)
	now := time.Now().UnixMilli()
	for i := range h.logs {
		h.builder.Reset(0)
		for n := 0; n < b.N/4+1; n++ {
			h.add(&message.Message{Topic: []byte("devices/17/telemetry"), Payload: payload, QoS: 1, TimeMs: now})
			if h.builder.Len() > 8<<20 {
				h.commit(i)
				h.builder.Reset(h.logs[i].Next())
			}
		}
		h.commit(i)
	}
	start := cpu()
	b.ResetTimer()
	l := h.uplink(c.url(), settings{})
	until(b, 10*time.Minute, "drained", l.drained)
	b.StopTimer()
	n := float64(h.total())
	b.ReportMetric(float64((cpu()-start).Nanoseconds())/n/1000, "cpu-µs/msg")
	b.ReportMetric(n/b.Elapsed().Seconds(), "msg/s")
}
