package bench

// Codec speaks one protocol for one connection, without I/O. It may keep what the connection has agreed on.
type Codec interface {
	// AppendOpen encodes the first packet of a connection.
	AppendOpen(dst []byte, o *Open) []byte
	// AppendSubscribe encodes a subscription to one filter.
	AppendSubscribe(dst []byte, id uint16, filter string, qos byte) []byte
	// AppendMessage encodes a publish.
	AppendMessage(dst []byte, m *Message) []byte
	// AppendAnswer encodes what the peer waits for after the event; nothing for most.
	AppendAnswer(dst []byte, e *Event) []byte
	// AppendPing encodes a sign of life.
	AppendPing(dst []byte) []byte
	// AppendClose encodes the goodbye.
	AppendClose(dst []byte) []byte
	// Next decodes the packet at the beginning of b into e and returns its size; 0 when it is not complete. What e
	// points to aliases b.
	Next(b []byte, e *Event) (size int, err error)
}

// Open is how a connection begins.
type Open struct {
	ClientID, User, Password string
	Fresh                    bool   // start a new session
	ExpiryS                  uint32 // how long the session outlives the connection
	KeepAliveS               uint16
}

// Message is one publish.
type Message struct {
	Topic   string
	Payload []byte
	QoS     byte
	Retain  bool
	ID      uint16
}

// Kind says what an Event is.
type Kind uint8

// The kinds of events. Step is an acknowledgement in between, which only wants its answer.
const (
	Other Kind = iota
	Opened
	Subscribed
	Received
	Acked
	Step
	Pong
	Closed
)

// Event is one decoded packet.
type Event struct {
	Kind    Kind
	QoS     byte
	Present bool // Opened: the session was there before
	ID      uint16
	Window  int // Opened: unacknowledged messages that the peer takes; 0: as many as there are ids
	Payload []byte
	Refused error // Opened, Subscribed, Acked, Closed: why the peer refuses
	packet  byte  // the protocol's own type, for AppendAnswer
}
