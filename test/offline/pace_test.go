package offline

import (
	"testing"
	"time"

	"edgehub/test/harness"
	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/load"
)

// Publishers that send as fast as they are acknowledged, several times what the
// stream may hold, do not outrun the one connected subscriber, which is slower
// than they are: it gets everything.
func TestConnectedSubscriberIsNotOutrun(t *testing.T) {
	const each, size, pubs = 2000, 4096, 8
	for _, partitions := range []int{1, 4} {
		h := hubtest.Start(t, func(c *harness.Config) {
			c.Streams = []harness.Stream{{Name: "load", Filters: []string{"load/#"}, Partitions: partitions,
				Lines: []string{`segment_bytes = "1MiB"`, `retention = { max_bytes = "16MiB" }`}}}
		})
		r := newReceiver(h, "live", 4, 1)
		if err := r.subscribe("load/#"); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- r.drain(pubs * each) }()
		f := load.New(load.Options{Addr: h.Addr(), Name: "fast", Publishers: pubs, Each: each, Size: size})
		f.Start()
		if err := f.Wait(3 * time.Minute); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Errorf("%d partitions: %v", partitions, err)
		}
		if st, err := h.Status(); err != nil {
			t.Error(err)
		} else if n := st.Dropped["retention"]; n != 0 {
			t.Errorf("%d partitions: %d messages dropped before they were delivered", partitions, n)
		}
		t.Logf("%d partitions: %v, received %d", partitions, f.Counters(), r.received)
	}
}
