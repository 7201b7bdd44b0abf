// Package packet decodes and encodes the control packets of MQTT 3.1, 3.1.1 and 5.
//
// Decoders take one whole packet, without its fixed header, as [Frame] cuts it from a stream. What they return aliases that input
// and is valid as long as it is. They never panic, and they allocate only in proportion to bytes that are really there, never by a
// length that a peer merely claims. Every rejection is an [*Error]: it carries the reason code that MQTT 5 has for it and names the
// statement of the standard that was broken (the statement of version 5 first, then that of 3.1.1 where it differs).
//
// Encoders append one whole packet to a slice. They trust their caller: strings are valid UTF-8 of at most 65,535 bytes.
//
// Decoding a PUBLISH or an acknowledgement and encoding one does not allocate, once the reused struct and slice have grown.
package packet

// Versions as the CONNECT packet has them in its protocol level.
const (
	V31  byte = 3 // MQTT 3.1, protocol name MQIsdp
	V311 byte = 4 // MQTT 3.1.1
	V5   byte = 5 // MQTT 5.0
)

// Packet types: the upper four bits of a packet's first byte.
const (
	TypeConnect     byte = 1
	TypeConnack     byte = 2
	TypePublish     byte = 3
	TypePuback      byte = 4
	TypePubrec      byte = 5
	TypePubrel      byte = 6
	TypePubcomp     byte = 7
	TypeSubscribe   byte = 8
	TypeSuback      byte = 9
	TypeUnsubscribe byte = 10
	TypeUnsuback    byte = 11
	TypePingreq     byte = 12
	TypePingresp    byte = 13
	TypeDisconnect  byte = 14
	TypeAuth        byte = 15
)
