package websocket

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/gobwas/ws"

	"edgehub/adapters/eventloop"
)

// requestBytesMax bounds the HTTP request.
const requestBytesMax = 8 << 10

// status is how a request is refused.
type status struct {
	code   int
	text   string // the reason phrase
	header string // a line of its own, ended
	body   string
}

// The ways to refuse a request.
var (
	statusNotHTTP   = status{400, "Bad Request", "", "this is a WebSocket listener"}
	statusForbidden = status{403, "Forbidden", "", "pages of this origin may not connect"}
	statusNotFound  = status{404, "Not Found", "", "no WebSocket here"}
	statusMethod    = status{405, "Method Not Allowed", "Allow: GET\r\n", "a WebSocket begins with GET"}
	statusTimeout   = status{408, "Request Timeout", "", "the request did not come in time"}
	statusUpgrade   = status{426, "Upgrade Required", "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n", "WebSocket version 13 is needed"}
	statusTooLarge  = status{431, "Request Header Fields Too Large", "", "the request is too large"}
	statusVersion   = status{505, "HTTP Version Not Supported", "", "HTTP/1.1 is needed"}
)

// errStatus carries a status through the upgrader.
type errStatus struct{ status }

func (e errStatus) Error() string { return e.body }

// upgrade takes the request as soon as it is whole, and answers it.
func (c *Conn) upgrade(b []byte) (used int, ok bool) {
	if len(b) == 0 {
		return 0, true
	}
	c.begun = true
	if b[0] < 'A' || b[0] > 'Z' { // not a method: another protocol
		return len(b), c.refuse(statusNotHTTP)
	}
	end := bytes.Index(b[:min(len(b), requestBytesMax)], []byte("\r\n\r\n"))
	if end < 0 {
		if len(b) < requestBytesMax {
			return 0, true
		}
		return len(b), c.refuse(statusTooLarge)
	}
	used = end + 4
	reply, err := c.ln.answer(b[:used])
	if err != nil {
		return len(b), c.refuse(statusOf(err))
	}
	if _, err := c.below.Write(reply); err != nil {
		return used, false
	}
	c.phase = phaseOpen
	c.ln.Stats.Upgrades.Add(1)
	if early := c.early; len(early) > 0 {
		c.early = nil
		if _, err := c.Write(early); err != nil {
			return used, false
		}
	}
	return used, true
}

// answer checks a whole request and returns the response to it.
func (ln *Listener) answer(request []byte) ([]byte, error) {
	var origin, host string
	u := ws.Upgrader{
		ReadBufferSize: requestBytesMax,
		Protocol:       func(p []byte) bool { return slices.Contains(ln.o.Protocols, string(p)) },
		OnRequest: func(uri []byte) error {
			path, _, _ := bytes.Cut(uri, []byte("?"))
			if !slices.Contains(ln.o.Paths, string(path)) {
				return errStatus{statusNotFound}
			}
			return nil
		},
		OnHost: func(v []byte) error { host = string(v); return nil },
		OnHeader: func(k, v []byte) error {
			if string(k) == "Origin" {
				origin = string(v)
			}
			return nil
		},
		OnBeforeUpgrade: func() (ws.HandshakeHeader, error) {
			if !ln.allowed(origin) {
				return nil, errStatus{statusForbidden}
			}
			return nil, nil
		},
	}
	// Exactly the request: the upgrader reads ahead, and frames may follow.
	var reply bytes.Buffer
	hs, err := u.Upgrade(struct {
		io.Reader
		io.Writer
	}{bytes.NewReader(request), &reply})
	if err == nil && hs.Protocol == "" {
		err = errStatus{status{400, "Bad Request", "", "the client must offer the sub-protocol " + strings.Join(ln.o.Protocols, " or ")}}
	}
	if err != nil {
		ln.o.Logger.Debug("WebSocket request refused", "host", host, "origin", origin, "err", err)
		return nil, err
	}
	return reply.Bytes(), nil
}

// allowed says whether pages of an origin may connect.
func (ln *Listener) allowed(origin string) bool {
	if origin == "" || slices.Contains(ln.o.Origins, "*") {
		return true
	}
	if slices.ContainsFunc(ln.o.Origins, func(o string) bool { return strings.EqualFold(o, origin) }) {
		return true
	}
	if !ln.o.LocalOrigins {
		return false
	}
	u, err := url.Parse(origin)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// statusOf finds the status for what the upgrader says.
func statusOf(err error) status {
	var own errStatus
	switch {
	case errors.As(err, &own):
		return own.status
	case errors.Is(err, ws.ErrHandshakeBadMethod):
		return statusMethod
	case errors.Is(err, ws.ErrHandshakeBadProtocol):
		return statusVersion
	case errors.Is(err, ws.ErrHandshakeUpgradeRequired), errors.Is(err, ws.ErrHandshakeBadUpgrade), errors.Is(err, ws.ErrHandshakeBadSecVersion):
		return statusUpgrade
	}
	return status{400, "Bad Request", "", strings.Map(printable, err.Error())}
}

// printable keeps what a client has sent from being more than text in the answer.
func printable(r rune) rune {
	if r < ' ' || r > '~' {
		return '?'
	}
	return r
}

// refuse answers the request with an error. It reports whether the connection stays for a moment, as sayClose does.
func (c *Conn) refuse(s status) bool {
	c.ln.Stats.Refused.Add(1)
	c.phase = phaseClosing
	reply := "HTTP/1.1 " + strconv.Itoa(s.code) + " " + s.text + "\r\nConnection: close\r\n" + s.header +
		"Content-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\nContent-Length: " + strconv.Itoa(len(s.body)+1) + "\r\n\r\n" + s.body + "\n"
	_, err := c.below.Write([]byte(reply))
	return err == nil && eventloop.Linger(c.below)
}
