// Package config reads the hub's configuration: one strict TOML file, checked
// whole before anything else is touched.
//
// Every key is declared once, in the tables of keys.go: its name, kind,
// default, bounds and sentence of documentation. Reading, checking, showing and
// the generated files (configs/hubd.toml, docs/CONFIG.md) all work from those
// tables. A value that the contract knows but this version cannot honour is an
// error that says so; nothing is accepted and ignored.
package config

import (
	"crypto/tls"
	"math"
	"strconv"
	"strings"
	"time"

	"edgehub/internal/certs"
)

// Bytes is an amount of bytes, written "64KiB", "1GiB", "500MB" or as a plain
// number.
type Bytes int64

// Duration is written "10s", "168h", "7d" or "1d12h".
type Duration = time.Duration

// Values of keys that name one of several choices.
const (
	ProtocolMQTT      = "mqtt"
	ProtocolWebSocket = "websocket"

	TLS12 = "1.2"
	TLS13 = "1.3"

	DurabilityMemory  = "memory"
	DurabilityWritten = "written"
	DurabilitySynced  = "synced"

	CompressionNone = "none"
	CompressionZstd = "zstd"

	ClockSynchronised = "synchronised"
	ClockTrusted      = "trusted"

	QoS0Drop  = "drop"
	QoS0Write = "write"

	OfflineDropOldest = "drop-oldest"
	OfflineDropNew    = "drop-new"
	OfflineNone       = "none"

	FullDropOldest = "drop-oldest"
	FullRejectNew  = "reject-new"

	PartitionByTopic  = "topic"
	PartitionByClient = "client"

	KindJetStream = "jetstream"

	// MainStream is the built-in stream that takes what no other stream takes.
	MainStream = "main"
)

// Config is the whole configuration. It is immutable after Load.
type Config struct {
	Hub       Hub        `toml:"hub"`
	Log       Log        `toml:"log"`
	Admin     Admin      `toml:"admin"`
	Listeners []Listener `toml:"listener"`
	Disk      Disk       `toml:"disk"`
	Auth      Auth       `toml:"auth"`
	Limits    Limits     `toml:"limits"`
	// Streams are in matching order, first match wins; MainStream is last.
	Streams []Stream `toml:"stream"`
	Uplinks []Uplink `toml:"uplink"`

	// File is where it was read from, empty for the built-in configuration.
	File string `toml:"-"`

	given map[string]bool // keys that the file has, as Show names them
}

// Hub says who this hub is and where its data lives.
type Hub struct {
	ID      string `toml:"id"`
	DataDir string `toml:"data_dir"`
	// Profile names the machine's size, which chooses other keys' defaults.
	Profile string `toml:"profile"`
	// Clock says when the machine's clock is believed.
	Clock string `toml:"clock"`
	// SysInterval is how often the $SYS topics are published, 0: never.
	SysInterval         Duration `toml:"sys_interval"`
	ResponseInformation string   `toml:"response_information"`
}

// Log is how the hub writes its own log lines.
type Log struct {
	Level  string `toml:"level"`  // debug, info, warn, error
	Format string `toml:"format"` // text, json
}

// Admin is where the hub is operated and watched.
type Admin struct {
	Socket  string `toml:"socket"`
	Address string `toml:"address"` // empty: off
}

// Listener is one address that devices connect to.
type Listener struct {
	Protocol string `toml:"protocol"`
	Address  string `toml:"address"`
	// AllowAnonymous is resolved by Load: true on loopback and Unix sockets
	// unless the file says otherwise.
	AllowAnonymous bool        `toml:"allow_anonymous"`
	MaxConnections int         `toml:"max_connections"` // 0: no limit of its own
	TLS            ListenerTLS `toml:"tls"`
	WebSocket      WebSocket   `toml:"websocket"`
}

// ListenerTLS is the TLS part of a listener. It is on when there is a CertFile.
type ListenerTLS struct {
	CertFile          string   `toml:"cert_file"`
	KeyFile           string   `toml:"key_file"`
	SNICertFiles      []string `toml:"sni_cert_files"`
	SNIKeyFiles       []string `toml:"sni_key_files"`
	ClientCAFile      string   `toml:"client_ca_file"`
	RequireClientCert bool     `toml:"require_client_cert"`
	MinVersion        string   `toml:"min_version"`
}

// WebSocket is the WebSocket part of a listener.
type WebSocket struct {
	Paths   []string `toml:"paths"`
	Origins []string `toml:"origins"` // resolved by LocalOrigins when empty
}

