package admin

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"edgehub/hub/admin/api"
)

// prefix begins the name of every metric.
const prefix = "edgehub_"

// Kind is a metric's type.
type Kind = prometheus.ValueType

// The kinds.
const (
	Counter = prometheus.CounterValue
	Gauge   = prometheus.GaugeValue
)

// Metric declares one metric of an S: the only place where its name, type, labels and meaning are written.
type Metric[S any] struct {
	Name   string // without the prefix
	Kind   Kind
	Unit   string // empty: a number of what the name says
	Labels []string
	Help   string
	Read   func(s S, put func(v float64, labels ...string)) // asked at each scrape
}

// collector makes metrics when it is asked, so that the hot path counts once.
type collector[S any] struct {
	source func() S
	list   []Metric[S]
	descs  []*prometheus.Desc
}

// NewCollector returns the metrics of list, read from what source returns at each scrape.
func NewCollector[S any](source func() S, list []Metric[S]) prometheus.Collector {
	c := &collector[S]{source: source, list: list}
	for i := range list {
		c.descs = append(c.descs, prometheus.NewDesc(prefix+list[i].Name, list[i].Help, list[i].Labels, nil))
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *collector[S]) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector[S]) Collect(ch chan<- prometheus.Metric) {
	s := c.source()
	for i := range c.list {
		c.list[i].Read(s, func(v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(c.descs[i], c.list[i].Kind, v, labels...)
		})
	}
}

// Rows are the lines of a table in Markdown: name, type, unit, labels, meaning.
func Rows[S any](list []Metric[S]) string {
	var b strings.Builder
	for i := range list {
		m := &list[i]
		kind := "gauge"
		if m.Kind == Counter {
			kind = "counter"
		}
		labels := ""
		for j, l := range m.Labels {
			if j > 0 {
				labels += ", "
			}
			labels += "`" + l + "`"
		}
		fmt.Fprintf(&b, "| `%s%s` | %s | %s | %s | %s |\n", prefix, m.Name, kind, m.Unit, labels, strings.ReplaceAll(m.Help, "|", "\\|"))
	}
	return b.String()
}

// NewStatusCollector returns StatusMetrics of a hub, which can so never contradict `hubctl status`.
func NewStatusCollector(h Hub) prometheus.Collector {
	return NewCollector(func() *api.Status {
		st := h.Status()
		st.Normalize()
		return &st
	}, StatusMetrics)
}

type statusMetric = Metric[*api.Status]

// one is a metric with one value.
func one(name string, kind Kind, unit, help string, v func(*api.Status) float64) statusMetric {
	return statusMetric{Name: name, Kind: kind, Unit: unit, Help: help, Read: func(s *api.Status, put func(float64, ...string)) { put(v(s)) }}
}

// perPartition is a gauge of each partition.
func perPartition(name, unit, help string, v func(*api.PartitionStatus) int64) statusMetric {
	return statusMetric{Name: name, Kind: Gauge, Unit: unit, Help: help, Labels: []string{"stream", "partition", "lane"},
		Read: func(s *api.Status, put func(float64, ...string)) {
			for i := range s.Streams {
				for j := range s.Streams[i].Partitions {
					p := &s.Streams[i].Partitions[j]
					put(float64(v(p)), s.Streams[i].Name, strconv.Itoa(p.Partition), strconv.Itoa(p.Lane))
				}
			}
		}}
}

// perUplink is a metric of each uplink.
func perUplink(name string, kind Kind, unit, help string, v func(*api.UplinkStatus) int64) statusMetric {
	return statusMetric{Name: name, Kind: kind, Unit: unit, Help: help, Labels: []string{"uplink"},
		Read: func(s *api.Status, put func(float64, ...string)) {
			for i := range s.Uplinks {
				put(float64(v(&s.Uplinks[i])), s.Uplinks[i].Name)
			}
		}}
}

