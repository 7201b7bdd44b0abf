// Package api holds the types of the admin interface: what hubd answers on its
// Unix socket and what hubctl prints. Server and client share them, so the JSON
// shapes exist once. Fields may be added; none is renamed or removed.
package api

import "maps"

// Reason says what is not as it should be, why, and what mends it. Each part is
// one line.
type Reason struct {
	What string `json:"what"` // the part concerned: "stream telemetry"
	Why  string `json:"why"`  // "2 damaged ranges"
	Cure string `json:"cure"` // "hubctl stream verify telemetry"; may be empty
}

// The states of Health.
const (
	HealthOK       = "ok"       // nothing to say
	HealthDegraded = "degraded" // serving, but something needs attention
	HealthFailed   = "failed"   // not serving what it promises
)

// Health is the hub's own judgement of itself. Reasons is empty when State is ok.
type Health struct {
	State   string   `json:"state"`
	Reasons []Reason `json:"reasons"`
}

// Readiness is the answer of /readyz.
type Readiness struct {
	Ready   bool     `json:"ready"`
	Reasons []Reason `json:"reasons"`
}

// Status is the whole hub at a glance.
type Status struct {
	Hub           string           `json:"hub"`
	Instance      string           `json:"instance"` // 32 hexadecimal digits, born with the data directory
	Epoch         uint32           `json:"epoch"`    // rises after every unclean stop
	Version       string           `json:"version"`
	StartedAt     Millis           `json:"started_at"`
	UptimeS       int64            `json:"uptime_s"`
	Connections   int64            `json:"connections"`
	Sessions      int64            `json:"sessions"` // connected or not
	Subscriptions int64            `json:"subscriptions"`
	Retained      int64            `json:"retained"`
	MessagesIn    int64            `json:"messages_in"`
	MessagesOut   int64            `json:"messages_out"`
	Dropped       map[string]int64 `json:"dropped"` // reason → messages; Normalize adds the reasons that are always shown
	Health        Health           `json:"health"`
	Streams       []StreamStatus   `json:"streams"`
	Uplinks       []UplinkStatus   `json:"uplinks"`
}

// The reasons that Status.Dropped always shows. Others may stand beside them.
const (
	DropOutboundFull = "qos0_outbound_full" // QoS 0 to a connection whose outbound buffer is full
	DropRetention    = "retention"          // removed by retention before an uplink or session had them
	DropExpired      = "expired"            // message expiry passed before delivery
)

// Why a session lost a message that it had still to receive when its segment went; one for each session.
const (
	DropSessionFull = "offline_session_full" // beyond what a session may have of copies
	DropOfflineFull = "offline_full"         // beyond what all copies may take on disk
	DropOfflineLate = "offline_late"         // not copied, since the stream ran over its limit
)

// Normalize gives the status the shape that readers rely on: no null lists, and
// the known reasons of Dropped present even when zero. It does not write to maps
// that the caller may share.
func (s *Status) Normalize() {
	dropped := map[string]int64{DropOutboundFull: 0, DropRetention: 0, DropExpired: 0}
	for reason, n := range s.Dropped {
		dropped[reason] = n
	}
	s.Dropped = dropped
	s.Health.Normalize()
	if s.Streams == nil {
		s.Streams = []StreamStatus{}
	}
	for i := range s.Streams {
		s.Streams[i].normalize()
	}
	if s.Uplinks == nil {
		s.Uplinks = []UplinkStatus{}
	}
	for i := range s.Uplinks {
		s.Uplinks[i].normalize()
	}
}

// Normalize fills an empty state with ok and a nil list with an empty one.
func (h *Health) Normalize() {
	if h.State == "" {
		h.State = HealthOK
	}
	if h.Reasons == nil {
		h.Reasons = []Reason{}
	}
}

// StreamStatus is one stream as `status` and `stream ls` show it.
type StreamStatus struct {
	Name       string            `json:"name"`
	Configured bool              `json:"configured"` // false: data is kept and readable, but the configuration no longer names it
	Durability string            `json:"durability"`
	Partitions []PartitionStatus `json:"partitions"`
}

