package server

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"edgehub/adapters/mqtt"
	"edgehub/hub/admin/api"
	"edgehub/hub/auth"
	"edgehub/hub/broker"
	"edgehub/hub/session"
	"edgehub/hub/stream"
	"edgehub/hub/topic"
	"edgehub/storage/seglog"
)

// Kick implements admin.Sessions.
func (s *Server) Kick(client string) error {
	if s.broker.Kick(client, broker.CodeAdministrative) {
		return nil
	}
	var ids []string
	s.broker.Clients(func(c broker.ClientInfo) { ids = append(ids, c.ClientID) })
	return api.NotFound("connected client", client, ids)
}

func apiSession(x *broker.SessionInfo) api.Session {
	a := api.Session{ClientID: x.ClientID, Username: x.User, Connected: x.Connected, ExpiryS: int64(x.Expiry), ExpiresAt: api.Millis(x.ExpiresMs),
		Subscriptions: int64(len(x.Subs)), Inflight: int64(x.InFlight), Inbox: x.Inbox, Will: x.Will,
		QueuedMessages: x.Queued.Messages, QueuedBytes: x.Queued.Bytes, QueueDropped: x.Queued.Dropped}
	if x.Expiry == session.NeverExpires {
		a.ExpiryS = -1
	}
	return a
}

// Sessions implements admin.Sessions.
func (s *Server) Sessions() []api.Session {
	list := []api.Session{}
	for _, x := range s.broker.Sessions() {
		list = append(list, apiSession(&x))
	}
	return list
}

func (s *Server) noSession(client string) error {
	var ids []string
	for _, x := range s.broker.Sessions() {
		ids = append(ids, x.ClientID)
	}
	return api.NotFound("session", client, ids)
}

// Session implements admin.Sessions.
func (s *Server) Session(client string) (api.SessionDetail, error) {
	x, ok := s.broker.Session(client)
	if !ok {
		return api.SessionDetail{}, s.noSession(client)
	}
	d := api.SessionDetail{Session: apiSession(&x), Filters: []api.Subscription{}}
	for _, sub := range x.Subs {
		d.Filters = append(d.Filters, api.Subscription{Filter: sub.Filter, QoS: sub.QoS, NoLocal: sub.NoLocal, RetainAsPublished: sub.RetainAsPublished, ID: sub.ID})
	}
	slices.SortFunc(d.Filters, func(a, b api.Subscription) int { return cmp.Compare(a.Filter, b.Filter) })
	return d, nil
}

// DeleteSession implements admin.Sessions.
func (s *Server) DeleteSession(client string) error {
	if s.broker.DeleteSession(client) {
		return nil
	}
	return s.noSession(client)
}

// Groups implements admin.Sessions.
func (s *Server) Groups() []api.Group {
	list := []api.Group{}
	for _, x := range s.broker.SharedSubscriptions() {
		g := api.Group{Subscription: x.Key, Sessions: int64(x.Sessions), Inflight: int64(x.InFlight), Inbox: x.Inbox, Members: []api.GroupMember{}}
		for _, m := range x.Members {
			g.Members = append(g.Members, api.GroupMember(m))
		}
		list = append(list, g)
	}
	return list
}

// Retained implements admin.Retained.
func (s *Server) Retained(filter string, limit int) []api.Retained {
	list := []api.Retained{}
	s.broker.EachRetained(filter, func(name string, part *stream.Partition, offset int64) bool {
		list = append(list, api.Retained{Topic: name, Stream: part.Stream.Name, Partition: part.Index, Offset: offset})
		return len(list) < limit
	})
	slices.SortFunc(list, func(a, b api.Retained) int { return cmp.Compare(a.Topic, b.Topic) })
	return list
}

