// Package admintest holds a hub in memory behind the interfaces of hub/admin, for
// the tests of the admin server and of hubctl.
package admintest

import (
	"context"
	"slices"
	"strings"
	"sync"

	"edgehub/hub/admin/api"
	"edgehub/hub/topic"
)

// Hub keeps records in memory. It implements admin.Hub, admin.Uplinks and
// admin.Health. Messages that no other stream takes go to partition 0 of the last
// stream.
type Hub struct {
	mu       sync.Mutex // guards all that follows
	status   api.Status
	details  map[string]api.StreamDetail
	clients  []api.Client
	settings []api.Setting
	records  map[string][]api.Record
	changed  chan struct{} // closed and replaced when records are added
	fail     error         // what Publish and Tail return instead of working
	block    bool          // Publish waits for its context
	notReady []api.Reason
	tails    int
}

// New returns a hub with this status; its streams get the details of details and
// no records.
func New(status api.Status, details ...api.StreamDetail) *Hub {
	h := &Hub{status: status, details: map[string]api.StreamDetail{}, records: map[string][]api.Record{}, changed: make(chan struct{})}
	for _, d := range details {
		h.details[d.Name] = d
	}
	return h
}

// Update changes the hub under its lock.
func (h *Hub) Update(change func(st *api.Status)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(&h.status)
}

// SetClients sets what Clients returns.
func (h *Hub) SetClients(c []api.Client) { h.Update(func(*api.Status) { h.clients = c }) }

// SetConfig sets what Config returns.
func (h *Hub) SetConfig(s []api.Setting) { h.Update(func(*api.Status) { h.settings = s }) }

// SetNotReady makes Ready answer no for these reasons; none means ready.
func (h *Hub) SetNotReady(r ...api.Reason) { h.Update(func(*api.Status) { h.notReady = r }) }

// Fail makes Publish and Tail return err; nil ends that.
func (h *Hub) Fail(err error) { h.Update(func(*api.Status) { h.fail = err }) }

// Block makes Publish wait until its context ends.
func (h *Hub) Block(b bool) { h.Update(func(*api.Status) { h.block = b }) }

// Tails returns how many calls of Tail are running.
func (h *Hub) Tails() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.tails
}

// Add appends records as they are and wakes the tails.
func (h *Hub) Add(stream string, records ...api.Record) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.add(stream, records...)
}

func (h *Hub) add(stream string, records ...api.Record) {
	h.records[stream] = append(h.records[stream], records...)
	close(h.changed)
	h.changed = make(chan struct{})
}

// Status implements admin.Hub.
func (h *Hub) Status() api.Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	st := h.status
	st.Streams, st.Uplinks = slices.Clone(st.Streams), slices.Clone(st.Uplinks)
	return st
}

// Stream implements admin.Hub.
func (h *Hub) Stream(name string) (api.StreamDetail, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d, ok := h.details[name]; ok {
		return d, nil
	}
	var names []string
	for _, s := range h.status.Streams {
		names = append(names, s.Name)
	}
	return api.StreamDetail{}, api.NotFound("stream", name, names)
}

// Clients implements admin.Hub.
func (h *Hub) Clients() []api.Client {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.clients)
}

// Config implements admin.Hub.
func (h *Hub) Config() []api.Setting {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.settings)
}

// Publish implements admin.Hub.
func (h *Hub) Publish(ctx context.Context, req api.PubRequest) (api.PubResult, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.block {
		h.mu.Unlock()
		<-ctx.Done()
		h.mu.Lock()
		return api.PubResult{}, ctx.Err()
	}
	if h.fail != nil {
		return api.PubResult{}, h.fail
	}
	stream := h.status.Streams[len(h.status.Streams)-1].Name
	var next int64
	for _, r := range h.records[stream] {
		if r.Partition == 0 {
			next = r.Offset + 1
		}
	}
	h.add(stream, api.Record{
		Stream: stream, Offset: next, Time: 1_700_000_000_000 + api.Millis(next), Topic: req.Topic,
		Payload: slices.Clone(req.Payload), QoS: req.QoS, Retain: req.Retain,
	})
	return api.PubResult{Stream: stream, Offset: next}, nil
}

