package admin

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"edgehub/hub/admin/api"
)

// collector makes metrics of Hub.Status when it is asked, so that the hot path
// counts once and a metric can never contradict `hubctl status`.
type collector struct{ hub Hub }

// NewCollector returns the metrics that follow from Hub.Status.
func NewCollector(h Hub) prometheus.Collector { return collector{hub: h} }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("edgehub_"+name, help, labels, nil)
}

var (
	descBuild     = desc("build_info", "Always 1; the labels say what runs.", "version", "hub", "instance")
	descStarted   = desc("start_time_seconds", "When this run of the hub began, since 1970.")
	descEpoch     = desc("epoch", "Rises after every unclean stop.")
	descHealth    = desc("health", "1 for the state the hub is in.", "state")
	descConns     = desc("connections", "Clients connected.")
	descSessions  = desc("sessions", "Sessions, connected or not.")
	descSubs      = desc("subscriptions", "Subscriptions of all sessions.")
	descRetained  = desc("retained_messages", "Retained messages.")
	descIn        = desc("messages_received_total", "Messages accepted from clients.")
	descOut       = desc("messages_sent_total", "Messages sent to clients.")
	descDropped   = desc("messages_dropped_total", "Messages dropped, by reason.", "reason")
	descFirst     = desc("partition_first_offset", "The oldest offset still in the log.", "stream", "partition", "lane")
	descNext      = desc("partition_next_offset", "The offset that the next record gets.", "stream", "partition", "lane")
	descSynced    = desc("partition_synced_offset", "Records below it survive a power cut.", "stream", "partition", "lane")
	descBytes     = desc("partition_bytes", "Bytes on disk.", "stream", "partition", "lane")
	descSegments  = desc("partition_segments", "Segment files.", "stream", "partition", "lane")
	descDamaged   = desc("partition_damaged_ranges", "Ranges of offsets that are unreadable.", "stream", "partition", "lane")
	descConnected = desc("uplink_connected", "1 while connected to the remote.", "uplink", "kind")
	descState     = desc("uplink_state", "1 for the state the uplink is in.", "uplink", "state")
	descLag       = desc("uplink_lag_messages", "Records that the remote has not acknowledged.", "uplink")
	descLagBytes  = desc("uplink_lag_bytes", "Bytes that the remote has not acknowledged, about.", "uplink")
	descLagAge    = desc("uplink_lag_seconds", "Age of the oldest record that the remote has not acknowledged.", "uplink")
	descSent      = desc("uplink_sent_total", "Records sent to the remote, repeats included.", "uplink")
	descDelivered = desc("uplink_delivered_total", "Records that the remote has acknowledged.", "uplink")
)

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descBuild, descStarted, descEpoch, descHealth, descConns, descSessions, descSubs, descRetained, descIn, descOut, descDropped,
		descFirst, descNext, descSynced, descBytes, descSegments, descDamaged,
		descConnected, descState, descLag, descLagBytes, descLagAge, descSent, descDelivered,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	st := c.hub.Status()
	st.Normalize()
	gauge := func(d *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	counter := func(d *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(descBuild, 1, st.Version, st.Hub, st.Instance)
	ch <- prometheus.MustNewConstMetric(descStarted, prometheus.GaugeValue, float64(st.StartedAt)/1000)
	gauge(descEpoch, int64(st.Epoch))
	for _, state := range []string{api.HealthOK, api.HealthDegraded, api.HealthFailed} {
		gauge(descHealth, flag(state == st.Health.State), state)
	}
	gauge(descConns, st.Connections)
	gauge(descSessions, st.Sessions)
	gauge(descSubs, st.Subscriptions)
	gauge(descRetained, st.Retained)
	counter(descIn, st.MessagesIn)
	counter(descOut, st.MessagesOut)
	for reason, n := range st.Dropped {
		counter(descDropped, n, reason)
	}
	for _, s := range st.Streams {
		for _, p := range s.Partitions {
			labels := []string{s.Name, strconv.Itoa(p.Partition), strconv.Itoa(p.Lane)}
			gauge(descFirst, p.FirstOffset, labels...)
			gauge(descNext, p.NextOffset, labels...)
			gauge(descSynced, p.SyncedOffset, labels...)
			gauge(descBytes, p.Bytes, labels...)
			gauge(descSegments, int64(p.Segments), labels...)
			gauge(descDamaged, int64(p.DamagedRanges), labels...)
		}
	}
	for _, u := range st.Uplinks {
		gauge(descConnected, flag(u.Connected), u.Name, u.Kind)
		for _, state := range api.UplinkStates {
			gauge(descState, flag(state == u.State), u.Name, state)
		}
		gauge(descLag, u.LagMessages, u.Name)
		gauge(descLagBytes, u.LagBytes, u.Name)
		gauge(descLagAge, u.LagAgeS, u.Name)
		counter(descSent, u.Sent, u.Name)
		counter(descDelivered, u.Delivered, u.Name)
	}
}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
