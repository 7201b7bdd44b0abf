package packet

import "edgehub/hub/message"

// Decode decodes a DISCONNECT that a client sent.
//
//	reason code    1 byte, version 5 only; absent means CodeSuccess
//	properties     variable byte integer length, properties; version 5 only; absent means none
func (d *Disconnect) Decode(version byte, body []byte) error {
	*d = Disconnect{}
	if len(body) == 0 {
		return nil
	}
	if version < V5 {
		return ErrTrailing
	}
	r := reader{rest: body}
	if d.Code = r.byte(); !disconnectCode(d.Code) {
		return ErrReasonCode
	}
	if len(r.rest) == 0 {
		return nil
	}
	props := r.properties(disconnectProps)
	var v property
	for props.next(&v) {
		switch v.id {
		case propSessionExpiry:
			d.HasSessionExpiry, d.SessionExpiryS = true, v.num
		case propReason:
			d.Reason = v.data
		case propUser:
			d.User = append(d.User, message.Pair{Name: v.name, Value: v.data})
		}
	}
	if props.err != nil {
		return props.err
	}
	return r.end()
}

// disconnectCode reports whether a client may disconnect with the code.
func disconnectCode(code byte) bool {
	switch code {
	case CodeSuccess, CodeDisconnectWithWill, CodeUnspecified, CodeMalformedPacket, CodeProtocolError,
		CodeImplementationSpecific, CodeTopicNameInvalid, CodeReceiveMaximumExceeded, CodeTopicAliasInvalid,
		CodePacketTooLarge, CodeMessageRateTooHigh, CodeQuotaExceeded, CodeAdministrativeAction, CodePayloadFormatInvalid:
		return true
	}
	return false
}

// Decode decodes an AUTH that a client sent.
//
//	reason code    1 byte
//	properties     variable byte integer length, properties
func (a *Auth) Decode(version byte, body []byte) error {
	*a = Auth{}
	if version < V5 {
		return ErrTypeVersion
	}
	if len(body) == 0 { // the short form means success, which only a server says
		return ErrReasonCode
	}
	r := reader{rest: body}
	if a.Code = r.byte(); a.Code != CodeContinueAuthentication && a.Code != CodeReauthenticate {
		return ErrReasonCode
	}
	if len(r.rest) == 0 {
		return ErrAuthMethod
	}
	props := r.properties(authProps)
	var v property
	method := false
	for props.next(&v) {
		switch v.id {
		case propAuthMethod:
			method, a.Method = true, v.data
		case propAuthData:
			a.Data = v.data
		case propReason:
			a.Reason = v.data
		case propUser:
			a.User = append(a.User, message.Pair{Name: v.name, Value: v.data})
		}
	}
	if props.err != nil {
		return props.err
	}
	if !method {
		return ErrAuthMethod
	}
	return r.end()
}

// DecodePingreq checks a PINGREQ, which has no body.
func DecodePingreq(body []byte) error {
	if len(body) > 0 {
		return ErrTrailing
	}
	return nil
}
