package config

// kind is how a key's value is written and stored.
type kind int

const (
	kindText     kind = iota // string
	kindChoice               // string, one of choices
	kindInt                  // integer
	kindBool                 // true or false
	kindBytes                // "64KiB" or an integer
	kindDuration             // "10s"
	kindList                 // list of strings
)

// key declares one configuration key. It is the only place where its default,
// unit and bounds are written.
type key struct {
	name string // inside its table; a dot for an inline table, "retention.max_age"
	kind kind
	def  string // the default as the value is written; empty: none
	// computed says in words what stands in for an absent default.
	computed string
	// example is a value for messages and generated files where there is no default.
	example  string
	required bool
	min, max int64 // of integers, bytes, and nanoseconds
	// zero says what 0 means where 0 is allowed although it is below min.
	zero    string
	choices []string
	// later are values of the contract that this version refuses as not available.
	later []string
	// maxNow is the largest value this version honours, where that is less than max.
	maxNow int64
	// absent refuses any value but the default: the key is of a later version.
	absent bool
	secret bool // names a file that holds a secret: shown by name, never by content
	file   bool // the value is the path of a file that must be readable
	path   bool // the value is a path that is checked otherwise
	live   bool // a reload takes it over; the others need a restart
	check  func(value string) (what, cure string)
	doc    string
}

// table declares one TOML table or array of tables.
type table struct {
	name  string
	array bool
	live  bool // of an array: elements come and go while the hub runs; all keys of it are live
	doc   string
	keys  []key
}

const (
	kib            = 1 << 10
	mib            = 1 << 20
	gib            = 1 << 30
	tib            = 1 << 40
	second         = int64(1e9)
	hour           = 3600 * second
	topicLevelsMax = 1024

	// segmentBytesMin keeps segments from being smaller than what a loaded
	// gateway would roll every few milliseconds; segmentBytesMax keeps the tail
	// that a start verifies short.
	segmentBytesMin = 16 * kib
	segmentBytesMax = 64 * mib
)

// tables are all tables, in the order in which they are written and documented.
var tables = []table{
	{name: "hub", doc: "Who this hub is and where its data lives.", keys: hubKeys},
	{name: "log", doc: "The hub's own log lines, on standard error.", keys: logKeys},
	{name: "admin", doc: "Where the hub is operated and watched.", keys: adminKeys},
	{name: "listener", array: true, doc: "An address that devices connect to; repeat the table for several. Without any, the one shown here is used.", keys: listenerKeys},
	{name: "disk", doc: "What happens when the disk of the data directory is nearly full. Nothing is deleted for it: it is not what bounds a stream.", keys: diskKeys},
	{name: "auth", doc: "Who may do what.", keys: authKeys},
	{name: "limits", doc: "What clients may make the hub do and hold.", keys: limitKeys},
	{name: "stream", array: true, doc: "A durable log and the topics it captures; the first that matches takes a message. The stream main with filters [\"#\"] is built in and comes last; a table of that name changes its other keys.", keys: streamKeys},
	{name: "uplink", array: true, live: true, doc: "A replicator from streams to one remote. Each has its own cursor.", keys: uplinkKeys},
}

var hubKeys = []key{
	{name: "id", computed: "the host name", example: "edge-1", check: checkHubID,
		doc: "Names this hub at the remote: in subjects, in the remote stream's name and in every message's headers. 1 to 128 letters, digits, '-', '_' and '.'."},
	{name: "data_dir", def: "./data", required: true,
		doc: "The data directory: empty, missing, or one that a hub has made. Relative paths, here and below, are relative to the working directory."},
	{name: "profile", kind: kindChoice, def: ProfileNone, choices: profileNames(),
		doc: "The memory of the machine. It chooses other defaults for the keys that bound memory, listed in docs/CONFIG.md; what the file says itself still holds."},
	{name: "clock", kind: kindChoice, def: ClockSynchronised, choices: []string{ClockSynchronised, ClockTrusted},
		doc: "When the machine's clock is believed: once the kernel calls it \"synchronised\", hub time going on from the last run until then, or \"trusted\" at each start: for a machine without a time server whose clock keeps the time while it is off."},
	{name: "sys_interval", kind: kindDuration, def: "10s", min: second, max: 24 * hour, zero: "not at all",
		doc: "How often the hub's own $SYS/broker topics are published."},
	{name: "response_information", example: "response/{client}",
		doc: "Told to MQTT 5 clients that ask for response information: where they may have responses sent to. {client} stands for the client id."},
}

