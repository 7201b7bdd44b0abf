package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"edgehub/internal/vfs"
)

// must opens dir and closes it uncleanly at the end of the test if it still is open.
func must(t *testing.T, dir string) *Dir {
	t.Helper()
	d, err := Open(vfs.OS, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close(false) })
	return d
}

// run opens dir, begins a run at next and stops it.
func run(t *testing.T, dir string, next map[string]int64, clean bool) uint32 {
	t.Helper()
	d := must(t, dir)
	if err := d.BeginRun(next); err != nil {
		t.Fatal(err)
	}
	epoch := d.Epoch()
	if err := d.Close(clean); err != nil {
		t.Fatal(err)
	}
	return epoch
}

// oneLine checks that an error is fit for the operator.
func oneLine(t *testing.T, err error, is error, words ...string) {
	t.Helper()
	if !errors.Is(err, is) {
		t.Fatalf("error %v, want %v", err, is)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error has several lines: %q", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

func TestInstanceIsBornOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	d := must(t, dir)
	id, salt := d.Instance(), d.Salt()
	if len(id) != 32 || d.Unclean() || d.Epoch() != 1 || d.Notice() != "" {
		t.Fatalf("new directory: instance %q unclean %v epoch %d notice %q", id, d.Unclean(), d.Epoch(), d.Notice())
	}
	if want, _ := strconv.ParseUint(id[:8], 16, 32); uint32(want) != salt {
		t.Fatalf("salt %08x of instance %s", salt, id)
	}
	if err := d.Close(true); err != nil {
		t.Fatal(err)
	}
	again := must(t, dir)
	if again.Instance() != id || again.Salt() != salt {
		t.Fatal("the instance changed")
	}
	other := must(t, t.TempDir())
	if other.Instance() == id {
		t.Fatal("two directories share an instance")
	}
}

func TestEpochRisesAfterUncleanStopsOnly(t *testing.T) {
	dir := t.TempDir()
	steps := []struct {
		clean bool
		epoch uint32
	}{{true, 1}, {false, 1}, {true, 2}, {true, 2}, {false, 2}, {false, 3}, {true, 4}, {true, 4}}
	for i, s := range steps {
		if got := run(t, dir, map[string]int64{"main/0-0": int64(10 * i)}, s.clean); got != s.epoch {
			t.Fatalf("run %d: epoch %d, want %d", i, got, s.epoch)
		}
	}
}

func TestRunThatNeverBeganKeepsTheMark(t *testing.T) {
	dir := t.TempDir()
	run(t, dir, nil, false)
	for range 3 { // for example: stopped by a configuration error
		d := must(t, dir)
		if !d.Unclean() || d.Epoch() != 1 {
			t.Fatalf("unclean %v, epoch %d", d.Unclean(), d.Epoch())
		}
		if err := d.Close(true); err != nil {
			t.Fatal(err)
		}
	}
	if got := run(t, dir, nil, true); got != 2 {
		t.Fatalf("epoch %d, want 2", got)
	}
}

func TestEpochAt(t *testing.T) {
	dir := t.TempDir()
	run(t, dir, map[string]int64{"a": 0}, false)                    // 1: a from 0; b appears during it
	run(t, dir, map[string]int64{"a": 100, "b": 7}, false)          // 2
	run(t, dir, map[string]int64{"a": 100, "b": 9}, false)          // 3: a got nothing in 2
	run(t, dir, map[string]int64{"b": 9}, false)                    // 4: a not configured; b got nothing in 3
	run(t, dir, map[string]int64{"a": 150, "b": 5, "c": 0}, true)   // 5: a returns; b lost its tail
	run(t, dir, map[string]int64{"a": 160, "b": 50, "c": 10}, true) // 5 continues
	d := must(t, dir)

	want := map[string][]EpochStart{
		"a":   {{1, 0}, {3, 100}, {5, 150}},
		"b":   {{1, 0}, {5, 5}},
		"c":   {{5, 0}},
		"new": {{5, 0}},
	}
	for name, starts := range want {
		if got := d.EpochStarts(name); !reflect.DeepEqual(got, starts) {
			t.Errorf("%s: %v, want %v", name, got, starts)
		}
	}
	for _, c := range []struct {
		name   string
		offset int64
		epoch  uint32
	}{
		{"a", 0, 1}, {"a", 99, 1}, {"a", 100, 3}, {"a", 149, 3}, {"a", 150, 5}, {"a", 1 << 40, 5},
		{"b", 4, 1}, {"b", 5, 5}, {"c", 3, 5}, {"new", 12, 5},
	} {
		if got := d.EpochAt(c.name, c.offset); got != c.epoch {
			t.Errorf("EpochAt(%s, %d) = %d, want %d", c.name, c.offset, got, c.epoch)
		}
	}
}

func TestTrimKeepsTheNewest(t *testing.T) {
	dir := t.TempDir()
	const runs = epochStartsKept + 40
	for i := range runs {
		run(t, dir, map[string]int64{"a": int64(10 * i)}, false)
	}
	d := must(t, dir)
	if err := d.BeginRun(map[string]int64{"a": 10 * runs}); err != nil {
		t.Fatal(err)
	}
	d.Trim(map[string]int64{"a": 25, "unknown": 4})
	if got := d.EpochStarts("a"); len(got) != runs+1-2 || got[0].First != 20 {
		t.Fatalf("after a small trim: %d rows from %v", len(got), got[0])
	}
	d.Trim(map[string]int64{"a": 10 * runs})
	got := d.EpochStarts("a")
	if len(got) != epochStartsKept {
		t.Fatalf("%d rows kept, want %d", len(got), epochStartsKept)
	}
	if err := d.Close(true); err != nil {
		t.Fatal(err)
	}
	if again := must(t, dir).EpochStarts("a"); !reflect.DeepEqual(again, got) {
		t.Fatal("the trimmed table was not written")
	}
}

func TestSecondOpenIsRefused(t *testing.T) {
	dir := t.TempDir()
	d := must(t, dir)
	_, err := Open(vfs.OS, dir)
	oneLine(t, err, ErrInUse, dir, fmt.Sprintf("pid %d", os.Getpid()), "choose another data_dir")
	if err := d.Close(true); err != nil {
		t.Fatal(err)
	}
	must(t, dir)
}

func TestNotADirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(vfs.OS, path)
	oneLine(t, err, ErrNotWritable, path, "not a directory")
	_, err = Open(vfs.OS, filepath.Join(path, "below"))
	oneLine(t, err, ErrNotWritable, "choose another data_dir")
}

