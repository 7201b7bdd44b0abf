package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"edgehub/sync/uplink"
)

// Error codes of the JetStream API that mean something here.
const (
	codeNoPeers      = 10005
	codeUnavailable  = 10008
	codeNoResources  = 10023
	codeTooLarge     = 10054
	codeNameInUse    = 10058
	codeNotFound     = 10059
	codeOverlap      = 10065
	codeNoClustering = 10074
)

// retainedMin is the least number of records that the remote stream has to keep:
// a resume reads back up to 256, and before that what was in flight then.
const retainedMin = 16384

// apiError is an error of the JetStream API.
type apiError struct {
	Code        int    `json:"code"`
	ErrCode     int    `json:"err_code"`
	Description string `json:"description"`
}

// Error returns the server's text with its code.
func (e *apiError) Error() string { return fmt.Sprintf("%s (%d)", e.Description, e.ErrCode) }

func hasCode(err error, codes ...int) bool {
	var e *apiError
	if errors.As(err, &e) {
		for _, c := range codes {
			if e.ErrCode == c {
				return true
			}
		}
	}
	return false
}

// streamConfig is the part of a stream's configuration that matters here.
type streamConfig struct {
	Name           string          `json:"name"`
	Description    string          `json:"description,omitempty"`
	Subjects       []string        `json:"subjects"`
	Retention      string          `json:"retention"`
	Storage        string          `json:"storage"`
	Discard        string          `json:"discard"`
	MaxConsumers   int             `json:"max_consumers"`
	MaxMsgs        int64           `json:"max_msgs"`
	MaxMsgsPerSubj int64           `json:"max_msgs_per_subject"`
	MaxBytes       int64           `json:"max_bytes"`
	MaxAge         time.Duration   `json:"max_age"`
	MaxMsgSize     int32           `json:"max_msg_size"`
	Replicas       int             `json:"num_replicas"`
	Duplicates     time.Duration   `json:"duplicate_window"`
	Sealed         bool            `json:"sealed,omitempty"`
	NoAck          bool            `json:"no_ack,omitempty"`
	Mirror         json.RawMessage `json:"mirror,omitempty"`
	Sources        json.RawMessage `json:"sources,omitempty"`
}

type streamInfo struct {
	Error   *apiError    `json:"error"`
	Config  streamConfig `json:"config"`
	Created time.Time    `json:"created"`
	State   struct {
		Messages uint64 `json:"messages"`
		First    uint64 `json:"first_seq"`
		Last     uint64 `json:"last_seq"`
	} `json:"state"`
}

// secondOpinion is how long a request waits for a better answer after a server
// said that the stream has no leader: in a cluster every member answers, and one
// whose view is behind is often quicker than the leader.
const secondOpinion = 2 * time.Second

// requestsMax bounds a request whose answer keeps coming, in request timeouts.
const requestsMax = 30

// request asks the JetStream API; out gets the answer.
func (n *session) request(ctx context.Context, subject string, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return err
		}
	}
	ctx, end := context.WithTimeout(ctx, requestsMax*n.s.o.RequestTimeout)
	defer end()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer n.d.silence(n.s.o.RequestTimeout, cancel)()
	reply := nats.NewInbox()
	sub, err := n.nc.SubscribeSync(reply)
	if err != nil {
		return n.lost(fmt.Errorf("%s: %w", subject, err))
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := n.nc.PublishRequest("$JS.API."+subject, reply, body); err != nil {
		return n.lost(fmt.Errorf("%s: %w", subject, err))
	}
	var unavailable *apiError
	for {
		m, err := sub.NextMsgWithContext(ctx)
		switch {
		case err != nil && unavailable != nil:
			return fmt.Errorf("%s: %w", subject, unavailable)
		case errors.Is(err, nats.ErrNoResponders):
			return fmt.Errorf("JetStream is not enabled at %s (for this account)", n.nc.ConnectedAddr())
		case err != nil && context.Cause(ctx) != nil:
			return n.lost(fmt.Errorf("%s: %w", subject, context.Cause(ctx)))
		case err != nil:
			return n.lost(fmt.Errorf("%s: %w", subject, err))
		}
		var any struct {
			Error *apiError `json:"error"`
		}
		if err := json.Unmarshal(m.Data, &any); err != nil {
			return fmt.Errorf("answer to %s: %w", subject, err)
		}
		if any.Error == nil || any.Error.ErrCode != codeUnavailable {
			return json.Unmarshal(m.Data, out)
		}
		if unavailable == nil {
			unavailable = any.Error
			var stop context.CancelFunc
			ctx, stop = context.WithTimeout(ctx, secondOpinion)
			defer stop()
		}
	}
}

// readRemote reads what the remote stream is now.
func (n *session) readRemote(ctx context.Context) error {
	var info streamInfo
	name := n.s.o.RemoteStream
	if err := n.request(ctx, "STREAM.INFO."+name, nil, &info); err != nil {
		return err
	}
	n.remote, n.sizeMax = uplink.Remote{Name: name, RecordMax: n.nc.MaxPayload()}, 0
	switch {
	case info.Error != nil && info.Error.ErrCode == codeNotFound:
		return nil
	case info.Error != nil:
		return fmt.Errorf("reading remote stream %s: %w", name, info.Error)
	}
	n.replicated = info.Config.Replicas > 1
	if size := info.Config.MaxMsgSize; size > 0 {
		n.sizeMax = int(size)
		n.remote.RecordMax = min(n.remote.RecordMax, int64(size))
	}
	n.remote = uplink.Remote{Name: name, Exists: true, RecordMax: n.remote.RecordMax, Created: info.Created, Messages: info.State.Messages, First: info.State.First, Last: info.State.Last,
		Expires: info.Config.MaxAge > 0, Replicated: n.replicated, Unsuitable: info.Config.unsuitable(n.s.o.Subjects.All())}
	return nil
}