var logKeys = []key{
	{name: "level", live: true, kind: kindChoice, def: "info", choices: []string{"debug", "info", "warn", "error"},
		doc: "The least severe level that is written."},
	{name: "format", kind: kindChoice, def: "text", choices: []string{"text", "json"},
		doc: "How a line is written."},
}

var adminKeys = []key{
	{name: "socket", computed: "hubd.sock in the data directory", example: "./data/hubd.sock", check: checkSocket,
		doc: "The Unix socket that hubctl uses, at most 107 bytes long. Who may write to it may operate the hub."},
	{name: "address", def: "127.0.0.1:8090", check: checkAdminAddress,
		doc: "Serves /metrics, /healthz, /readyz and a page to look at. \"\" turns it off."},
}

var listenerKeys = []key{
	{name: "protocol", kind: kindChoice, def: ProtocolMQTT, choices: []string{ProtocolMQTT, ProtocolWebSocket}, later: []string{"native"},
		doc: "What is spoken on it: MQTT 3.1, 3.1.1 and 5, as it is or over WebSocket; inside TLS when tls.cert_file is given."},
	{name: "address", def: "127.0.0.1:1883", required: true, check: checkListen,
		doc: "HOST:PORT, or \"unix:PATH\" for a Unix socket that the hub's user and group may use. Without a host, or with [::], it listens on every IPv4 and IPv6 address of the machine, unless another listener has the port on 0.0.0.0. Several may have one port on different addresses."},
	{name: "allow_anonymous", kind: kindBool, computed: "true on a loopback address or a Unix socket, false elsewhere", example: "true",
		doc: "Lets clients in without a user or a certificate. On a network say true only where everyone on it may read and write everything."},
	{name: "max_connections", kind: kindInt, def: "0", min: 1, max: 10_000_000, zero: "no limit of its own",
		doc: "Connections of this listener beyond it are refused and counted. limits.max_connections holds for all together."},
	{name: "tls.cert_file", path: true, example: "server.pem", doc: "The server's certificate, PEM, with those between it and its authority behind it. It turns TLS 1.2 and 1.3 on. Changed files are read again within seconds, or at SIGHUP; connections stay."},
	{name: "tls.key_file", path: true, secret: true, example: "server.key", doc: "The key of cert_file, PEM, not encrypted."},
	{name: "tls.sni_cert_files", path: true, kind: kindList, example: "other.pem", check: checkPath, doc: "More certificates, for other host names: a client that names its host gets the first that is for it."},
	{name: "tls.sni_key_files", path: true, kind: kindList, secret: true, example: "other.key", check: checkPath, doc: "Their keys, in the same order."},
	{name: "tls.client_ca_file", path: true, example: "clients.pem", doc: "Clients are asked for a certificate, which one of these authorities must have signed, PEM. It makes the name in it the client's user."},
	{name: "tls.require_client_cert", kind: kindBool, def: "false", doc: "Refuses clients without a certificate."},
	{name: "tls.min_version", kind: kindChoice, def: TLS12, choices: []string{TLS12, TLS13}, doc: "The oldest TLS version accepted."},
	{name: "websocket.paths", kind: kindList, def: "/mqtt,/", check: checkWebPath, doc: "Where in a URL the WebSocket is; elsewhere there is nothing (404)."},
	{name: "websocket.origins", kind: kindList, computed: "pages of this machine on a loopback address without TLS, every page elsewhere", example: "https://panel.example.com", check: checkOrigin,
		doc: "The pages that a browser may connect from, \"*\" for all. Clients that are no browser are not asked."},
}

