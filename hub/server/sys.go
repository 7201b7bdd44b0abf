package server

import (
	"fmt"
	"runtime/metrics"
	"strconv"
	"time"
)

// watchSys publishes the hub's own topics until stop is closed.
func (s *Server) watchSys(stop <-chan struct{}) {
	every := s.cfg.Hub.SysInterval
	if every <= 0 {
		return
	}
	t := time.NewTicker(every)
	defer t.Stop()
	var st sysState
	for {
		s.broker.PublishSys(s.sysValues(&st))
		select {
		case <-stop:
			return
		case <-t.C:
		}
	}
}

// sysState is what has to be remembered from one time to the next.
type sysState struct {
	mostConnected int
	mostHeap      int64
	loads         loads
}

// sysValues are the hub's own topics, under the names that MQTT brokers usually give them.
func (s *Server) sysValues(st *sysState) map[string]string {
	conns, sessions, subs := s.broker.Counts()
	heap := heapBytes()
	st.mostConnected, st.mostHeap = max(st.mostConnected, conns), max(st.mostHeap, heap)
	b, m := &s.broker.Stats, &s.mqtt.Stats
	values := map[string]string{"version": "edgehub " + s.version, "uptime": fmt.Sprintf("%d seconds", int64(time.Since(s.started).Seconds()))}
	dropped := b.DroppedQoS0.Load() + b.DroppedExpired.Load() + b.DroppedTrimmed.Load() + b.DroppedTooLarge.Load()
	var records, bytes int64
	for _, p := range s.streams.Partitions {
		records += p.Log.Next() - p.Log.First()
		bytes += p.Log.Bytes()
	}
	for name, n := range map[string]int64{
		"clients/connected":                 int64(conns),
		"clients/disconnected":              int64(sessions - conns),
		"clients/active":                    int64(conns),
		"clients/inactive":                  int64(sessions - conns),
		"clients/total":                     int64(sessions),
		"clients/maximum":                   int64(st.mostConnected),
		"clients/expired":                   b.SessionsExpired.Load(),
		"connections/total":                 m.Connects.Load(),
		"connections/refused":               m.Refused.Load(),
		"messages/received":                 m.PacketsIn.Load(),
		"messages/sent":                     m.PacketsOut.Load(),
		"messages/stored":                   records,
		"bytes/received":                    m.BytesIn.Load(),
		"bytes/sent":                        m.BytesOut.Load(),
		"publish/messages/received":         b.In.Load(),
		"publish/messages/sent":             b.Out.Load(),
		"publish/messages/dropped":          dropped,
		"publish/bytes/received":            b.InBytes.Load(),
		"publish/bytes/sent":                b.OutBytes.Load(),
		"subscriptions/count":               int64(subs),
		"shared_subscriptions/count":        int64(s.broker.Groups()),
		"retained messages/count":           int64(s.broker.Retained()),
		"store/messages/count":              records,
		"store/messages/bytes":              bytes,
		"heap/current":                      heap,
		"heap/maximum":                      st.mostHeap,
		"takeovers/total":                   b.Takeovers.Load(),
		"publish/messages/refused/quota":    b.RefusedFull.Load() + b.RefusedBusy.Load() + b.RefusedRetained.Load() + m.RateRefused.Load(),
		"publish/messages/refused/nostream": b.Unroutable.Load(),
	} {
		values[name] = strconv.FormatInt(n, 10)
	}
	st.loads.update(time.Now(), map[string]int64{
		"messages/received": m.PacketsIn.Load(), "messages/sent": m.PacketsOut.Load(),
		"bytes/received": m.BytesIn.Load(), "bytes/sent": m.BytesOut.Load(),
		"publish/received": b.In.Load(), "publish/sent": b.Out.Load(), "publish/dropped": dropped,
		"connections": m.Connects.Load() + m.Refused.Load(), "sockets": m.Disconnects.Load() + s.mqtt.Open(),
	})
	st.loads.put(values)
	out := make(map[string]string, len(values))
	for name, v := range values {
		out["$SYS/broker/"+name] = v
	}
	return out
}

func heapBytes() int64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}