// readOnly refuses to create files, as a read-only mount or a foreign owner does.
type readOnly struct{ vfs.FS }

func (r readOnly) OpenFile(name string, flag int) (vfs.File, error) {
	if flag&(os.O_CREATE|os.O_TRUNC) != 0 {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return r.FS.OpenFile(name, flag)
}

func TestNotWritableTouchesNothing(t *testing.T) {
	dir := t.TempDir()
	run(t, dir, nil, false)
	before := snapshot(t, dir)
	_, err := Open(readOnly{vfs.OS}, dir)
	oneLine(t, err, ErrNotWritable, dir, "permission denied", "write access")
	if after := snapshot(t, dir); !reflect.DeepEqual(before, after) {
		t.Fatalf("files changed: %v, then %v", before, after)
	}
}

// snapshot returns the content of every file of dir but the lock.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]string)
	for _, e := range entries {
		if e.Name() == lockName || e.IsDir() {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		out[e.Name()] = string(b)
	}
	return out
}

// lay writes files into a new directory.
func lay(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestNewerFormatIsRefused(t *testing.T) {
	newer := `{"format":2,"instance":{"shape":"changed"},"more":[1]}`
	for _, files := range []map[string]string{
		{manifestName: newer},
		{manifestName: newer, backupName: newer},
		{manifestName: "rubbish", backupName: newer},
	} {
		dir := lay(t, files)
		_, err := Open(vfs.OS, dir)
		oneLine(t, err, ErrNewer, dir, "format 2", "newer hubd")
		if got := snapshot(t, dir); !reflect.DeepEqual(got, files) {
			t.Fatalf("files changed: %v", got)
		}
	}
}

func TestDamagedManifest(t *testing.T) {
	source := t.TempDir()
	run(t, source, map[string]int64{"a": 0}, false)
	run(t, source, map[string]int64{"a": 5}, true)
	good := snapshot(t, source)[manifestName]
	id := must(t, source).Instance()

	damage := map[string]string{
		"empty":           "",
		"zeros":           strings.Repeat("\x00", len(good)),
		"cut":             good[:len(good)/2],
		"other epoch":     strings.Replace(good, `"epoch":2`, `"epoch":3`, 1),
		"other first":     strings.Replace(good, `"first":5`, `"first":6`, 1),
		"unknown field":   strings.Replace(good, `{"format":1`, `{"format":1,"x":1`, 1),
		"trailing":        good + "{}",
		"format zero":     strings.Replace(good, `"format":1`, `"format":0`, 1),
		"short instance":  strings.Replace(good, id, id[2:], 1),
		"no such content": "[]",
	}
	for what, bad := range damage {
		t.Run(what, func(t *testing.T) {
			if bad == good {
				t.Fatal("the case damages nothing")
			}
			dir := lay(t, map[string]string{manifestName: bad, backupName: good})
			d := must(t, dir)
			if d.Instance() != id || !d.Unclean() || !strings.Contains(d.Notice(), backupName) {
				t.Fatalf("restored: instance %s, unclean %v, notice %q", d.Instance(), d.Unclean(), d.Notice())
			}
			if err := d.BeginRun(map[string]int64{"a": 9}); err != nil {
				t.Fatal(err)
			}
			if d.Epoch() != 3 {
				t.Fatalf("epoch %d, want 3", d.Epoch())
			}

			alone := lay(t, map[string]string{manifestName: bad})
			_, err := Open(vfs.OS, alone)
			oneLine(t, err, ErrDamaged, manifestName, "backup")
			if got := snapshot(t, alone); got[manifestName] != bad || len(got) != 1 {
				t.Fatalf("files changed: %v", got)
			}
		})
	}
}

func TestMissingManifestBesideDataIsNotRecreated(t *testing.T) {
	for _, name := range []string{"streams", "meta"} {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		_, err := Open(vfs.OS, dir)
		oneLine(t, err, ErrDamaged, "missing", "backup")
	}
}

// crash is a file system that stops working after some operations that change
// something, as a killed program's does.
type crash struct {
	vfs.FS
	left *int
}

var errCrash = errors.New("stopped")

func (c crash) step() error {
	if *c.left == 0 {
		return errCrash
	}
	*c.left--
	return nil
}

func (c crash) OpenFile(name string, flag int) (vfs.File, error) {
	if flag&os.O_CREATE != 0 {
		if err := c.step(); err != nil {
			return nil, err
		}
	}
	f, err := c.FS.OpenFile(name, flag)
	if err != nil {
		return nil, err
	}
	return crashFile{f, c}, nil
}

func (c crash) Rename(from, to string) error {
	if err := c.step(); err != nil {
		return err
	}
	return c.FS.Rename(from, to)
}

func (c crash) SyncDir(dir string) error {
	if err := c.step(); err != nil {
		return err
	}
	return c.FS.SyncDir(dir)
}

type crashFile struct {
	vfs.File
	c crash
}

// WriteAt leaves half of a write that the crash interrupts.
func (f crashFile) WriteAt(b []byte, off int64) (int, error) {
	if err := f.c.step(); err != nil {
		n, _ := f.File.WriteAt(b[:len(b)/2], off)
		return n, err
	}
	return f.File.WriteAt(b, off)
}

func (f crashFile) Sync() error {
	if err := f.c.step(); err != nil {
		return err
	}
	return f.File.Sync()
}

// TestCrashAtEveryStep stops the program at each file operation of a whole
// run; the directory must open afterwards, keep its instance, and take a run
// that was cut short for a clean one only when it had come to Close(true),
// which promises that all of it is on disk.
func TestCrashAtEveryStep(t *testing.T) {
	for steps := 0; ; steps++ {
		dir := t.TempDir()
		run(t, dir, map[string]int64{"a": 0}, false)
		id := instance(t, dir)

		left := steps
		done, began := crashRun(dir, &left)
		d := must(t, dir)
		if d.Instance() != id {
			t.Fatalf("step %d: the instance changed", steps)
		}
		if !began && !d.Unclean() {
			t.Fatalf("step %d: a run cut short counts as clean", steps)
		}
		unclean := d.Unclean()
		if err := d.BeginRun(map[string]int64{"a": 20}); err != nil {
			t.Fatal(err)
		}
		if used := d.EpochAt("a", 20); began && unclean && used != 3 {
			t.Fatalf("step %d: epoch %d, want 3", steps, used)
		}
		if err := d.Close(true); err != nil {
			t.Fatal(err)
		}
		if done {
			if steps < 20 {
				t.Fatalf("only %d steps were tried", steps)
			}
			return
		}
	}
}

// instance returns the instance of dir and leaves it closed as it was.
func instance(t *testing.T, dir string) string {
	t.Helper()
	d := must(t, dir)
	defer d.Close(false)
	return d.Instance()
}

// crashRun does a whole run on a file system that stops after left operations.
func crashRun(dir string, left *int) (done, began bool) {
	d, err := Open(crash{vfs.OS, left}, dir)
	if err != nil {
		return false, false
	}
	if err := d.BeginRun(map[string]int64{"a": 10}); err != nil {
		_ = d.Close(false)
		return false, false
	}
	return d.Close(true) == nil, true
}

func FuzzManifest(f *testing.F) {
	good := manifest{Format: 1, Instance: strings.Repeat("ab", 16), Epoch: 3, Running: true,
		Partitions: map[string][]EpochStart{"main/0-0": {{1, 0}, {3, 77}}}}
	b, err := good.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"format":2}`))
	f.Add([]byte(`{"format":1,"instance":"","epoch":1,"check":""}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeManifest(b)
		if err != nil {
			return
		}
		again, err := m.encode()
		if err != nil {
			t.Fatal(err)
		}
		m2, err := decodeManifest(again)
		if err != nil || !reflect.DeepEqual(m, m2) {
			t.Fatalf("%+v became %+v (%v)", m, m2, err)
		}
		(&epochTable{epoch: m.Epoch, partitions: m.Partitions}).begin(map[string]int64{"main/0-0": 5}, m.Epoch, m.Epoch+1).at("main/0-0", 3)
	})
}