var authKeys = []key{
	{name: "users_file", live: true, path: true, check: checkUsersFile, example: "users",
		doc: "Users and their password hashes, made by `hubctl user`. Without it no user name is checked: clients are anonymous, or show a certificate. Read again by `hubctl config reload`."},
	{name: "acl_file", live: true, path: true, check: checkACLFile, example: "acl",
		doc: "Who may publish and subscribe to what; see docs/SECURITY.md. Without it, who is in may do everything. Read again by `hubctl config reload`, and in force at once."},
	{name: "ban_after", live: true, kind: kindInt, def: "10", min: 1, max: 1_000_000, zero: "never",
		doc: "Failed logins of one user from one address within ban_time, after which it is kept out for ban_time; ten times as many of any users ban the address. Not loopback addresses."},
	{name: "ban_time", live: true, kind: kindDuration, def: "5m", min: second, max: 30 * 24 * hour,
		doc: "For how long; also how long failed logins are remembered."},
	{name: "hide_reasons", live: true, kind: kindBool, def: "false",
		doc: "Clients that are refused for who they are or what they may not do hear one word for all of it, 0x80 (unspecified error), and return code 5 before MQTT 5: nothing tells which users, client ids and topics there are. Log and counters keep the reasons."},
}

var diskKeys = []key{
	{name: "low_bytes", kind: kindBytes, computed: "a twentieth of the disk, from 16MiB to 1GiB, and at most a quarter", example: "256MiB", min: mib, max: tib,
		doc: "Free space below which QoS 1 and 2 are refused: 0x97 in MQTT 5, a closed connection before. Reading, delivery and uplinks go on, and it ends by itself."},
	{name: "ballast_bytes", kind: kindBytes, computed: "a hundredth of the disk, from 4MiB to 32MiB", example: "16MiB", min: mib, max: gib,
		doc: "Size of a file that is given up when other programs take the rest, so that the hub's metadata can still be written."},
	{name: "qos0", kind: kindChoice, def: QoS0Drop, choices: []string{QoS0Drop, QoS0Write},
		doc: "What becomes of QoS 0 messages then: \"drop\" drops and counts them, \"write\" takes them as long as they fit."},
	{name: "write_wait", kind: kindDuration, def: "20ms", min: second / 1000, max: second,
		doc: "How long clients may have to wait for a write that serves others. A write that takes longer is finished beside, and only who needs it waits for it."},
	{name: "slow_after", kind: kindDuration, def: "1s", min: second / 100, max: hour,
		doc: "A write or an fdatasync that has been taking this long degrades the health, until it is over."},
}

