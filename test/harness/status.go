package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Status is the part of `hubctl status -o json` that suites look at.
type Status struct {
	Hub         string           `json:"hub"`
	Instance    string           `json:"instance"`
	Connections int64            `json:"connections"`
	Sessions    int64            `json:"sessions"`
	MessagesIn  int64            `json:"messages_in"`
	MessagesOut int64            `json:"messages_out"`
	Dropped     map[string]int64 `json:"dropped"`
	Health      Health           `json:"health"`
	Streams     []StreamStatus   `json:"streams"`
	Uplinks     []UplinkStatus   `json:"uplinks"`
}

// Health is the hub's own judgement.
type Health struct {
	State   string `json:"state"`
	Reasons []struct {
		What string `json:"what"`
		Why  string `json:"why"`
		Cure string `json:"cure"`
	} `json:"reasons"`
}

// StreamStatus is one stream with its partitions.
type StreamStatus struct {
	Name       string            `json:"name"`
	Partitions []PartitionStatus `json:"partitions"`
}

// PartitionStatus is the range of one partition's log.
type PartitionStatus struct {
	Partition    int   `json:"partition"`
	Lane         int   `json:"lane"`
	FirstOffset  int64 `json:"first_offset"`
	NextOffset   int64 `json:"next_offset"`
	SyncedOffset int64 `json:"synced_offset"`
}

// UplinkStatus is one uplink.
type UplinkStatus struct {
	Name        string           `json:"name"`
	State       string           `json:"state"`
	Connected   bool             `json:"connected"`
	LagMessages int64            `json:"lag_messages"`
	Acked       map[string]int64 `json:"acked"`
	LastError   string           `json:"last_error"`
}

// Status asks the hub for its state through hubctl.
func (h *Hub) Status() (Status, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var s Status
	out, err := h.Ctl(ctx, "status", "-o", "json")
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(out, &s); err != nil {
		return s, fmt.Errorf("harness: status is not the JSON of the contract: %w\n%s", err, out)
	}
	return s, nil
}

// Uplink returns the uplink of that name.
func (s *Status) Uplink(name string) (UplinkStatus, bool) {
	for _, u := range s.Uplinks {
		if u.Name == name {
			return u, true
		}
	}
	return UplinkStatus{}, false
}

// Next returns the next offset per partition of a stream, by "0-0" names, and
// the sum of the records behind them.
func (s *Status) Next(stream string) (map[string]int64, int64) {
	next, sum := map[string]int64{}, int64(0)
	for _, st := range s.Streams {
		if st.Name != stream {
			continue
		}
		for _, p := range st.Partitions {
			next[fmt.Sprintf("%d-%d", p.Partition, p.Lane)] = p.NextOffset
			sum += p.NextOffset - p.FirstOffset
		}
	}
	return next, sum
}

// Drained reports whether the remote has acknowledged the last record of
// every partition of the stream.
func (s *Status) Drained(uplink, stream string) bool {
	u, ok := s.Uplink(uplink)
	if !ok {
		return false
	}
	next, _ := s.Next(stream)
	for part, n := range next {
		if acked, ok := u.Acked[stream+"/"+part]; n > 0 && (!ok || acked != n-1) {
			return false
		}
	}
	return len(next) > 0
}
