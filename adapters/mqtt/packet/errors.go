package packet

import "errors"

// Error says why a packet was refused. Errors are sentinels: compare with errors.Is.
type Error struct {
	Code byte   // reason code of MQTT 5 for the CONNACK or DISCONNECT; MQTT 3.1.1 closes, except for what ConnackV3 knows
	Text string // the cause, with the statements of the standard that it breaks
}

// Error implements error.
func (e *Error) Error() string { return "mqtt: " + e.Text }

// Code returns the reason code of a decoder's error, CodeUnspecified for any other error, and CodeSuccess for nil.
func Code(err error) byte {
	if err == nil {
		return CodeSuccess
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return CodeUnspecified
}

func malformed(text string) *Error { return &Error{CodeMalformedPacket, text} }
func protocol(text string) *Error  { return &Error{CodeProtocolError, text} }

// Causes that any packet can have.
var (
	ErrTooLarge     = &Error{CodePacketTooLarge, "packet is larger than the limit [MQTT-3.1.2-24]"}
	ErrLength       = malformed("remaining length takes more than four bytes [MQTT-1.5.5-1]")
	ErrLengthForm   = malformed("length is not in its shortest form [MQTT-1.5.5-1]")
	ErrType         = malformed("packet type 0 is reserved [MQTT-2.1.2]")
	ErrTypeVersion  = malformed("AUTH does not exist before version 5 [MQTT-2.2.1 of 3.1.1]")
	ErrFlags        = malformed("reserved flags of the fixed header are wrong [MQTT-2.1.3-1] [MQTT-2.2.2-2 of 3.1.1]")
	ErrTruncated    = malformed("packet ends inside a field [MQTT-4.13.1-1] [MQTT-4.8.0-1 of 3.1.1]")
	ErrTrailing     = malformed("packet has bytes after its last field [MQTT-4.13.1-1] [MQTT-4.8.0-1 of 3.1.1]")
	ErrUTF8         = malformed("string is not valid UTF-8 [MQTT-1.5.4-1] [MQTT-1.5.3-1 of 3.1.1]")
	ErrNUL          = malformed("string holds U+0000 [MQTT-1.5.4-2] [MQTT-1.5.3-2 of 3.1.1]")
	ErrPacketID     = protocol("packet identifier is 0 [MQTT-2.2.1-3] [MQTT-2.3.1-1 of 3.1.1]")
	ErrReasonCode   = protocol("reason code does not belong to this packet [MQTT-3.4.2-1] [MQTT-3.14.2-1]")
	ErrProperty     = malformed("property is unknown or not allowed in this packet [MQTT-2.2.2.2]")
	ErrPropertyLen  = malformed("properties are longer than the packet, or end inside one [MQTT-2.2.2.1]")
	ErrPropertyDup  = protocol("property is there twice [MQTT-2.2.2.2]")
	ErrPropertyBool = protocol("property must be 0 or 1 [MQTT-2.2.2.2]")
)

// Causes of a refused CONNECT.
var (
	ErrProtocolName   = &Error{CodeUnsupportedProtocolVersion, "protocol name is not MQTT [MQTT-3.1.2-1]"}
	ErrVersion        = &Error{CodeUnsupportedProtocolVersion, "protocol version is not supported [MQTT-3.1.2-2]"}
	ErrConnectFlags   = malformed("reserved flag of CONNECT is set [MQTT-3.1.2-3]")
	ErrWillFlags      = malformed("will QoS or will retain without will flag [MQTT-3.1.2-11] [MQTT-3.1.2-13]")
	ErrWillQoS        = malformed("will QoS is 3 [MQTT-3.1.2-12] [MQTT-3.1.2-14 of 3.1.1]")
	ErrPasswordAlone  = malformed("password flag without user name flag [MQTT-3.1.2-22 of 3.1.1]")
	ErrClientID       = &Error{CodeClientIDNotValid, "client identifier is empty without clean session [MQTT-3.1.3-8 of 3.1.1]"}
	ErrReceiveMax     = protocol("receive maximum is 0 [MQTT-3.1.2.11.3]")
	ErrMaxPacket      = protocol("maximum packet size is 0 [MQTT-3.1.2.11.4]")
	ErrAuthData       = protocol("authentication data without a method [MQTT-3.1.2.11.10]")
	ErrAuthMethod     = protocol("AUTH without an authentication method [MQTT-3.15.2.2.2]")
	ErrResponseTopic  = protocol("response topic has wildcards or is empty [MQTT-3.3.2-14]")
	ErrWillTopic      = &Error{CodeTopicNameInvalid, "will topic has wildcards or is empty [MQTT-3.1.3-11] [MQTT-4.7.1-1]"}
	ErrPublishQoS     = malformed("QoS is 3 [MQTT-3.3.1-4]")
	ErrPublishDup     = malformed("DUP with QoS 0 [MQTT-3.3.1-2]")
	ErrTopicName      = &Error{CodeTopicNameInvalid, "topic name has wildcards [MQTT-3.3.2-2]"}
	ErrTopicEmpty     = protocol("topic name is empty and there is no alias [MQTT-4.7.3-1]")
	ErrAlias          = &Error{CodeTopicAliasInvalid, "topic alias is 0 [MQTT-3.3.2-8]"}
	ErrSubIDSent      = protocol("client sent a subscription identifier in PUBLISH [MQTT-3.3.4-6]")
	ErrSubID          = protocol("subscription identifier is 0 [MQTT-3.8.2.1.2]")
	ErrNoFilters      = protocol("no topic filter [MQTT-3.8.3-2] [MQTT-3.10.3-2]")
	ErrFilterEmpty    = malformed("topic filter is empty [MQTT-4.7.3-1]")
	ErrSubOptions     = malformed("reserved bits of the subscription options are set [MQTT-3.8.3-5] [MQTT-3-8.3-4 of 3.1.1]")
	ErrSubQoS         = protocol("requested QoS is 3 [MQTT-3.8.3.1] [MQTT-3-8.3-4 of 3.1.1]")
	ErrRetainHandling = protocol("retain handling is 3 [MQTT-3.8.3.1]")
	ErrNoLocalShared  = protocol("no local on a shared subscription [MQTT-3.8.3-4]")
)