// RetainedMessage implements admin.Retained.
func (s *Server) RetainedMessage(name string) (api.Record, error) {
	for range 3 { // retention may move it in between
		part, offset, ok := s.broker.RetainedAt(name)
		if !ok {
			break
		}
		buf, err := part.Log.Read(offset, 1, nil)
		if errors.Is(err, seglog.ErrTrimmed) {
			continue
		}
		if err != nil {
			return api.Record{}, err
		}
		for rec := range seglog.Records(buf) {
			if rec.Offset == offset {
				return record(part.Stream, part, rec), nil
			}
		}
	}
	var names []string
	for _, r := range s.Retained("#", 1000) {
		names = append(names, r.Topic)
	}
	return api.Record{}, api.NotFound("retained message", name, names)
}

// DeleteRetained implements admin.Retained: by an empty retained message, as a client would, so that the log says so.
func (s *Server) DeleteRetained(ctx context.Context, name string) error {
	if _, _, ok := s.broker.RetainedAt(name); !ok {
		_, err := s.RetainedMessage(name)
		return err
	}
	_, err := s.Publish(ctx, api.PubRequest{Topic: name, Retain: true, QoS: 1})
	return err
}

// Access implements admin.Guard.
func (s *Server) Access() api.Access {
	l := s.auth.Loaded()
	abs := func(path string) string {
		if path == "" {
			return ""
		}
		if a, err := filepath.Abs(path); err == nil {
			return a
		}
		return path
	}
	return api.Access{ConfigFile: abs(s.cfg.File), UsersFile: abs(l.UsersFile), ACLFile: abs(l.ACLFile), Users: l.Users, Rules: l.Rules}
}

// CheckACL implements admin.Guard.
func (s *Server) CheckACL(q api.ACLQuery) api.ACLAnswer {
	a := s.auth.Explain(q.User, q.Client, q.Topic)
	answer := api.ACLAnswer{Topic: q.Topic, Known: a.Known, Groups: append([]string{}, a.Groups...), Subscribe: judged(a.Subscribe, a.ACLFile)}
	if !topic.HasWildcard(q.Topic) {
		p := judged(a.Publish, a.ACLFile)
		answer.Publish = &p
	}
	return answer
}

func judged(d auth.Decision, file string) api.Judged {
	j := api.Judged{Allowed: d.Allowed, File: file}
	if d.Rule != nil {
		j.Line, j.Rule = d.Rule.Line, d.Rule.Text
	}
	return j
}

func apiBan(b auth.Ban) api.Ban {
	a := api.Ban{Kind: b.Kind, Value: b.Value, Why: b.Why, ByHand: b.ByHand}
	if !b.Until.IsZero() {
		a.Until = api.Millis(b.Until.UnixMilli())
	}
	return a
}

// Bans implements admin.Guard.
func (s *Server) Bans() []api.Ban {
	list := []api.Ban{}
	for _, b := range s.auth.Bans() {
		list = append(list, apiBan(b))
	}
	return list
}

// Ban implements admin.Guard. Clients that it is about and that are connected are sent away.
func (s *Server) Ban(a api.Ban) (api.Ban, error) {
	b := auth.Ban{Kind: a.Kind, Value: a.Value, Why: a.Why}
	if a.Until > 0 {
		b.Until = time.UnixMilli(int64(a.Until))
	}
	b, err := s.auth.Ban(b)
	if errors.Is(err, auth.ErrBan) {
		return api.Ban{}, api.Invalid("%s", strings.TrimPrefix(err.Error(), "auth: "))
	}
	if err != nil {
		return api.Ban{}, err
	}
	s.kickIf(func(c *broker.ClientInfo) bool {
		var ip netip.Addr
		if m, ok := c.Conn.(*mqtt.Conn); ok {
			if t, ok := m.Info().Remote.(*net.TCPAddr); ok {
				ip = t.AddrPort().Addr().Unmap()
			}
		}
		return b.Concerns(c.ClientID, c.User, ip)
	}, broker.CodeAdministrative)
	return apiBan(b), nil
}

// Unban implements admin.Guard.
func (s *Server) Unban(kind, value string) error {
	ok, err := s.auth.Unban(kind, value)
	if err != nil || ok {
		return err
	}
	var values []string
	for _, b := range s.auth.Bans() {
		if b.Kind == kind {
			values = append(values, b.Value)
		}
	}
	return api.NotFound("ban of "+kind, value, values)
}
