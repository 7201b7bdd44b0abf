package jetstream

import (
	"testing"
	"time"
)

func TestForwardsTheLog(t *testing.T) {
	s := embedded(t, nil)
	h := newHub(t, 3)
	h.append(700)
	l := h.uplink(s.ClientURL(), settings{})
	l.drains()
	h.append(1)
	until(t, 10*time.Second, "drained again", l.drained)
	if n := h.compare(s.ClientURL()); n != 2103 {
		t.Errorf("compared %d records, want 2103", n)
	}
	st := l.Status()
	if st.Acked["main/0-0"] != 700 || st.Counters.Acked != 2103 || st.Counters.Duplicates != 0 || !st.Connected {
		t.Errorf("status %+v", st)
	}
}
