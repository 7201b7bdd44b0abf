package datadir

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"edgehub/internal/vfs"
)

func TestPeek(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d")
	if _, err := Peek(vfs.OS, path); !errors.Is(err, ErrNone) {
		t.Fatal(err)
	}
	d, err := Open(vfs.OS, path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close(true) }()
	if err := d.BeginRun(map[string]int64{"a/0-0": 7}); err != nil {
		t.Fatal(err)
	}
	want := Info{d.Instance(), d.Salt(), 1, true}
	if got, err := Peek(vfs.OS, path); got != want || err != nil {
		t.Fatalf("%+v %v", got, err)
	}
	if err := os.WriteFile(filepath.Join(path, manifestName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := Peek(vfs.OS, path); got != want || err != nil { // from the backup
		t.Fatalf("%+v %v", got, err)
	}
	if err := os.WriteFile(filepath.Join(path, backupName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Peek(vfs.OS, path); !errors.Is(err, ErrDamaged) {
		t.Fatal(err)
	}
	if _, err := Lock(path); !errors.Is(err, ErrInUse) {
		t.Fatal(err)
	}
}

// TestRestored: two restores of one backup and the original that went on all name their new records differently.
func TestRestored(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d")
	d, err := Open(vfs.OS, path)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.BeginRun(map[string]int64{"a/0-0": 0}); err != nil {
		t.Fatal(err)
	}
	backup, err := d.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	instance := d.Instance()
	_ = d.Close(true)
	seen := map[uint32]bool{1: true}
	for range 2 {
		to := t.TempDir()
		info, err := Restored(vfs.OS, to, backup, []string{"a/0-0", "b/0-0"})
		if err != nil || info.Instance != instance || info.Epoch <= restoredEpochs {
			t.Fatalf("%+v %v", info, err)
		}
		r, err := Open(vfs.OS, to)
		if err != nil || !r.Unclean() {
			t.Fatal(err)
		}
		if err := r.BeginRun(map[string]int64{"a/0-0": 100, "b/0-0": 5}); err != nil {
			t.Fatal(err)
		}
		for _, p := range []string{"a/0-0", "b/0-0"} {
			if r.EpochAt(p, 4) != 1 || r.EpochAt(p, 100) != r.Epoch() {
				t.Errorf("%s: %v, now %d", p, r.EpochStarts(p), r.Epoch())
			}
		}
		if seen[r.Epoch()] {
			t.Errorf("epoch %d again", r.Epoch())
		}
		seen[r.Epoch()] = true
		_ = r.Close(true)
	}
	if _, err := Restored(vfs.OS, t.TempDir(), []byte("{}"), nil); err == nil {
		t.Error("restored from nothing")
	}
}
