package server

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	"edgehub/adapters/mqtt"
	"edgehub/hub/admin/api"
	"edgehub/hub/broker"
	"edgehub/hub/config"
	"edgehub/hub/stream"
	"edgehub/storage/meta"
	"edgehub/sync/uplink"
)

// Status implements admin.Hub.
func (s *Server) Status() api.Status {
	conns, sessions, subs := s.broker.Counts()
	b := &s.broker.Stats
	st := api.Status{
		Hub: s.cfg.Hub.ID, Instance: s.dir.Instance(), Epoch: s.dir.Epoch(), Version: s.version,
		StartedAt: api.Millis(s.started.UnixMilli()), UptimeS: int64(time.Since(s.started).Seconds()),
		Connections: int64(conns), Sessions: int64(sessions), Subscriptions: int64(subs), Retained: int64(s.broker.Retained()),
		MessagesIn: b.In.Load(), MessagesOut: b.Out.Load(), Dropped: s.dropped(), Health: s.Health(),
	}
	for _, x := range s.streams.Streams {
		if x.Name[0] != '$' && !x.Gone() {
			st.Streams = append(st.Streams, streamStatus(x))
		}
	}
	for _, u := range s.runners() {
		st.Uplinks = append(st.Uplinks, uplinkStatus(u))
	}
	return st
}

// dropped counts what was dropped or refused, by reason.
func (s *Server) dropped() map[string]int64 {
	b := &s.broker.Stats
	m := map[string]int64{
		api.DropOutboundFull:       b.DroppedQoS0.Load(),
		api.DropExpired:            b.DroppedExpired.Load(),
		api.DropRetention:          b.DroppedTrimmed.Load(),
		api.DropSessionFull:        b.OfflineSessionFull.Load(),
		api.DropOfflineFull:        b.OfflineHubFull.Load(),
		api.DropOfflineLate:        b.OfflineLate.Load(),
		"larger_than_client_takes": b.DroppedTooLarge.Load(),
		"refused_stream_full":      b.RefusedFull.Load(),
		"lost_behind":              b.LostBehind.Load(),
		"refused_disk_low":         b.RefusedDisk.Load(),
		"qos0_disk_low":            b.DroppedDisk.Load(),
		"refused_write_failed":     b.RefusedWrite.Load(),
		"refused_commit_backlog":   b.RefusedBusy.Load(),
		"refused_no_stream":        b.Unroutable.Load(),
		"denied_publish":           b.DeniedPublish.Load(),
		"denied_delivery":          b.DeniedDelivery.Load(),
		"refused_retained_full":    b.RefusedRetained.Load(),
		"refused_publish_rate":     s.mqtt.Stats.RateRefused.Load(),
		"refused_payload_format":   s.mqtt.Stats.PayloadFormat.Load(),
		"refused_flapping":         b.Flapping.Load(),
	}
	for _, u := range s.runners() {
		m[api.DropRetention] += max(0, u.lost()-u.lostBefore)
	}
	return m
}

func streamStatus(x *stream.Stream) api.StreamStatus {
	st := api.StreamStatus{Name: x.Name, Configured: x.Configured, Durability: durability(x)}
	for _, p := range x.Partitions {
		st.Partitions = append(st.Partitions, api.PartitionStatus{Partition: p.Index, FirstOffset: p.Log.First(), NextOffset: p.Log.Next(),
			SyncedOffset: p.Log.Synced(), Bytes: p.Log.Bytes(), Segments: len(p.Log.Segments()), DamagedRanges: len(p.Log.Damage())})
	}
	return st
}

func durability(x *stream.Stream) string {
	switch x.Durability {
	case stream.Synced:
		return config.DurabilitySynced
	case stream.Memory:
		return config.DurabilityMemory
	case stream.Written:
	}
	return config.DurabilityWritten
}

func uplinkStatus(u *uplinkRunner) api.UplinkStatus {
	st := u.Replicator.Status()
	a := api.UplinkStatus{Name: u.cfg.Name, Kind: u.cfg.Kind, URL: u.cfg.URL, Streams: u.cfg.Streams, RemoteStream: u.remote,
		State: st.State.String(), Connected: st.Connected, LagMessages: st.LagMessages, LagBytes: st.LagBytes,
		LagAgeS: int64(st.LagAge.Seconds()), Acked: st.Acked, Sent: int64(st.Counters.Sent), Delivered: int64(st.Counters.Acked),
		LastError: st.LastError, RecordMax: st.RecordMax}
	if !st.LastErrorAt.IsZero() {
		a.LastErrorAt = api.Millis(st.LastErrorAt.UnixMilli())
		a.LastErrorS = max(int64(time.Since(st.LastErrorAt).Seconds()), 0)
	}
	if !st.RecoveredAt.IsZero() {
		a.Recovered, a.RecoveredAt = true, api.Millis(st.RecoveredAt.UnixMilli())
	}
	a.Lost = map[string]int64{}
	for _, name := range slices.Sorted(maps.Keys(st.Losses)) {
		l := st.Losses[name]
		a.Losses = append(a.Losses, api.UplinkLoss{Partition: name, Retention: l.Retention, Skipped: l.Skipped})
		a.Lost[api.LostRetention] += l.Retention
		a.Lost[api.LostSkipped] += l.Skipped
		a.LostUnseen += l.Unseen
		if l.Retention > 0 {
			a.LostAt = max(a.LostAt, api.Millis(l.At.UnixMilli()))
		}
	}
	for _, k := range st.Stuck {
		a.Stuck = append(a.Stuck, api.UplinkStuck{Partition: k.Partition, Offset: k.Offset, Since: api.Millis(k.Since.UnixMilli()), Cause: string(k.Cause), Reason: k.Reason, Cure: k.Cure})
	}
	for _, m := range st.Pending {
		action := api.MoveSkip
		if m.Back {
			action = api.MoveRewind
		}
		a.Pending = append(a.Pending, api.UplinkMove{Partition: m.Partition, Action: action, Offset: m.Offset})
	}
	return a
}