// Tail implements admin.Hub.
func (h *Hub) Tail(ctx context.Context, req api.TailRequest, emit func(api.Record) error) error {
	h.mu.Lock()
	h.tails++
	at := 0
	if req.From.Kind == api.FromLatest {
		at = len(h.records[req.Stream])
	}
	defer func() {
		h.tails--
		h.mu.Unlock()
	}()
	for sent := int64(0); ; {
		if h.fail != nil {
			return h.fail
		}
		if at == len(h.records[req.Stream]) {
			if !req.Follow {
				return nil
			}
			changed := h.changed
			h.mu.Unlock()
			select {
			case <-changed:
			case <-ctx.Done():
			}
			h.mu.Lock()
			if ctx.Err() != nil {
				return ctx.Err()
			}
			continue
		}
		r := h.records[req.Stream][at]
		at++
		if !wanted(req, r) {
			continue
		}
		h.mu.Unlock()
		err := emit(r)
		h.mu.Lock()
		if err != nil {
			return err
		}
		if sent++; sent == req.Limit {
			return nil
		}
	}
}

func wanted(req api.TailRequest, r api.Record) bool {
	switch {
	case req.Partition != api.AllPartitions && req.Partition != r.Partition,
		req.From.Kind == api.FromOffset && r.Offset < req.From.Offset,
		req.From.Kind == api.FromTime && r.Time < req.From.Time,
		req.Filter != "" && !topic.Match(req.Filter, r.Topic):
		return false
	}
	return true
}

// Pause implements admin.Uplinks.
func (h *Hub) Pause(name string) error { return h.setState(name, api.UplinkPaused) }

// Resume implements admin.Uplinks.
func (h *Hub) Resume(name string) error { return h.setState(name, api.UplinkProbe) }

// Acknowledge implements admin.Uplinks.
func (h *Hub) Acknowledge(name string) error {
	return h.change(name, func(u *api.UplinkStatus) { u.LostUnseen = 0 })
}

// Move implements admin.Uplinks.
func (h *Hub) Move(name string, m api.UplinkMove) error {
	return h.change(name, func(u *api.UplinkStatus) { u.Pending = append(u.Pending, m) })
}

func (h *Hub) setState(name, state string) error {
	return h.change(name, func(u *api.UplinkStatus) { u.State, u.Connected = state, false })
}

func (h *Hub) change(name string, do func(*api.UplinkStatus)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status.Uplinks = slices.Clone(h.status.Uplinks)
	for i := range h.status.Uplinks {
		if h.status.Uplinks[i].Name == name {
			do(&h.status.Uplinks[i])
			return nil
		}
	}
	return api.NotFound("uplink", name, nil)
}

// Health implements admin.Health.
func (h *Hub) Health() api.Health { return h.Status().Health }

// Ready implements admin.Health.
func (h *Hub) Ready() (bool, []api.Reason) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.notReady) == 0, h.notReady
}

