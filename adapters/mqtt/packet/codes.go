package packet

// Reason codes of MQTT 5 (table 2-6 of the standard).
const (
	CodeSuccess                     byte = 0x00 // also: normal disconnection, granted QoS 0
	CodeGrantedQoS1                 byte = 0x01
	CodeGrantedQoS2                 byte = 0x02
	CodeDisconnectWithWill          byte = 0x04
	CodeNoMatchingSubscribers       byte = 0x10
	CodeNoSubscriptionExisted       byte = 0x11
	CodeContinueAuthentication      byte = 0x18
	CodeReauthenticate              byte = 0x19
	CodeUnspecified                 byte = 0x80
	CodeMalformedPacket             byte = 0x81
	CodeProtocolError               byte = 0x82
	CodeImplementationSpecific      byte = 0x83
	CodeUnsupportedProtocolVersion  byte = 0x84
	CodeClientIDNotValid            byte = 0x85
	CodeBadUserNameOrPassword       byte = 0x86
	CodeNotAuthorized               byte = 0x87
	CodeServerUnavailable           byte = 0x88
	CodeServerBusy                  byte = 0x89
	CodeBanned                      byte = 0x8A
	CodeServerShuttingDown          byte = 0x8B
	CodeBadAuthenticationMethod     byte = 0x8C
	CodeKeepAliveTimeout            byte = 0x8D
	CodeSessionTakenOver            byte = 0x8E
	CodeTopicFilterInvalid          byte = 0x8F
	CodeTopicNameInvalid            byte = 0x90
	CodePacketIDInUse               byte = 0x91
	CodePacketIDNotFound            byte = 0x92
	CodeReceiveMaximumExceeded      byte = 0x93
	CodeTopicAliasInvalid           byte = 0x94
	CodePacketTooLarge              byte = 0x95
	CodeMessageRateTooHigh          byte = 0x96
	CodeQuotaExceeded               byte = 0x97
	CodeAdministrativeAction        byte = 0x98
	CodePayloadFormatInvalid        byte = 0x99
	CodeRetainNotSupported          byte = 0x9A
	CodeQoSNotSupported             byte = 0x9B
	CodeUseAnotherServer            byte = 0x9C
	CodeServerMoved                 byte = 0x9D
	CodeSharedNotSupported          byte = 0x9E
	CodeConnectionRateExceeded      byte = 0x9F
	CodeMaximumConnectTime          byte = 0xA0
	CodeSubscriptionIDsNotSupported byte = 0xA1
	CodeWildcardsNotSupported       byte = 0xA2
)

// Return codes of a CONNACK in MQTT 3.1 and 3.1.1.
const (
	V3Accepted              byte = 0
	V3UnacceptableVersion   byte = 1
	V3IdentifierRejected    byte = 2
	V3ServerUnavailable     byte = 3
	V3BadUserNameOrPassword byte = 4
	V3NotAuthorized         byte = 5
)

// V3FailureCode is what a SUBACK of MQTT 3.1.1 says for a filter that was not granted.
const V3FailureCode byte = 0x80

// ConnackV3 returns the return code that MQTT 3.1 and 3.1.1 have for a reason code of MQTT 5. When they have none, ok is false and
// the connection is closed without a CONNACK [MQTT-3.2.2-6 of 3.1.1].
func ConnackV3(code byte) (rc byte, ok bool) {
	switch code {
	case CodeSuccess:
		return V3Accepted, true
	case CodeUnsupportedProtocolVersion:
		return V3UnacceptableVersion, true
	case CodeClientIDNotValid:
		return V3IdentifierRejected, true
	case CodeServerUnavailable, CodeServerBusy, CodeServerShuttingDown, CodeQuotaExceeded,
		CodeUseAnotherServer, CodeServerMoved, CodeConnectionRateExceeded:
		return V3ServerUnavailable, true
	case CodeBadUserNameOrPassword, CodeBadAuthenticationMethod:
		return V3BadUserNameOrPassword, true
	case CodeNotAuthorized, CodeBanned:
		return V3NotAuthorized, true
	}
	return 0, false
}
