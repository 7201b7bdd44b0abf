package inspect

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"edgehub/internal/vfs"
	"edgehub/storage/datadir"
	"edgehub/storage/meta"
	"edgehub/storage/seglog"
)

// hub is a data directory with two streams and metadata, as a hub keeps them.
type hub struct {
	t    *testing.T
	path string
	dir  *datadir.Dir
	meta *meta.Store
	logs []*seglog.Log
}

var partitions = []Partition{{"a/0-0", "streams/a/0"}, {"a/1-0", "streams/a/1"}, {"b/0-0", "streams/b/0"}}

func open(t *testing.T, path string) *hub {
	t.Helper()
	h := &hub{t: t, path: path}
	var err error
	if h.dir, err = datadir.Open(vfs.OS, path); err != nil {
		t.Fatal(err)
	}
	if h.meta, _, err = meta.Open(meta.Options{FS: vfs.OS, DataDir: path, Salt: h.dir.Salt()}); err != nil {
		t.Fatal(err)
	}
	next := map[string]int64{}
	for _, p := range partitions {
		l, _, err := seglog.Open(seglog.Options{Dir: filepath.Join(path, p.Dir), Name: p.Name, Salt: h.dir.Salt(), SegmentBytes: 8000,
			Index: h.meta.SegmentIndex(), QuarantineDir: filepath.Join(path, "quarantine")})
		if err != nil {
			t.Fatal(err)
		}
		h.logs = append(h.logs, l)
		next[p.Name] = l.Next()
	}
	if err := h.dir.BeginRun(next); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *hub) fill(n int) {
	h.t.Helper()
	var b seglog.Builder
	for _, l := range h.logs {
		for range n {
			b.Reset(l.Next())
			b.Append(l.Next()*10, fmt.Appendf(nil, "topic/%d", l.Next()%5), fmt.Appendf(nil, "%s %d", l.Name(), l.Next()), seglog.Headers{})
			if err := l.Append(&b); err != nil {
				h.t.Fatal(err)
			}
		}
		h.meta.Put([]byte("at/"+l.Name()), fmt.Append(nil, l.Next()))
	}
	if err := h.meta.Commit(); err != nil {
		h.t.Fatal(err)
	}
}

func (h *hub) close() {
	h.t.Helper()
	var errs []error
	for _, l := range h.logs {
		errs = append(errs, l.Close())
	}
	if err := errors.Join(append(errs, h.meta.Close(), h.dir.Close(true))...); err != nil {
		h.t.Fatal(err)
	}
}

func (h *hub) source() Source {
	s := Source{Hub: "edge", Manifest: h.dir.Manifest, Logs: []BackupLog{{Partition{meta.LogName, meta.LogDir}, h.meta}}}
	for i, l := range h.logs {
		s.Logs = append(s.Logs, BackupLog{partitions[i], l})
	}
	return s
}

// contents reads a log and checks its values.
func contents(t *testing.T, l *seglog.Log) (n int64) {
	t.Helper()
	var chunk []byte
	for at := l.First(); at < l.Next(); {
		var err error
		if chunk, err = l.Read(at, 100_000, chunk[:0]); err != nil || len(chunk) == 0 {
			t.Fatal(at, err)
		}
		for r := range seglog.Records(chunk) {
			if r.Offset >= at {
				if want := fmt.Sprintf("%s %d", l.Name(), r.Offset); string(r.Value) != want {
					t.Fatalf("%q, want %q", r.Value, want)
				}
				at = r.Offset + 1
				n++
			}
		}
	}
	return n
}

func verify(t *testing.T, path, stream string) (Summary, []Finding) {
	t.Helper()
	d, err := Open(vfs.OS, path)
	if err != nil {
		t.Fatal(err)
	}
	var list []Finding
	s, err := d.Verify(t.Context(), stream, func(f Finding) { list = append(list, f) })
	if err != nil || s.Findings != len(list) {
		t.Fatal(s, len(list), err)
	}
	return s, list
}

