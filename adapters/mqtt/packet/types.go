package packet

import "edgehub/hub/message"

// Connect is a decoded CONNECT. Properties are those of MQTT 5; for older versions they have their defaults.
type Connect struct {
	Version   byte // V31, V311 or V5; what the packet said, when Decode fails with ErrVersion
	Clean     bool // clean session, or clean start in MQTT 5
	KeepAlive uint16
	ClientID  []byte

	HasUsername, HasPassword bool
	Username, Password       []byte

	Will *Will // nil: no will. Owned by the Connect, overwritten by the next Decode

	HasSessionExpiry    bool
	SessionExpiryS      uint32 // 0xFFFFFFFF: never
	ReceiveMax          uint16 // 65,535 when absent
	MaxPacket           uint32 // 0: no limit
	TopicAliasMax       uint16
	RequestResponseInfo bool
	RequestProblemInfo  bool // true when absent
	HasAuthMethod       bool
	AuthMethod          []byte
	AuthData            []byte // nil: absent
	User                []message.Pair

	will Will
}

// Will is the message that the server publishes for a client that goes without DISCONNECT.
type Will struct {
	QoS       byte
	Retain    bool
	Topic     []byte
	Payload   []byte
	Props     message.Props
	DelayS    uint32
	HasExpiry bool
	ExpiryS   uint32
}

// Publish is a decoded PUBLISH. One struct can be used again for any number of packets: that makes Decode free of allocations.
type Publish struct {
	Dup, Retain bool
	QoS         byte
	ID          uint16 // 0 for QoS 0
	Topic       []byte // empty only with an Alias
	Payload     []byte
	Alias       uint16 // 0: none
	HasExpiry   bool
	ExpiryS     uint32
	Props       message.Props
	SubIDs      []uint32 // only in what a server sent
}

// Ack is a decoded PUBACK, PUBREC, PUBREL or PUBCOMP.
type Ack struct {
	ID   uint16
	Code byte
}

// Subscribe is a decoded SUBSCRIBE. One struct can be used again.
//
// Filters are well-formed strings of at least one character, but their syntax is not judged here: a server that answers SUBACK
// 0x8F (0x80) for a bad filter keeps the connection. topic.ParseShared judges it.
type Subscribe struct {
	ID      uint16
	SubID   uint32 // 0: none
	Filters []SubFilter
	User    []message.Pair
}

// SubFilter is one filter of a SUBSCRIBE with its options. MQTT 3.1 and 3.1.1 have only QoS.
type SubFilter struct {
	Filter            []byte
	QoS               byte
	NoLocal           bool
	RetainAsPublished bool
	RetainHandling    byte // 0 send retained, 1 only for a new subscription, 2 never
}

// Unsubscribe is a decoded UNSUBSCRIBE. One struct can be used again.
type Unsubscribe struct {
	ID      uint16
	Filters [][]byte
	User    []message.Pair
}

// Disconnect is a decoded DISCONNECT; its zero value is that of MQTT 3.1.1.
type Disconnect struct {
	Code             byte
	HasSessionExpiry bool
	SessionExpiryS   uint32
	Reason           []byte
	User             []message.Pair
}

// Auth is a decoded AUTH, which exists in MQTT 5 only.
type Auth struct {
	Code   byte // CodeContinueAuthentication or CodeReauthenticate
	Method []byte
	Data   []byte // nil: absent
	Reason []byte
	User   []message.Pair
}

// PublishOut is a PUBLISH to encode. For MQTT 3.1 and 3.1.1 everything below Payload is left out.
type PublishOut struct {
	Dup, Retain bool
	QoS         byte
	ID          uint16 // written for QoS 1 and 2 only
	Topic       []byte // in MQTT 5 it may be empty when Alias is set
	Payload     []byte
	Alias       uint16 // 0: none
	HasExpiry   bool
	ExpiryS     uint32
	Props       *message.Props // nil: none
	SubIDs      []uint32
}

// Connack is a CONNACK to encode. For MQTT 3.1 and 3.1.1 only SessionPresent and Code count. The zero value of a property leaves
// it out, so that the default of the standard holds.
type Connack struct {
	SessionPresent bool
	Code           byte // a reason code of MQTT 5, also for older versions: see ConnackV3

	HasSessionExpiry   bool
	SessionExpiryS     uint32
	ReceiveMax         uint16
	HasMaxQoS          bool
	MaxQoS             byte
	NoRetain           bool
	MaxPacket          uint32
	AssignedClientID   []byte
	TopicAliasMax      uint16
	Reason             string
	User               []message.Pair
	NoWildcards        bool
	NoSubIDs           bool
	NoShared           bool
	HasServerKeepAlive bool
	ServerKeepAlive    uint16
	ResponseInfo       string
	ServerReference    string
	AuthMethod         []byte
	AuthData           []byte
}
