package meta

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"edgehub/internal/vfs"
	"edgehub/internal/vfs/vfstest"
	"edgehub/storage/seglog"
)

// split keeps the log on a disk in memory and Badger's directory, which it opens by itself, on the real one.
type split struct {
	vfs.FS
	root string
}

func (s split) of(name string) vfs.FS {
	if rest := strings.TrimPrefix(name, s.root); rest == "/meta" || strings.HasPrefix(rest, "/meta/") || strings.HasPrefix(rest, "/quarantine") {
		return vfs.OS
	}
	return s.FS
}

func (s split) OpenFile(name string, flag int) (vfs.File, error) {
	return s.of(name).OpenFile(name, flag)
}
func (s split) Remove(name string) error                  { return s.of(name).Remove(name) }
func (s split) Rename(from, to string) error              { return s.of(from).Rename(from, to) }
func (s split) ReadDir(dir string) ([]fs.DirEntry, error) { return s.of(dir).ReadDir(dir) }
func (s split) Stat(name string) (fs.FileInfo, error)     { return s.of(name).Stat(name) }
func (s split) SyncDir(dir string) error                  { return s.of(dir).SyncDir(dir) }
func (s split) MkdirAll(dir string) error                 { return s.of(dir).MkdirAll(dir) }

// FuzzLog damages the metadata log as the input says and starts on it without an index: the keys of every batch that is
// still whole are there, as the newest of these have them, and no others; it goes on, and a second start agrees.
//
// The input is a list of edits, 4 bytes each: position (2), length (1), value (1); length 0 cuts the file there.
func FuzzLog(f *testing.F) {
	original, changes := smallLog(f)
	positions := slices.Sorted(maps.Keys(changes))
	f.Add([]byte{})
	f.Add([]byte{0, 0, 1, 0xff})
	f.Add([]byte{0x01, 0, 0, 0})
	f.Add([]byte{byte(positions[2] >> 8), byte(positions[2]) + 70, 1, 0x55})
	f.Add([]byte{byte(positions[3] >> 8), byte(positions[3]) + 8, 4, 0, 0, 200, 90, 2})
	f.Fuzz(func(t *testing.T, edits []byte) {
		file := bytes.Clone(original)
		for ; len(edits) >= 4; edits = edits[4:] {
			at, n := min(int(binary.BigEndian.Uint16(edits)), len(file)), int(edits[2])
			if n == 0 {
				file = file[:at]
			}
			for i := at; i < min(at+n, len(file)); i++ {
				file[i] = edits[3]
			}
		}
		want := map[string]string{}
		for i, at := range positions {
			end := len(original)
			if i+1 < len(positions) {
				end = positions[i+1]
			}
			if len(file) < end || !bytes.Equal(file[at:end], original[at:end]) {
				continue
			}
			for _, c := range changes[at] {
				if delete(want, string(c.key)); !c.deleted {
					want[string(c.key)] = string(c.value)
				}
			}
		}
		checkLog(t, file, want)
	})
}

// smallLog returns a metadata log of one segment, and its changes by the position of their batch.
func smallLog(f *testing.F) ([]byte, map[int][]change) {
	o := testOptions(f.TempDir())
	s, _ := open_(f, o)
	for i := range 12 {
		for k := range 1 + i%3 {
			s.Put(fmt.Appendf(nil, "s/key %d", (i+k)%7), fmt.Appendf(nil, "value %d", i))
		}
		if i%4 == 3 {
			s.Delete(fmt.Appendf(nil, "s/key %d", i%7))
		}
		check(f, s.Commit())
	}
	check(f, s.Close())
	raw, err := os.ReadFile(filepath.Join(o.DataDir, logDir, "00000000000000000000.log"))
	check(f, err)
	changes := map[int][]change{}
	check(f, seglog.Dump(bytes.NewReader(raw), int64(len(raw)), "x.log", nil, func(b seglog.BatchInfo, plain []byte, err error) error {
		for r := range seglog.Records(bytes.Clone(plain)) {
			c, derr := decodeRecord(r.Key, r.Value)
			check(f, derr)
			changes[int(b.Position)] = append(changes[int(b.Position)], c)
		}
		return err
	}))
	return raw, changes
}

func checkLog(t *testing.T, file []byte, want map[string]string) {
	root := t.TempDir()
	disk := vfstest.NewMem()
	check(t, disk.MkdirAll(filepath.Join(root, logDir)))
	w, err := disk.OpenFile(filepath.Join(root, logDir, "00000000000000000000.log"), os.O_RDWR|os.O_CREATE)
	check(t, err)
	_, err = w.WriteAt(file, 0)
	check(t, err)
	o := testOptions(root)
	o.FS = split{disk, root}
	for round := range 2 {
		s, rec, err := Open(o)
		check(t, err)
		got, _ := dump(t, s)
		same(t, fmt.Sprintf("round %d, %+v", round, rec), got, want)
		for _, k := range rec.Lost {
			if strings.Contains(k, "\n") || len(k) > len(file) {
				t.Fatalf("%q", rec.Lost)
			}
		}
		s.Put([]byte("again"), []byte("x"))
		want["again"] = "x"
		check(t, s.Close())
	}
}
