package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	"edgehub/hub/admin/api"
)

// query makes a path with one query of name and value pairs.
func query(path string, pairs ...string) string {
	v := url.Values{}
	for ; len(pairs) >= 2; pairs = pairs[2:] {
		v.Set(pairs[0], pairs[1])
	}
	return path + "?" + v.Encode()
}

func (c *Client) post(ctx context.Context, path string, body, into any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return c.call(ctx, http.MethodPost, path, text, into)
}

// Kick ends a client's connection; its session stays.
func (c *Client) Kick(ctx context.Context, client string) error {
	return c.call(ctx, http.MethodPost, query("/v1/client/kick", "client", client), nil, &api.Done{})
}

// Sessions returns every session.
func (c *Client) Sessions(ctx context.Context) (list []api.Session, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/sessions", nil, &list)
	return list, err
}

// Groups returns every shared subscription.
func (c *Client) Groups(ctx context.Context) (list []api.Group, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/groups", nil, &list)
	return list, err
}

// Session returns one session and its subscriptions.
func (c *Client) Session(ctx context.Context, client string) (d api.SessionDetail, err error) {
	err = c.call(ctx, http.MethodGet, query("/v1/session", "client", client), nil, &d)
	return d, err
}

// DeleteSession ends a session, and its connection.
func (c *Client) DeleteSession(ctx context.Context, client string) error {
	return c.call(ctx, http.MethodDelete, query("/v1/session", "client", client), nil, &api.Done{})
}

// Retained lists the retained messages that a filter matches.
func (c *Client) Retained(ctx context.Context, filter string) (list []api.Retained, err error) {
	err = c.call(ctx, http.MethodGet, query("/v1/retained", "filter", filter), nil, &list)
	return list, err
}

// RetainedMessage returns one retained message.
func (c *Client) RetainedMessage(ctx context.Context, topic string) (r api.Record, err error) {
	err = c.call(ctx, http.MethodGet, query("/v1/retained/message", "topic", topic), nil, &r)
	return r, err
}

// DeleteRetained clears a retained message.
func (c *Client) DeleteRetained(ctx context.Context, topic string) error {
	return c.call(ctx, http.MethodDelete, query("/v1/retained", "topic", topic), nil, &api.Done{})
}

// Access says which users and rules are in force.
func (c *Client) Access(ctx context.Context) (a api.Access, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/access", nil, &a)
	return a, err
}

// CheckACL asks what a client may do.
func (c *Client) CheckACL(ctx context.Context, q api.ACLQuery) (a api.ACLAnswer, err error) {
	err = c.post(ctx, "/v1/acl/check", q, &a)
	return a, err
}

// Bans returns the bans in force.
func (c *Client) Bans(ctx context.Context) (list []api.Ban, err error) {
	err = c.call(ctx, http.MethodGet, "/v1/bans", nil, &list)
	return list, err
}

// Ban keeps somebody out and returns the ban as it is kept.
func (c *Client) Ban(ctx context.Context, b api.Ban) (made api.Ban, err error) {
	err = c.post(ctx, "/v1/bans", b, &made)
	return made, err
}

// Unban takes back a ban.
func (c *Client) Unban(ctx context.Context, kind, value string) error {
	return c.call(ctx, http.MethodDelete, query("/v1/bans", "kind", kind, "value", value), nil, &api.Done{})
}

// Reload has the hub read its configuration again.
func (c *Client) Reload(ctx context.Context) (r api.Reloaded, err error) {
	err = c.call(ctx, http.MethodPost, "/v1/reload", nil, &r)
	return r, err
}
