package server

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"edgehub/hub/admin"
)

type metric = admin.Metric[*Server]

// count is a counter without labels.
func count(name, unit, help string, of func(*Server) *atomic.Int64) metric {
	return metric{Name: name, Kind: admin.Counter, Unit: unit, Help: help,
		Read: func(s *Server, put func(float64, ...string)) { put(float64(of(s).Load())) }}
}

// gauge is a gauge without labels.
func gauge(name, unit, help string, v func(*Server) float64) metric {
	return metric{Name: name, Kind: admin.Gauge, Unit: unit, Help: help,
		Read: func(s *Server, put func(float64, ...string)) { put(v(s)) }}
}

// perListener is a metric of the listeners that have it: of returns nil for the others.
func perListener(name string, kind admin.Kind, help string, of func(*listener) interface{ Load() int64 }) metric {
	return metric{Name: name, Kind: kind, Help: help, Labels: []string{"listener"},
		Read: func(s *Server, put func(float64, ...string)) {
			for i := range s.listeners {
				if v := of(&s.listeners[i]); v != nil {
					put(float64(v.Load()), s.listeners[i].cfg.Address)
				}
			}
		}}
}

// openConns lets the open connections of a listener be read as counters are.
type openConns struct{ l *listener }

func (o openConns) Load() int64 { return int64(o.l.el.Open()) }

// ofTLS and ofWebSocket leave out the listeners without one.
func ofTLS(f func(*listener) *atomic.Int64) func(*listener) interface{ Load() int64 } {
	return func(l *listener) interface{ Load() int64 } {
		if l.tls == nil {
			return nil
		}
		return f(l)
	}
}

func ofWebSocket(f func(*listener) *atomic.Int64) func(*listener) interface{ Load() int64 } {
	return func(l *listener) interface{ Load() int64 } {
		if l.ws == nil {
			return nil
		}
		return f(l)
	}
}

// messageMetrics, clientMetrics, diskMetrics and listenerMetrics are what the parts of the hub count.
var messageMetrics = []metric{
	count("received_bytes_total", "bytes", "Bytes of topics and payloads taken from clients.", func(s *Server) *atomic.Int64 { return &s.broker.Stats.InBytes }),
	count("sent_bytes_total", "bytes", "Bytes of topics and payloads given to clients.", func(s *Server) *atomic.Int64 { return &s.broker.Stats.OutBytes }),
	count("commits_total", "", "Batches written to the log.", func(s *Server) *atomic.Int64 { return &s.broker.Stats.Commits }),
	count("commit_bytes_total", "bytes", "Bytes written to the log.", func(s *Server) *atomic.Int64 { return &s.broker.Stats.CommitBytes }),
	count("messages_resent_total", "", "Messages sent again after a reconnect.", func(s *Server) *atomic.Int64 { return &s.broker.Stats.Resent }),
	count("session_takeovers_total", "", "Sessions that a new connection took from an older one.", func(s *Server) *atomic.Int64 { return &s.broker.Stats.Takeovers }),
	count("sessions_expired_total", "", "Offline sessions whose time was over.", func(s *Server) *atomic.Int64 { return &s.broker.Stats.SessionsExpired }),
	count("wills_published_total", "", "Will messages published.", func(s *Server) *atomic.Int64 { return &s.broker.Stats.WillsFired }),
	count("no_local_total", "", "Messages withheld from their own publisher, who subscribes with No Local only.", func(s *Server) *atomic.Int64 { return &s.broker.Stats.NoLocal }),
	count("retained_replays_joined_total", "", "Repeated subscriptions whose retained messages were still to be sent for the earlier one, and were sent once.", func(s *Server) *atomic.Int64 { return &s.broker.Stats.ReplaysJoined }),
	count("offline_copied_total", "", "Messages copied for sessions when their segment went.", func(s *Server) *atomic.Int64 { return &s.broker.Stats.OfflineCopied }),
	gauge("offline_bytes", "bytes", "Size of the copies for sessions on disk.", func(s *Server) float64 { return float64(s.broker.OfflineBytes()) }),
	count("log_reads_total", "", "Reads of the log for sessions that were behind.", func(s *Server) *atomic.Int64 { return &s.broker.Stats.CatchupJobs }),
	count("log_read_messages_total", "", "Messages delivered from the log to sessions that were behind.", func(s *Server) *atomic.Int64 { return &s.broker.Stats.CatchupRecords }),
	count("log_read_bytes_total", "bytes", "Bytes of the log looked at for sessions that were behind.", func(s *Server) *atomic.Int64 { return &s.broker.Stats.CatchupScanned }),
	count("acks_held_total", "", "Acknowledgements held back while connected subscribers were behind.", func(s *Server) *atomic.Int64 { return &s.broker.Stats.AcksHeld }),
	count("ack_holds_over_total", "", "Times that the bound on holding acknowledgements ended it.", func(s *Server) *atomic.Int64 { return &s.broker.Stats.AckHoldsOver }),
	count("slow_subscribers_given_up_total", "", "Subscribers that gained no ground and were not waited for any longer.", func(s *Server) *atomic.Int64 { return &s.broker.Stats.PaceGivenUp }),
	count("log_skipped_messages_total", "", "Messages of the log that sessions which were behind were spared, going by the topics of whole segments.", func(s *Server) *atomic.Int64 { return &s.broker.Stats.CatchupSkipped }),
	gauge("outbound_bytes", "bytes", "Bytes that sockets have not taken.", func(s *Server) float64 { return float64(s.mqtt.Buffered()) }),
}

