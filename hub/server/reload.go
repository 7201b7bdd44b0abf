package server

import (
	"context"
	"log/slog"
	"math"
	"runtime"
	"runtime/debug"

	"edgehub/adapters/mqtt/packet"
	"edgehub/hub/admin/api"
	"edgehub/hub/auth"
	"edgehub/hub/broker"
	"edgehub/hub/config"
	"edgehub/hub/stream"
)

// Reload implements admin.Guard: the configuration is read and checked whole, then everything of it that can change
// while the hub runs does, with the users, the access list and the certificates. On an error nothing has changed.
func (s *Server) Reload() (api.Reloaded, error) {
	s.reloadMu.Lock()
	defer s.reloadMu.Unlock()
	if s.stopping.Load() {
		return api.Reloaded{}, api.Unavailable("the hub is stopping")
	}
	next := config.Default()
	if s.cfg.File != "" {
		var err error
		if next, err = config.Load(s.cfg.File); err != nil {
			return api.Reloaded{}, api.Invalid("nothing was changed: %v", err)
		}
	}
	if err := s.checkUplinks(next); err != nil {
		return api.Reloaded{}, api.Invalid("nothing was changed: %v", err)
	}
	loaded, err := s.auth.Reload(next.Auth.UsersFile, next.Auth.ACLFile, next.Auth.BanAfter, next.Auth.BanTime)
	if err != nil {
		return api.Reloaded{}, api.Invalid("nothing was changed: %v", err)
	}
	r := api.Reloaded{File: s.cfg.File, Applied: []api.Change{}, Restart: []api.Change{}}
	for _, c := range s.running.Changes(next) {
		change := api.Change{Key: c.Key, Old: c.Old, New: c.New}
		if c.Live {
			r.Applied = append(r.Applied, change)
		} else {
			r.Restart = append(r.Restart, change)
		}
	}
	s.running = s.running.Adopt(next)
	s.mqtt.HideReasons(next.Auth.HideReasons)
	s.reloadRetention(s.running)
	if err := s.reloadUplinks(s.running); err != nil {
		s.log.Error("reload", "err", err)
		r.Failed = err.Error()
	}
	if s.Level != nil {
		var level slog.Level
		_ = level.UnmarshalText([]byte(next.Log.Level)) // validated by config
		s.Level.Set(level)
	}
	limit := int64(math.MaxInt64)
	if m := next.Limits.Memory; m > 0 {
		limit = int64(m)
	}
	debug.SetMemoryLimit(limit)
	s.roomForHashing(next)
	s.broker.RefreshRights()
	r.Kicked = s.kickUsers(loaded.Gone)
	r.Access = s.Access()
	s.ReloadCertificates()
	return r, nil
}

// reloadRetention gives the streams that are there the limits of cfg.
func (s *Server) reloadRetention(cfg *config.Config) {
	for _, x := range s.streams.Streams {
		c := cfg.Stream(x.Name)
		if c == nil || !x.Configured {
			continue
		}
		if l := streamLimits(c); l != *x.Limits() {
			s.streams.SetLimits(x, l)
		}
	}
}

func streamLimits(c *config.Stream) stream.Limits {
	return stream.Limits{MaxAge: c.Retention.MaxAge, MaxBytes: int64(c.Retention.MaxBytes), MaxRecords: int64(c.Retention.MaxRecords), RejectNew: c.Retention.Full == config.FullRejectNew}
}

// kickUsers ends the connections of users that are gone or have another password.
func (s *Server) kickUsers(gone []string) int {
	if len(gone) == 0 {
		return 0
	}
	is := map[string]bool{}
	for _, u := range gone {
		is[u] = true
	}
	return s.kickIf(func(c *broker.ClientInfo) bool { return c.User != "" && is[c.User] }, packet.CodeNotAuthorized)
}

func (s *Server) kickIf(concerned func(*broker.ClientInfo) bool, code byte) int {
	var ids []string
	s.broker.Clients(func(c broker.ClientInfo) {
		if concerned(&c) {
			ids = append(ids, c.ClientID)
		}
	})
	n := 0
	for _, id := range ids {
		if s.broker.Kick(id, code) {
			n++
		}
	}
	return n
}

// ReloadAndLog reloads for somebody who gets no answer: at a signal.
func (s *Server) ReloadAndLog() {
	r, err := s.Reload()
	if err != nil {
		s.log.Error("the configuration was not reloaded", "err", err)
		return
	}
	for _, c := range r.Applied {
		s.log.Info("reload: applied", "key", c.Key, "old", c.Old, "new", c.New)
	}
	for _, c := range r.Restart {
		s.log.Warn("reload: takes effect at the next start", "key", c.Key, "old", c.Old, "new", c.New)
	}
	s.log.Info("the configuration was reloaded", "applied", len(r.Applied), "need_restart", len(r.Restart),
		"users", r.Access.Users, "acl_rules", r.Access.Rules, "kicked", r.Kicked)
}

// Started is closed once the hub serves.
func (s *Server) Started() <-chan struct{} { return s.serving }

// Alive reports that every loop of the broker answers before ctx ends, and that the metadata can be read.
func (s *Server) Alive(ctx context.Context) bool {
	if s.stopping.Load() {
		return true // it takes the time it takes
	}
	if !s.broker.Responsive(ctx) {
		return false
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _, _ = s.meta.Get([]byte("t")) // that it answers is what counts
	}()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// roomForHashing gives the goroutines that hash passwords a processor of the scheduler's each, once there are users.
// A hash takes tens of milliseconds and cannot be interrupted: on the processors of the event loops it would hold up
// whoever comes in meanwhile, while the operating system shares the cores between them fairly.
func (s *Server) roomForHashing(cfg *config.Config) {
	if cfg.Auth.UsersFile != "" {
		s.hashing.Do(func() { runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + auth.Hashers()) })
	}
}
