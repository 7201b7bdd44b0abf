package mqtt

import (
	"crypto/rand"
	"encoding/hex"
	"net"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"

	"edgehub/adapters/eventloop"
	"edgehub/adapters/mqtt/packet"
	"edgehub/hub/auth"
	"edgehub/hub/broker"
	"edgehub/hub/message"
)

// onConnect handles CONNECT: everything that can refuse it, then the session is asked for.
func (c *Conn) onConnect(body []byte) error {
	p := &c.l.con
	*p = packet.Connect{}
	err := p.Decode(body)
	c.version = p.Version
	if err != nil {
		return err
	}
	c.problems = p.RequestProblemInfo
	switch {
	case p.HasAuthMethod:
		c.refuse(packet.CodeBadAuthenticationMethod, "this hub has no extended authentication")
		return nil
	case c.l.s.draining.Load():
		c.refuse(packet.CodeServerShuttingDown, "the hub is stopping")
		return nil
	}
	req, assigned, err := c.request(p)
	if err != nil {
		return err
	}
	verdict, decided := c.login(p, req)
	if decided && verdict.Code != auth.CodeOK {
		c.deny(verdict.Code, verdict.Why)
		return nil
	}
	c.settle(p)
	c.phase = phaseWaiting
	c.pending(p, req.ClientID, assigned)
	if decided {
		c.enter(verdict.User, req)
	}
	return nil
}

// login asks who the client is. When a password has to be hashed the answer comes later, to loggedIn.
func (c *Conn) login(p *packet.Connect, req broker.ConnectRequest) (v auth.Verdict, decided bool) {
	q := &auth.Attempt{ClientID: req.ClientID, Address: remoteIP(c.t.RemoteAddr()), Anonymous: c.l.s.o.Listeners[c.on].AllowAnonymous,
		HasUser: p.HasUsername, User: string(p.Username), Password: slices.Clone(p.Password), CertName: c.certName()}
	return c.l.s.o.Auth.Login(q, func(v auth.Verdict) {
		c.l.b.Post(func() { c.loggedIn(v, req) })
	})
}

func (c *Conn) loggedIn(v auth.Verdict, req broker.ConnectRequest) {
	switch {
	case c.phase != phaseWaiting: // closed, or given up, in the meantime
	case v.Code != auth.CodeOK:
		c.deny(v.Code, v.Why)
	case c.l.s.draining.Load():
		c.turnAway(packet.CodeServerShuttingDown, "the hub is stopping")
	default:
		c.enter(v.User, req)
	}
}

// told is what a client hears when it is refused for who it is or what it may not do. With reasons hidden it is one
// answer for all of these: whoever tries names and topics does not learn which of them exist.
func (c *Conn) told(code byte) byte {
	if !c.l.s.hide.Load() {
		return code
	}
	switch code {
	case packet.CodeClientIDNotValid, packet.CodeBadUserNameOrPassword, packet.CodeNotAuthorized, packet.CodeBanned:
		return packet.CodeUnspecified
	}
	return code
}

// deny refuses a client that is not let in.
func (c *Conn) deny(code byte, why string) {
	hidden := c.told(code)
	switch {
	case hidden == code:
	case c.version < packet.V5: // these have no word for it, and would be closed without an answer
		code = packet.CodeNotAuthorized
	default:
		code, why = hidden, ""
	}
	c.l.s.o.Logger.Debug("client denied", "remote", c.t.RemoteAddr(), "why", why, "code", code)
	c.turnAway(code, why)
}

// turnAway refuses a client, also when it has a CONNACK prepared.
func (c *Conn) turnAway(code byte, why string) {
	c.l.giveBuffer(c)
	c.refuse(code, why)
}