func (s *StreamStatus) normalize() {
	if s.Partitions == nil {
		s.Partitions = []PartitionStatus{}
	}
}

// Totals adds up the partitions.
func (s *StreamStatus) Totals() (records, bytes, unsynced int64, segments int) {
	for _, p := range s.Partitions {
		records += p.NextOffset - p.FirstOffset
		bytes += p.Bytes
		unsynced += p.NextOffset - p.SyncedOffset
		segments += p.Segments
	}
	return records, bytes, unsynced, segments
}

// PartitionStatus is one partition (and lane) of a stream. Its records are
// [FirstOffset, NextOffset); those below SyncedOffset survive a power cut.
type PartitionStatus struct {
	Partition     int   `json:"partition"`
	Lane          int   `json:"lane"`
	FirstOffset   int64 `json:"first_offset"`
	NextOffset    int64 `json:"next_offset"`
	SyncedOffset  int64 `json:"synced_offset"`
	Bytes         int64 `json:"bytes"`
	Segments      int   `json:"segments"`
	DamagedRanges int   `json:"damaged_ranges"` // ranges of offsets that readers skip because the bytes on disk are bad
}

// StreamDetail is one stream as `stream show` prints it: its status and the
// settings in force.
type StreamDetail struct {
	StreamStatus
	Filters      []string  `json:"filters"`
	PartitionBy  string    `json:"partition_by"`
	Compression  string    `json:"compression"`
	SegmentBytes int64     `json:"segment_bytes"`
	Retention    Retention `json:"retention"`
}

// Normalize replaces nil lists by empty ones.
func (d *StreamDetail) Normalize() {
	d.normalize()
	if d.Filters == nil {
		d.Filters = []string{}
	}
}

// Retention is a stream's retention in force and what it has removed.
type Retention struct {
	MaxAgeS        int64  `json:"max_age_s"`
	MaxBytes       int64  `json:"max_bytes"`
	MaxRecords     int64  `json:"max_records"` // 0: no limit
	Full           string `json:"full"`        // drop-oldest or reject-new
	RemovedRecords int64  `json:"removed_records"`
	HeldBy         string `json:"held_by"` // the uplink that retention by age waits for; empty: none
}

// The states of an uplink.
const (
	UplinkProbe   = "probe"   // connecting, asking the remote where it is
	UplinkStream  = "stream"  // forwarding, or having nothing to forward
	UplinkBackoff = "backoff" // waiting before the next attempt
	UplinkPaused  = "paused"  // by hand
	UplinkBlocked = "blocked" // needs a decision by hand; LastError says which
)

// UplinkStates lists every state, in the order of a first connection.
var UplinkStates = []string{UplinkProbe, UplinkStream, UplinkBackoff, UplinkPaused, UplinkBlocked}

// UplinkStatus is one uplink.
type UplinkStatus struct {
	Name         string           `json:"name"`
	Kind         string           `json:"kind"`
	URL          string           `json:"url"` // never with credentials
	Streams      []string         `json:"streams"`
	RemoteStream string           `json:"remote_stream"`
	State        string           `json:"state"`
	Connected    bool             `json:"connected"`
	LagMessages  int64            `json:"lag_messages"`
	LagBytes     int64            `json:"lag_bytes"`
	LagAgeS      int64            `json:"lag_age_s"`  // age of the oldest record that the remote has not acknowledged
	Acked        map[string]int64 `json:"acked"`      // "stream/partition-lane" → last acknowledged offset; absent: none yet
	Sent         int64            `json:"sent"`       // records sent since the start, repeats included
	Delivered    int64            `json:"delivered"`  // records acknowledged since the start
	LastError    string           `json:"last_error"` // what went wrong last; Recovered says whether it is over
	LastErrorAt  Millis           `json:"last_error_at"`
	LastErrorS   int64            `json:"last_error_s"`      // how long ago it was; 0 without one
	Recovered    bool             `json:"recovered"`         // records flow again since LastError
	RecoveredAt  Millis           `json:"recovered_at"`      // since when
	RecordMax    int64            `json:"remote_record_max"` // largest record that the remote takes, headers included; 0: not known
	Lost         map[string]int64 `json:"lost"`              // reason → records that the remote will never get, over all runs
	LostUnseen   int64            `json:"lost_unseen"`       // of those removed by retention, what no operator has acknowledged
	LostAt       Millis           `json:"lost_at"`           // when retention last removed some
	Losses       []UplinkLoss     `json:"losses"`            // by partition, those that have any
	Stuck        []UplinkStuck    `json:"stuck"`             // partitions that wait at a record while others go on
	Pending      []UplinkMove     `json:"pending"`           // orders that are carried out at the next connection
}