// lost is how many records retention has taken from an uplink.
func (u *uplinkRunner) lost() (n int64) {
	for _, l := range u.Replicator.Status().Losses {
		n += l.Retention
	}
	return n
}

// Stream implements admin.Hub.
func (s *Server) Stream(name string) (api.StreamDetail, error) {
	x, err := s.find(name)
	if err != nil {
		return api.StreamDetail{}, err
	}
	l := x.Limits()
	d := api.StreamDetail{StreamStatus: streamStatus(x), Filters: x.Filters, PartitionBy: partitionBy(x), Compression: x.Codec.String(),
		SegmentBytes: x.SegmentBytes, Retention: api.Retention{MaxAgeS: int64(l.MaxAge.Seconds()), MaxBytes: l.MaxBytes, MaxRecords: l.MaxRecords,
			Full: config.FullDropOldest, RemovedRecords: x.Dropped.Load() + x.Expired.Load()}}
	if l.RejectNew {
		d.Retention.Full = config.FullRejectNew
	}
	for _, u := range s.runners() {
		for _, p := range x.Partitions {
			if u.Floor(p.Name) < p.Log.Next() {
				d.Retention.HeldBy = u.cfg.Name
			}
		}
	}
	return d, nil
}

func partitionBy(x *stream.Stream) string {
	switch {
	case x.ByClient:
		return config.PartitionByClient
	case x.ByLevel > 0:
		return fmt.Sprintf("level:%d", x.ByLevel)
	}
	return config.PartitionByTopic
}

// find returns a stream that operators may see.
func (s *Server) find(name string) (*stream.Stream, error) {
	var names []string
	for _, x := range s.streams.Streams {
		if x.Name[0] == '$' || x.Gone() {
			continue
		}
		if x.Name == name {
			return x, nil
		}
		names = append(names, x.Name)
	}
	return nil, api.NotFound("stream", name, names)
}

// Clients implements admin.Hub.
func (s *Server) Clients() []api.Client {
	list := []api.Client{}
	now := s.clock.NowMs()
	s.broker.Clients(func(c broker.ClientInfo) {
		a := api.Client{ClientID: c.ClientID, Username: c.User, SessionExpiryS: int64(c.Expiry), Subscriptions: int64(c.Subscriptions), Inflight: int64(c.InFlight), Inbox: c.Inbox}
		if m, ok := c.Conn.(*mqtt.Conn); ok {
			i := m.Info()
			a.Address, a.Listener, a.Protocol = addr(i.Remote), addr(i.Local), i.Protocol
			a.ConnectedAt, a.ConnectedS = api.Millis(i.ConnectedMs), (now-i.ConnectedMs)/1000
			a.KeepAliveS, a.Clean, a.OutboundBytes = int64(i.KeepAliveS), i.Clean, int64(i.Outbound)
			a.MessagesIn, a.MessagesOut, a.Dropped = int64(i.In), int64(i.Out), c.Dropped
		}
		list = append(list, a)
	})
	slices.SortFunc(list, func(a, b api.Client) int {
		if a.ClientID < b.ClientID {
			return -1
		}
		return 1
	})
	return list
}

func addr(a net.Addr) string {
	if a == nil {
		return ""
	}
	return a.String()
}

// Config implements admin.Hub.
func (s *Server) Config() []api.Setting {
	list := []api.Setting{}
	s.reloadMu.Lock()
	running := s.running
	s.reloadMu.Unlock()
	for _, x := range running.Show() {
		list = append(list, api.Setting(x))
	}
	return list
}

// uplinkDownMax is how old the oldest record may be that a remote has not got before its absence degrades the health.
const uplinkDownMax = time.Minute

// lossSaidFor is how long after the last loss of an uplink to retention health speaks of it, unless an operator has taken note.
const lossSaidFor = 24 * time.Hour

// metaGoneCure is what to do when all metadata are gone.
const metaGoneCure = "stop the hub and restore the data directory from a backup (hubctl restore); without one, clients have to subscribe again, and uplinks ask the remote where to go on; said until the hub is restarted"

