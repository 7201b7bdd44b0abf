package jetstream

import (
	"bytes"
	"encoding/base64"
	"strconv"
	"time"
	"unsafe"

	"github.com/nats-io/nats.go"

	"edgehub/hub/message"
	"edgehub/sync/uplink"
)

// The headers of a record at the remote. They are stored for ever: names and
// forms are a contract (docs/UPLINK.md).
const (
	hdrMsgID        = "Nats-Msg-Id"
	hdrExpectedID   = "Nats-Expected-Last-Msg-Id"
	hdrExpectedSeq  = "Nats-Expected-Last-Sequence"
	hdrTopic        = "Hub-Topic"
	hdrHub          = "Hub-Id"
	hdrInstance     = "Hub-Instance"
	hdrStream       = "Hub-Stream"
	hdrPartition    = "Hub-Partition"
	hdrOffset       = "Hub-Offset"
	hdrTime         = "Hub-Time"
	hdrQoS          = "Hub-QoS"
	hdrRetain       = "Hub-Retain"
	hdrPositions    = "Hub-Positions"
	hdrUser         = "Hub-User"
	hdrContentType  = "Hub-Prop-content-type"
	hdrResponse     = "Hub-Prop-response-topic"
	hdrCorrelation  = "Hub-Prop-correlation-data"
	hdrFormat       = "Hub-Prop-payload-format"
	hdrExpires      = "Hub-Prop-expires"
	timeLayout      = "2006-01-02T15:04:05.000Z"
	formatUTF8      = "utf-8"
	headerFixedCost = 12 // "NATS/1.0\r\n" and the empty line
)

var qosText = [4]string{"0", "1", "2", "3"}

// headers builds the header map of one record after another, without allocating
// per record: all values are cut from one scratch buffer, and the map is reused
// (nats.go encodes it before PublishMsg returns).
type headers struct {
	h       nats.Header
	vals    map[string][]string // one reusable slot per header
	scratch []byte
	size    int
}

func newHeaders() *headers {
	return &headers{h: nats.Header{}, vals: map[string][]string{}}
}

// begin makes room for n bytes of values: the scratch buffer must not move while
// values alias it.
func (b *headers) begin(n int) {
	clear(b.h)
	b.size = headerFixedCost
	const kept = 64 << 10
	if cap(b.scratch) < n || (cap(b.scratch) > kept && n <= kept) {
		b.scratch = make([]byte, 0, max(n, 4<<10))
	}
	b.scratch = b.scratch[:0]
}

func (b *headers) set(key, value string) {
	slot := b.vals[key]
	if slot == nil {
		slot = make([]string, 1)
		b.vals[key] = slot
	}
	slot[0] = value
	b.h[key] = slot
	b.size += len(key) + len(value) + 4
}

// since returns the scratch written after a mark as a string.
func (b *headers) since(mark int) string {
	if v := b.scratch[mark:]; len(v) > 0 {
		return unsafe.String(&v[0], len(v))
	}
	return ""
}

// text sets a header to a text, percent-encoding what a header cannot carry.
func (b *headers) text(key string, v []byte) {
	if plainText(v) {
		b.bytes(key, v)
		return
	}
	mark := len(b.scratch)
	b.scratch = appendText(b.scratch, v)
	b.set(key, b.since(mark))
}

// bytes sets a header to bytes that need no encoding.
func (b *headers) bytes(key string, v []byte) {
	mark := len(b.scratch)
	b.scratch = append(b.scratch, v...)
	b.set(key, b.since(mark))
}

func (b *headers) number(key string, n int64) {
	mark := len(b.scratch)
	b.scratch = strconv.AppendInt(b.scratch, n, 10)
	b.set(key, b.since(mark))
}

func (b *headers) time(key string, ms int64) {
	mark := len(b.scratch)
	b.scratch = time.UnixMilli(ms).UTC().AppendFormat(b.scratch, timeLayout)
	b.set(key, b.since(mark))
}

