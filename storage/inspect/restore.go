package inspect

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"edgehub/internal/vfs"
	"edgehub/storage/datadir"
)

// backupFile are the names that a backup may hold: nothing above the directory, nothing that is not the hub's.
var backupFile = regexp.MustCompile(`^(hub\.json|streams/[$A-Za-z0-9][A-Za-z0-9_-]{0,63}/[0-9]{1,9}(-[0-9]{1,9})?/[0-9]{20}(\.[0-9]{1,10})?\.log)$`)

// Unpack writes the files of a backup into an empty directory, durably, and proves them against its list. What it
// leaves is a directory of its own, see datadir.Continuation. After an error no hub starts on it.
func Unpack(fsys vfs.FS, r io.Reader, dir string) (Contents, error) {
	u := unpacking{fs: fsys, dir: dir, seen: map[string]File{}}
	c, err := u.run(r)
	if err != nil {
		return c, fmt.Errorf("inspect: restore: %w", err)
	}
	return c, nil
}

// Restore is Unpack, but for a further continuation: so that one backup can be restored many times.
func Restore(fsys vfs.FS, r io.Reader, dir string) (Contents, datadir.Info, error) {
	u := unpacking{fs: fsys, dir: dir, seen: map[string]File{}, hold: true}
	c, err := u.run(r)
	if err != nil {
		return c, datadir.Info{}, fmt.Errorf("inspect: restore: %w", err)
	}
	info, err := datadir.Restored(fsys, dir, u.manifest, slices.Sorted(maps.Keys(c.Partitions)))
	if err != nil {
		return c, info, fmt.Errorf("inspect: restore: %w", err)
	}
	return c, info, nil
}

// Examine proves a backup without unpacking it. It reads to the end of r.
func Examine(r io.Reader) (Contents, error) {
	u := unpacking{seen: map[string]File{}}
	c, err := u.read(r)
	if err != nil {
		return c, fmt.Errorf("inspect: examine: %w", err)
	}
	_, err = io.Copy(io.Discard, r)
	return c, err
}

type unpacking struct {
	fs       vfs.FS // nil: files are only proven
	dir      string
	hold     bool // keep hub.json back
	seen     map[string]File
	manifest []byte
	list     []byte
}

func (u *unpacking) run(r io.Reader) (Contents, error) {
	if err := u.begin(); err != nil {
		return Contents{}, err
	}
	c, err := u.read(r)
	if err != nil {
		return c, err
	}
	if !u.hold { // last: without it no hub starts here
		if err := u.write(manifestName, bytes.NewReader(u.manifest)); err != nil {
			return c, err
		}
		if err := u.write(contentsName, bytes.NewReader(u.list)); err != nil {
			return c, err
		}
	}
	return c, u.fs.SyncDir(u.dir)
}

// read takes all files of the tar.
func (u *unpacking) read(r io.Reader) (Contents, error) {
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return u.check()
		}
		if err != nil {
			return Contents{}, fmt.Errorf("%w: %w", ErrBackup, err)
		}
		if err := u.file(h, t); err != nil {
			return Contents{}, err
		}
	}
}

// begin makes the directory, and refuses one that holds anything.
func (u *unpacking) begin() error {
	entries, err := u.fs.ReadDir(u.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s is not empty; give a new directory, or move its content away", u.dir)
	}
	// streams/ comes first: a directory that has it and no hub.json is not taken for a new one.
	return u.fs.MkdirAll(filepath.Join(u.dir, streamsDir))
}

// file takes one file of the tar.
func (u *unpacking) file(h *tar.Header, r io.Reader) error {
	name := path.Clean(h.Name)
	switch _, twice := u.seen[name]; {
	case h.Typeflag == tar.TypeDir:
		return nil
	case h.Typeflag != tar.TypeReg || twice || sparse(h) || name != contentsName && !backupFile.MatchString(name):
		return fmt.Errorf("%w: %q does not belong into one", ErrBackup, h.Name)
	}
	sum := &checkedHash{Hash32: crc32.New(castagnoli)}
	r = io.TeeReader(r, sum)
	var err error
	switch name {
	case contentsName:
		u.list, err = io.ReadAll(io.LimitReader(r, contentsMax))
	case manifestName:
		u.manifest, err = io.ReadAll(io.LimitReader(r, contentsMax))
	default:
		if u.fs == nil {
			_, err = io.Copy(io.Discard, r)
		} else {
			err = u.write(name, r)
		}
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it ends within %s", ErrBackup, name)
	}
	u.seen[name] = File{name, sum.n, sum.Sum32()}
	return err
}

