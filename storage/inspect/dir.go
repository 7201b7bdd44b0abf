// Package inspect looks at the data of a hub and mends it: verify, dump, repair, backup, restore.
//
// Verify and backup work on the logs of a running hub as well as on a directory that no hub has open, or on a copy of
// one. Nothing here guesses: what cannot be proven is named with segment and offsets, what is changed is told, and the
// bytes as they were are kept in quarantine.
package inspect

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"edgehub/internal/vfs"
	"edgehub/storage/datadir"
	"edgehub/storage/meta"
	"edgehub/storage/seglog"
)

// Names below a data directory.
const (
	streamsDir    = "streams"
	quarantineDir = "quarantine"
	manifestName  = "hub.json"
)

// MetaStream is the stream that holds the hub's metadata.
const MetaStream = "$meta"

// ErrNoStream means that a directory has no stream of a name.
var ErrNoStream = errors.New("no such stream")

// Dir is a data directory that is looked at from outside. It holds nothing open.
type Dir struct {
	Info datadir.Info
	Path string

	fs vfs.FS
}

// Open looks at the data directory at path. It changes nothing and takes no lock.
func Open(fsys vfs.FS, path string) (*Dir, error) {
	info, err := datadir.Peek(fsys, path)
	if err != nil {
		return nil, err
	}
	return &Dir{Info: info, Path: path, fs: fsys}, nil
}

// Streams returns the names of the streams, sorted; those of the hub itself begin with $.
func (d *Dir) Streams() ([]string, error) {
	entries, err := d.fs.ReadDir(filepath.Join(d.Path, streamsDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Partition is a log of a data directory.
type Partition struct {
	Name string // "telemetry/0-0", "$meta/0"
	Dir  string // below the data directory
}

// Partitions returns the partitions of a stream.
func (d *Dir) Partitions(stream string) ([]Partition, error) {
	names, err := d.Streams()
	if err != nil {
		return nil, err
	}
	if !slices.Contains(names, stream) {
		return nil, fmt.Errorf("%w: %q; there is %s", ErrNoStream, stream, strings.Join(names, ", "))
	}
	entries, err := d.fs.ReadDir(filepath.Join(d.Path, streamsDir, stream))
	if err != nil {
		return nil, err
	}
	var list []Partition
	for _, e := range entries {
		dir := filepath.Join(streamsDir, stream, e.Name())
		if name, ok := logName(stream, e.Name()); ok && e.IsDir() {
			list = append(list, Partition{name, dir})
		}
	}
	return list, nil
}

// logName returns the name of the log in a partition's directory: PARTITION or PARTITION-LANE.
func logName(stream, dir string) (string, bool) {
	partition, lane, hasLane := strings.Cut(dir, "-")
	if !number(partition) || hasLane && !number(lane) {
		return "", false
	}
	switch {
	case stream == MetaStream:
		return meta.LogName, dir == "0"
	case hasLane:
		return stream + "/" + dir, true
	}
	return stream + "/" + partition + "-0", true
}

func number(s string) bool {
	return s != "" && len(s) < 10 && strings.Trim(s, "0123456789") == ""
}

// options are those that open the log of a partition as the hub does.
func (d *Dir) options(p Partition) seglog.Options {
	return seglog.Options{FS: d.fs, Dir: filepath.Join(d.Path, p.Dir), Name: p.Name, Salt: d.Info.Salt,
		QuarantineDir: filepath.Join(d.Path, quarantineDir)}
}
