package vfstest

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"edgehub/internal/vfs"
)

// Mem is a file system in memory that knows what a power cut would take: data written and names changed since they
// were last synced. Crash makes a copy as the cut would leave it.
//
// The model: a file's data is durable when Sync returned; until then every write may have reached the disk whole, in
// part (in sectors, in any order, with zeros for what did not) or not at all. A directory's names are durable when
// SyncDir returned; until then a prefix of the changes may have (file systems journal names in order). Directories
// made by MkdirAll are durable, as its contract says.
type Mem struct {
	// BeforeSync is called, without locks, when Sync or SyncDir is about to make something durable. An error fails
	// it. For a file that means what it means on Linux: the data stays readable, but is taken for clean from then on
	// and never reaches the disk unless it is written again.
	BeforeSync func(op Op, name string) error

	mu      sync.Mutex
	dirs    map[string]bool
	names   map[string]*memNode // as programs see them
	durable map[string]*memNode // as of the last SyncDir of their directories
	changes []memChange         // since then, in order
}

// memChange is a change of names: a nil node removes. A rename also removes the name gone, which survives together.
type memChange struct {
	name string
	node *memNode
	gone string
}

type memNode struct {
	data    []byte     // as programs see it
	durable []byte     // as of the last Sync
	pending []memWrite // since then
}

// memWrite is a write, or with nil data a truncation to off.
type memWrite struct {
	off  int64
	data []byte
}

const memSector = 512

// NewMem returns an empty file system.
func NewMem() *Mem {
	return &Mem{dirs: map[string]bool{"/": true, ".": true}, names: map[string]*memNode{}, durable: map[string]*memNode{}}
}

// Crash returns a copy of the disk as a power cut now would leave it. Each unsynced write survives with probability
// share (0 to 1), each sector of one with the same probability again when torn is set; the same of changed names.
func (m *Mem) Crash(r *rand.Rand, share float64, torn bool) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := NewMem()
	maps.Copy(out.dirs, m.dirs)
	names := maps.Clone(m.durable)
	for _, c := range m.changes {
		if r.Float64() >= share {
			break
		}
		apply(names, c)
	}
	// In the order of names, so that a seed always gives the same copy.
	for _, name := range slices.Sorted(maps.Keys(names)) {
		data := names[name].crash(r, share, torn)
		n := &memNode{data: data, durable: bytes.Clone(data)}
		out.names[name], out.durable[name] = n, n
	}
	return out
}

// Kill returns a copy of the disk as the death of the process would leave it: everything written is there, but what was
// not synced still is not.
func (m *Mem) Kill() *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := NewMem()
	maps.Copy(out.dirs, m.dirs)
	copies := make(map[*memNode]*memNode)
	clone := func(n *memNode) *memNode {
		if n != nil && copies[n] == nil {
			copies[n] = &memNode{data: bytes.Clone(n.data), durable: bytes.Clone(n.durable), pending: slices.Clone(n.pending)}
		}
		return copies[n]
	}
	for name, n := range m.names {
		out.names[name] = clone(n)
	}
	for name, n := range m.durable {
		out.durable[name] = clone(n)
	}
	for _, c := range m.changes {
		out.changes = append(out.changes, memChange{c.name, clone(c.node), c.gone})
	}
	return out
}

// Moved returns a copy of a disk in which what was below one directory is below another. Nothing of it is unsynced.
func (m *Mem) Moved(from, to string) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	move := func(name string) string {
		if rest, ok := strings.CutPrefix(name, filepath.Clean(from)); ok {
			return filepath.Clean(to) + rest
		}
		return name
	}
	out := NewMem()
	for dir := range m.dirs {
		out.dirs[move(dir)] = true
	}
	for name, n := range m.names {
		c := &memNode{data: bytes.Clone(n.data), durable: bytes.Clone(n.data)}
		out.names[move(name)], out.durable[move(name)] = c, c
	}
	return out
}

// crash returns what a power cut leaves of the data; everything at a share of 1.
func (n *memNode) crash(r *rand.Rand, share float64, torn bool) []byte {
	data := bytes.Clone(n.durable)
	for _, w := range n.pending {
		if share < 1 && r.Float64() >= share {
			continue
		}
		if w.data == nil {
			data = resize(data, w.off)
			continue
		}
		end := w.off + int64(len(w.data))
		if int64(len(data)) < end {
			data = resize(data, end)
		}
		for at := w.off; at < end; {
			next := min(end, (at/memSector+1)*memSector)
			if !torn || r.Float64() < share {
				copy(data[at:next], w.data[at-w.off:])
			}
			at = next
		}
	}
	return data
}

func resize(b []byte, size int64) []byte {
	if int64(len(b)) >= size {
		return b[:size:size]
	}
	return append(b, make([]byte, size-int64(len(b)))...)
}

func apply(names map[string]*memNode, c memChange) {
	delete(names, c.gone)
	if c.node == nil {
		delete(names, c.name)
		return
	}
	names[c.name] = c.node
}

func (m *Mem) change(c memChange) {
	apply(m.names, c)
	m.changes = append(m.changes, c)
}

