package diskguard

import (
	"strings"
	"sync/atomic"

	"edgehub/internal/vfs"
)

// FS returns the file system through which the hub's logs write, so that the guard knows.
func (g *Guard) FS() vfs.FS { return guarded{g.o.FS, g} }

type guarded struct {
	vfs.FS
	g *Guard
}

// OpenFile implements vfs.FS.
func (x guarded) OpenFile(name string, flag int) (vfs.File, error) {
	f, err := x.FS.OpenFile(name, flag)
	if err != nil {
		x.g.failed(err)
		return nil, err
	}
	return &guardedFile{f, x.g, x.g.wear.class(name)}, nil
}

type guardedFile struct {
	vfs.File
	g     *Guard
	class *atomic.Int64
}

// WriteAt implements io.WriterAt.
func (f *guardedFile) WriteAt(p []byte, off int64) (int, error) {
	n, err := f.File.WriteAt(p, off)
	f.g.wrote(n, f.class)
	if err != nil {
		f.g.failed(err)
	}
	return n, err
}

// class is the counter of a file's bytes.
func (w *Wear) class(name string) *atomic.Int64 {
	switch {
	case strings.Contains(name, "streams/$meta/"):
		return &w.Meta
	case strings.Contains(name, "streams/"):
		return &w.Log
	}
	return &w.Other
}
