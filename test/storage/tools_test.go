// Package storage tests what operators do with a hub's data: verify, dump, repair, delete, backup and restore, on a
// running hub and on one that is stopped.
package storage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"edgehub/test/harness"
	"edgehub/test/harness/hublog"
	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/mqttc"
)

func TestMain(m *testing.M) { hubtest.Main(m) }

// ctl runs hubctl, which must exit with that code, and returns what it printed on both outputs.
func ctl(t *testing.T, h *harness.Hub, exit int, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	out, err := h.Ctl(ctx, args...)
	got, text := 0, string(out)
	var failed *harness.CtlError
	if errors.As(err, &failed) {
		got, text = failed.Exit, text+failed.Stderr
	} else if err != nil {
		t.Fatal(err)
	}
	if got != exit {
		t.Fatalf("hubctl %v: exit %d, want %d:\n%s", args, got, exit, text)
	}
	return text
}

func stop(t *testing.T, h *harness.Hub) {
	t.Helper()
	if code, err := h.Stop(20 * time.Second); code != 0 || err != nil {
		t.Fatal(code, err)
	}
}

// segments are the segment files of a partition, oldest first.
func segments(t *testing.T, h *harness.Hub, partition string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(h.Config.DataDir, "streams", filepath.FromSlash(partition), "*.log"))
	if err != nil || len(list) == 0 {
		t.Fatal(list, err)
	}
	return list
}