func TestVerifyAndRepair(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	h := open(t, path)
	h.fill(300)
	live, err := Live(t.Context(), "a", h.logs[:2], func(f Finding) { t.Error(f) })
	if err != nil || live.Records != 600 || live.Partitions != 2 || live.Segments < 4 {
		t.Fatalf("%+v %v", live, err)
	}
	if s, bad := verify(t, path, "a"); len(bad) > 0 || s != live { // while it is open: nothing is disturbed
		t.Fatalf("%+v, live %+v: %v", s, live, bad)
	}
	if s, bad := verify(t, path, MetaStream); len(bad) > 0 || s.Records == 0 {
		t.Fatalf("%+v: %v", s, bad)
	}
	d, err := Open(vfs.OS, path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Verify(t.Context(), "c", nil); !errors.Is(err, ErrNoStream) {
		t.Error(err)
	}
	if err := d.Repair("a", true, nil); !errors.Is(err, datadir.ErrInUse) {
		t.Error(err)
	}
	h.close()

	victim := filepath.Join(path, "streams/a/1", fmt.Sprintf("%020d.log", 0))
	raw, err := os.ReadFile(victim)
	if err != nil {
		t.Fatal(err)
	}
	raw[2000] ^= 1
	if err := os.WriteFile(victim, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "streams/a/0/notes.txt"), []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, bad := verify(t, path, "a")
	if len(bad) != 2 || s.Records != 599 || bad[0].Segment != "notes.txt" || bad[1].Partition != "a/1-0" || bad[1].To != bad[1].From+1 {
		t.Fatalf("%+v %v", s, bad)
	}
	var told, done []string
	for i, list := range []*[]string{&told, &done} {
		if err := d.Repair("a", i == 0, func(m Mended) { *list = append(*list, m.Finding.String()+" "+m.Action) }); err != nil {
			t.Fatal(err)
		}
	}
	if len(done) != 2 || fmt.Sprint(told) != fmt.Sprint(done) {
		t.Fatalf("announced %v, done %v", told, done)
	}
	if s, bad := verify(t, path, "a"); len(bad) > 0 || s.Void != 1 || s.Records != 599 {
		t.Fatalf("%+v %v", s, bad)
	}
	if kept, _ := filepath.Glob(filepath.Join(path, "quarantine", "*")); len(kept) != 4 { // two files, two reasons
		t.Error(kept)
	}
}

func TestDelete(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	h := open(t, path)
	h.fill(300)
	next := h.logs[2].Next()
	got, err := Clear("b", h.logs[2:])
	if err != nil || got.Records != next || got.Bytes == 0 || h.logs[2].First() != next {
		t.Fatalf("%+v %v", got, err)
	}
	h.close()
	d, err := Open(vfs.OS, path)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := d.Delete("a"); err != nil || got.Records != 600 {
		t.Fatalf("%+v %v", got, err)
	}
	h = open(t, path)
	defer h.close()
	for _, l := range h.logs {
		if l.First() != 300 || l.Next() != 300 || l.Bytes() != 0 {
			t.Errorf("%s: %d to %d, %d bytes", l.Name(), l.First(), l.Next(), l.Bytes())
		}
	}
	h.fill(10)
	if contents(t, h.logs[0]) != 10 {
		t.Error("it does not go on")
	}
}

// TestBackup: a backup of a hub that goes on appending and dropping is a whole hub as of one moment; a start on it, and
// one on what is restored from it, have epochs of their own.
func TestBackup(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	h := open(t, path)
	h.fill(400)
	next := h.logs[0].Next()
	var tarred bytes.Buffer
	wrote := 0
	w := writerFunc(func(p []byte) (int, error) {
		if wrote++; wrote%7 == 1 {
			h.fill(20)
			for _, l := range h.logs {
				if _, err := l.DropOldest(); err != nil && !errors.Is(err, seglog.ErrActive) {
					t.Error(err)
				}
			}
		}
		return tarred.Write(p)
	})
	c, err := Backup(t.Context(), w, h.source())
	if err != nil {
		t.Fatal(err)
	}
	if c.Partitions["a/0-0"] < next || c.Instance != h.dir.Instance() || c.Epoch != 1 {
		t.Errorf("%+v", c)
	}
	firsts := map[string]int64{}
	epochs := map[uint32]bool{1: true, 2: true}
	for name, fn := range restorers(t, tarred.Bytes()) {
		t.Run(name, func(t *testing.T) {
			to := filepath.Join(t.TempDir(), "x", "restored")
			if err := fn(to); err != nil {
				t.Fatal(err)
			}
			for _, s := range []string{"a", "b", MetaStream} {
				if _, bad := verify(t, to, s); len(bad) > 0 {
					t.Error(bad)
				}
			}
			r := open(t, to)
			defer r.close()
			if epochs[r.dir.Epoch()] || !r.dir.Unclean() || r.dir.Instance() != h.dir.Instance() {
				t.Errorf("epoch %d", r.dir.Epoch())
			}
			epochs[r.dir.Epoch()] = true
			for _, l := range r.logs {
				if contents(t, l) != l.Next()-l.First() || l.Next() != c.Partitions[l.Name()] {
					t.Errorf("%s: %d to %d, want %d", l.Name(), l.First(), l.Next(), c.Partitions[l.Name()])
				}
				if firsts[l.Name()] = l.First(); r.dir.EpochAt(l.Name(), l.Next()-1) != 1 || r.dir.EpochAt(l.Name(), l.Next()) != r.dir.Epoch() {
					t.Error(r.dir.EpochStarts(l.Name()))
				}
				v, ok, err := r.meta.Get([]byte("at/" + l.Name()))
				var at int64
				if _, serr := fmt.Sscan(string(v), &at); !ok || err != nil || serr != nil || at > l.Next() || at < 400 {
					t.Errorf("%s: the metadata know %q, the log ends at %d", l.Name(), v, l.Next())
				}
			}
		})
	}
	h.close()
	refused(t, tarred.Bytes(), path)
}

// refused: what is not whole, or not a backup, is refused, and no hub starts on it.
func refused(t *testing.T, raw []byte, full string) {
	t.Helper()
	flipped := bytes.Clone(raw)
	flipped[len(flipped)/2] ^= 1
	for name, b := range map[string][]byte{"cut": raw[:len(raw)/2], "without its list": raw[:len(raw)-4000], "empty": nil, "flipped": flipped, "above": hostile(t)} {
		to := filepath.Join(t.TempDir(), "r")
		if _, _, err := Restore(vfs.OS, bytes.NewReader(b), to); !errors.Is(err, ErrBackup) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := datadir.Open(vfs.OS, to); !errors.Is(err, datadir.ErrDamaged) {
			t.Errorf("%s: a hub starts on it: %v", name, err)
		}
	}
	if _, _, err := Restore(vfs.OS, bytes.NewReader(raw), full); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Error(err)
	}
}