// StatusMetrics follow from Hub.Status.
var StatusMetrics = []statusMetric{
	{Name: "build_info", Kind: Gauge, Labels: []string{"version", "hub", "instance"}, Help: "Always 1; the labels say what runs.",
		Read: func(s *api.Status, put func(float64, ...string)) { put(1, s.Version, s.Hub, s.Instance) }},
	one("start_time_seconds", Gauge, "seconds", "When this run of the hub began, since 1970.", func(s *api.Status) float64 { return float64(s.StartedAt) / 1000 }),
	one("epoch", Gauge, "", "Rises after every unclean stop.", func(s *api.Status) float64 { return float64(s.Epoch) }),
	{Name: "health", Kind: Gauge, Labels: []string{"state"}, Help: "1 for the state the hub is in: ok, degraded or failed.",
		Read: func(s *api.Status, put func(float64, ...string)) {
			for _, state := range []string{api.HealthOK, api.HealthDegraded, api.HealthFailed} {
				put(flag(state == s.Health.State), state)
			}
		}},
	one("connections", Gauge, "", "Clients connected.", func(s *api.Status) float64 { return float64(s.Connections) }),
	one("sessions", Gauge, "", "Sessions, connected or not.", func(s *api.Status) float64 { return float64(s.Sessions) }),
	one("subscriptions", Gauge, "", "Subscriptions of all sessions.", func(s *api.Status) float64 { return float64(s.Subscriptions) }),
	one("retained_messages", Gauge, "", "Retained messages.", func(s *api.Status) float64 { return float64(s.Retained) }),
	one("messages_received_total", Counter, "", "Messages accepted from clients.", func(s *api.Status) float64 { return float64(s.MessagesIn) }),
	one("messages_sent_total", Counter, "", "Messages sent to clients.", func(s *api.Status) float64 { return float64(s.MessagesOut) }),
	{Name: "messages_dropped_total", Kind: Counter, Labels: []string{"reason"}, Help: "Messages dropped or refused, by reason; OPERATIONS.md has the reasons.",
		Read: func(s *api.Status, put func(float64, ...string)) {
			for reason, n := range s.Dropped {
				put(float64(n), reason)
			}
		}},
	perPartition("partition_first_offset", "", "The oldest offset still in the log.", func(p *api.PartitionStatus) int64 { return p.FirstOffset }),
	perPartition("partition_next_offset", "", "The offset that the next record gets.", func(p *api.PartitionStatus) int64 { return p.NextOffset }),
	perPartition("partition_synced_offset", "", "Records below it survive a power cut.", func(p *api.PartitionStatus) int64 { return p.SyncedOffset }),
	perPartition("partition_bytes", "bytes", "Bytes on disk.", func(p *api.PartitionStatus) int64 { return p.Bytes }),
	perPartition("partition_segments", "", "Segment files.", func(p *api.PartitionStatus) int64 { return int64(p.Segments) }),
	perPartition("partition_damaged_ranges", "", "Ranges of offsets that are unreadable.", func(p *api.PartitionStatus) int64 { return int64(p.DamagedRanges) }),
	{Name: "uplink_connected", Kind: Gauge, Labels: []string{"uplink", "kind"}, Help: "1 while connected to the remote.",
		Read: func(s *api.Status, put func(float64, ...string)) {
			for i := range s.Uplinks {
				put(flag(s.Uplinks[i].Connected), s.Uplinks[i].Name, s.Uplinks[i].Kind)
			}
		}},
	{Name: "uplink_state", Kind: Gauge, Labels: []string{"uplink", "state"}, Help: "1 for the state the uplink is in: " + strings.Join(api.UplinkStates, ", ") + ".",
		Read: func(s *api.Status, put func(float64, ...string)) {
			for i := range s.Uplinks {
				for _, state := range api.UplinkStates {
					put(flag(state == s.Uplinks[i].State), s.Uplinks[i].Name, state)
				}
			}
		}},
	perUplink("uplink_lag_messages", Gauge, "", "Records that the remote has not acknowledged.", func(u *api.UplinkStatus) int64 { return u.LagMessages }),
	perUplink("uplink_lag_bytes", Gauge, "bytes", "Bytes that the remote has not acknowledged, about.", func(u *api.UplinkStatus) int64 { return u.LagBytes }),
	perUplink("uplink_lag_seconds", Gauge, "seconds", "Age of the oldest record that the remote has not acknowledged.", func(u *api.UplinkStatus) int64 { return u.LagAgeS }),
	perUplink("uplink_sent_total", Counter, "", "Records sent to the remote, repeats included.", func(u *api.UplinkStatus) int64 { return u.Sent }),
	perUplink("uplink_delivered_total", Counter, "", "Records that the remote has acknowledged.", func(u *api.UplinkStatus) int64 { return u.Delivered }),
	perUplink("uplink_stuck_partitions", Gauge, "", "Partitions that wait at a record that the remote does not take.", func(u *api.UplinkStatus) int64 { return int64(len(u.Stuck)) }),
	{Name: "uplink_lost_total", Kind: Counter, Labels: []string{"uplink", "reason"}, Help: "Records that the remote will never get, over all runs: removed by retention (as many as a window holds may turn out to have arrived) or skipped.",
		Read: func(s *api.Status, put func(float64, ...string)) {
			for i := range s.Uplinks {
				for reason, n := range s.Uplinks[i].Lost {
					put(float64(n), s.Uplinks[i].Name, reason)
				}
			}
		}},
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
