package server

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"edgehub/hub/admin/api"
	"edgehub/storage/diskguard"
)

// watchDisk begins to look after the disk, before anything of the hub is opened on it.
func (s *Server) watchDisk() {
	d := &s.cfg.Disk
	s.disk = diskguard.New(diskguard.Options{Dir: s.cfg.Hub.DataDir, LowBytes: int64(d.LowBytes), BallastBytes: int64(d.BallastBytes),
		OnChange: s.diskChanged, Logger: s.log})
}

// diskChanged keeps the metadata's index away from a full disk. It runs on the guard's goroutine, or before that starts.
func (s *Server) diskChanged(low bool) {
	m := s.diskMeta.Load()
	switch {
	case m == nil:
	case low:
		m.Suspend()
	default:
		m.Resume()
	}
}

// diskHealth is what health says of the disk.
func (s *Server) diskHealth() (list []api.Reason) {
	if st := s.disk.Status(); st.Low {
		list = append(list, api.Reason{What: "disk", Why: fmt.Sprintf("%s free of %s, below the low mark of %s: messages of QoS 1 and 2 are refused",
			mib(st.Free), mib(st.Total), mib(st.LowBytes)), Cure: "free space on the disk of " + s.cfg.Hub.DataDir + "; the hub goes on by itself"})
	}
	if op, late := s.streams.Slow.Running(); late {
		if took := time.Since(op.Since); took >= s.cfg.Disk.SlowAfter {
			list = append(list, api.Reason{What: "disk", Why: fmt.Sprintf("a %s of %s has been taking %s: who needs it waits, everybody else is served", op.Kind, op.File, took.Round(time.Second/10)),
				Cure: "see what else writes to the disk of " + s.cfg.Hub.DataDir + ", and whether it is failing (dmesg, smartctl); the hub goes on by itself"})
		}
	}
	return list
}

func mib(n int64) string { return strconv.FormatInt(n>>20, 10) + " MiB" }

// wear are the counters of bytes written.
func (s *Server) wear() map[string]func() int64 {
	w := s.disk.Wear()
	return map[string]func() int64{"log": w.Log.Load, "meta": w.Meta.Load, "index": s.meta.IndexWritten, "other": w.Other.Load, "os": osWritten}
}

func (s *Server) amplification() float64 {
	w := s.disk.Wear()
	taken := s.broker.Stats.InBytes.Load()
	if taken == 0 {
		return 0
	}
	return float64(w.Log.Load()+w.Meta.Load()+s.meta.IndexWritten()) / float64(taken)
}

// osWritten is what the process has caused to be written to storage, as Linux counts it; 0 elsewhere.
func osWritten() int64 {
	b, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "write_bytes: "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(v), 10, 64) // 0 when it makes no sense
			return n
		}
	}
	return 0
}