// unsuitable says why a stream cannot be written in one chain and resumed from.
func (c *streamConfig) unsuitable(subject string) string {
	covered := false
	for _, s := range c.Subjects {
		covered = covered || covers(s, subject)
	}
	has := func(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" && string(raw) != "[]" }
	switch {
	case has(c.Mirror) || has(c.Sources):
		return "it is filled from other streams; this hub has to be its only writer"
	case c.Sealed:
		return "it is sealed"
	case c.NoAck:
		return "it does not acknowledge (no_ack)"
	case !covered:
		return fmt.Sprintf("it stores %s, which does not cover %s", strings.Join(c.Subjects, ", "), subject)
	case c.Retention != "" && c.Retention != "limits":
		return fmt.Sprintf("its retention is %s, so consumers remove what a resume has to read; it must be limits", c.Retention)
	case c.MaxMsgsPerSubj > 0:
		return "max_msgs_per_subject removes what a resume has to read; source it into another stream instead"
	case c.MaxMsgs > 0 && c.MaxMsgs < retainedMin:
		return fmt.Sprintf("it keeps %d messages (max_msgs), a resume needs %d", c.MaxMsgs, retainedMin)
	}
	return ""
}

// covers reports whether every subject that pattern b stands for matches a.
func covers(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i, t := range as {
		switch {
		case t == ">":
			return i < len(bs)
		case i >= len(bs) || bs[i] == ">" || (t != "*" && t != bs[i]):
			return false
		}
	}
	return len(as) == len(bs)
}

// Create implements uplink.Session: a file stream without limits, with three
// replicas where the servers form a cluster.
func (n *session) Create(ctx context.Context) error {
	c := streamConfig{Name: n.s.o.RemoteStream, Description: "Written by hub " + n.s.o.Hub + " alone", Subjects: []string{n.s.o.Subjects.All()},
		Retention: "limits", Storage: "file", Discard: "old", MaxConsumers: -1, MaxMsgs: -1, MaxMsgsPerSubj: -1, MaxBytes: -1, MaxMsgSize: -1,
		Replicas: 1, Duplicates: 2 * time.Minute}
	if n.nc.ConnectedClusterName() != "" {
		c.Replicas = 3
	}
	err := n.create(ctx, &c)
	if c.Replicas > 1 && hasCode(err, codeNoPeers, codeNoResources, codeNoClustering) {
		c.Replicas = 1
		err = n.create(ctx, &c)
	}
	switch {
	case hasCode(err, codeOverlap):
		return &uplink.BlockedError{Cause: uplink.CauseUnsuitable, Reason: fmt.Sprintf("another remote stream already stores subjects of %s", n.s.o.Subjects.All()),
			Cure: "set subject to what no other stream stores, or remote_stream to that stream if only this hub writes it"}
	case err != nil && !hasCode(err, codeNameInUse):
		return fmt.Errorf("creating remote stream %s: %w", c.Name, err)
	}
	if err := n.readRemote(ctx); err != nil {
		return err
	}
	if !n.remote.Exists {
		return fmt.Errorf("remote stream %s was created and is not there yet", c.Name)
	}
	return nil
}

func (n *session) create(ctx context.Context, c *streamConfig) error {
	var info streamInfo
	if err := n.request(ctx, "STREAM.CREATE."+c.Name, c, &info); err != nil {
		return err
	}
	if info.Error != nil {
		return info.Error
	}
	return nil
}

type getRequest struct {
	Seq uint64 `json:"seq"`
}

type getResponse struct {
	Error   *apiError `json:"error"`
	Message struct {
		Seq  uint64 `json:"seq"`
		Hdrs []byte `json:"hdrs"`
		Data []byte `json:"data"`
	} `json:"message"`
}

// Stored implements uplink.Session. It asks the stream's leader (a direct get
// may be answered by a replica that is behind), for all sequences at once.
func (n *session) Stored(ctx context.Context, from, to uint64) ([]uplink.Stored, error) {
	if to < from || to-from >= 256 {
		panic(fmt.Sprintf("BUG: jetstream: reading back %d to %d", from, to))
	}
	out := make([]uplink.Stored, to-from+1)
	errs := make([]error, len(out))
	var wg sync.WaitGroup
	for i := range out {
		wg.Go(func() { out[i], errs[i] = n.stored(ctx, from+uint64(i)) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (n *session) stored(ctx context.Context, seq uint64) (uplink.Stored, error) {
	m := uplink.Stored{Seq: seq}
	var r getResponse
	if err := n.request(ctx, "STREAM.MSG.GET."+n.s.o.RemoteStream, getRequest{Seq: seq}, &r); err != nil {
		return m, err
	}
	if r.Error != nil {
		if r.Error.Code == 404 && r.Error.ErrCode != codeNotFound {
			return m, nil
		}
		return m, fmt.Errorf("sequence %d: %w", seq, r.Error)
	}
	m.Found, m.Size = true, len(r.Message.Hdrs)+len(r.Message.Data)
	if len(r.Message.Hdrs) > 0 {
		h, err := nats.DecodeHeadersMsg(r.Message.Hdrs)
		if err != nil {
			return m, nil // a record whose headers nobody here wrote
		}
		m.ID, m.Positions = h.Get(hdrMsgID), h.Get(hdrPositions)
		m.Digest = digest(h, r.Message.Data)
	}
	return m, nil
}