var limitKeys = []key{
	{name: "max_packet_bytes", kind: kindBytes, def: "1MiB", min: kib, max: 256*mib - 1,
		doc: "The largest MQTT packet accepted; told to MQTT 5 clients."},
	{name: "max_connections", kind: kindInt, def: "0", min: 1, max: 10_000_000, zero: "what the open file limit allows",
		doc: "Connections beyond it are refused and counted."},
	{name: "receive_maximum", kind: kindInt, def: "1024", min: 1, max: 65535,
		doc: "QoS 1 and 2 messages a client may have unacknowledged; also the window towards a client, unless its own is smaller."},
	{name: "session_expiry_max", kind: kindDuration, def: "168h", max: 49711 * 24 * hour,
		doc: "How long a disconnected session is kept at most. \"0s\" keeps none; \"49711d\" is no limit: sessions may last for ever."},
	{name: "memory", live: true, kind: kindBytes, min: 32 * mib, max: 16 * tib, zero: "no limit", example: "256MiB",
		doc: "Soft limit of the whole process: near it the garbage collector works harder. \"\" sets none."},
	{name: "outbound_bytes_per_client", kind: kindBytes, def: "1MiB", min: 16 * kib, max: gib,
		doc: "Bytes that wait for one slow connection. Beyond it QoS 0 is dropped and counted, QoS 1 and 2 stay in the log."},
	{name: "outbound_bytes", kind: kindBytes, def: "64MiB", min: mib, max: tib,
		doc: "The same for all connections together."},
	{name: "inbound_bytes", kind: kindBytes, def: "64MiB", min: mib, max: tib,
		doc: "Bytes received and not yet committed to the log, for each partition. Beyond it publishes are refused: 0x97 in MQTT 5, a closed connection before."},
	{name: "catchup_bytes", kind: kindBytes, def: "16MiB", min: mib, max: 64 * gib,
		doc: "Bytes read from disk at one time for clients that catch up, all together."},
	{name: "index_bytes", kind: kindBytes, def: "20MiB", min: 10 * mib, max: gib,
		doc: "Memory of the index of the metadata (Badger): tables being filled, and caches."},
	{name: "queued_messages", kind: kindInt, def: "100000", min: 1, max: 1_000_000_000, zero: "no limit",
		doc: "When retention deletes a segment, QoS 1 and 2 messages in it that a session still has to receive are copied. This is how many copies one session may wait for; beyond it stream.offline decides. Those in the streams do not count, but where they alone are as many, none is copied."},
	{name: "queued_bytes", kind: kindBytes, def: "64MiB", min: kib, max: tib, zero: "no limit",
		doc: "The same in bytes of topics, payloads and properties."},
	{name: "offline_bytes", kind: kindBytes, def: "256MiB", min: mib, max: 1024 * tib, zero: "no limit",
		doc: "What the copies for all sessions may take on disk; a copy is there once, however many sessions wait for it. Beyond it the oldest go, and are counted."},
	{name: "qos0_lag_max", kind: kindDuration, def: "30s", min: second / 10, max: 24 * hour,
		doc: "QoS 0 messages that a connected client is too slow to take are read from the log later, up to this age; older ones are dropped and counted."},
	{name: "ack_hold_max", kind: kindDuration, def: "100ms", max: 10 * second,
		doc: "While a connected subscriber is behind by more than subscriber_lag and gaining ground, acknowledgements wait for it, each this long at most: publishers go at its pace instead of outrunning it. \"0s\" never waits."},
	{name: "subscriber_lag", kind: kindBytes, def: "1MiB", min: 64 * kib, max: gib,
		doc: "Bytes of a partition that a connected subscriber may be behind before publishers wait for it."},
	{name: "connect_timeout", kind: kindDuration, def: "10s", min: second / 10, max: hour,
		doc: "A connection that has not sent a whole CONNECT by then is closed; TLS and WebSocket handshakes are part of it."},
	{name: "connections_per_address", kind: kindInt, def: "0", min: 1, max: 10_000_000, zero: "no limit",
		doc: "Connections from one IPv4 address or IPv6 /64 network beyond it are refused and counted."},
	{name: "tcp_user_timeout", kind: kindDuration, def: "2m", min: second, max: 24 * hour, zero: "what the kernel does, about a quarter of an hour",
		doc: "A client whose machine does not acknowledge what was sent, or takes nothing, for this long is gone."},
	{name: "keep_alive_max", kind: kindDuration, def: "0s", min: second, max: 65535 * second, zero: "what the client asks for",
		doc: "The longest keep-alive; a longer or absent one is shortened to it, and MQTT 5 clients are told."},
	{name: "topic_levels_max", kind: kindInt, def: "128", min: 1, max: topicLevelsMax,
		doc: "Levels of a topic or filter."},
	{name: "subscriptions_per_client", kind: kindInt, def: "1000", min: 1, max: 1_000_000,
		doc: "Filters one session may hold."},
	{name: "publish_messages_per_s", kind: kindInt, def: "0", min: 1, max: 100_000_000, zero: "no limit",
		doc: "Messages a client may publish per second. Beyond it QoS 0 is dropped and QoS 1 and 2 refused: 0x97 in MQTT 5, a closed connection before; both are counted."},
	{name: "publish_bytes_per_s", kind: kindBytes, def: "0", min: kib, max: tib, zero: "no limit",
		doc: "The same for bytes of topics and payloads."},
	{name: "retained_messages", kind: kindInt, def: "1000000", min: 1, max: 1_000_000_000, zero: "no limit",
		doc: "Topics with a retained message. Retained messages for more topics are refused and counted."},
	{name: "retained_bytes", kind: kindBytes, def: "1GiB", min: kib, max: 1024 * tib, zero: "no limit",
		doc: "Bytes of all retained topics and payloads together; they are kept whatever a stream's retention says."},
	{name: "takeovers_per_minute", kind: kindInt, def: "60", min: 1, max: 1_000_000, zero: "no limit",
		doc: "How often connections with the same client id may take the session from each other. Beyond it new ones are refused and counted until the minute is over."},
	{name: "qos_max", kind: kindInt, def: "2", max: 2,
		doc: "The highest QoS of publishes. Above it the connection is closed, in MQTT 5 with 0x9B; MQTT 5 clients are told before, and subscriptions are granted no more."},
	{name: "retain", kind: kindBool, def: "true",
		doc: "Takes retained messages. Without, a publish or will with RETAIN closes the connection, in MQTT 5 with 0x9A; MQTT 5 clients are told before."},
	{name: "validate_payload_format", kind: kindBool, def: "false",
		doc: "Refuses MQTT 5 messages whose payload is said to be UTF-8 and is not."},
	{name: "loops", kind: kindInt, def: "0", min: 1, max: 1024, zero: "one per core",
		doc: "Event loops that serve the connections."},
}