// Certs returns what to read for the listener's TLS.
func (l *Listener) Certs() certs.Options {
	o := certs.Options{
		Pairs:             []certs.Pair{{CertFile: l.TLS.CertFile, KeyFile: l.TLS.KeyFile}},
		ClientCAFile:      l.TLS.ClientCAFile,
		RequireClientCert: l.TLS.RequireClientCert,
		MinVersion:        tls.VersionTLS12,
		NextProtos:        []string{"mqtt"},
	}
	for i := range min(len(l.TLS.SNICertFiles), len(l.TLS.SNIKeyFiles)) {
		o.Pairs = append(o.Pairs, certs.Pair{CertFile: l.TLS.SNICertFiles[i], KeyFile: l.TLS.SNIKeyFiles[i]})
	}
	if l.TLS.MinVersion == TLS13 {
		o.MinVersion = tls.VersionTLS13
	}
	if l.Protocol == ProtocolWebSocket {
		o.NextProtos = []string{"http/1.1"}
	}
	return o
}

// LocalOrigins says whether only pages of this machine may connect: a page from
// anywhere, opened in a browser here, must not reach a hub that trusts the
// machine.
func (l *Listener) LocalOrigins() bool {
	return len(l.WebSocket.Origins) == 0 && l.TLS.CertFile == "" && isLoopback(l.Address)
}

// Disk is what happens when the disk is nearly full.
type Disk struct {
	LowBytes     Bytes    `toml:"low_bytes"`     // 0: derived from the size of the disk
	BallastBytes Bytes    `toml:"ballast_bytes"` // 0: derived from the size of the disk
	QoS0         string   `toml:"qos0"`          // drop, write
	WriteWait    Duration `toml:"write_wait"`
	SlowAfter    Duration `toml:"slow_after"`
}

// Auth names the files that say who may do what.
type Auth struct {
	UsersFile string   `toml:"users_file"`
	ACLFile   string   `toml:"acl_file"`
	BanAfter  int      `toml:"ban_after"` // failed logins; 0: never
	BanTime   Duration `toml:"ban_time"`
	// HideReasons: clients that are refused do not hear why.
	HideReasons bool `toml:"hide_reasons"`
}

// Limits bounds what clients may make the hub do and hold.
type Limits struct {
	MaxPacketBytes         Bytes    `toml:"max_packet_bytes"`
	MaxConnections         int      `toml:"max_connections"` // 0: what the descriptors allow
	ReceiveMaximum         int      `toml:"receive_maximum"`
	SessionExpiryMax       Duration `toml:"session_expiry_max"`
	Memory                 Bytes    `toml:"memory"` // 0: no soft limit
	OutboundBytesPerClient Bytes    `toml:"outbound_bytes_per_client"`
	OutboundBytes          Bytes    `toml:"outbound_bytes"`
	InboundBytes           Bytes    `toml:"inbound_bytes"`
	CatchupBytes           Bytes    `toml:"catchup_bytes"`
	IndexBytes             Bytes    `toml:"index_bytes"`
	QueuedMessages         int      `toml:"queued_messages"` // per session, 0: no limit
	QueuedBytes            Bytes    `toml:"queued_bytes"`
	OfflineBytes           Bytes    `toml:"offline_bytes"` // of all sessions, 0: no limit
	QoS0LagMax             Duration `toml:"qos0_lag_max"`
	AckHoldMax             Duration `toml:"ack_hold_max"`
	SubscriberLag          Bytes    `toml:"subscriber_lag"`
	ConnectTimeout         Duration `toml:"connect_timeout"`
	ConnectionsPerAddress  int      `toml:"connections_per_address"` // 0: no limit
	TCPUserTimeout         Duration `toml:"tcp_user_timeout"`        // 0: the kernel's
	KeepAliveMax           Duration `toml:"keep_alive_max"`          // 0: what the client asks
	TopicLevelsMax         int      `toml:"topic_levels_max"`
	SubscriptionsPerClient int      `toml:"subscriptions_per_client"`
	PublishMessagesPerS    int      `toml:"publish_messages_per_s"` // per client, 0: no limit
	PublishBytesPerS       Bytes    `toml:"publish_bytes_per_s"`
	RetainedMessages       int      `toml:"retained_messages"` // 0: no limit
	RetainedBytes          Bytes    `toml:"retained_bytes"`
	TakeoversPerMinute     int      `toml:"takeovers_per_minute"` // of one client id, 0: no limit
	QoSMax                 int      `toml:"qos_max"`
	Retain                 bool     `toml:"retain"`
	ValidatePayloadFormat  bool     `toml:"validate_payload_format"`
	Loops                  int      `toml:"loops"` // 0: one per core
}

// Stream is one durable log and the topics it captures.
type Stream struct {
	Name        string    `toml:"name"`
	Filters     []string  `toml:"filters"`
	Partitions  int       `toml:"partitions"`
	PartitionBy string    `toml:"partition_by"` // topic, client, level:N; see PartitionLevel
	Durability  string    `toml:"durability"`
	Compression string    `toml:"compression"`
	Linger      Duration  `toml:"linger"`
	Lanes       int       `toml:"lanes"`
	Retention   Retention `toml:"retention"`
	Offline     string    `toml:"offline"`
	Dedup       Dedup     `toml:"dedup"`
	// SegmentBytes is resolved by Load: derived from the retention when the
	// file does not give it.
	SegmentBytes Bytes `toml:"segment_bytes"`
}

