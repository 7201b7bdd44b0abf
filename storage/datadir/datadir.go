package datadir

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"edgehub/internal/vfs"
)

// Sentinels. The text of each wrapped error is one line that names the cure.
var (
	ErrInUse       = errors.New("datadir: in use")
	ErrNotWritable = errors.New("datadir: not writable")
	ErrNewer       = errors.New("datadir: written by a newer program")
	ErrDamaged     = errors.New("datadir: damaged")
	ErrForeign     = errors.New("datadir: holds what is not a hub's")

	// errManifest is a manifest that cannot be believed.
	errManifest = errors.New("manifest unusable")
)

// Dir is an open data directory, owned by this program until Close.
type Dir struct {
	fsys  vfs.FS
	path  string
	lock  *lock
	known []string // paths that may lie in it besides the hub's own
	salt  uint32
	birth manifest // as read at Open; Instance never changes

	unclean bool
	notice  string

	table atomic.Pointer[epochTable] // published tables are immutable

	mu      sync.Mutex // guards below, and the manifest file
	running bool       // what the manifest on disk says
	began   bool
	dirty   bool // the table was trimmed since the manifest was written
	closed  bool
}

// Open takes the data directory at path, creating it when it is missing. It
// touches nothing unless it can lock the directory and write to it. A directory
// that holds anything but hub data is refused, unless it is one of the known
// paths: a wrong data_dir must not spread a hub over somebody's home.
func Open(fsys vfs.FS, path string, known ...string) (*Dir, error) {
	if err := makeDir(fsys, path); err != nil {
		return nil, err
	}
	d := &Dir{fsys: fsys, path: path, known: known}
	// Before the lock, which leaves a file: nothing of ours is left among files of others.
	if err := d.refuseForeign(); err != nil {
		return nil, err
	}
	l, err := takeLock(path)
	if err != nil {
		return nil, err
	}
	d.lock = l
	if err := d.open(); err != nil {
		_ = l.release()
		return nil, err
	}
	return d, nil
}

// open reads or creates the manifest of a locked directory.
func (d *Dir) open() error {
	if err := d.probe(); err != nil {
		return err
	}
	m, err := d.load()
	if err != nil {
		return err
	}
	raw, err := hex.DecodeString(m.Instance)
	if err != nil {
		return fmt.Errorf("%w: instance %q", errManifest, m.Instance)
	}
	d.salt = binary.BigEndian.Uint32(raw)
	d.birth = m
	d.unclean, d.running = m.Running, m.Running
	d.table.Store(&epochTable{epoch: m.Epoch, partitions: m.Partitions})
	return nil
}

// makeDir makes sure that path is a directory.
func makeDir(fsys vfs.FS, path string) error {
	info, err := fsys.Stat(path)
	switch {
	case err == nil && !info.IsDir():
		return fmt.Errorf("%w: %s is not a directory; choose another data_dir", ErrNotWritable, path)
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return notWritable(path, err)
	}
	if err := fsys.MkdirAll(path); err != nil {
		return notWritable(path, err)
	}
	return nil
}

// probe writes a file and removes it, so that a directory that only looks
// writable is refused before any of its files changes.
func (d *Dir) probe() error {
	name := filepath.Join(d.path, tempName)
	f, err := d.fsys.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return notWritable(d.path, err)
	}
	_, err = f.WriteAt([]byte("probe\n"), 0)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if rerr := d.fsys.Remove(name); err == nil {
		err = rerr
	}
	if err != nil {
		return notWritable(d.path, err)
	}
	return nil
}

// notWritable names the cure for a directory that cannot be written.
func notWritable(path string, err error) error {
	return fmt.Errorf("%w: %s (%w); give the user that runs hubd write access and free space, or choose another data_dir", ErrNotWritable, path, cause(err))
}

