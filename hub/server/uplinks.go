package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"sync"

	"edgehub/hub/admin/api"
	"edgehub/hub/config"
	"edgehub/hub/stream"
	"edgehub/storage/meta"
	"edgehub/sync/sink/jetstream"
	"edgehub/sync/uplink"
)

// uplinkRunner is one configured uplink and its goroutine.
type uplinkRunner struct {
	*uplink.Replicator
	cfg    *config.Uplink
	remote string
	// lostBefore is what retention had taken from it before this run.
	lostBefore int64
	cancel     context.CancelFunc
	done       chan struct{}
}

func (u *uplinkRunner) start() {
	ctx, cancel := context.WithCancel(context.Background())
	u.cancel, u.done = cancel, make(chan struct{})
	go func() {
		defer close(u.done)
		_ = u.Run(ctx) // its errors are its status
	}()
}

func (u *uplinkRunner) stop() {
	if u.cancel != nil {
		u.cancel()
		<-u.done
	}
}

// runners are the uplinks that there are now. The list is replaced, never changed.
func (s *Server) runners() []*uplinkRunner {
	if list := s.uplinks.Load(); list != nil {
		return *list
	}
	return nil
}

func (s *Server) openUplinks() error {
	var list []*uplinkRunner
	for i := range s.cfg.Uplinks {
		u, err := s.openUplink(&s.cfg.Uplinks[i])
		if err != nil {
			return usage{fmt.Errorf("uplink %s: %w", s.cfg.Uplinks[i].Name, err)}
		}
		list = append(list, u)
	}
	s.uplinks.Store(&list)
	return nil
}

// newSink checks all of an uplink's settings that can be wrong, without connecting.
func (s *Server) newSink(c *config.Uplink) (*jetstream.Sink, error) {
	subjects, err := jetstream.NewSubjects(c.Subject, s.cfg.Hub.ID)
	if err != nil {
		return nil, err
	}
	o := jetstream.Options{URL: c.URL, Hub: s.cfg.Hub.ID, RemoteStream: jetstream.RemoteName(c.RemoteStream, s.cfg.Hub.ID), Subjects: subjects,
		CredentialsFile: c.CredentialsFile, User: c.User, PasswordFile: c.PasswordFile}
	if c.PasswordEnv != "" {
		if o.Password, err = fromEnv("password_env", c.PasswordEnv); err != nil {
			return nil, err
		}
	}
	if c.CredentialsEnv != "" {
		text, err := fromEnv("credentials_env", c.CredentialsEnv)
		if err != nil {
			return nil, err
		}
		o.Credentials = []byte(text)
	}
	if t := c.TLS; t != (config.UplinkTLS{}) {
		o.TLS = &jetstream.TLS{CAFile: t.CAFile, CertFile: t.CertFile, KeyFile: t.KeyFile, ServerName: t.ServerName}
	}
	return jetstream.New(o)
}

// fromEnv reads a secret from hubd's environment, which does not change while it runs.
func fromEnv(key, name string) (string, error) {
	v := os.Getenv(name)
	if v == "" {
		return "", fmt.Errorf("%s: hubd has no environment variable %s; set it (EnvironmentFile= in the unit) and start hubd again", key, name)
	}
	return v, nil
}

func (s *Server) openUplink(c *config.Uplink) (*uplinkRunner, error) {
	sink, err := s.newSink(c)
	if err != nil {
		return nil, err
	}
	remote := jetstream.RemoteName(c.RemoteStream, s.cfg.Hub.ID)
	src := s.source.of(c.Streams)
	r, err := uplink.New(uplink.Options{Name: c.Name, Hub: s.cfg.Hub.ID, Instance: s.dir.Instance(), Remote: remote, Source: src,
		Cursors: cursors{s.meta}, Sink: sink, Create: c.Create, Hold: c.Hold, RemoteGrace: c.RemoteGrace,
		MessagesPerS: int64(c.Rate.MessagesPerS), BytesPerS: int64(c.Rate.BytesPerS), Window: uplink.Window{Bytes: int64(c.WindowBytes)}, NowMs: s.clock.NowMs,
		RecordMax: int64(s.cfg.Limits.MaxPacketBytes), Logger: s.log})
	if err != nil {
		return nil, err
	}
	run := &uplinkRunner{Replicator: r, cfg: c, remote: remote}
	run.lostBefore = run.lost()
	return run, nil
}

