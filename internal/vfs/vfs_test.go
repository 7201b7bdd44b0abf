package vfs_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"edgehub/internal/vfs"
	"edgehub/internal/vfs/vfstest"
)

func TestFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "f")
	f, err := vfs.OS.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("hello"), 3); err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(6); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if n, err := f.Size(); n != 6 || err != nil {
		t.Fatal(n, err)
	}
	b := make([]byte, 10)
	if n, err := f.ReadAt(b, 0); n != 6 || !errors.Is(err, io.EOF) || string(b[:6]) != "\x00\x00\x00hel" {
		t.Fatalf("%d %v %q", n, err, b[:n])
	}
	info, err := vfs.OS.Stat(name)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatal(info.Mode(), err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err == nil {
		t.Fatal("sync of a closed file succeeded")
	}
}

func TestMkdirAll(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "a", "b", "c")
	for range 2 {
		if err := vfs.OS.MkdirAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(filepath.Join(root, "a"))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Fatal(info.Mode(), err)
	}
	file := filepath.Join(root, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{file, filepath.Join(file, "x")} {
		if err := vfs.OS.MkdirAll(bad); err == nil {
			t.Fatalf("%s: created", bad)
		}
	}
	t.Chdir(root)
	if err := vfs.OS.MkdirAll("relative/deep"); err != nil {
		t.Fatal(err)
	}
}

func TestFaults(t *testing.T) {
	dir := t.TempDir()
	f := vfstest.New(vfs.OS)
	f.Record()
	file, err := f.OpenFile(filepath.Join(dir, "a.tmp"), os.O_RDWR|os.O_CREATE)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Rename(filepath.Join(dir, "a.tmp"), filepath.Join(dir, "a.log")); err != nil {
		t.Fatal(err)
	}
	f.Add(vfstest.Fault{Op: vfstest.OpWrite, Pattern: "*.log", After: 1, Count: 1, Err: syscall.ENOSPC, Short: 2})
	for i, want := range []struct {
		n   int
		err error
	}{{4, nil}, {2, syscall.ENOSPC}, {4, nil}} {
		if n, err := file.WriteAt([]byte("data"), int64(i*4)); n != want.n || !errors.Is(err, want.err) {
			t.Fatalf("write %d: %d, %v", i, n, err)
		}
	}
	f.Add(vfstest.Fault{Op: vfstest.OpSync, Err: syscall.EIO})
	var pe *fs.PathError
	if err := file.Sync(); !errors.Is(err, syscall.EIO) || !errors.As(err, &pe) || filepath.Base(pe.Path) != "a.log" {
		t.Fatal(err)
	}
	f.Clear()
	if err := file.Sync(); err != nil {
		t.Fatal(err)
	}
	if f.OpenFiles() != 1 {
		t.Fatal(f.OpenFiles())
	}
	if err := file.Close(); err != nil || f.OpenFiles() != 0 {
		t.Fatal(err, f.OpenFiles())
	}
	var ops []vfstest.Op
	for _, e := range f.Events() {
		ops = append(ops, e.Op)
	}
	want := []vfstest.Op{"create", "rename", "write", "write", "write", "sync", "sync", "close"}
	for i := range want {
		if i >= len(ops) || ops[i] != want[i] {
			t.Fatalf("%v, want %v", ops, want)
		}
	}
}