// Health implements admin.Health.
func (s *Server) Health() api.Health {
	h := api.Health{State: api.HealthOK}
	add := func(what, why, cure string) {
		h.State = api.HealthDegraded
		h.Reasons = append(h.Reasons, api.Reason{What: what, Why: why, Cure: cure})
	}
	s.streamHealth(add)
	for name, n := range s.lost {
		add("stream "+name, fmt.Sprintf("%d records are gone that were there at the last, clean stop", n), "restore them from a backup; an uplink starts a new epoch")
	}
	for _, r := range s.diskHealth() {
		add(r.What, r.Why, r.Cure)
	}
	if s.metaGone() {
		add("metadata", "meta/ and streams/$meta are gone from a data directory that has run: all sessions, subscriptions, retained messages and uplink positions of earlier runs are lost", metaGoneCure)
	}
	if d := s.metaRec.Damaged; s.metaRec.Rebuilt && len(d) > 0 && len(s.metaRec.Lost) == 0 {
		add("metadata", fmt.Sprintf("%d parts of its log are damaged, and its index was gone; what was in them cannot be told", len(d)),
			"clients concerned will have to subscribe again; hubctl stream verify '$meta' names them; with the hub stopped, hubctl stream repair '$meta' puts an end to it")
	}
	if lost := s.metaRec.Lost; len(lost) > 0 {
		add("metadata", fmt.Sprintf("the newest values of %d keys may be lost, with a damaged part of the log: %s", len(lost), meta.KeyList(lost)),
			"clients concerned will have to subscribe again; said until the hub is restarted")
	}
	if s.damaged > 0 {
		add("metadata", fmt.Sprintf("%d records could not be read and were dropped", s.damaged), "clients concerned will have to subscribe again")
	}
	for _, l := range s.listeners {
		if l.certs == nil {
			continue
		}
		for _, w := range l.certs.Warnings(time.Now()) {
			add("listener "+l.cfg.Address, w, "renew it: the hub reads the new files by itself")
		}
	}
	for _, u := range s.runners() {
		s.uplinkHealth(u, add)
	}
	if s.stopping.Load() {
		h.State = api.HealthFailed
		h.Reasons = append(h.Reasons, api.Reason{What: "hub", Why: "stopping"})
	}
	return h
}

// streamHealth says what is wrong with the streams.
func (s *Server) streamHealth(add func(what, why, cure string)) {
	for _, x := range s.streams.Streams {
		n := 0
		for _, p := range x.Partitions {
			n += len(p.Log.Damage())
		}
		if n > 0 {
			add("stream "+x.Name, fmt.Sprintf("%d damaged ranges", n), "hubctl stream verify "+x.Name+" names them; the rest is served; with the hub stopped, hubctl stream repair puts an end to it")
		}
		for _, p := range x.Partitions {
			if at, err := p.Log.Unread(); err != nil {
				add("stream "+x.Name, fmt.Sprintf("%s cannot be read from offset %d: %v", p.Name, at, err),
					"nothing is skipped: whoever reads there waits, and goes on once the disk reads again; look at the disk (dmesg, smartctl), and give up what it never will with hubctl stream repair "+x.Name+", with the hub stopped")
			}
		}
		if !x.Configured && !x.Gone() {
			add("stream "+x.Name, "its data is kept but the configuration no longer has it", "add it to the configuration again, or hubctl stream delete "+x.Name)
		}
		if x.Full() {
			add("stream "+x.Name, "full: new messages are refused", "raise retention.max_bytes, or set retention.full to drop-oldest")
		}
	}
}

// uplinkHealth says what is wrong with an uplink.
func (s *Server) uplinkHealth(u *uplinkRunner, add func(what, why, cure string)) {
	name := u.cfg.Name
	what := "uplink " + name
	st := u.Replicator.Status()
	switch {
	case len(st.Stuck) > 0: // also when none of its partitions can go on
	case st.State == uplink.Blocked:
		add(what, st.LastError, "hubctl uplink show "+name)
	case st.State == uplink.Backoff && st.LagAge > uplinkDownMax:
		add(what, "not connected: "+st.LastError, "messages are kept and sent later; check the remote, the address and the credentials (hubctl uplink show "+name+")")
	}
	for _, k := range st.Stuck {
		add(what, string(k.Cause)+": "+k.Reason, k.Cure)
	}
	var unseen int64
	var at time.Time
	for _, l := range st.Losses {
		if unseen += l.Unseen; l.Unseen > 0 && l.At.After(at) {
			at = l.At
		}
	}
	if now := time.UnixMilli(s.clock.NowMs()); unseen > 0 && now.Sub(at) < lossSaidFor {
		add(what, fmt.Sprintf("%d records were removed by retention before the remote had them", unseen),
			fmt.Sprintf("raise retention.max_bytes, or mend the uplink; said for %s after the last one, or until hubctl uplink acknowledge %s", lossSaidFor, name))
	}
}

// Ready implements admin.Health.
func (s *Server) Ready() (bool, []api.Reason) {
	if s.ready.Load() {
		return true, nil
	}
	if s.stopping.Load() {
		return false, []api.Reason{{What: "hub", Why: "stopping"}}
	}
	return false, []api.Reason{{What: "hub", Why: "starting"}}
}
