// Package message is the hub's application message and the form that it has as a record of a log.
//
// The record's key is the topic, its value the payload, its timestamp the hub time of arrival. Everything else is in headers, and
// only when it is not the default (QoS 1, not retained, nothing more). The hub's own header keys begin with a NUL byte, which no MQTT
// string can hold, so no user property can forge one:
//
//	\0f  flags, 1 byte: bits 0-1 QoS, bit 2 retain, the others 0
//	\0e  expiry, 8 bytes, big-endian: hub time in ms at which the message expires
//	\0u  payload is UTF-8 text; empty
//	\0c  content type
//	\0r  response topic
//	\0d  correlation data
//	\0q  identity of a QoS 2 publish: 8 bytes session sequence, 2 bytes packet id, big-endian; then the publisher's client id
//	\0s  publisher's client id, kept when a No Local subscription may ask for it and \0q does not have it
//	\0o  of a copy: 8 bytes offset and 8 bytes time, big-endian, of the record that it stands for; then the name of its partition
//	\0a  reserved
//
// Every other header is a user property under its own name, in the publisher's order with duplicates. Own headers that a reader does
// not know are skipped: a later version may add some.
package message

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
	"unsafe"

	"edgehub/storage/seglog"
)

// ErrRecord is the error of a record that no version of the hub has written.
var ErrRecord = errors.New("message: record is not a message of the hub")

const (
	keyFlags       = "\x00f"
	keyExpiry      = "\x00e"
	keyUTF8        = "\x00u"
	keyContentType = "\x00c"
	keyResponse    = "\x00r"
	keyCorrelation = "\x00d"
	keyQoS2        = "\x00q"
	keyPublisher   = "\x00s"
	keyPlace       = "\x00o"

	flagRetain = 1 << 2

	defaultQoS = 1
	lengthMax  = 65535 // of topics and of strings and binary data in MQTT
)

// Message is one application message. All slices alias their source: the packet it came in, or the chunk of log it was read from.
type Message struct {
	Topic, Payload []byte
	TimeMs         int64
	QoS            byte
	Retain         bool  // the publisher set RETAIN
	ExpiresMs      int64 // hub time; 0: never
	Props          Props
	Origin         Origin
}

// Origin says who published a message, as far as somebody will ask.
type Origin struct {
	Client   []byte // publisher's client id; nil: not kept
	QoS2Seq  uint64 // with PacketID and Client: which QoS 2 publish this is, so that it is recognised after a crash
	PacketID uint16 // 0: not QoS 2
	NoLocal  bool   // keep Client for No Local subscriptions; after Decode: Client is known
}

var present = []byte{} // an empty value that is there

// AppendHeaders appends to h what is not the default. It does not allocate beyond the growth of h.
func (m *Message) AppendHeaders(h *seglog.Headers) {
	if m.QoS != defaultQoS || m.Retain {
		f := [1]byte{m.QoS}
		if m.Retain {
			f[0] |= flagRetain
		}
		h.Append(keyFlags, f[:])
	}
	if m.ExpiresMs != 0 {
		var b [8]byte
		binary.BigEndian.PutUint64(b[:], uint64(m.ExpiresMs))
		h.Append(keyExpiry, b[:])
	}
	m.Origin.appendHeaders(h)
	if !m.Props.Empty() {
		m.Props.appendHeaders(h)
	}
}

func (o *Origin) appendHeaders(h *seglog.Headers) {
	switch {
	case o.PacketID != 0:
		// The client id is at most lengthMax bytes, nearly always below 54: those are encoded on the stack.
		var small [64]byte
		b := binary.BigEndian.AppendUint64(small[:0], o.QoS2Seq)
		b = binary.BigEndian.AppendUint16(b, o.PacketID)
		h.Append(keyQoS2, append(b, o.Client...))
	case o.NoLocal:
		h.Append(keyPublisher, some(o.Client))
	}
}

func (p *Props) appendHeaders(h *seglog.Headers) {
	if p.UTF8 {
		h.Append(keyUTF8, present)
	}
	if p.ContentType != nil {
		h.Append(keyContentType, p.ContentType)
	}
	if p.ResponseTopic != nil {
		h.Append(keyResponse, p.ResponseTopic)
	}
	if p.Correlation != nil {
		h.Append(keyCorrelation, p.Correlation)
	}
	for i := range p.User {
		u := &p.User[i]
		h.Append(unsafe.String(unsafe.SliceData(u.Name), len(u.Name)), some(u.Value))
	}
}