func notExist(op, name string) error { return &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist} }

// OpenFile implements vfs.FS.
func (m *Mem) OpenFile(name string, flag int) (vfs.File, error) {
	name = filepath.Clean(name)
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.names[name]
	switch {
	case n == nil && flag&os.O_CREATE == 0 || !m.dirs[filepath.Dir(name)]:
		return nil, notExist("open", name)
	case n != nil && flag&os.O_EXCL != 0:
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrExist}
	case n == nil:
		n = &memNode{}
		m.change(memChange{name: name, node: n})
	case flag&os.O_TRUNC != 0 && len(n.data) > 0:
		n.data = nil
		n.pending = append(n.pending, memWrite{})
	}
	return &memFile{m: m, n: n, name: name}, nil
}

// Remove implements vfs.FS.
func (m *Mem) Remove(name string) error {
	name = filepath.Clean(name)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names[name] == nil {
		return notExist("remove", name)
	}
	m.change(memChange{name: name})
	return nil
}

// Rename implements vfs.FS.
func (m *Mem) Rename(from, to string) error {
	from, to = filepath.Clean(from), filepath.Clean(to)
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.names[from]
	if n == nil || !m.dirs[filepath.Dir(to)] {
		return notExist("rename", from)
	}
	m.change(memChange{name: to, node: n, gone: from})
	return nil
}

// MkdirAll implements vfs.FS.
func (m *Mem) MkdirAll(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for dir = filepath.Clean(dir); !m.dirs[dir]; dir = filepath.Dir(dir) {
		m.dirs[dir] = true
	}
	return nil
}

// ReadDir implements vfs.FS.
func (m *Mem) ReadDir(dir string) ([]fs.DirEntry, error) {
	dir = filepath.Clean(dir)
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.dirs[dir] {
		return nil, notExist("readdir", dir)
	}
	var out []fs.DirEntry
	for name, n := range m.names {
		if filepath.Dir(name) == dir {
			out = append(out, fs.FileInfoToDirEntry(memInfo{filepath.Base(name), int64(len(n.data)), false}))
		}
	}
	for name := range m.dirs {
		if filepath.Dir(name) == dir && name != dir {
			out = append(out, fs.FileInfoToDirEntry(memInfo{filepath.Base(name), 0, true}))
		}
	}
	slices.SortFunc(out, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return out, nil
}

// Stat implements vfs.FS.
func (m *Mem) Stat(name string) (fs.FileInfo, error) {
	name = filepath.Clean(name)
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.names[name]; n != nil {
		return memInfo{filepath.Base(name), int64(len(n.data)), false}, nil
	}
	if m.dirs[name] {
		return memInfo{filepath.Base(name), 0, true}, nil
	}
	return nil, notExist("stat", name)
}

// SyncDir implements vfs.FS.
func (m *Mem) SyncDir(dir string) error {
	dir = filepath.Clean(dir)
	if m.BeforeSync != nil {
		if err := m.BeforeSync(OpSyncDir, dir); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	rest := m.changes[:0:0]
	for _, c := range m.changes {
		if filepath.Dir(c.name) == dir {
			apply(m.durable, c)
		} else {
			rest = append(rest, c)
		}
	}
	m.changes = rest
	return nil
}

// String lists the files and their sizes, durable and not.
func (m *Mem) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(m.names)) {
		n := m.names[name]
		fmt.Fprintf(&b, "%s %d bytes, %d durable, name durable %v\n", name, len(n.data), len(n.durable), m.durable[name] == n)
	}
	return b.String()
}

type memFile struct {
	m    *Mem
	n    *memNode
	name string
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if off >= int64(len(f.n.data)) {
		return 0, io.EOF
	}
	n := copy(p, f.n.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	n := f.n
	if end := off + int64(len(p)); int64(len(n.data)) < end {
		n.data = resize(n.data, end)
	}
	copy(n.data[off:], p)
	n.pending = append(n.pending, memWrite{off, append([]byte{}, p...)})
	return len(p), nil
}

func (f *memFile) Truncate(size int64) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	f.n.data = resize(f.n.data, size)
	f.n.pending = append(f.n.pending, memWrite{off: size})
	return nil
}

func (f *memFile) Sync() error {
	var err error
	if f.m.BeforeSync != nil {
		err = f.m.BeforeSync(OpSync, f.name)
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err == nil && len(f.n.pending) > 0 {
		f.n.durable = f.n.crash(nil, 1, false) // only what is pending: see BeforeSync for what is not
	}
	f.n.pending = nil
	return err
}

func (f *memFile) Size() (int64, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	return int64(len(f.n.data)), nil
}

func (f *memFile) Close() error { return nil }

type memInfo struct {
	name string
	size int64
	dir  bool
}

func (i memInfo) Name() string       { return i.name }
func (i memInfo) Size() int64        { return i.size }
func (i memInfo) ModTime() time.Time { return time.Time{} }
func (i memInfo) IsDir() bool        { return i.dir }
func (i memInfo) Sys() any           { return nil }
func (i memInfo) Mode() fs.FileMode {
	if i.dir {
		return fs.ModeDir | 0o700
	}
	return 0o600
}