// Retention is when a stream's oldest segments go.
type Retention struct {
	MaxAge   Duration `toml:"max_age"` // 0: no limit by age
	MaxBytes Bytes    `toml:"max_bytes"`
	// MaxRecords 0: no limit.
	MaxRecords int    `toml:"max_records"`
	Full       string `toml:"full"`
}

// Dedup is how a stream recognises a message that it already has.
type Dedup struct {
	By     string   `toml:"by"`
	Window Duration `toml:"window"`
}

// Uplink is one replicator from streams of this hub to one remote.
type Uplink struct {
	Name            string    `toml:"name"`
	Kind            string    `toml:"kind"`
	URL             string    `toml:"url"` // one, or several separated by commas
	Streams         []string  `toml:"streams"`
	Subject         string    `toml:"subject"`
	RemoteStream    string    `toml:"remote_stream"`
	Create          bool      `toml:"create"`
	Hold            bool      `toml:"hold"`
	RemoteGrace     Duration  `toml:"remote_grace"`
	Rate            Rate      `toml:"rate"`
	WindowBytes     Bytes     `toml:"window_bytes"`
	CredentialsFile string    `toml:"credentials_file"`
	CredentialsEnv  string    `toml:"credentials_env"`
	User            string    `toml:"user"`
	PasswordFile    string    `toml:"password_file"`
	PasswordEnv     string    `toml:"password_env"`
	TLS             UplinkTLS `toml:"tls"`
}

// Rate bounds what an uplink sends; 0 is no bound.
type Rate struct {
	MessagesPerS int   `toml:"messages_per_s"`
	BytesPerS    Bytes `toml:"bytes_per_s"`
}

// UplinkTLS is the TLS part of an uplink.
type UplinkTLS struct {
	CAFile     string `toml:"ca_file"`
	CertFile   string `toml:"cert_file"`
	KeyFile    string `toml:"key_file"`
	ServerName string `toml:"server_name"`
}

// Stream returns the stream of that name, or nil.
func (c *Config) Stream(name string) *Stream {
	for i := range c.Streams {
		if c.Streams[i].Name == name {
			return &c.Streams[i]
		}
	}
	return nil
}

// PartitionLevel returns N of partition_by = "level:N", counted from 1, and 0
// for the other ways to choose a partition.
func (s *Stream) PartitionLevel() int {
	digits, ok := strings.CutPrefix(s.PartitionBy, "level:")
	if !ok {
		return 0
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n < 1 || n > topicLevelsMax {
		return 0
	}
	return n
}

// URLs returns the addresses of the remote, in the order of the file.
func (u *Uplink) URLs() []string {
	var urls []string
	for _, s := range strings.Split(u.URL, ",") {
		if s = strings.TrimSpace(s); s != "" {
			urls = append(urls, s)
		}
	}
	return urls
}

// byteUnits are the accepted units, longest first so that "MiB" is not read as "B".
var byteUnits = []struct {
	name string
	size int64
}{
	{"TiB", 1 << 40},
	{"GiB", 1 << 30},
	{"MiB", 1 << 20},
	{"KiB", 1 << 10},
	{"TB", 1e12},
	{"GB", 1e9},
	{"MB", 1e6},
	{"kB", 1e3},
	{"KB", 1e3},
	{"B", 1},
}

// ParseBytes reads an amount such as "1MiB", "64 KiB", "500MB" or "4096".
func ParseBytes(s string) (Bytes, bool) {
	digits, size := strings.TrimSpace(s), int64(1)
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(digits, u.name); ok {
			digits, size = strings.TrimSpace(rest), u.size
			break
		}
	}
	if !allDigits(digits) {
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n > math.MaxInt64/size {
		return 0, false
	}
	return Bytes(n * size), true
}

// String writes the amount in the largest binary unit that divides it.
func (b Bytes) String() string {
	for _, u := range byteUnits[:4] {
		if b != 0 && int64(b)%u.size == 0 {
			return strconv.FormatInt(int64(b)/u.size, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// ParseDuration reads what time.ParseDuration reads, plus days in front:
// "7d", "1d12h". Negative durations are refused.
func ParseDuration(s string) (Duration, bool) {
	s = strings.TrimSpace(s)
	var days int64
	if head, rest, ok := strings.Cut(s, "d"); ok && allDigits(head) {
		n, err := strconv.ParseInt(head, 10, 64)
		if err != nil || n > int64(math.MaxInt64/(24*time.Hour)) {
			return 0, false
		}
		days, s = n, rest
		if s == "" {
			s = "0s"
		}
	}
	d, err := time.ParseDuration(s)
	total := time.Duration(days)*24*time.Hour + d
	if err != nil || d < 0 || total < 0 {
		return 0, false
	}
	return total, true
}

// FormatDuration writes a duration as ParseDuration reads it, without zero parts.
func FormatDuration(d Duration) string {
	const day = 24 * time.Hour
	if d >= 365*day && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func allDigits(s string) bool {
	for _, r := range s {
		if r < '0' || r > '9' {
			return false
		}
	}
	return s != ""
}