// checkUplinks finds what would keep the uplinks of a configuration from being opened.
func (s *Server) checkUplinks(cfg *config.Config) error {
	for i := range cfg.Uplinks {
		if _, err := s.newSink(&cfg.Uplinks[i]); err != nil {
			return fmt.Errorf("uplink %s: %w", cfg.Uplinks[i].Name, err)
		}
	}
	return nil
}

// reloadUplinks has the uplinks of a checked configuration run in place of those that run now. One whose settings are
// the same goes on untouched. One that has changed is stopped, and opened anew where its saved cursors are, as after a
// restart of the hub: until then its old self holds back retention. The caller holds reloadMu.
func (s *Server) reloadUplinks(cfg *config.Config) error {
	var list []*uplinkRunner
	var errs []error
	for i := range cfg.Uplinks {
		c := &cfg.Uplinks[i]
		old, _ := s.uplink(c.Name)
		if old != nil && reflect.DeepEqual(old.cfg, c) {
			list = append(list, old)
			continue
		}
		if old != nil {
			old.stop()
		}
		u, err := s.openUplink(c)
		if err != nil { // its metadata cannot be read: everything else was checked
			errs = append(errs, fmt.Errorf("uplink %s does not run: %w", c.Name, err))
			continue
		}
		if old != nil {
			u.lostBefore = old.lostBefore
		}
		list = append(list, u)
	}
	for _, u := range s.runners() {
		if !slices.ContainsFunc(cfg.Uplinks, func(c config.Uplink) bool { return c.Name == u.cfg.Name }) {
			u.stop()
		}
	}
	s.uplinks.Store(&list)
	s.runUplinks()
	return errors.Join(errs...)
}

// runUplinks starts those that do not run. The caller holds reloadMu.
func (s *Server) runUplinks() {
	for _, u := range s.runners() {
		if u.done == nil {
			u.start()
		}
	}
}

func (s *Server) startUplinks() {
	s.reloadMu.Lock()
	defer s.reloadMu.Unlock()
	s.runUplinks()
}

// stopUplinks waits for a reload that is at work; stopping keeps the next ones from beginning.
func (s *Server) stopUplinks() {
	s.reloadMu.Lock()
	defer s.reloadMu.Unlock()
	for _, u := range s.runners() {
		u.stop()
	}
}

// hold is the offset that retention by age may not pass in p.
func (s *Server) hold(p *stream.Partition) int64 {
	floor := int64(math.MaxInt64)
	for _, u := range s.runners() {
		floor = min(floor, u.Floor(p.Name))
	}
	return floor
}

// droppedHeld tells what the hard limit took from the uplinks. They count it themselves.
func (s *Server) droppedHeld(p *stream.Partition, _ int64) {
	for _, u := range s.runners() {
		if n := u.Gone(p.Name); n > 0 {
			s.log.Warn("max_bytes: records were deleted that an uplink had not sent", "uplink", u.cfg.Name, "partition", p.Name, "records", n)
		}
	}
}

func (s *Server) uplink(name string) (*uplinkRunner, error) {
	var names []string
	for _, u := range s.runners() {
		if u.cfg.Name == name {
			return u, nil
		}
		names = append(names, u.cfg.Name)
	}
	return nil, api.NotFound("uplink", name, names)
}

// Pause implements admin.Uplinks.
func (s *Server) Pause(name string) error {
	u, err := s.uplink(name)
	if err != nil {
		return err
	}
	return u.Replicator.Pause()
}

// Resume implements admin.Uplinks.
func (s *Server) Resume(name string) error {
	u, err := s.uplink(name)
	if err != nil {
		return err
	}
	return u.Replicator.Resume()
}