// The reasons that UplinkStatus.Lost always shows.
const (
	LostRetention = "retention" // removed by retention before they were sent
	LostSkipped   = "skipped"   // left out by an operator
)

// UplinkLoss is what an uplink did not forward of one partition.
type UplinkLoss struct {
	Partition string `json:"partition"` // "stream/partition-lane"
	Retention int64  `json:"retention"`
	Skipped   int64  `json:"skipped"`
}

// UplinkStuck is a partition whose next record the remote does not take.
type UplinkStuck struct {
	Partition string `json:"partition"`
	Offset    int64  `json:"offset"`
	Since     Millis `json:"since"`
	Cause     string `json:"cause"`
	Reason    string `json:"reason"`
	Cure      string `json:"cure"`
}

// UplinkMove is an operator's order to go on elsewhere: Offset is the next record
// that is sent of the partition.
type UplinkMove struct {
	Partition string `json:"partition"` // may be left out where there is no choice
	Action    string `json:"action"`    // skip or rewind
	Offset    int64  `json:"offset"`    // of a skip, -1: just the record that the partition is stuck at
}

// The actions of UplinkMove.
const (
	MoveSkip   = "skip"
	MoveRewind = "rewind"
)

func (u *UplinkStatus) normalize() {
	if u.Acked == nil {
		u.Acked = map[string]int64{}
	}
	if u.Streams == nil {
		u.Streams = []string{}
	}
	lost := map[string]int64{LostRetention: 0, LostSkipped: 0}
	maps.Copy(lost, u.Lost)
	u.Lost = lost
	if u.Losses == nil {
		u.Losses = []UplinkLoss{}
	}
	if u.Stuck == nil {
		u.Stuck = []UplinkStuck{}
	}
	if u.Pending == nil {
		u.Pending = []UplinkMove{}
	}
}

// Client is one connected client.
type Client struct {
	ClientID       string `json:"client_id"`
	Username       string `json:"username"`
	Address        string `json:"address"`  // remote host:port
	Listener       string `json:"listener"` // local address it connected to
	Protocol       string `json:"protocol"` // "mqtt 3.1", "mqtt 3.1.1", "mqtt 5"
	ConnectedAt    Millis `json:"connected_at"`
	ConnectedS     int64  `json:"connected_s"`
	KeepAliveS     int64  `json:"keep_alive_s"`
	Clean          bool   `json:"clean"`
	SessionExpiryS int64  `json:"session_expiry_s"`
	Subscriptions  int64  `json:"subscriptions"`
	Inflight       int64  `json:"inflight"`       // outbound QoS 1 and 2, not yet acknowledged by the client
	Inbox          int64  `json:"inbox"`          // records that it has still to look at, matching or not
	OutboundBytes  int64  `json:"outbound_bytes"` // encoded and not yet taken by the kernel
	MessagesIn     int64  `json:"messages_in"`
	MessagesOut    int64  `json:"messages_out"`
	Dropped        int64  `json:"dropped"` // QoS 0 messages dropped because the client reads too slowly
}

// Setting is one effective configuration value as `config show` prints it.
// Secrets are never in it.
type Setting struct {
	Key     string `json:"key"`     // "limits.max_packet_bytes", "stream.telemetry.partitions"
	Value   string `json:"value"`   // as it would be written in the file
	Default bool   `json:"default"` // true: the value is the built-in default
}

// PubResult says where a published message is in the log. It is given only when
// the stream's durability has been reached.
type PubResult struct {
	Stream    string `json:"stream"`
	Partition int    `json:"partition"`
	Lane      int    `json:"lane"`
	Offset    int64  `json:"offset"`
}