// cause strips the operation and path that os errors repeat.
func cause(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// load returns the manifest, from its backup when it is damaged, or creates it
// in a directory that holds no data.
func (d *Dir) load() (manifest, error) {
	main, merr := readManifest(d.fsys, filepath.Join(d.path, manifestName))
	if merr == nil {
		return main, nil
	}
	if errors.Is(merr, ErrNewer) {
		return main, fmt.Errorf("%w in %s; run the newer hubd, or choose another data_dir", merr, d.path)
	}
	backup, berr := readManifest(d.fsys, filepath.Join(d.path, backupName))
	switch {
	case errors.Is(berr, ErrNewer):
		return backup, fmt.Errorf("%w in %s; run the newer hubd, or choose another data_dir", berr, d.path)
	case berr == nil:
		return d.restore(backup, merr)
	}
	missing := errors.Is(merr, fs.ErrNotExist) && errors.Is(berr, fs.ErrNotExist)
	empty, err := d.holdsNothing()
	if err != nil {
		return main, err
	}
	if missing && empty {
		return d.create()
	}
	if errors.Is(merr, fs.ErrNotExist) {
		merr = errors.New("it is missing although the directory holds data")
	}
	return main, fmt.Errorf("%w: %s (%w); restore it from a backup, or move %s away to start with an empty one",
		ErrDamaged, filepath.Join(d.path, manifestName), cause(merr), d.path)
}

// holdsNothing tells whether no log and no index was ever kept here.
func (d *Dir) holdsNothing() (bool, error) {
	for _, name := range []string{"streams", "meta"} {
		there, err := exists(d.fsys, filepath.Join(d.path, name))
		if err != nil || there {
			return false, err
		}
	}
	return true, nil
}

// refuseForeign makes sure that a directory without hub data is as good as empty.
func (d *Dir) refuseForeign() error {
	for _, name := range []string{manifestName, backupName, "streams", "meta"} {
		if there, err := exists(d.fsys, filepath.Join(d.path, name)); there || err != nil {
			return nil // a hub's, whatever else is there; what is wrong with it is found later
		}
	}
	entries, err := d.fsys.ReadDir(d.path)
	if err != nil {
		return notWritable(d.path, err)
	}
	var foreign []string
	for _, e := range entries {
		if !d.expected(e) {
			foreign = append(foreign, e.Name())
		}
	}
	if len(foreign) == 0 {
		return nil
	}
	what := foreign[0]
	if n := len(foreign) - 1; n > 0 {
		what += fmt.Sprintf(" and %d more", n)
	}
	return fmt.Errorf("%w: %s has no %s and holds %s; set data_dir to an empty or missing directory, or move these files away", ErrForeign, d.path, manifestName, what)
}

// expected tells what may lie in a directory that no hub has used yet: what this
// program leaves there before it has a manifest, sockets, the mark of a file
// system's root, and what the configuration has put there.
func (d *Dir) expected(e fs.DirEntry) bool {
	switch e.Name() {
	case lockName, tempName, "ballast", "lost+found":
		return true
	}
	if e.Type()&fs.ModeSocket != 0 || strings.HasPrefix(e.Name(), ".doctor-") {
		return true
	}
	dir, err := filepath.Abs(d.path)
	if err != nil {
		return false
	}
	for _, path := range d.known {
		abs, err := filepath.Abs(path)
		if err != nil {
			continue
		}
		if rel, err := filepath.Rel(dir, abs); err == nil {
			if first, _, _ := strings.Cut(filepath.ToSlash(rel), "/"); first == e.Name() {
				return true
			}
		}
	}
	return false
}

// create writes the manifest of a new directory.
func (d *Dir) create() (manifest, error) {
	var id [instanceBytes]byte
	if _, err := rand.Read(id[:]); err != nil {
		return manifest{}, fmt.Errorf("draw an instance: %w", err)
	}
	m := manifest{Format: FormatVersion, Instance: hex.EncodeToString(id[:]), Epoch: 1}
	if err := writeManifest(d.fsys, d.path, m); err != nil {
		return manifest{}, notWritable(d.path, err)
	}
	return m, nil
}

// restore continues with the backup. How the last run ended is unknown then,
// so it counts as unclean.
func (d *Dir) restore(m manifest, why error) (manifest, error) {
	m.Running = true
	if err := writeManifest(d.fsys, d.path, m); err != nil {
		return manifest{}, notWritable(d.path, err)
	}
	d.notice = fmt.Sprintf("%s was unusable (%v) and was restored from %s", manifestName, why, backupName)
	return m, nil
}

// Path returns the directory's path as it was given.
func (d *Dir) Path() string { return d.path }

// Instance returns the 32 hex digits born with the directory.
func (d *Dir) Instance() string { return d.birth.Instance }

// Salt returns 32 bits of the instance; record batches carry it so that bytes
// of another directory are never taken for this one's.
func (d *Dir) Salt() uint32 { return d.salt }

// Unclean tells whether the run before this one ended without a clean Close.
func (d *Dir) Unclean() bool { return d.unclean }

// Ran reports whether a hub has run on the directory before this one.
func (d *Dir) Ran() bool {
	return d.birth.Running || d.birth.Epoch > 1 || len(d.birth.Partitions) > 0
}

// Notice is a line for the log when Open had to repair something, else "".
func (d *Dir) Notice() string { return d.notice }

// Epoch returns the current epoch.
func (d *Dir) Epoch() uint32 { return d.table.Load().epoch }

// RaiseEpoch has BeginRun begin a new epoch although the last stop was clean: the caller has found less in the log than
// there was then.
func (d *Dir) RaiseEpoch() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unclean = true
}

// BeginRun marks the directory as running; next holds the next offset of every
// partition. After an unclean stop the epoch rises and begins at these offsets.
// All of it is fsynced before BeginRun returns: append only afterwards.
func (d *Dir) BeginRun(next map[string]int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.began || d.closed {
		panic("BUG: datadir: BeginRun called twice or after Close")
	}
	old := d.table.Load()
	raised := old.epoch
	if d.unclean {
		raised++
	}
	table := old.begin(next, old.epoch, raised)
	if err := d.save(table, true); err != nil {
		return err
	}
	d.table.Store(table)
	d.began = true
	return nil
}

// EpochAt returns the epoch of a partition's record. Lock-free.
func (d *Dir) EpochAt(partition string, offset int64) uint32 {
	return d.table.Load().at(partition, offset)
}

// EpochStarts returns where each epoch of a partition begins, in order.
func (d *Dir) EpochStarts(partition string) []EpochStart {
	return d.table.Load().starts(partition)
}

// Trim forgets epochs that end below a partition's first retained offset, but
// for the newest few. It is written with the next change of the manifest.
func (d *Dir) Trim(first map[string]int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if table, changed := d.table.Load().trim(first); changed {
		d.table.Store(table)
		d.dirty = true
	}
}

// save writes the manifest; the caller holds d.mu.
func (d *Dir) save(table *epochTable, running bool) error {
	m := manifest{
		Format: FormatVersion, Instance: d.birth.Instance, Running: running,
		Epoch: table.epoch, Partitions: table.partitions,
	}
	if err := writeManifest(d.fsys, d.path, m); err != nil {
		return err
	}
	d.running, d.dirty = running, false
	return nil
}

// Close releases the directory. clean says that everything of this run is on
// disk: the next run then continues the epoch. A run that never began leaves
// the mark of the one before it. Close is idempotent.
func (d *Dir) Close(clean bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	var err error
	if clean && d.began {
		err = d.save(d.table.Load(), false)
	}
	return errors.Join(err, d.lock.release())
}
