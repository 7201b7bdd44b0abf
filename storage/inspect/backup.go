package inspect

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"path"
	"path/filepath"
	"time"

	"edgehub/storage/datadir"
	"edgehub/storage/seglog"
)

// A backup is a tar of a data directory: the segments of every log up to a synced offset, $meta first, hub.json, and at
// the end backup.json, which names all files with size and CRC-32C. One without it is not complete.
const (
	contentsName   = "backup.json"
	backupFormat   = 1
	contentsMax    = 64 << 20
	backupFileMode = 0o600
)

// Contents is backup.json.
type Contents struct {
	Format     int              `json:"format"`
	Hub        string           `json:"hub"`
	Instance   string           `json:"instance"`
	Epoch      uint32           `json:"epoch"` // of the hub when the backup was made
	Version    string           `json:"version"`
	CreatedMs  int64            `json:"created_ms"`
	Partitions map[string]int64 `json:"partitions"` // log name → offset up to which the backup goes
	Files      []File           `json:"files"`
	Bytes      int64            `json:"bytes"`
}

// File is a file of a backup.
type File struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
	CRC  uint32 `json:"crc"` // CRC-32C
}

// Exporter is a log that can be backed up: seglog.Log and, for $meta, meta.Store.
type Exporter interface {
	Export(fn func(name string, size int64, content io.Reader) error) (next int64, err error)
}

// BackupLog is a log and where it belongs.
type BackupLog struct {
	Partition
	Log Exporter
}

// Source is what is backed up. The metadata come first of the logs: positions in them may be behind the other logs,
// never ahead.
type Source struct {
	Hub, Version string
	Manifest     func() ([]byte, error)
	Logs         []BackupLog
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Backup writes a backup of a running hub or of a directory. It is consistent: everything durable at the moment when a
// log is begun is in it, and no session's position is beyond its log. On an error what was written is not a backup.
func Backup(ctx context.Context, w io.Writer, src Source) (Contents, error) {
	b := backup{ctx: ctx, w: tar.NewWriter(w), now: time.Now()}
	c := &b.contents
	*c = Contents{Format: backupFormat, Hub: src.Hub, Version: src.Version, CreatedMs: b.now.UnixMilli(), Partitions: map[string]int64{}}
	manifest, err := src.Manifest()
	if err != nil {
		return *c, fmt.Errorf("inspect: backup: %w", err)
	}
	var names []string
	for _, l := range src.Logs {
		names = append(names, l.Name)
		next, err := l.Log.Export(func(name string, size int64, content io.Reader) error {
			return b.file(path.Join(filepath.ToSlash(l.Dir), name), size, content)
		})
		if err != nil {
			return *c, fmt.Errorf("inspect: backup: %w", err)
		}
		c.Partitions[l.Name] = next
	}
	if err := b.finish(manifest, names); err != nil {
		return *c, fmt.Errorf("inspect: backup: %w", err)
	}
	return *c, nil
}

type backup struct {
	ctx      context.Context
	w        *tar.Writer
	now      time.Time
	contents Contents
}

// file adds one file.
func (b *backup) file(name string, size int64, content io.Reader) error {
	if err := b.ctx.Err(); err != nil {
		return err
	}
	h := &tar.Header{Name: name, Size: size, Mode: backupFileMode, ModTime: b.now, Format: tar.FormatPAX}
	if err := b.w.WriteHeader(h); err != nil {
		return err
	}
	sum := crc32.New(castagnoli)
	if n, err := io.Copy(io.MultiWriter(b.w, sum), contextReader{b.ctx, content}); err != nil {
		return err
	} else if n != size {
		return fmt.Errorf("%s: %d bytes where %d were announced", name, n, size)
	}
	b.contents.Files = append(b.contents.Files, File{name, size, sum.Sum32()})
	b.contents.Bytes += size
	return nil
}

// finish adds the manifest, as a copy's own, and the list of files.
func (b *backup) finish(manifest []byte, partitions []string) error {
	was, err := datadir.Describe(manifest)
	if err != nil {
		return err
	}
	b.contents.Instance, b.contents.Epoch = was.Instance, was.Epoch
	own, err := datadir.Continuation(manifest, partitions)
	if err != nil {
		return err
	}
	if err := b.file(manifestName, int64(len(own)), bytes.NewReader(own)); err != nil {
		return err
	}
	list, err := json.Marshal(b.contents)
	if err != nil {
		return err
	}
	if err := b.file(contentsName, int64(len(list)), bytes.NewReader(list)); err != nil {
		return err
	}
	return b.w.Close()
}

// contextReader ends reading when ctx does.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

// Read implements io.Reader.
func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// Backup writes a backup of a directory that no hub owns.
func (d *Dir) Backup(ctx context.Context, w io.Writer, version string) (Contents, error) {
	release, err := datadir.Lock(d.Path)
	if err != nil {
		return Contents{}, err
	}
	defer func() { _ = release() }() // nothing was changed
	names, err := d.Streams()        // sorted, so $meta comes before all but other $ streams
	if err != nil {
		return Contents{}, err
	}
	src := Source{Version: version, Manifest: func() ([]byte, error) { return datadir.ReadManifest(d.fs, d.Path) }}
	var logs []*seglog.Log
	defer func() {
		for _, l := range logs {
			_ = l.Close() // open for reading only
		}
	}()
	for _, stream := range names {
		parts, err := d.Partitions(stream)
		if err != nil {
			return Contents{}, err
		}
		for _, p := range parts {
			o := d.options(p)
			o.ReadOnly = true
			l, _, err := seglog.Open(o)
			if err != nil {
				return Contents{}, err
			}
			logs = append(logs, l)
			src.Logs = append(src.Logs, BackupLog{p, l})
		}
	}
	return Backup(ctx, w, src)
}

// ErrBackup means that what is to be restored is not a whole backup.
var ErrBackup = errors.New("not a complete backup")

// checkedHash counts and sums what passes.
type checkedHash struct {
	hash.Hash32
	n int64
}

// Write implements io.Writer.
func (c *checkedHash) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return c.Hash32.Write(p)
}