var streamKeys = []key{
	{name: "name", required: true, example: "telemetry", check: checkName,
		doc: "1 to 64 letters, digits, '-' and '_'. Its directory under the data directory has this name."},
	{name: "filters", kind: kindList, required: true, example: "devices/+/telemetry", check: checkFilter,
		doc: "MQTT topic filters. Topics that begin with '$' are captured only by a filter that names them."},
	{name: "partitions", kind: kindInt, def: "4", min: 1, max: 1024,
		doc: "Order holds inside a partition. May not change once the stream has data."},
	{name: "partition_by", def: PartitionByTopic, required: true, check: checkPartitionBy,
		doc: "What chooses the partition: \"topic\", \"client\" (the publisher's client id), or \"level:N\" (the topic's Nth level, from 1)."},
	{name: "durability", kind: kindChoice, def: DurabilityWritten, choices: []string{DurabilityMemory, DurabilityWritten, DurabilitySynced}, later: []string{"uplinked"},
		doc: "When a message is acknowledged: \"memory\" at once, written within linger, for data that the next second replaces; \"written\" survives kill -9, \"synced\" survives a power cut."},
	{name: "compression", kind: kindChoice, def: "none", choices: []string{CompressionNone, CompressionZstd}, later: []string{"lz4", "snappy", "gzip"},
		doc: "Of the record batches on disk. Give linger as well, or batches of a quiet stream are too small to compress."},
	{name: "linger", kind: kindDuration, def: "0s", min: second / 1000, max: 10 * second, zero: "not at all, and 100ms with durability memory",
		doc: "How long messages wait for others to be written with, up to 64KiB of them. Acknowledgements wait as long, except with durability memory: there it is how much may be lost."},
	{name: "lanes", kind: kindInt, def: "1", min: 1, max: 10, maxNow: 1,
		doc: "Priority classes, each a log of its own."},
	{name: "retention.max_age", live: true, kind: kindDuration, def: "168h", min: second, max: 100 * 365 * 24 * hour, zero: "no limit by age",
		doc: "Segments whose newest record is older are deleted."},
	{name: "retention.max_bytes", live: true, kind: kindBytes, def: "1GiB", min: 32 * kib, max: 1024 * tib,
		doc: "The hard limit of the whole stream on disk."},
	{name: "retention.max_records", live: true, kind: kindInt, def: "0", min: 1, max: 2_000_000_000, zero: "no limit by number",
		doc: "The hard limit of the number of records in the whole stream; segments are kept small enough for it."},
	{name: "retention.full", live: true, kind: kindChoice, def: FullDropOldest, choices: []string{FullDropOldest, FullRejectNew},
		doc: "What happens at max_bytes and max_records: the oldest segments are dropped and counted, or new messages are refused."},
	{name: "offline", kind: kindChoice, def: OfflineDropOldest, choices: []string{OfflineDropOldest, OfflineDropNew, OfflineNone},
		doc: "Messages that sessions still have to receive when retention deletes their segment are copied. At limits.queued_* a session loses its oldest copies, or gets no more (\"drop-new\"). \"none\" copies nothing of this stream."},
	{name: "dedup.by", kind: kindChoice, def: "none", choices: []string{"none"}, later: []string{"message-id", "content"},
		doc: "What tells that a message has been seen before."},
	{name: "dedup.window", kind: kindDuration, def: "10m", min: second, max: 365 * 24 * hour,
		doc: "For how long a message is remembered."},
	{name: "segment_bytes", kind: kindBytes, computed: "a quarter of a partition's share of max_bytes, from 16KiB to 64MiB", example: "64MiB",
		min: segmentBytesMin, max: gib,
		doc: "Size at which a segment file is closed and the next begun. Two per partition must fit into max_bytes."},
}