var clientMetrics = []metric{
	count("auth_logins_total", "", "Clients let in by user name and password.", func(s *Server) *atomic.Int64 { return &s.auth.Stats.Logins }),
	count("auth_bad_credentials_total", "", "Clients refused for a wrong user name or password.", func(s *Server) *atomic.Int64 { return &s.auth.Stats.BadCredentials }),
	count("auth_anonymous_refused_total", "", "Clients refused because they showed no user.", func(s *Server) *atomic.Int64 { return &s.auth.Stats.Anonymous }),
	count("auth_banned_total", "", "Clients refused because of a ban.", func(s *Server) *atomic.Int64 { return &s.auth.Stats.Banned }),
	count("auth_bans_total", "", "Bans made after failed logins.", func(s *Server) *atomic.Int64 { return &s.auth.Stats.BansMade }),
	count("auth_busy_total", "", "Clients refused because too many logins waited.", func(s *Server) *atomic.Int64 { return &s.auth.Stats.Busy }),
	count("auth_hashed_total", "", "Passwords hashed.", func(s *Server) *atomic.Int64 { return &s.auth.Stats.Hashed }),
	count("acl_publish_denied_total", "", "Messages of clients refused by the access list.", func(s *Server) *atomic.Int64 { return &s.broker.Stats.DeniedPublish }),
	count("acl_subscribe_denied_total", "", "Subscriptions refused by the access list.", func(s *Server) *atomic.Int64 { return &s.broker.Stats.DeniedSubscribe }),
	count("acl_delivery_denied_total", "", "Messages that waited for a client and were withheld by the access list.", func(s *Server) *atomic.Int64 { return &s.broker.Stats.DeniedDelivery }),
	count("auth_foreign_client_id_total", "", "Clients refused because another user has their client id.", func(s *Server) *atomic.Int64 { return &s.broker.Stats.Foreign }),
	count("clients_kicked_total", "", "Connections ended by an operator, a ban or a reload.", func(s *Server) *atomic.Int64 { return &s.broker.Stats.Kicked }),
	count("mqtt_connects_total", "", "CONNECT packets accepted.", func(s *Server) *atomic.Int64 { return &s.mqtt.Stats.Connects }),
	count("mqtt_refused_total", "", "CONNECT packets refused.", func(s *Server) *atomic.Int64 { return &s.mqtt.Stats.Refused }),
	count("mqtt_malformed_total", "", "Connections ended for what the client sent.", func(s *Server) *atomic.Int64 { return &s.mqtt.Stats.Malformed }),
	count("mqtt_keepalive_timeouts_total", "", "Connections ended because nothing came within the keep-alive.", func(s *Server) *atomic.Int64 { return &s.mqtt.Stats.KeepAlive }),
	count("mqtt_connect_timeouts_total", "", "Connections ended because no CONNECT came.", func(s *Server) *atomic.Int64 { return &s.mqtt.Stats.ConnectTimeouts }),
	count("mqtt_slow_clients_closed_total", "", "Connections ended because the client did not read.", func(s *Server) *atomic.Int64 { return &s.mqtt.Stats.SlowClosed }),
	count("mqtt_connections_refused_total", "", "Connections refused because limits.max_connections was reached.", func(s *Server) *atomic.Int64 { return &s.mqtt.Stats.TooMany }),
}