// build fills the map for a record.
//
// The predecessor's id goes to streams of one replica only. On a replicated one
// the server proposes first and compares ids when it applies, and an entry that
// does not fit then ends the stream's replica, on every server that applies or
// replays it; a sequence is compared before the proposal and refused cleanly.
func (b *headers) build(hub string, o *uplink.Out, replicated bool) nats.Header {
	m, p := o.Message, &o.Message.Props
	room := 256 + len(o.ID) + len(o.Prev) + len(o.Positions) + 3*len(m.Topic) + 3*(len(p.ContentType)+len(p.ResponseTopic)) + base64.StdEncoding.EncodedLen(len(p.Correlation))
	for i := range p.User {
		room += 3*(len(p.User[i].Name)+len(p.User[i].Value)) + 1
	}
	b.begin(room)
	b.bytes(hdrMsgID, o.ID)
	if o.Prev != nil && !replicated {
		b.bytes(hdrExpectedID, o.Prev)
	}
	b.number(hdrExpectedSeq, int64(o.LastSeq)) // #nosec G115 -- a sequence fits
	b.text(hdrTopic, m.Topic)
	b.set(hdrHub, hub)
	b.set(hdrInstance, o.Instance)
	b.set(hdrStream, o.Stream)
	b.set(hdrPartition, o.Partition)
	b.number(hdrOffset, o.Offset)
	b.time(hdrTime, m.TimeMs)
	b.set(hdrQoS, qosText[m.QoS&3])
	if m.Retain {
		b.set(hdrRetain, "true")
	} else {
		b.set(hdrRetain, "false")
	}
	if o.Positions != nil {
		b.bytes(hdrPositions, o.Positions)
	}
	if m.ExpiresMs != 0 {
		b.time(hdrExpires, m.ExpiresMs)
	}
	b.props(p)
	return b.h
}

// props adds the MQTT 5 properties. nil is absent, empty is present.
func (b *headers) props(p *message.Props) {
	if p.Empty() {
		return
	}
	if p.UTF8 {
		b.set(hdrFormat, formatUTF8)
	}
	if p.ContentType != nil {
		b.text(hdrContentType, p.ContentType)
	}
	if p.ResponseTopic != nil {
		b.text(hdrResponse, p.ResponseTopic)
	}
	if p.Correlation != nil {
		mark := len(b.scratch)
		b.scratch = base64.StdEncoding.AppendEncode(b.scratch, p.Correlation)
		b.set(hdrCorrelation, b.since(mark))
	}
	if len(p.User) == 0 {
		return
	}
	user := b.vals[hdrUser][:0]
	for i := range p.User {
		mark := len(b.scratch)
		b.scratch = appendName(b.scratch, p.User[i].Name)
		b.scratch = append(b.scratch, '=')
		b.scratch = appendText(b.scratch, p.User[i].Value)
		user = append(user, b.since(mark))
		b.size += len(hdrUser) + 4 + len(b.scratch) - mark
	}
	b.vals[hdrUser], b.h[hdrUser] = user, user
}

// textEscaped reports whether a byte is percent-encoded in a header value: line
// ends would end the header, and other controls and the escape itself must be
// told apart from what encoding makes.
func textEscaped(c byte) bool { return c < ' ' || c == 0x7f || c == '%' }

func plainText(v []byte) bool {
	for _, c := range v {
		if textEscaped(c) {
			return false
		}
	}
	return len(v) == 0 || (v[0] != ' ' && v[len(v)-1] != ' ')
}

// appendText appends a text in the form of a header value. A space at either
// end is encoded too: readers of headers trim.
func appendText(dst, v []byte) []byte {
	for i, c := range v {
		if textEscaped(c) || (c == ' ' && (i == 0 || i == len(v)-1)) {
			dst = appendEscape(dst, c)
		} else {
			dst = append(dst, c)
		}
	}
	return dst
}

// appendName is appendText for the name of a user property, which ends at the
// first '='.
func appendName(dst, name []byte) []byte {
	for {
		i := bytes.IndexByte(name, '=')
		if i < 0 {
			return appendText(dst, name)
		}
		dst = appendText(dst, name[:i])
		dst = appendEscape(dst, '=')
		name = name[i+1:]
	}
}

// ParseText undoes the encoding of a header value (Hub-Topic, Hub-Prop-*, the
// two halves of Hub-User).
func ParseText(s string) (string, bool) {
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b = append(b, s[i])
			continue
		}
		c, ok := unescape(s[i+1:])
		if !ok {
			return "", false
		}
		b = append(b, c)
		i += 2
	}
	return string(b), true
}

// digest returns what tells a stored record from another; zero when its time or
// topic are not as this program writes them.
func digest(h nats.Header, data []byte) uplink.Digest {
	at, err := time.Parse(timeLayout, h.Get(hdrTime))
	topic, ok := ParseText(h.Get(hdrTopic))
	if err != nil || !ok {
		return 0
	}
	return uplink.DigestOf(at.UnixMilli(), []byte(topic), data)
}