func BenchmarkEpochAt(b *testing.B) {
	table := &epochTable{epoch: 1}
	for i := range uint32(100) {
		table = table.begin(map[string]int64{"main/0-0": int64(i) * 1000}, i+1, i+1)
	}
	b.ReportAllocs()
	for i := range b.N {
		table.at("main/0-0", int64(i%100000))
	}
}

// A directory of somebody else's is refused, and left as it is.
func TestForeignDirectory(t *testing.T) {
	for _, c := range []struct {
		name  string
		files []string
		known []string
		ok    bool
	}{
		{"empty", nil, nil, true},
		{"what an earlier try left", []string{"hub.lock", "hub.json.tmp", "ballast"}, nil, true},
		{"the root of a file system", []string{"lost+found/x"}, nil, true},
		{"the configuration's own files", []string{"hub.toml", "users", "tls/key.pem"}, []string{"hub.toml", "users", "tls/key.pem"}, true},
		{"somebody's file", []string{"letter.txt"}, nil, false},
		{"somebody's directory", []string{"photos/1.jpg"}, []string{"hub.toml"}, false},
		{"a data directory beside other files", []string{"hub.json", "notes"}, nil, false}, // hub.json is damaged
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for _, name := range c.files {
				path := filepath.Join(dir, name)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("x"), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			var known []string
			for _, name := range c.known {
				known = append(known, filepath.Join(dir, name))
			}
			d, err := Open(vfs.OS, dir, known...)
			if c.ok {
				if err != nil {
					t.Fatal(err)
				}
				if err := d.Close(true); err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil {
				t.Fatal("accepted")
			}
			if c.files[0] == "hub.json" {
				if !errors.Is(err, ErrDamaged) {
					t.Error(err)
				}
				return
			}
			if !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), "set data_dir to an empty or missing directory") {
				t.Error(err)
			}
			if _, err := os.Stat(filepath.Join(dir, lockName)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("something was left in it: %v", err)
			}
		})
	}
}
