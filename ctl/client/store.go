package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"edgehub/hub/admin/api"
	"edgehub/storage/inspect"
)

// Verify has the hub verify a stream and calls fn with each finding as it is met.
func (c *Client) Verify(ctx context.Context, stream string, fn func(inspect.Finding)) (inspect.Summary, error) {
	resp, err := c.do(ctx, http.MethodGet, "/v1/streams/"+url.PathEscape(stream)+"/verify", nil)
	if err != nil {
		return inspect.Summary{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	var line struct {
		inspect.Finding
		Summary *inspect.Summary `json:"summary"`
	}
	sc := bufio.NewScanner(resp.Body)
	for sc.Scan() {
		if api.IsErrorLine(sc.Bytes()) {
			_, err := api.StreamLine(sc.Bytes())
			return inspect.Summary{}, err
		}
		line.Summary = nil
		if err := json.Unmarshal(sc.Bytes(), &line); err != nil {
			return inspect.Summary{}, fmt.Errorf("the hub at %s sent a line that cannot be read (%w); are hubd and hubctl of the same version?", c.socket, err)
		}
		if line.Summary != nil {
			return *line.Summary, nil
		}
		fn(line.Finding)
	}
	if err := sc.Err(); err != nil {
		return inspect.Summary{}, c.requestError(err)
	}
	return inspect.Summary{}, c.requestError(io.ErrUnexpectedEOF)
}

// DeleteStream deletes a stream that the configuration no longer has.
func (c *Client) DeleteStream(ctx context.Context, stream string) (d inspect.Deleted, err error) {
	err = c.call(ctx, http.MethodDelete, "/v1/streams/"+url.PathEscape(stream), nil, &d)
	return d, err
}

// Backup copies a backup of the hub, a tar, to w. Whether it is whole only its end tells, see inspect.Unpack.
func (c *Client) Backup(ctx context.Context, w io.Writer) error {
	resp, err := c.do(ctx, http.MethodGet, "/v1/backup", nil)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	out := &firstError{w: w}
	if _, err := io.Copy(out, resp.Body); err != nil && out.err == nil {
		return c.requestError(err)
	}
	return out.err
}

// firstError remembers a failed write, to tell it from a failed read.
type firstError struct {
	w   io.Writer
	err error
}

// Write implements io.Writer.
func (f *firstError) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if f.err = errors.Join(f.err, err); err != nil {
		return n, err
	}
	return n, nil
}
