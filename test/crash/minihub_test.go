package crash

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"edgehub/hub/broker"
	"edgehub/hub/message"
	hubstream "edgehub/hub/stream"
	"edgehub/internal/hubtime"
	"edgehub/internal/vfs"
	"edgehub/internal/vfs/vfstest"
	"edgehub/storage/datadir"
	"edgehub/storage/meta"
	"edgehub/storage/seglog"
)

// splitFS keeps a hub's logs on a disk in memory that knows what a power cut takes, and Badger's directory, which the
// metadata store opens by itself, on a real one.
type splitFS struct {
	vfs.FS        // in memory
	root   string // of the data directory, the same on both
}

func (s splitFS) real(name string) bool {
	rest := strings.TrimPrefix(name, s.root)
	return rest == "/meta" || strings.HasPrefix(rest, "/meta/") || strings.HasPrefix(rest, "/quarantine/meta-")
}

func (s splitFS) of(name string) vfs.FS {
	if s.real(name) {
		return vfs.OS
	}
	return s.FS
}

func (s splitFS) OpenFile(name string, flag int) (vfs.File, error) {
	return s.of(name).OpenFile(name, flag)
}
func (s splitFS) Remove(name string) error                  { return s.of(name).Remove(name) }
func (s splitFS) Rename(from, to string) error              { return s.of(from).Rename(from, to) }
func (s splitFS) ReadDir(dir string) ([]fs.DirEntry, error) { return s.of(dir).ReadDir(dir) }
func (s splitFS) Stat(name string) (fs.FileInfo, error)     { return s.of(name).Stat(name) }
func (s splitFS) SyncDir(dir string) error                  { return s.of(dir).SyncDir(dir) }

func (s splitFS) MkdirAll(dir string) error {
	if err := vfs.OS.MkdirAll(dir); err != nil { // quarantined tables go to the real one
		return err
	}
	return s.FS.MkdirAll(dir)
}

const salt = 0x5eed

// clonedStreams have every durability that promises something, one of them compressed.
var clonedStreams = []hubstream.Spec{
	{Name: "safe", Filters: []string{"safe/#"}, Partitions: 1, SegmentBytes: 1 << 10, Durability: hubstream.Synced},
	{Name: "packed", Filters: []string{"packed/#"}, Partitions: 1, SegmentBytes: 1 << 10, Codec: seglog.CodecZstd},
	{Name: "main", Filters: []string{"#"}, Partitions: 2, SegmentBytes: 2 << 10},
	{Name: broker.RetainedStream, Partitions: 1, SegmentBytes: 1 << 10},
	{Name: broker.OfflineStream, Partitions: 1, SegmentBytes: 1 << 10},
}

// minihub is a hub without sockets whose every step is taken by the test: metadata, streams and broker as they are.
type minihub struct {
	root string
	dir  *datadir.Dir
	meta *meta.Store
	set  *hubstream.Set
	b    *broker.Broker
	l    *broker.Loop
	wake []func()
	// unread are metadata that made no sense and were dropped: after a power cut some may have lost what they refer to.
	unread  int
	metaRec meta.Recovery
	up      *upstream // nil: none runs
}

// startMini opens everything and recovers, as the hub does.
func startMini(disk vfs.FS, root string) (*minihub, error) {
	h := &minihub{root: root}
	fsys := splitFS{disk, root}
	logger := slog.New(slog.DiscardHandler)
	var err error
	if h.dir, err = datadir.Open(fsys, root); err != nil {
		return nil, err
	}
	// Nothing of the metadata happens behind the test: it flushes and compacts itself, so that a seed repeats.
	if h.meta, h.metaRec, err = meta.Open(meta.Options{FS: fsys, DataDir: root, Salt: salt, SegmentBytes: 4 << 10, CompactBytes: 1 << 30, FlushEvery: 1 << 60}); err != nil {
		return nil, errors.Join(err, h.dir.Close(false))
	}
	floor, err := broker.LastTime(h.meta)
	if err != nil {
		return nil, errors.Join(err, h.meta.Close(), h.dir.Close(false))
	}
	clock := hubtime.New(floor.HubMs)
	h.set, err = hubstream.Open(clonedStreams, hubstream.Options{FS: fsys, Dir: filepath.Join(root, "streams"),
		QuarantineDir: filepath.Join(root, "quarantine"), Salt: salt, Index: h.meta.SegmentIndex(), Clock: clock, Logger: logger, OpenAtOnce: 1})
	if err != nil {
		return nil, errors.Join(err, h.meta.Close(), h.dir.Close(false))
	}
	next := map[string]int64{}
	for _, p := range h.set.Partitions {
		next[p.Name] = p.Log.Next()
	}
	if err := h.dir.BeginRun(next); err != nil {
		return nil, errors.Join(err, h.close(false))
	}
	h.b = broker.New(broker.Options{Streams: h.set, Meta: h.meta, Clock: clock, Logger: logger, Limits: broker.Limits{ReceiveMaximum: 100,
		SessionExpiryMax: 1 << 30, SubsPerClient: 1000, TopicLevels: 16, QoS0LagMs: 1000, CatchupBytes: 8 << 20, InboundBytes: 8 << 20}})
	if h.unread, err = h.b.Recover(); err != nil {
		return nil, errors.Join(fmt.Errorf("recovery: %w", err), h.close(false))
	}
	h.l = h.b.NewLoop(func(fn func()) { h.wake = append(h.wake, fn) })
	return h, nil
}

