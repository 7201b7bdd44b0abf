// Package vfs is the one door to the file system for everything that must survive a power cut.
//
// Storage code takes an [FS] instead of calling package os, so that tests can inject errors, record the order of
// operations and copy the disk as a crash would leave it. The interface is small on purpose: files are written at
// positions the caller knows, never appended to and never mapped, so that a full disk is an error and not a signal.
package vfs

import (
	"io"
	"io/fs"
)

// FS is the set of file system operations that storage code may use. Names are paths as package os takes them.
// All methods are safe for concurrent use.
type FS interface {
	// OpenFile opens a file with the os.O_* flags given. A created file has mode 0600. Its name is durable only
	// after SyncDir of its directory.
	OpenFile(name string, flag int) (File, error)
	// Remove removes a file or an empty directory.
	Remove(name string) error
	// Rename moves a file, replacing the target atomically.
	Rename(from, to string) error
	// MkdirAll creates a directory with mode 0700 and its missing parents. The names of the directories that it
	// created are durable when it returns.
	MkdirAll(dir string) error
	// ReadDir lists a directory in the order of names.
	ReadDir(dir string) ([]fs.DirEntry, error)
	// Stat describes a file.
	Stat(name string) (fs.FileInfo, error)
	// SyncDir makes creations, renames and removals in a directory durable.
	SyncDir(dir string) error
}

// File is an open file. ReadAt and WriteAt may be called concurrently with each other and with Sync.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Truncate changes the size of the file.
	Truncate(size int64) error
	// Sync makes the data written so far, and the size, durable (fdatasync where the system has it).
	Sync() error
	// Size returns the current size of the file.
	Size() (int64, error)
}
