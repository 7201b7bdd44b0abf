// Package vfstest holds file systems for tests: one that fails on demand and records what was asked of it.
package vfstest

import (
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"edgehub/internal/vfs"
)

// Op names a file system operation.
type Op string

// The operations that a Fault can hit and that the trace records.
const (
	OpOpen     Op = "open"
	OpCreate   Op = "create"
	OpRemove   Op = "remove"
	OpRename   Op = "rename"
	OpMkdir    Op = "mkdir"
	OpReadDir  Op = "readdir"
	OpStat     Op = "stat"
	OpSyncDir  Op = "syncdir"
	OpRead     Op = "read"
	OpWrite    Op = "write"
	OpTruncate Op = "truncate"
	OpSync     Op = "sync"
	OpClose    Op = "close"
)

// Fault is one rule of a Faults file system. The first armed rule that matches an operation decides.
type Fault struct {
	Op      Op     // the operation to hit
	Pattern string // matched by filepath.Match against the last path element; "" matches everything
	After   int    // let so many matching operations pass first
	Count   int    // hit so many operations, then disarm; 0 means for ever
	Err     error  // what the operation returns; nil only delays (Hook)
	Short   int    // writes: bytes that reach the file before Err
	Hook    func() // called without locks before the operation proceeds or fails: tests block here
}

// Event is one recorded operation.
type Event struct {
	Op   Op
	Name string // last path element
	Err  error
}

// Faults wraps a file system with rules that make operations fail, and a trace.
type Faults struct {
	base vfs.FS

	mu     sync.Mutex
	rules  []*Fault
	events []Event
	record bool
	open   map[*faultFile]bool // so that an open file follows a rename
}

// New wraps base.
func New(base vfs.FS) *Faults { return &Faults{base: base} }

// Add arms a rule.
func (f *Faults) Add(r Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = append(f.rules, &r)
}

// Clear disarms all rules.
func (f *Faults) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = nil
}

// Record starts a trace, dropping the one before.
func (f *Faults) Record() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events, f.record = nil, true
}

// Events returns the trace since Record.
func (f *Faults) Events() []Event {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]Event(nil), f.events...)
}

// hit consults the rules for one operation.
func (f *Faults) hit(op Op, name string) (short int, err error) {
	base := filepath.Base(name)
	f.mu.Lock()
	var hook func()
	for _, r := range f.rules {
		if r.Op != op || r.Count < 0 {
			continue
		}
		if ok, _ := filepath.Match(r.Pattern, base); r.Pattern != "" && !ok {
			continue
		}
		if r.After > 0 {
			r.After--
			continue
		}
		if r.Count > 0 {
			if r.Count--; r.Count == 0 {
				r.Count = -1 // spent
			}
		}
		short, err, hook = r.Short, r.Err, r.Hook
		break
	}
	if f.record {
		f.events = append(f.events, Event{Op: op, Name: base, Err: err})
	}
	f.mu.Unlock()
	if hook != nil {
		hook()
	}
	if err != nil {
		err = &fs.PathError{Op: string(op), Path: name, Err: err}
	}
	return short, err
}

// OpenFile implements vfs.FS. An open that may create counts as OpCreate.
func (f *Faults) OpenFile(name string, flag int) (vfs.File, error) {
	op := OpOpen
	if flag&os.O_CREATE != 0 {
		op = OpCreate
	}
	if _, err := f.hit(op, name); err != nil {
		return nil, err
	}
	file, err := f.base.OpenFile(name, flag)
	if err != nil {
		return nil, err
	}
	ff := &faultFile{File: file, fs: f, name: name}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open == nil {
		f.open = make(map[*faultFile]bool)
	}
	f.open[ff] = true
	return ff, nil
}

// OpenFiles returns the number of files that are open.
func (f *Faults) OpenFiles() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.open)
}

// Remove implements vfs.FS.
func (f *Faults) Remove(name string) error {
	if _, err := f.hit(OpRemove, name); err != nil {
		return err
	}
	return f.base.Remove(name)
}

// Rename implements vfs.FS. Rules and trace see the target's name.
func (f *Faults) Rename(from, to string) error {
	if _, err := f.hit(OpRename, to); err != nil {
		return err
	}
	if err := f.base.Rename(from, to); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for ff := range f.open {
		if ff.name == from {
			ff.name = to
		}
	}
	return nil
}

// MkdirAll implements vfs.FS.
func (f *Faults) MkdirAll(dir string) error {
	if _, err := f.hit(OpMkdir, dir); err != nil {
		return err
	}
	return f.base.MkdirAll(dir)
}

// ReadDir implements vfs.FS.
func (f *Faults) ReadDir(dir string) ([]fs.DirEntry, error) {
	if _, err := f.hit(OpReadDir, dir); err != nil {
		return nil, err
	}
	return f.base.ReadDir(dir)
}

// Stat implements vfs.FS.
func (f *Faults) Stat(name string) (fs.FileInfo, error) {
	if _, err := f.hit(OpStat, name); err != nil {
		return nil, err
	}
	return f.base.Stat(name)
}

// SyncDir implements vfs.FS.
func (f *Faults) SyncDir(dir string) error {
	if _, err := f.hit(OpSyncDir, dir); err != nil {
		return err
	}
	return f.base.SyncDir(dir)
}

type faultFile struct {
	vfs.File
	fs   *Faults
	name string // guarded by fs.mu
}

func (f *faultFile) hit(op Op) (int, error) {
	f.fs.mu.Lock()
	name := f.name
	f.fs.mu.Unlock()
	return f.fs.hit(op, name)
}

func (f *faultFile) ReadAt(p []byte, off int64) (int, error) {
	if _, err := f.hit(OpRead); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

func (f *faultFile) WriteAt(p []byte, off int64) (int, error) {
	short, err := f.hit(OpWrite)
	if err == nil {
		return f.File.WriteAt(p, off)
	}
	if short = min(short, len(p)); short > 0 {
		if n, werr := f.File.WriteAt(p[:short], off); werr != nil {
			return n, werr
		}
	}
	return short, err
}

func (f *faultFile) Truncate(size int64) error {
	if _, err := f.hit(OpTruncate); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

func (f *faultFile) Sync() error {
	if _, err := f.hit(OpSync); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *faultFile) Close() error {
	_, err := f.hit(OpClose)
	f.fs.mu.Lock()
	delete(f.fs.open, f)
	f.fs.mu.Unlock()
	if err != nil {
		_ = f.File.Close() // a failed close still gives the descriptor back
		return err
	}
	return f.File.Close()
}
