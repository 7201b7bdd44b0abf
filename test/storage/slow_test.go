package storage

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"edgehub/hub/admin/api"
	"edgehub/hub/config"
	"edgehub/hub/server"
	"edgehub/internal/vfs"
	"edgehub/internal/vfs/vfstest"
	"edgehub/test/harness"
	"edgehub/test/harness/mqttc"
)

// slowDisk is how long each write and fdatasync takes.
const slowDisk = 2 * time.Second

// A disk on which every write and fdatasync takes two seconds delays no PINGRESP beyond 500 ms, from the first moment
// on, and fires no will; what is acknowledged is in the log, in order.
func TestSlowDisk(t *testing.T) {
	var slow atomic.Bool
	fs := vfstest.New(vfs.OS)
	late := func() {
		if slow.Load() {
			<-time.After(slowDisk)
		}
	}
	fs.Add(vfstest.Fault{Op: vfstest.OpWrite, Hook: late})
	fs.Add(vfstest.Fault{Op: vfstest.OpSync, Hook: late})
	was := vfs.OS
	vfs.OS = fs
	t.Cleanup(func() { vfs.OS = was })

	addr, err := harness.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	cfg := config.Default()
	cfg.Hub.DataDir = t.TempDir()
	cfg.Admin.Socket, cfg.Admin.Address = filepath.Join(cfg.Hub.DataDir, "s"), ""
	cfg.Listeners[0].Address = addr
	s, err := server.New(cfg, "test", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	defer func() {
		slow.Store(false)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	for ok := false; !ok; ok, _ = s.Ready() {
		select {
		case err := <-done:
			t.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	calm, _, err := mqttc.Dial(addr, mqttc.Connect{Version: 4, ClientID: "calm", Clean: true, KeepAlive: 1})
	if err != nil {
		t.Fatal(err)
	}
	slow.Store(true)
	var acked [3]atomic.Int64
	for qos := range acked {
		go publishSlowly(addr, byte(qos), &acked[qos])
	}
	var worst time.Duration
	said := false // in the health
	for start := time.Now(); time.Since(start) < 10*time.Second; {
		asked := time.Now()
		if err := calm.Ping(); err != nil {
			t.Fatal(err)
		}
		worst = max(worst, time.Since(asked))
		said = said || s.Health().State == api.HealthDegraded
		<-time.After(100 * time.Millisecond)
	}
	st := s.Status()
	t.Logf("worst PINGRESP %v; acknowledged: QoS 1 %d, QoS 2 %d; published %d", worst, acked[1].Load(), acked[2].Load(), st.MessagesIn)
	if worst > 500*time.Millisecond || acked[1].Load() == 0 || st.MessagesIn < acked[1].Load()+acked[2].Load() {
		t.Errorf("%d messages in the log", st.MessagesIn)
	}
	if !said {
		t.Error("the health said nothing of it")
	}
}

// publishSlowly publishes one message after the other, each when the one before is acknowledged.
func publishSlowly(addr string, qos byte, acked *atomic.Int64) {
	c, _, err := mqttc.Dial(addr, mqttc.Connect{Version: 4, ClientID: fmt.Sprint("p", qos), Clean: qos < 2, KeepAlive: 60})
	for i := 0; err == nil; i++ {
		if err = c.Publish(mqttc.Packet{Topic: "t", Payload: []byte(fmt.Sprint(i)), QoS: qos}); err == nil {
			acked.Add(1)
		}
		<-time.After(20 * time.Millisecond)
	}
}