// enter asks for the session of a client that is let in.
func (c *Conn) enter(user string, req broker.ConnectRequest) {
	req.User = user
	if c.l.s.o.Broker.Foreign(req.ClientID, user) {
		// Asked before the next question: somebody else's attempts must not count as the owner's.
		c.deny(packet.CodeClientIDNotValid, "the client id is another user's")
		return
	}
	if c.l.b.Flaps(req.ClientID) {
		c.turnAway(packet.CodeConnectionRateExceeded, "connections take this client id from each other too often")
		return
	}
	if w := req.Will; w != nil && !c.l.s.o.Auth.Rights(user, req.ClientID).MayPublish(string(w.Msg.Topic)) {
		c.deny(packet.CodeNotAuthorized, "the will's topic is not allowed")
		return
	}
	c.l.dirty = true
	if code := c.l.b.Connect(c, req); code != broker.CodeOK { // somebody was faster
		c.deny(code, "the client id is another user's")
		return
	}
	c.l.s.Stats.Connects.Add(1)
}

// remoteIP is the client's IP address; the zero value where it has none.
func remoteIP(a net.Addr) netip.Addr {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// certName is the name in the client's certificate, where the listener has verified one.
func (c *Conn) certName() string {
	st, ok := eventloop.TLSState(c.t)
	if !ok || len(st.VerifiedChains) == 0 {
		return ""
	}
	leaf := st.VerifiedChains[0][0]
	if leaf.Subject.CommonName != "" || len(leaf.DNSNames) == 0 {
		return leaf.Subject.CommonName
	}
	return leaf.DNSNames[0]
}

// request is what the CONNECT asks of the broker.
func (c *Conn) request(p *packet.Connect) (req broker.ConnectRequest, assigned string, err error) {
	id := string(p.ClientID)
	if id == "" {
		var b [12]byte
		_, _ = rand.Read(b[:]) // never fails
		id = "auto-" + hex.EncodeToString(b[:])
		assigned = id
	}
	req = broker.ConnectRequest{ClientID: id, Clean: p.Clean, Window: int(p.ReceiveMax)}
	switch {
	case c.version >= packet.V5:
		req.Expiry = min(p.SessionExpiryS, c.l.s.o.SessionExpiryMax)
	case !p.Clean:
		req.Expiry = c.l.s.o.SessionExpiryMax
	}
	c.expires, c.clean = req.Expiry > 0, p.Clean
	if p.Will == nil {
		return req, assigned, nil
	}
	switch {
	case hubTopic(p.Will.Topic):
		return req, "", errTopicHub
	case p.Will.QoS > c.l.s.o.QoSMax:
		return req, "", errQoS
	case p.Will.Retain && c.l.s.o.NoRetain:
		return req, "", errRetain
	}
	if c.l.s.o.ValidatePayload && p.Will.Props.UTF8 && !utf8.Valid(p.Will.Payload) {
		return req, "", errPayload
	}
	w := p.Will
	req.Will = &broker.Will{DelayS: w.DelayS, Msg: message.Message{
		Topic: slices.Clone(w.Topic), Payload: slices.Clone(w.Payload), QoS: w.QoS, Retain: w.Retain, Props: w.Props.Clone()}}
	if w.HasExpiry {
		req.Will.Msg.ExpiresMs = max(int64(w.ExpiryS)*1000, 1)
	}
	return req, assigned, nil
}

// settle takes over what the connection itself needs of the CONNECT.
func (c *Conn) settle(p *packet.Connect) {
	c.maxPacket = p.MaxPacket
	if p.TopicAliasMax > 0 {
		c.more().given = &given{max: min(int(p.TopicAliasMax), aliasesGiven), names: map[string]uint16{}}
	}
	c.keepAlive = p.KeepAlive
	if m := c.l.s.o.KeepAliveMax; m > 0 && (c.keepAlive == 0 || int(c.keepAlive) > m) {
		c.keepAlive = uint16(min(m, 65535))
	}
	if c.version < packet.V5 { // older clients are not told, so theirs holds
		c.keepAlive = p.KeepAlive
	}
}

// pending prepares the CONNACK; it is sent by Attached.
func (c *Conn) pending(p *packet.Connect, id, assigned string) {
	o := &c.l.s.o
	ack := packet.Connack{
		ReceiveMax:    uint16(min(o.ReceiveMaximum, 65535)),
		MaxPacket:     uint32(o.MaxPacket),
		TopicAliasMax: aliasMax,
		HasMaxQoS:     true,
		MaxQoS:        o.QoSMax,
		NoRetain:      o.NoRetain,
	}
	if p.RequestResponseInfo && o.ResponseInfo != "" {
		ack.ResponseInfo = strings.ReplaceAll(o.ResponseInfo, "{client}", id)
	}
	if assigned != "" {
		ack.AssignedClientID = []byte(assigned)
	}
	if p.SessionExpiryS != min(p.SessionExpiryS, o.SessionExpiryMax) {
		ack.HasSessionExpiry, ack.SessionExpiryS = true, min(p.SessionExpiryS, o.SessionExpiryMax)
	}
	if c.keepAlive != p.KeepAlive {
		ack.HasServerKeepAlive, ack.ServerKeepAlive = true, c.keepAlive
	}
	// Encoded now with "session present" clear; Attached sets the bit, which is the third byte from the properties on.
	c.queueQuiet(packet.AppendConnack(c.buffer(), c.version, &ack))
}

// queueQuiet takes the grown out buffer without having it flushed yet.
func (c *Conn) queueQuiet(b []byte) {
	c.l.wire.packetsOut++
	c.l.queued += len(b) - len(c.out)
	c.out = b
}

// Attached implements broker.Conn: the session is here, CONNECT is answered.
func (c *Conn) Attached(client *broker.Client, present bool) {
	c.client = client
	if c.phase != phaseWaiting { // closed in the meantime
		c.l.b.AtSafePoint(c.disconnect)
		return
	}
	c.phase = phaseConnected
	if present && c.version > packet.V31 { // reserved in MQTT 3.1
		c.out[connackFlags(c.out)] |= 1
	}
	c.l.wheel.remove(c)
	c.l.wheel.add(c, c.seenMs+max(c.keepAliveMs(), wheelStepMs))
	c.markDirty()
	if c.need == 0 && c.l.handling != c {
		eventloop.Nudge(c.t) // input that was held while the session was on its way
	}
}

// connackFlags is where the acknowledge flags of the CONNACK at the start of b are: behind the remaining length.
func connackFlags(b []byte) int {
	i := 1
	for b[i] >= 0x80 {
		i++
	}
	return i + 1
}

// refuse answers CONNECT with a reason and closes. Versions before 5 have few codes; for the rest they just close.
func (c *Conn) refuse(code byte, reason string) {
	c.l.s.Stats.Refused.Add(1)
	known := c.version == packet.V31 || c.version == packet.V311
	version := min(c.version, packet.V5)
	if !known && c.version < packet.V5 {
		if c.version == 0 || code != packet.CodeUnsupportedProtocolVersion { // not even the version could be read
			c.end(0)
			return
		}
		version, known = packet.V311, true // an older one is told in the oldest words there are [MQTT-3.1.2-2]
	}
	if known {
		if _, ok := packet.ConnackV3(code); !ok {
			c.end(0)
			return
		}
	}
	if !c.problems {
		reason = ""
	}
	c.queue(packet.AppendConnack(c.buffer(), version, &packet.Connack{Code: code, Reason: reason}))
	c.words = true
	c.end(0)
}

// onDisconnect handles DISCONNECT: the client is going on purpose.
func (c *Conn) onDisconnect(body []byte) error {
	var p packet.Disconnect
	if err := p.Decode(c.version, body); err != nil {
		return err
	}
	if p.HasSessionExpiry {
		if !c.expires && p.SessionExpiryS > 0 {
			return errExpiry
		}
		c.client.SetExpiry(c.l.b, p.SessionExpiryS)
	}
	if p.Code != packet.CodeDisconnectWithWill {
		c.l.b.DropWill(c.client)
	}
	c.end(0)
	return nil
}

// onAuth: no CONNECT with an authentication method is ever accepted, so every AUTH is one too many.
func (c *Conn) onAuth(body []byte) error {
	var p packet.Auth
	if err := p.Decode(c.version, body); err != nil {
		return err
	}
	return errAuth
}

func hubTopic(name []byte) bool {
	return len(name) >= 4 && string(name[:4]) == "$SYS" && (len(name) == 4 || name[4] == '/')
}

const aliasMax = 16

// aliases are the topic aliases that a client has set.
type aliases [aliasMax + 1]string