var diskMetrics = []metric{
	gauge("disk_free_bytes", "bytes", "Free space of the disk at the last look.", func(s *Server) float64 { return float64(s.disk.Status().Free) }),
	gauge("disk_low_mark_bytes", "bytes", "Free space below which messages are refused.", func(s *Server) float64 { return float64(s.disk.Status().LowBytes) }),
	gauge("disk_low", "", "1 while the disk is below the low mark.", func(s *Server) float64 {
		if s.disk.Low() {
			return 1
		}
		return 0
	}),
	count("log_slow_writes_total", "", "Writes that took longer than disk.write_wait, so that others were served first.", func(s *Server) *atomic.Int64 { return &s.streams.Slow.Writes.Total }),
	count("log_slow_syncs_total", "", "Fdatasyncs that took longer than disk.slow_after.", func(s *Server) *atomic.Int64 { return &s.streams.Slow.Syncs.Total }),
	gauge("log_longest_write_seconds", "seconds", "The longest of the slow writes since the start.", func(s *Server) float64 { return time.Duration(s.streams.Slow.Writes.Longest.Load()).Seconds() }),
	gauge("log_longest_sync_seconds", "seconds", "The longest of the slow fdatasyncs since the start.", func(s *Server) float64 { return time.Duration(s.streams.Slow.Syncs.Longest.Load()).Seconds() }),
	gauge("log_slow_seconds", "seconds", "For how long the oldest write or fdatasync that is under way has been late; 0: none is.", func(s *Server) float64 {
		if op, late := s.streams.Slow.Running(); late {
			return time.Since(op.Since).Seconds()
		}
		return 0
	}),
	{Name: "written_bytes_total", Kind: admin.Counter, Unit: "bytes", Labels: []string{"part"},
		Help: "Bytes written to files, by part: log and meta are the hub's logs, index is what Badger was given and compacted, other the rest, os is what the operating system counts for the process.",
		Read: func(s *Server, put func(float64, ...string)) {
			for part, fn := range s.wear() {
				put(float64(fn()), part)
			}
		}},
	gauge("write_amplification", "", "Bytes written to log, meta and index for each byte of topic and payload taken, since the start.", (*Server).amplification),
}

