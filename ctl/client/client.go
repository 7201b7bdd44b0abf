// Package client speaks to a running hub over its admin socket.
package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"edgehub/hub/admin/api"
)

// ErrNotRunning marks that nobody serves the socket.
var ErrNotRunning = errors.New("the hub is not running")

const (
	dialTimeout    = 3 * time.Second
	requestTimeout = 60 * time.Second // longer than the hub lets a publish take
	answerBytesMax = 256 << 20
	lineBytesMax   = 512 << 20 // the largest MQTT payload, as base64, and its topic
	socketPathMax  = 107
)

// Client is a connection to the hub behind one socket. It is safe for concurrent
// use.
type Client struct {
	socket string
	http   *http.Client
}

// New returns a client of the hub at socket. Nothing is opened before the first
// request.
func New(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		d := net.Dialer{Timeout: dialTimeout}
		return d.DialContext(ctx, "unix", socket)
	}
	return &Client{socket: socket, http: &http.Client{Transport: &http.Transport{
		DialContext: dial, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
	}}}
}

// Socket is where the hub is.
func (c *Client) Socket() string { return c.socket }

// Find returns the first of the candidate sockets on which a hub answers. When
// none does, the error names them all; a socket that may not be opened ends the
// search, because there is a hub behind it.
func Find(candidates []string) (string, error) {
	for _, path := range candidates {
		if len(path) > socketPathMax {
			return "", fmt.Errorf("socket %s: %d bytes long, a socket's path may have %d; give a shorter or relative path", path, len(path), socketPathMax)
		}
		conn, err := net.DialTimeout("unix", path, dialTimeout)
		if err == nil {
			_ = conn.Close()
			return path, nil
		}
		if err = dialError(path, err); !errors.Is(err, ErrNotRunning) {
			return "", err
		}
	}
	return "", notRunning(candidates)
}

func notRunning(sockets []string) error {
	return fmt.Errorf("%w: nobody answers at %s; start it (systemctl start hubd, or hubd -config FILE), or name its socket with --socket or --config", ErrNotRunning, strings.Join(sockets, " or "))
}

// dialError says in one line what a failed dial means.
func dialError(socket string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOTDIR):
		return notRunning([]string{socket})
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("permission denied on %s; run hubctl as the hub's user or root, or join the group that owns the socket (ls -l %s)", socket, socket)
	case errors.Is(err, syscall.EAGAIN):
		return fmt.Errorf("the hub at %s is too busy to answer; try again in a moment", socket)
	default:
		return fmt.Errorf("socket %s: %w", socket, err)
	}
}

// requestError says in one line what a failed request means.
func (c *Client) requestError(err error) error {
	var op *net.OpError
	switch {
	case errors.As(err, &op) && op.Op == "dial":
		return dialError(c.socket, op.Err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the hub at %s did not answer within %s; see its log", c.socket, requestTimeout)
	case errors.Is(err, context.Canceled):
		return context.Canceled
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("the hub at %s went away while it was answering; see its log, then run the command again", c.socket)
	default:
		return fmt.Errorf("the hub at %s: %w", c.socket, err)
	}
}

// do sends a request. The caller closes the body of an answer that is a success;
// any other answer comes back as an *api.Error.
func (c *Client) do(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://hub"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.requestError(err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }()
	var e api.ErrorBody
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if json.Unmarshal(text, &e) != nil || e.Error == nil {
		return nil, fmt.Errorf("the hub at %s answered %q to %s %s; are hubd and hubctl of the same version?", c.socket, resp.Status, method, path)
	}
	return nil, e.Error
}

func (c *Client) call(ctx context.Context, method, path string, body []byte, into any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	resp, err := c.do(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, answerBytesMax))
	if err != nil {
		return c.requestError(err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("the hub at %s sent an answer that cannot be read (%w); are hubd and hubctl of the same version?", c.socket, err)
	}
	return nil
}

// Status returns the whole hub at a glance.
func (c *Client) Status(ctx context.Context) (st api.Status, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/status", nil, &st)
	return st, err
}

// Stream returns one stream.
func (c *Client) Stream(ctx context.Context, name string) (d api.StreamDetail, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/streams/"+url.PathEscape(name), nil, &d)
	return d, err
}

// Clients returns the connected clients.
func (c *Client) Clients(ctx context.Context) (clients []api.Client, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/clients", nil, &clients)
	return clients, err
}

// Config returns the effective configuration.
func (c *Client) Config(ctx context.Context) (settings []api.Setting, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/config", nil, &settings)
	return settings, err
}

// Uplink returns one uplink.
func (c *Client) Uplink(ctx context.Context, name string) (u api.UplinkStatus, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/uplinks/"+url.PathEscape(name), nil, &u)
	return u, err
}

// Pause stops an uplink's forwarding and returns its state afterwards.
func (c *Client) Pause(ctx context.Context, name string) (u api.UplinkStatus, err error) {
	err = c.call(ctx, http.MethodPost, "/v1/uplinks/"+url.PathEscape(name)+"/pause", nil, &u)
	return u, err
}

// Resume ends Pause and returns the uplink's state afterwards.
func (c *Client) Resume(ctx context.Context, name string) (u api.UplinkStatus, err error) {
	err = c.call(ctx, http.MethodPost, "/v1/uplinks/"+url.PathEscape(name)+"/resume", nil, &u)
	return u, err
}

// Acknowledge takes note of what an uplink lost to retention and returns its state afterwards.
func (c *Client) Acknowledge(ctx context.Context, name string) (u api.UplinkStatus, err error) {
	err = c.call(ctx, http.MethodPost, "/v1/uplinks/"+url.PathEscape(name)+"/acknowledge", nil, &u)
	return u, err
}

// Move has a partition of an uplink go on elsewhere and returns the uplink's state afterwards.
func (c *Client) Move(ctx context.Context, name string, m api.UplinkMove) (u api.UplinkStatus, err error) {
	err = c.post(ctx, "/v1/uplinks/"+url.PathEscape(name)+"/"+m.Action, m, &u)
	return u, err
}

// Publish appends one message and says where it is.
func (c *Client) Publish(ctx context.Context, req api.PubRequest) (res api.PubResult, err error) {
	body, err := json.Marshal(req)
	if err != nil {
		return res, err
	}
	err = c.call(ctx, http.MethodPost, "/v1/publish", body, &res)
	return res, err
}

// Tail calls emit with the JSON line of every record, valid until emit returns (see
// api.StreamLine), and idle whenever it is about to wait for more. It returns nil when
// the hub has sent all that was asked for, and context.Canceled when ctx ends.
func (c *Client) Tail(ctx context.Context, req api.TailRequest, emit func(line []byte) error, idle func() error) error {
	resp, err := c.do(ctx, http.MethodGet, "/v1/streams/"+url.PathEscape(req.Stream)+"/records?"+req.Query().Encode(), nil)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	sc := bufio.NewScanner(idleReader{resp.Body, idle})
	sc.Buffer(make([]byte, 0, 64<<10), lineBytesMax)
	for sc.Scan() {
		if api.IsErrorLine(sc.Bytes()) {
			_, err := api.StreamLine(sc.Bytes())
			return err
		}
		if err := emit(sc.Bytes()); err != nil {
			return err
		}
	}
	if err := sc.Err(); err != nil {
		return c.requestError(err)
	}
	return nil
}

// idleReader calls before ahead of every read.
type idleReader struct {
	r      io.Reader
	before func() error
}

// Read implements io.Reader.
func (i idleReader) Read(b []byte) (int, error) {
	if err := i.before(); err != nil {
		return 0, err
	}
	return i.r.Read(b)
}
