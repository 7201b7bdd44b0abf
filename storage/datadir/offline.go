package datadir

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"

	"edgehub/internal/vfs"
)

// ErrNone means that there is no data directory at a path.
var ErrNone = errors.New("datadir: not a data directory")

// Info is what a manifest says of a directory that is only looked at.
type Info struct {
	Instance string
	Salt     uint32
	Epoch    uint32
	Running  bool // no clean stop since the last start: a hub may be running
}

// Peek reads the manifest of a directory, or its backup, and changes nothing: for a directory that is looked at while a
// hub may own it, or for a copy. The text of its errors is one line that names the cure.
func Peek(fsys vfs.FS, path string) (Info, error) {
	m, err := readManifest(fsys, filepath.Join(path, manifestName))
	if err != nil && !errors.Is(err, ErrNewer) {
		if backup, berr := readManifest(fsys, filepath.Join(path, backupName)); berr == nil {
			m, err = backup, nil
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Info{}, fmt.Errorf("%w: %s has no %s; give the directory that data_dir names", ErrNone, path, manifestName)
	case errors.Is(err, ErrNewer):
		return Info{}, fmt.Errorf("%w in %s; use the newer hubctl", err, path)
	case err != nil:
		return Info{}, fmt.Errorf("%w: %s (%w); restore it from a backup", ErrDamaged, filepath.Join(path, manifestName), cause(err))
	}
	return m.info()
}

// Manifest returns the manifest as it is on the disk, for a backup.
func (d *Dir) Manifest() ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return ReadManifest(d.fsys, d.path)
}

// ReadManifest returns the manifest of a directory that nobody has open, proven to be whole.
func ReadManifest(fsys vfs.FS, path string) ([]byte, error) {
	m, err := readManifest(fsys, filepath.Join(path, manifestName))
	if err != nil {
		return nil, err
	}
	return m.encode()
}

// restoredEpochs is how far a copy skips ahead at least: the original may have gone through epochs after the copy was
// made, whose names for records may not be given to others.
const restoredEpochs = 1 << 10

// Continuation returns the manifest of a copy that goes its own way from here: a backup, or what is restored from one.
// Its epoch is one that neither the original nor another copy uses: part of it is drawn. A start on it counts as one
// after an unclean stop, so that new records get an epoch of their own, and a remote that has others under the old
// names is noticed. partitions are all of the copy.
func Continuation(manifest []byte, partitions []string) ([]byte, error) {
	m, err := decodeManifest(manifest)
	if err != nil {
		return nil, err
	}
	if m.Epoch > 1<<32-1-2<<16 {
		return nil, fmt.Errorf("%w: epoch %d leaves no room", errManifest, m.Epoch)
	}
	if m.Partitions == nil {
		m.Partitions = map[string][]EpochStart{}
	}
	for _, p := range partitions { // born in the run that was copied
		if _, known := m.Partitions[p]; !known {
			m.Partitions[p] = []EpochStart{{Epoch: m.Epoch, First: 0}}
		}
	}
	m.Epoch += restoredEpochs + rand.Uint32N(1<<16) //nolint:gosec // told apart from others, not kept secret
	m.Running = true
	return m.encode()
}

// Restored makes the directory at path one that hubs start on: the continuation of a manifest. It is the last step of
// a restore; before it, no hub starts there.
func Restored(fsys vfs.FS, path string, manifest []byte, partitions []string) (Info, error) {
	next, err := Continuation(manifest, partitions)
	if err != nil {
		return Info{}, err
	}
	m, err := decodeManifest(next)
	if err != nil {
		return Info{}, err
	}
	if err := fsys.SyncDir(path); err != nil {
		return Info{}, err
	}
	if err := writeManifest(fsys, path, m); err != nil {
		return Info{}, err
	}
	return Peek(fsys, path)
}

// Lock keeps every hub out of a directory while it is worked on offline. release ends that.
func Lock(path string) (release func() error, err error) {
	if _, err := os.Stat(path); err != nil {
		return nil, err
	}
	l, err := takeLock(path)
	if err != nil {
		return nil, err
	}
	return l.release, nil
}

// Describe is Peek for a manifest in memory.
func Describe(manifest []byte) (Info, error) {
	m, err := decodeManifest(manifest)
	if err != nil {
		return Info{}, err
	}
	return m.info()
}

func (m manifest) info() (Info, error) {
	raw, err := hex.DecodeString(m.Instance)
	if err != nil || len(raw) < 4 {
		return Info{}, fmt.Errorf("%w: instance %q", errManifest, m.Instance)
	}
	return Info{Instance: m.Instance, Salt: binary.BigEndian.Uint32(raw), Epoch: m.Epoch, Running: m.Running}, nil
}