// Acknowledge implements admin.Uplinks.
func (s *Server) Acknowledge(name string) error {
	u, err := s.uplink(name)
	if err != nil {
		return err
	}
	return u.Replicator.Acknowledge()
}

// Move implements admin.Uplinks.
func (s *Server) Move(name string, m api.UplinkMove) error {
	u, err := s.uplink(name)
	if err != nil {
		return err
	}
	if m.Action == api.MoveRewind {
		err = u.Rewind(m.Partition, m.Offset)
	} else {
		err = u.Skip(m.Partition, m.Offset)
	}
	if errors.Is(err, uplink.ErrPartition) || errors.Is(err, uplink.ErrOffset) {
		return api.Invalid("%v", err)
	}
	return err
}

// source gives the streams to the uplinks.
type source struct {
	s    *Server
	mu   sync.Mutex
	subs map[chan<- struct{}]bool
}

func newSource(s *Server) *source { return &source{s: s, subs: map[chan<- struct{}]bool{}} }

// notify tells the uplinks that more is synced.
func (x *source) notify() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for ch := range x.subs {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// of is the source of one uplink: the streams it names, all of them when it names none.
func (x *source) of(names []string) uplink.Source {
	v := &view{source: x}
	for _, st := range x.s.streams.Streams {
		if st.Configured && st.Name[0] != '$' && (len(names) == 0 || slices.Contains(names, st.Name)) {
			for _, p := range st.Partitions {
				x.s.streams.Follow(p)
				v.parts = append(v.parts, partition{p})
			}
		}
	}
	return v
}

type view struct {
	*source
	parts []uplink.Partition
}

// Partitions implements uplink.Source.
func (v *view) Partitions() []uplink.Partition { return v.parts }

// Notify implements uplink.Source.
func (v *view) Notify(ch chan<- struct{}) (cancel func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.subs[ch] = true
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		delete(v.subs, ch)
	}
}

// EpochAt implements uplink.Source.
func (v *view) EpochAt(partition string, offset int64) uint32 {
	return v.s.dir.EpochAt(partition, offset)
}

// EpochStarts implements uplink.Source.
func (v *view) EpochStarts(partition string) []uplink.EpochStart {
	var list []uplink.EpochStart
	for _, e := range v.s.dir.EpochStarts(partition) {
		list = append(list, uplink.EpochStart{Epoch: e.Epoch, First: e.First})
	}
	return list
}

type partition struct{ p *stream.Partition }

func (p partition) Name() string              { return p.p.Name }
func (p partition) First() int64              { return p.p.Log.First() }
func (p partition) Next() int64               { return p.p.Log.Next() }
func (p partition) Synced() int64             { return p.p.Log.Synced() }
func (p partition) BytesFrom(off int64) int64 { return p.p.Log.BytesFrom(off) }
func (p partition) Read(from int64, limit int, dst []byte) ([]byte, error) {
	return p.p.Log.Read(from, limit, dst)
}

// cursors keeps the uplinks' positions in the metadata.
type cursors struct{ m *meta.Store }

func cursorKey(up, part string) []byte { return []byte("u/" + up + "\x00" + part) }

func (c cursors) Load(up, part string) (int64, bool, error) {
	v, ok, err := c.m.Get(cursorKey(up, part))
	if err != nil || !ok || len(v) != 8 {
		return 0, false, err
	}
	return int64(binary.BigEndian.Uint64(v)), true, nil
}

func (c cursors) Save(up, part string, offset int64) error {
	c.m.Put(cursorKey(up, part), binary.BigEndian.AppendUint64(nil, uint64(offset)))
	return nil
}

func (c cursors) LoadState(up string) ([]byte, error) {
	v, _, err := c.m.Get([]byte("us/" + up))
	return v, err
}

func (c cursors) SaveState(up string, state []byte) error {
	c.m.Put([]byte("us/"+up), state)
	return c.m.Commit()
}