// sparse reports a file with holes. A backup has none, and a few bytes of one could stand for a disk full of zeros.
func sparse(h *tar.Header) bool {
	for k := range h.PAXRecords {
		if strings.HasPrefix(k, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// write makes a durable file.
func (u *unpacking) write(name string, r io.Reader) error {
	target := filepath.Join(u.dir, filepath.FromSlash(name))
	if err := u.fs.MkdirAll(filepath.Dir(target)); err != nil {
		return err
	}
	f, err := u.fs.OpenFile(target, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.NewOffsetWriter(f, 0), r)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return u.fs.SyncDir(filepath.Dir(target))
}

// check compares what came with what the backup says it holds.
func (u *unpacking) check() (Contents, error) {
	var c Contents
	if u.list == nil || u.manifest == nil {
		return c, fmt.Errorf("%w: it ends too early", ErrBackup)
	}
	if err := json.Unmarshal(u.list, &c); err != nil {
		return c, fmt.Errorf("%w: %s: %w", ErrBackup, contentsName, err)
	}
	if c.Format != backupFormat {
		return c, fmt.Errorf("%w of a kind that this program knows: format %d; use the hubctl that made it", ErrBackup, c.Format)
	}
	var bad []string
	for _, f := range c.Files {
		if got, ok := u.seen[f.Name]; !ok {
			bad = append(bad, f.Name+" is missing")
		} else if got != f {
			bad = append(bad, f.Name+" is not as it was written")
		}
	}
	if len(c.Files) != len(u.seen)-1 {
		bad = append(bad, fmt.Sprintf("%d files where %d are listed", len(u.seen)-1, len(c.Files)))
	}
	if len(bad) > 0 {
		return c, fmt.Errorf("%w: %s", ErrBackup, strings.Join(bad, ", "))
	}
	return c, nil
}

// Pack writes an unpacked backup as a tar again.
func Pack(fsys vfs.FS, dir string, w io.Writer) error {
	t := tar.NewWriter(w)
	list, err := readFile(fsys, filepath.Join(dir, contentsName))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBackup, err)
	}
	var c Contents
	if err := json.Unmarshal(list, &c); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrBackup, contentsName, err)
	}
	for _, f := range append(c.Files, File{Name: contentsName, Size: int64(len(list))}) {
		if f.Name != contentsName && !backupFile.MatchString(f.Name) {
			return fmt.Errorf("%w: %q does not belong into one", ErrBackup, f.Name)
		}
		if err := packFile(fsys, dir, f, t); err != nil {
			return err
		}
	}
	return t.Close()
}

func packFile(fsys vfs.FS, dir string, f File, t *tar.Writer) error {
	in, err := fsys.OpenFile(filepath.Join(dir, filepath.FromSlash(f.Name)), os.O_RDONLY)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBackup, err)
	}
	defer func() { _ = in.Close() }() // open for reading only
	switch size, err := in.Size(); {
	case err != nil:
		return err
	case size != f.Size:
		return fmt.Errorf("%w: %s has %d bytes where %d are listed", ErrBackup, f.Name, size, f.Size)
	}
	if err := t.WriteHeader(&tar.Header{Name: f.Name, Size: f.Size, Mode: backupFileMode}); err != nil {
		return err
	}
	_, err = io.Copy(t, io.NewSectionReader(in, 0, f.Size))
	return err
}

func readFile(fsys vfs.FS, name string) ([]byte, error) {
	f, err := fsys.OpenFile(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // open for reading only
	return io.ReadAll(io.LimitReader(io.NewSectionReader(f, 0, contentsMax), contentsMax))
}