func some(b []byte) []byte {
	if b == nil {
		return present
	}
	return b
}

// Decode makes m the message that r holds; it aliases r. The capacity of m.Props.User is used again. On an error m is not usable.
func (m *Message) Decode(r seglog.Record) error {
	m.Props.Reset()
	*m = Message{Topic: r.Key, Payload: r.Value, TimeMs: r.TimeMs, QoS: defaultQoS, Props: m.Props}
	if len(r.Key) == 0 || len(r.Key) > lengthMax {
		return fmt.Errorf("%w: topic of %d bytes at offset %d", ErrRecord, len(r.Key), r.Offset)
	}
	if r.Headers.Count == 0 {
		return nil
	}
	n := 0
	for key, value := range r.Headers.All() {
		n++
		ok := len(key) <= lengthMax && len(value) <= lengthMax+10
		if len(key) > 0 && key[0] == 0 {
			ok = ok && m.own(key, value)
		} else {
			m.Props.User = append(m.Props.User, Pair{Name: key, Value: some(value)})
		}
		if !ok {
			return fmt.Errorf("%w: header %q at offset %d", ErrRecord, key[:min(len(key), 16)], r.Offset)
		}
	}
	if n != r.Headers.Count {
		return fmt.Errorf("%w: %d of %d headers at offset %d", ErrRecord, n, r.Headers.Count, r.Offset)
	}
	return nil
}

// own takes one of the hub's own headers; false means that it is malformed.
func (m *Message) own(key, value []byte) bool {
	switch string(key) {
	case keyFlags:
		if len(value) != 1 || value[0]&3 == 3 || value[0] > 2|flagRetain {
			return false
		}
		m.QoS, m.Retain = value[0]&3, value[0]&flagRetain != 0
	case keyExpiry:
		if len(value) != 8 {
			return false
		}
		m.ExpiresMs = int64(binary.BigEndian.Uint64(value))
		return m.ExpiresMs > 0
	case keyUTF8:
		m.Props.UTF8 = true
		return len(value) == 0
	case keyContentType:
		m.Props.ContentType = some(value)
	case keyResponse:
		m.Props.ResponseTopic = some(value)
	case keyCorrelation:
		m.Props.Correlation = some(value)
	case keyQoS2:
		if len(value) < 10 {
			return false
		}
		m.Origin = Origin{QoS2Seq: binary.BigEndian.Uint64(value), PacketID: binary.BigEndian.Uint16(value[8:]), Client: value[10:], NoLocal: true}
		return m.Origin.PacketID != 0
	case keyPublisher:
		m.Origin = Origin{Client: some(value), NoLocal: true}
	}
	return len(value) <= lengthMax
}

// Remaining returns the Message Expiry Interval to tell a receiver now [MQTT-3.3.2-6], in seconds rounded up; ok is false when the
// message has expired. A message that never expires returns 0, true.
func (m *Message) Remaining(nowMs int64) (seconds uint32, ok bool) {
	if m.ExpiresMs == 0 {
		return 0, true
	}
	left := m.ExpiresMs - nowMs
	if left <= 0 {
		return 0, false
	}
	return uint32(min((left-1)/1000+1, math.MaxUint32)), true
}

// Properties returns the properties as people and programs see them in JSON: [name, value], and ["user", name, value]. Correlation
// data is base64.
func (m *Message) Properties() [][]string {
	list := [][]string{}
	p := &m.Props
	if p.UTF8 {
		list = append(list, []string{"payload-format", "utf-8"})
	}
	if m.ExpiresMs != 0 {
		list = append(list, []string{"expires", time.UnixMilli(m.ExpiresMs).UTC().Format("2006-01-02T15:04:05.000Z07:00")})
	}
	if p.ContentType != nil {
		list = append(list, []string{"content-type", string(p.ContentType)})
	}
	if p.ResponseTopic != nil {
		list = append(list, []string{"response-topic", string(p.ResponseTopic)})
	}
	if p.Correlation != nil {
		list = append(list, []string{"correlation-data", base64.StdEncoding.EncodeToString(p.Correlation)})
	}
	for _, u := range p.User {
		list = append(list, []string{"user", string(u.Name), string(u.Value)})
	}
	return list
}
