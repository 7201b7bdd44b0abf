package bench

import "time"

// Result is what a run has shown. Counts are of the whole run, rates, delays and costs of its measured part, which
// begins after the warm-up.
type Result struct {
	Mode     Mode   `json:"mode"`
	Label    string `json:"label,omitempty"`
	Broker   string `json:"broker"`
	Protocol string `json:"protocol"`

	Publishers  int     `json:"publishers,omitempty"`
	Subscribers int     `json:"subscribers,omitempty"`
	Topics      int     `json:"topics,omitempty"`
	QoS         int     `json:"qos"`
	SubQoS      int     `json:"sub_qos"`
	SizeBytes   int     `json:"size_bytes,omitempty"`
	Window      int     `json:"window"`
	RatePerS    float64 `json:"rate_per_s,omitempty"` // asked for

	Published  int64 `json:"published"`
	Acked      int64 `json:"acked"`
	Refused    int64 `json:"refused"`
	Expected   int64 `json:"expected"` // deliveries, one for each subscriber that wants the message
	Received   int64 `json:"received"` // without duplicates
	Lost       int64 `json:"lost"`
	Duplicated int64 `json:"duplicated"`
	Disordered int64 `json:"out_of_order"`
	Foreign    int64 `json:"foreign"` // not of this run

	MeasuredS     float64  `json:"measured_s"`
	PublishedPerS float64  `json:"published_per_s"`
	ReceivedPerS  float64  `json:"received_per_s"`
	Delivery      *Latency `json:"delivery,omitempty"`   // from publisher to subscriber
	Ack           *Latency `json:"ack,omitempty"`        // from publisher to its acknowledgement
	SendDelay     *Latency `json:"send_delay,omitempty"` // with a rate: from due to written, contained in the other two

	Offline     *OfflineResult    `json:"offline,omitempty"`
	Connections *ConnectionResult `json:"connections,omitempty"`
	Target      *Target           `json:"target,omitempty"`
	LoadCPUS    float64           `json:"load_cpu_s"` // of this process during the measured part
	Stalled     bool              `json:"stalled"`    // ended because nothing came any more, or the limit was reached
	Notes       []string          `json:"notes,omitempty"`
}

// OfflineResult is the two phases of mode offline.
type OfflineResult struct {
	QueueS              float64 `json:"queue_s"`
	QueuedPerS          float64 `json:"queued_per_s"`
	DrainS              float64 `json:"drain_s"`
	DrainedPerS         float64 `json:"drained_per_s"`
	QueueCPUUsPerMsg    float64 `json:"queue_cpu_us_per_message,omitempty"`
	DrainCPUUsPerMsg    float64 `json:"drain_cpu_us_per_message,omitempty"`
	RSSQueuedBytes      int64   `json:"rss_queued_bytes,omitempty"`
	RSSGrowthPeakBytes  int64   `json:"rss_growth_peak_bytes,omitempty"`
	FirstMessageAfterMs float64 `json:"first_message_after_ms"` // from the reconnect
}

// ConnectionResult is that of the modes storm and idle.
type ConnectionResult struct {
	Asked          int      `json:"asked"`
	Connected      int      `json:"connected"`
	Failed         int      `json:"failed"`
	FirstError     string   `json:"first_error,omitempty"`
	ConnectedPerS  float64  `json:"connected_per_s"`
	Connect        *Latency `json:"connect,omitempty"` // TCP connect to CONNACK
	CPUUsPerOne    float64  `json:"cpu_us_per_connect,omitempty"`
	HeldS          float64  `json:"held_s,omitempty"`
	AliveAfterHold int      `json:"alive_after_hold,omitempty"`
	RSSPerOne      float64  `json:"rss_bytes_per_connection,omitempty"`
	IdleCPUPercent float64  `json:"idle_cpu_percent"`
}

// Progress is shown while a run goes on.
type Progress struct {
	ElapsedS               float64
	Phase                  string
	Sent, Received         int64 // so far
	SentPerS, ReceivedPerS float64
	Connected              int64
	CPUPercent             float64 // of the broker, since the last one; -1: not known
	RSSBytes               int64
}

func perSecond(n int64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return round(float64(n)/d.Seconds(), 1)
}