// records are the payloads of a stream by topic, read from the files.
func records(t *testing.T, dir, stream string) map[string][]string {
	t.Helper()
	got := map[string][]string{}
	err := hublog.ReadFiles(dir, stream, nil, func(r *hublog.Record) error {
		got[r.Topic] = append(got[r.Topic], string(r.Payload))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func oneStream(lines ...string) func(*harness.Config) {
	return func(c *harness.Config) {
		c.Streams = []harness.Stream{{Name: "plant", Filters: []string{"plant/#"}, Partitions: 1, Lines: lines}}
	}
}

func TestVerifyDumpRepair(t *testing.T) {
	h := hubtest.Start(t, oneStream(`segment_bytes = "16KiB"`))
	c := hubtest.Dial(t, h.Addr(), mqttc.Connect{Version: 5, ClientID: "p", Clean: true})
	const n = 400
	for i := range n {
		c.Pub("plant/a", fmt.Sprintf("%d %s", i, strings.Repeat("x", 100)), 1)
	}
	if out := ctl(t, h, 0, "stream", "verify", "plant"); !strings.Contains(out, "400 records") {
		t.Error(out)
	}
	ctl(t, h, 0, "stream", "verify", "$meta")
	ctl(t, h, 1, "stream", "verify", "plnat")
	segs := segments(t, h, "plant/0")
	if len(segs) < 3 {
		t.Fatal(segs)
	}
	if out := ctl(t, h, 0, "stream", "dump", segs[0]); strings.Count(out, `"topic":"plant/a"`) < 50 || !strings.Contains(out, `"header_crc":"ok"`) {
		t.Error(out[:min(len(out), 500)])
	}

	// A flipped bit under the running hub: named, and the rest goes on being served.
	raw, err := os.ReadFile(segs[1])
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)/2] ^= 4
	if err := os.WriteFile(segs[1], raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if out := ctl(t, h, 1, "stream", "verify", "plant"); !strings.Contains(out, "plant/0-0 "+filepath.Base(segs[1])) || !strings.Contains(out, "offset") {
		t.Error(out)
	}
	ctl(t, h, 1, "stream", "dump", segs[1])
	var found struct {
		Records  int64
		Findings int
		Found    []struct {
			From, To int64
			Segment  string
		}
	}
	out := ctl(t, h, 1, "stream", "verify", "plant", "-o", "json")
	if err := json.Unmarshal([]byte(out[:strings.LastIndex(out, "}")+1]), &found); err != nil || found.Findings != 1 || len(found.Found) != 1 {
		t.Fatalf("%v %s", err, out)
	}
	lost := found.Found[0].To - found.Found[0].From
	if lost < 1 || found.Records != n-lost || found.Found[0].Segment != filepath.Base(segs[1]) {
		t.Errorf("%+v", found)
	}
	if out := ctl(t, h, 0, "status"); !strings.Contains(out, "damaged") {
		t.Error(out)
	}
	c.Pub("plant/a", "more", 1)
	ctl(t, h, 2, "stream", "repair", "plant")
	ctl(t, h, 1, "stream", "repair", "plant", "--data-dir", h.Config.DataDir) // in use
	stop(t, h)

	ctl(t, h, 1, "stream", "verify", "plant", "--data-dir", h.Config.DataDir)
	ctl(t, h, 0, "stream", "repair", "plant", "--data-dir", h.Config.DataDir, "--dry-run")
	ctl(t, h, 1, "stream", "verify", "plant", "--data-dir", h.Config.DataDir)
	ctl(t, h, 0, "stream", "repair", "plant", "--data-dir", h.Config.DataDir)
	if out := ctl(t, h, 0, "stream", "verify", "plant", "--data-dir", h.Config.DataDir); !strings.Contains(out, fmt.Sprintf("%d records", n+1-lost)) {
		t.Error(out)
	}
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	ctl(t, h, 0, "stream", "verify", "plant")
	if out := ctl(t, h, 0, "status"); strings.Contains(out, "damaged ranges") {
		t.Error(out)
	}
}

func TestDeleteStream(t *testing.T) {
	h := hubtest.Start(t, oneStream())
	c := hubtest.Dial(t, h.Addr(), mqttc.Connect{Version: 4, ClientID: "p", Clean: true})
	for i := range 10 {
		c.Pub("plant/a", fmt.Sprint(i), 1)
	}
	ctl(t, h, 1, "stream", "delete", "plant") // configured
	stop(t, h)
	h.Config.Streams = nil
	if err := errors.Join(h.WriteConfig(), h.Start()); err != nil {
		t.Fatal(err)
	}
	if out := ctl(t, h, 0, "status"); !strings.Contains(out, "hubctl stream delete plant") {
		t.Error(out)
	}
	if out := ctl(t, h, 0, "stream", "delete", "plant"); !strings.Contains(out, "10 records") {
		t.Error(out)
	}
	ctl(t, h, 1, "stream", "show", "plant")
	if out := ctl(t, h, 0, "status"); strings.Contains(out, "plant") {
		t.Error(out)
	}
	stop(t, h)
	// It comes back with more partitions, which it may since it has no data, and its offsets go on.
	oneStream()(&h.Config)
	h.Config.Streams[0].Partitions = 2
	if err := errors.Join(h.WriteConfig(), h.Start()); err != nil {
		t.Fatal(err)
	}
	offsets := map[string]bool{}
	for i := range 20 {
		var at struct{ Partition, Offset int }
		if err := json.Unmarshal([]byte(ctl(t, h, 0, "pub", fmt.Sprint("plant/", i), "again", "-o", "json")), &at); err != nil {
			t.Fatal(err)
		}
		offsets[fmt.Sprint(at.Partition, "/", at.Offset)] = true
	}
	if !offsets["0/10"] || offsets["0/0"] || !offsets["1/0"] {
		t.Error(offsets)
	}
}

// TestBackupRestore: a backup taken under load has everything that was acknowledged before it began, sessions and
// retained messages included, and restores into a hub of another epoch.
func TestBackupRestore(t *testing.T) {
	h := hubtest.Start(t, oneStream(`segment_bytes = "64KiB"`))
	p := hubtest.Dial(t, h.Addr(), mqttc.Connect{Version: 5, ClientID: "p", Clean: true})
	s := hubtest.Dial(t, h.Addr(), mqttc.Connect{Version: 4, ClientID: "away"})
	s.Sub("plant/+", 1)
	s.Bye()
	p.PubPacket(mqttc.Packet{Topic: "plant/state", Payload: []byte("on"), QoS: 1, Retain: true})
	const n = 300
	for i := range n {
		p.Pub("plant/a", fmt.Sprintf("%d %s", i, strings.Repeat("x", 100)), 1)
	}
	var halt atomic.Bool
	loaded := make(chan error, 1)
	go func() {
		load, _, err := mqttc.Dial(h.Addr(), mqttc.Connect{Version: 5, ClientID: "load", Clean: true})
		for i := 0; err == nil && !halt.Load(); i++ {
			err = load.Publish(mqttc.Packet{Topic: "plant/load", Payload: bytes.Repeat([]byte{'y'}, 100), QoS: 1})
		}
		loaded <- err
	}()
	file, dir := filepath.Join(h.Dir, "b.tar"), filepath.Join(h.Dir, "b")+"/"
	ctl(t, h, 0, "backup", file)
	ctl(t, h, 1, "backup", file) // exists
	ctl(t, h, 0, "backup", "--replace", file)
	ctl(t, h, 0, "backup", dir)
	halt.Store(true)
	if err := <-loaded; err != nil {
		t.Fatal(err)
	}
	ctl(t, h, 1, "restore", file, "--data-dir", h.Config.DataDir) // not empty
	ctl(t, h, 2, "restore", file)
	stop(t, h)

	for _, from := range []string{file, dir} {
		to := filepath.Join(h.Dir, "restored-"+filepath.Base(from))
		ctl(t, h, 0, "restore", from, "--data-dir", to)
		ctl(t, h, 0, "stream", "verify", "plant", "--data-dir", to)
		ctl(t, h, 0, "stream", "verify", "$meta", "--data-dir", to)
		got := records(t, to, "plant")
		if len(got["plant/a"]) != n || len(got["plant/load"]) == 0 {
			t.Errorf("%s: %d and %d records", from, len(got["plant/a"]), len(got["plant/load"]))
		}
		r := hubtest.New(t, oneStream(`segment_bytes = "64KiB"`))
		r.Config.DataDir = to
		if err := errors.Join(r.WriteConfig(), r.Start()); err != nil {
			t.Fatal(err)
		}
		was, is := status(t, h.Config.DataDir), status(t, to)
		if was.Instance != is.Instance || is.Epoch < was.Epoch+1000 {
			t.Errorf("instance %s epoch %d, restored %s epoch %d", was.Instance, was.Epoch, is.Instance, is.Epoch)
		}
		s := hubtest.Dial(t, r.Addr(), mqttc.Connect{Version: 4, ClientID: "away"})
		s.Want("plant/state", "on", 1)
		s.Want("plant/a", "0 "+strings.Repeat("x", 100), 1)
		q := hubtest.Dial(t, r.Addr(), mqttc.Connect{Version: 4, ClientID: "new", Clean: true})
		q.Sub("plant/state", 0)
		q.Want("plant/state", "on", 0)
		stop(t, r)
	}
	// A backup that was cut off is refused.
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(h.Dir, "cut.tar")
	if err := os.WriteFile(cut, raw[:len(raw)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if out := ctl(t, h, 1, "restore", cut, "--data-dir", filepath.Join(h.Dir, "cut")); !strings.Contains(out, "not a complete backup") {
		t.Error(out)
	}
}

// status is what hub.json of a directory says.
func status(t *testing.T, dir string) (m struct {
	Instance string
	Epoch    uint32
}) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "hub.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func fileSize(t *testing.T, name string) int64 {
	t.Helper()
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}