// Sample returns a hub with two streams, one of them no longer configured, two
// uplinks, clients and settings: something to print. Its times are fixed.
func Sample() *Hub {
	telemetry := api.StreamStatus{Name: "telemetry", Configured: true, Durability: "synced", Partitions: []api.PartitionStatus{
		{Partition: 0, FirstOffset: 0, NextOffset: 42, SyncedOffset: 40, Bytes: 4096, Segments: 1},
		{Partition: 1, FirstOffset: 1_000, NextOffset: 1_250_000, SyncedOffset: 1_250_000, Bytes: 123_456_789, Segments: 3, DamagedRanges: 2},
	}}
	main := api.StreamStatus{Name: "main", Configured: true, Durability: "written", Partitions: []api.PartitionStatus{{}}}
	old := api.StreamStatus{Name: "audit-2025", Durability: "written", Partitions: []api.PartitionStatus{{NextOffset: 7, SyncedOffset: 7, Bytes: 812, Segments: 1}}}
	st := api.Status{
		Hub: "edge-1", Instance: "9f2c" + strings.Repeat("0", 28), Epoch: 3, Version: "0.1.0", StartedAt: 1_700_000_000_000, UptimeS: 93_784,
		Connections: 3, Sessions: 5, Subscriptions: 7, Retained: 2, MessagesIn: 1_234_567, MessagesOut: 90,
		Dropped: map[string]int64{api.DropRetention: 12},
		Health: api.Health{State: api.HealthDegraded, Reasons: []api.Reason{
			{What: "stream telemetry", Why: "2 damaged ranges", Cure: "hubctl stream verify telemetry"},
			{What: "stream audit-2025", Why: "has data but is not configured"},
		}},
		Streams: []api.StreamStatus{telemetry, old, main},
		Uplinks: []api.UplinkStatus{
			{Name: "cloud", Kind: "jetstream", URL: "nats://central.example:4222", Streams: []string{"telemetry"}, RemoteStream: "EDGE-edge-1", State: api.UplinkStream, Connected: true,
				Acked: map[string]int64{"telemetry/0-0": 41, "telemetry/1-0": 1_249_999}, Sent: 50, Delivered: 50, RecordMax: 1 << 20,
				LastError: "no acknowledgement for 15s", LastErrorAt: 1_700_000_000_000, LastErrorS: 95, Recovered: true, RecoveredAt: 1_700_000_002_000},
			{Name: "lab", Kind: "jetstream", URL: "nats://lab.example:4222", Streams: []string{"telemetry", "main"}, RemoteStream: "LAB", State: api.UplinkBackoff,
				LagMessages: 1_250_042, LagBytes: 123_460_885, LagAgeS: 7_265, LastError: "dial tcp 192.0.2.7:4222: connection refused", LastErrorAt: 1_700_000_050_000, LastErrorS: 45,
				Lost: map[string]int64{api.LostRetention: 1_200, api.LostSkipped: 1}, LostUnseen: 200, LostAt: 1_700_000_040_000,
				Losses: []api.UplinkLoss{{Partition: "main/0-0", Retention: 1_200, Skipped: 1}},
				Stuck:  []api.UplinkStuck{{Partition: "telemetry/0-0", Offset: 7, Since: 1_700_000_030_000, Cause: "too-large", Reason: "telemetry/0-0 offset 7: 1048700 bytes with its headers, max_payload of the server is 1048576", Cure: "raise max_payload at the server"}}},
		},
	}
	h := New(st,
		api.StreamDetail{StreamStatus: telemetry, Filters: []string{"devices/+/telemetry"}, PartitionBy: "topic", Compression: "none", SegmentBytes: 64 << 20,
			Retention: api.Retention{MaxAgeS: 604_800, MaxBytes: 1 << 30, Full: "drop-oldest", RemovedRecords: 1_000, HeldBy: "lab"}},
		api.StreamDetail{StreamStatus: old},
		api.StreamDetail{StreamStatus: main, Filters: []string{"#"}, PartitionBy: "topic", Compression: "none", SegmentBytes: 64 << 20,
			Retention: api.Retention{MaxBytes: 1 << 30, Full: "reject-new"}},
	)
	h.SetClients([]api.Client{
		{ClientID: "dev-1", Username: "plant", Address: "192.0.2.10:40001", Listener: "127.0.0.1:1883", Protocol: "mqtt 5", ConnectedAt: 1_700_000_000_000, ConnectedS: 93_784,
			KeepAliveS: 60, SessionExpiryS: 3_600, Subscriptions: 2, Inflight: 1, Inbox: 12, MessagesIn: 1_234, MessagesOut: 7, Dropped: 3},
		{ClientID: "bad\x1b[31m\nname", Address: "192.0.2.11:40002", Protocol: "mqtt 3.1.1", Clean: true, ConnectedS: 5},
	})
	h.SetConfig([]api.Setting{
		{Key: "hub.id", Value: `"edge-1"`},
		{Key: "limits.max_packet_bytes", Value: `"1MiB"`, Default: true},
	})
	return h
}