// restorers are the ways from a tar to a data directory.
func restorers(t *testing.T, raw []byte) map[string]func(to string) error {
	return map[string]func(to string) error{
		"restored": func(to string) error {
			_, info, err := Restore(vfs.OS, bytes.NewReader(raw), to)
			if info.Epoch < 1000 {
				t.Errorf("%+v", info)
			}
			return err
		},
		"unpacked": func(to string) error {
			_, err := Unpack(vfs.OS, bytes.NewReader(raw), to)
			return err
		},
		"packed again": func(to string) error {
			between := filepath.Join(t.TempDir(), "between")
			if _, err := Unpack(vfs.OS, bytes.NewReader(raw), between); err != nil {
				return err
			}
			var again bytes.Buffer
			if err := Pack(vfs.OS, between, &again); err != nil {
				return err
			}
			_, _, err := Restore(vfs.OS, &again, to)
			return err
		},
	}
}

// TestBackupOffline: the same from a directory that no hub owns.
func TestBackupOffline(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	h := open(t, path)
	h.fill(100)
	d, err := Open(vfs.OS, path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Backup(t.Context(), io.Discard, ""); !errors.Is(err, datadir.ErrInUse) {
		t.Error(err)
	}
	h.close()
	var b bytes.Buffer
	if _, err := d.Backup(t.Context(), &b, "v"); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "r")
	if _, _, err := Restore(vfs.OS, &b, to); err != nil {
		t.Fatal(err)
	}
	r := open(t, to)
	defer r.close()
	if contents(t, r.logs[1]) != 100 {
		t.Error("not all is there")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Backup(ctx, io.Discard, r.source()); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestDump(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	h := open(t, path)
	h.fill(20)
	defer h.close()
	file := filepath.Join(path, "streams/b/0", fmt.Sprintf("%020d.log", 0))
	outside := filepath.Join(t.TempDir(), filepath.Base(file))
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(outside, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, crc := range map[string]string{file: seglog.HeaderOK, outside: seglog.HeaderUnknown} {
		n, batches := 0, 0
		err := Dump(vfs.OS, name, func(b Batch, err error) error {
			if batches++; err != nil || b.HeaderCRC != crc {
				t.Errorf("%+v %v", b, err)
			}
			return nil
		}, func(r Record) error {
			n++
			return nil
		})
		if err != nil || n != 20 || batches != 20 {
			t.Error(n, batches, err)
		}
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// hostile is a tar that writes outside its directory.
func hostile(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := errors.Join(w.WriteHeader(&tar.Header{Name: "streams/../../evil", Size: 1, Mode: 0o600}))
	if _, werr := w.Write([]byte("x")); err != nil || werr != nil {
		t.Fatal(err, werr)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