var uplinkKeys = []key{
	{live: true, name: "name", required: true, example: "cloud", check: checkName,
		doc: "1 to 64 letters, digits, '-' and '_'."},
	{live: true, name: "kind", kind: kindChoice, def: KindJetStream, choices: []string{KindJetStream}, later: []string{"kafka", "mqtt"},
		doc: "What the remote is."},
	{live: true, name: "url", required: true, example: "nats://127.0.0.1:4222", check: checkURL,
		doc: "Where the remote is; several servers of one cluster separated by commas. nats:// or tls://. No password in it: use user with password_file or password_env."},
	{live: true, name: "streams", kind: kindList, computed: "every stream", example: "telemetry", check: checkName,
		doc: "The streams it forwards."},
	{live: true, name: "subject", def: "edge.{hub}.{topic}", required: true, check: checkSubject,
		doc: "The subject a message gets at the remote. {hub} stands for the hub id, {stream}, a part of its own, for the stream, {topic}, the last part, for the topic's levels."},
	{live: true, name: "remote_stream", def: "EDGE-{hub}", required: true, check: checkRemoteStream,
		doc: "The remote stream. Only this hub may write to it: the order and the count of messages rest on that."},
	{live: true, name: "create", kind: kindBool, def: "true", doc: "Creates the remote stream when it is missing."},
	{live: true, name: "hold", kind: kindBool, def: "true", doc: "Retention by age waits for this uplink. retention.max_bytes does not."},
	{live: true, name: "remote_grace", kind: kindDuration, def: "5m", max: 30 * 24 * hour,
		doc: "How long acknowledged data is kept here as well, for a remote that loses power."},
	{live: true, name: "rate.messages_per_s", kind: kindInt, def: "0", min: 1, max: 100_000_000, zero: "no limit", doc: "Messages sent per second at most."},
	{live: true, name: "rate.bytes_per_s", kind: kindBytes, def: "0", min: kib, max: tib, zero: "no limit", doc: "Bytes sent per second at most."},
	{live: true, name: "window_bytes", kind: kindBytes, def: "8MiB", min: 256 * kib, max: gib,
		doc: "Bytes sent and not yet acknowledged."},
	{live: true, name: "credentials_file", secret: true, file: true, example: "cloud.creds", doc: "NATS credentials (JWT and seed), or the seed of an nkey alone."},
	{live: true, name: "credentials_env", example: "CLOUD_CREDENTIALS", check: checkEnv, doc: "The same from an environment variable of hubd: this is its name."},
	{live: true, name: "user", example: "edge", doc: "User name at the remote; needs password_file or password_env."},
	{live: true, name: "password_file", secret: true, file: true, example: "cloud.password", doc: "File whose first line is the password of user."},
	{live: true, name: "password_env", example: "CLOUD_PASSWORD", check: checkEnv, doc: "The environment variable of hubd that holds the password of user: its name, never the password."},
	{live: true, name: "tls.ca_file", file: true, example: "ca.pem", doc: "Whose certificates the remote may show, PEM; without it, the machine's."},
	{live: true, name: "tls.cert_file", file: true, example: "edge.pem", doc: "The certificate this hub shows, PEM; needs key_file."},
	{live: true, name: "tls.key_file", secret: true, file: true, example: "edge.key", doc: "The key of cert_file, PEM."},
	{live: true, name: "tls.server_name", example: "nats.example.com", doc: "The name the remote's certificate must have, where it differs from the url."},
}