// settle runs the loop until nothing is left to do.
func (h *minihub) settle() {
	for len(h.wake) > 0 {
		fns := h.wake
		h.wake = nil
		for _, fn := range fns {
			fn()
		}
	}
}

// sync is a pass of the group fdatasync.
func (h *minihub) sync() error {
	for _, p := range h.set.Partitions {
		n, err := p.Log.Sync()
		if err != nil {
			return err
		}
		h.b.Synced(p, n)
	}
	h.settle()
	h.up.notify()
	return nil
}

func (h *minihub) close(clean bool) error {
	h.up.stop()
	return errors.Join(h.set.Close(), h.meta.Close(), h.dir.Close(clean))
}

// payloads reads a partition and returns, per topic, the numbers in its payloads, in order.
func (h *minihub) payloads(p *hubstream.Partition) (map[string][]int, error) {
	got := map[string][]int{}
	var chunk []byte
	for at := p.Log.First(); at < p.Log.Next(); {
		var err error
		if chunk, err = p.Log.Read(at, 1<<20, chunk[:0]); err != nil {
			return nil, err
		}
		if len(chunk) == 0 {
			return got, nil
		}
		for r := range seglog.Records(chunk) {
			var m message.Message
			if err := m.Decode(r); err != nil {
				return nil, err
			}
			n, err := strconv.Atoi(string(bytes.TrimRight(m.Payload, ".")))
			if err != nil {
				return nil, err
			}
			if r.Offset >= at {
				got[string(m.Topic)] = append(got[string(m.Topic)], n)
				at = r.Offset + 1
			}
		}
	}
	return got, nil
}

// mconn is a connection that notes what is acknowledged.
type mconn struct {
	c     *broker.Client
	acked func(seq uint32, code byte)
}

func (m *mconn) Attached(c *broker.Client, _ bool) { m.c = c }
func (m *mconn) Room(int) bool                     { return true }
func (m *mconn) Send(*broker.Delivery) bool        { return true }
func (m *mconn) SendRelease(uint16)                {}
func (m *mconn) Ack(seq uint32, code byte)         { m.acked(seq, code) }
func (m *mconn) Close(byte)                        {}
func (m *mconn) Flush()                            {}

// badger leaves Badger's directory of a clone as something may have.
func badger(t *testing.T, r *rand.Rand, from, root string) string {
	t.Helper()
	switch k := r.IntN(12); {
	case k < 7:
		return "deleted"
	case k < 9:
		copyIndex(t, from, root, nil)
		return "stale"
	case k < 11:
		copyIndex(t, from, root, r)
		return "damaged"
	default:
		if err := os.WriteFile(filepath.Join(root, "meta"), []byte("no directory"), 0o600); err != nil {
			t.Fatal(err)
		}
		return "a file"
	}
}

// copyIndex copies Badger's files, sparse as they are; with r some bytes of each are others.
func copyIndex(t *testing.T, from, root string, r *rand.Rand) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(from, "meta"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(root, "meta"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		raw, err := os.ReadFile(filepath.Join(from, "meta", e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.Create(filepath.Join(root, "meta", e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		for at := 0; at < len(raw); at += 4096 {
			block := raw[at:min(at+4096, len(raw))]
			if r != nil && at < 64<<10 && r.IntN(4) == 0 {
				block[r.IntN(len(block))] ^= byte(1 + r.IntN(255))
			}
			if len(bytes.Trim(block, "\x00")) > 0 {
				if _, err := f.WriteAt(block, int64(at)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := errors.Join(f.Truncate(int64(len(raw))), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

var _ vfs.FS = splitFS{vfstest.NewMem(), ""}