var listenerMetrics = []metric{
	perListener("listener_connections", admin.Gauge, "Open connections of a listener.", func(l *listener) interface{ Load() int64 } { return openConns{l} }),
	perListener("listener_accepted_total", admin.Counter, "Connections accepted.", func(l *listener) interface{ Load() int64 } { return &l.el.Accepted }),
	perListener("listener_refused_full_total", admin.Counter, "Connections refused because the listener's max_connections was reached.", func(l *listener) interface{ Load() int64 } { return &l.el.RefusedFull }),
	perListener("listener_refused_address_total", admin.Counter, "Connections refused because limits.connections_per_address was reached.", func(l *listener) interface{ Load() int64 } { return &l.el.RefusedAddress }),
	perListener("tls_handshakes_total", admin.Counter, "TLS handshakes that succeeded.", ofTLS(func(l *listener) *atomic.Int64 { return &l.tls.Stats.Handshakes })),
	perListener("tls_handshakes_resumed_total", admin.Counter, "TLS handshakes that resumed an earlier session.", ofTLS(func(l *listener) *atomic.Int64 { return &l.tls.Stats.Resumed })),
	perListener("tls_handshakes_failed_total", admin.Counter, "TLS handshakes that did not succeed.", ofTLS(func(l *listener) *atomic.Int64 { return &l.tls.Stats.Failed })),
	perListener("tls_broken_total", admin.Counter, "Connections ended by a bad TLS record.", ofTLS(func(l *listener) *atomic.Int64 { return &l.tls.Stats.Broken })),
	perListener("websocket_upgrades_total", admin.Counter, "Requests that became a WebSocket.", ofWebSocket(func(l *listener) *atomic.Int64 { return &l.ws.Stats.Upgrades })),
	perListener("websocket_refused_total", admin.Counter, "Requests that did not become a WebSocket.", ofWebSocket(func(l *listener) *atomic.Int64 { return &l.ws.Stats.Refused })),
	perListener("websocket_broken_total", admin.Counter, "Connections ended because a WebSocket frame was against the rules.", ofWebSocket(func(l *listener) *atomic.Int64 { return &l.ws.Stats.Broken })),
	count("tls_handshakes_waited_total", "", "TLS handshakes that waited for others to end.", func(s *Server) *atomic.Int64 { return &s.handshakes.Stats.Waited }),
	count("tls_handshakes_evicted_total", "", "TLS handshakes of silent clients that were given up because others waited.", func(s *Server) *atomic.Int64 { return &s.handshakes.Stats.Evicted }),
	count("tls_handshake_pauses_total", "", "Pauses of TLS handshakes in a storm, for those who are connected.", func(s *Server) *atomic.Int64 { return &s.handshakes.Stats.Pauses }),
}

// hubMetrics are about the process itself.
var hubMetrics = []metric{
	{Name: "log_lines_suppressed_total", Kind: admin.Counter, Help: "Lines of the hub's own log left out because many like them came at once.",
		Read: func(s *Server, put func(float64, ...string)) {
			n := int64(0)
			if s.LogSuppressed != nil {
				n = s.LogSuppressed()
			}
			put(float64(n))
		}},
	gauge("connections_max", "", "Connections that the hub takes at most: limits.max_connections, or what the descriptors allow.", func(s *Server) float64 { return float64(s.maxConns) }),
}

// metricGroups are all metrics besides admin.StatusMetrics, under the headings of the reference.
var metricGroups = []struct {
	heading string
	list    []metric
}{
	{"Messages, sessions and the log", messageMetrics},
	{"Clients, users and rights", clientMetrics},
	{"Listeners", listenerMetrics},
	{"Disk", diskMetrics},
	{"Process", hubMetrics},
}

// metrics is everything that /metrics shows.
func (s *Server) metrics() prometheus.Gatherer {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), admin.NewStatusCollector(s))
	for _, g := range metricGroups {
		reg.MustRegister(admin.NewCollector(func() *Server { return s }, g.list))
	}
	return reg
}

// MetricsReference is docs/METRICS.md.
func MetricsReference() string {
	const head = "\n| name | type | unit | labels | meaning |\n| --- | --- | --- | --- | --- |\n"
	text := "# Metrics\n\nGenerated by `make generate` from the tables that the metrics themselves are made of; do not edit.\n\n" +
		"`/metrics` on `admin.address`, and on the admin socket, speaks the text format of Prometheus and OpenMetrics. Counters count since the\n" +
		"start of the hub. Besides these there is what Go and the process say of themselves: `go_*` and `process_*`. What is worth an alert is\n" +
		"in [OPERATIONS.md](OPERATIONS.md).\n" +
		"\n## The hub at a glance\n\nThe same numbers as `hubctl status`.\n" + head + admin.Rows(admin.StatusMetrics)
	for _, g := range metricGroups {
		text += "\n## " + g.heading + "\n" + head + admin.Rows(g.list)
	}
	return text
}
