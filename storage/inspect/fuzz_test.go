package inspect

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"edgehub/internal/vfs/vfstest"
	"edgehub/storage/datadir"
	"edgehub/storage/seglog"
)

// smallBackup is a whole backup of a few kilobytes, made in memory.
func smallBackup(t testing.TB) []byte {
	t.Helper()
	disk := vfstest.NewMem()
	src := Source{Hub: "edge", Version: "1", Manifest: func() ([]byte, error) {
		dir := t.TempDir()
		d, err := datadir.Open(disk, dir)
		if err != nil {
			return nil, err
		}
		defer func() { _ = d.Close(false) }()
		return d.Manifest()
	}}
	for _, p := range []Partition{{"$meta/0", "streams/$meta/0"}, {"a/0-0", "streams/a/0"}} {
		l, _, err := seglog.Open(seglog.Options{FS: disk, Dir: p.Dir, Name: p.Name, Salt: 7, SegmentBytes: 500})
		if err != nil {
			t.Fatal(err)
		}
		var b seglog.Builder
		for i := range int64(6) {
			b.Reset(l.Next())
			b.Append(i, []byte("k"), bytes.Repeat([]byte{byte(i)}, 100), seglog.Headers{})
			if err := l.Append(&b); err != nil {
				t.Fatal(err)
			}
		}
		src.Logs = append(src.Logs, BackupLog{p, l})
	}
	var out bytes.Buffer
	if _, err := Backup(t.Context(), &out, src); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// FuzzBackup: of whatever a file holds that is called a backup, either the whole is taken, as it is listed and below the
// directory given, or nothing that a hub would start on.
//
// The input is a list of edits of a good backup, 5 bytes each: position (3), length (1), value (1); length 0 cuts it
// there. What follows is a file that is put in front of it.
func FuzzBackup(f *testing.F) {
	whole := smallBackup(f)
	f.Add([]byte{}, []byte{})
	f.Add([]byte{0, 2, 0, 1, 9}, []byte{})
	f.Add([]byte{0, 30, 0, 0, 0}, []byte{})
	f.Add([]byte{}, tarOf(f, tar.Header{Name: "../evil", Size: 4, Typeflag: tar.TypeReg}, "evil"))
	f.Add([]byte{}, tarOf(f, tar.Header{Name: "hub.json", Linkname: "/etc/passwd", Typeflag: tar.TypeSymlink}, ""))
	f.Add([]byte{}, tarOf(f, tar.Header{Name: "streams/a/0/00000000000000000000.log", Size: 3, Typeflag: tar.TypeReg}, "abc"))
	f.Fuzz(func(t *testing.T, edits, front []byte) {
		raw := append(bytes.Clone(front), whole...)
		for ; len(edits) >= 5; edits = edits[5:] {
			at := min(int(binary.BigEndian.Uint32(append([]byte{0}, edits[:3]...))), len(raw))
			if edits[3] == 0 {
				raw = raw[:at]
			}
			for i := at; i < min(at+int(edits[3]), len(raw)); i++ {
				raw[i] = edits[4]
			}
		}
		checkBackup(t, raw)
	})
}

func tarOf(t testing.TB, h tar.Header, content string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&h); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(content)); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func checkBackup(t *testing.T, raw []byte) {
	seen, examined := Examine(bytes.NewReader(raw))
	disk := vfstest.NewMem()
	got, err := Unpack(disk, bytes.NewReader(raw), "new")
	if (err == nil) != (examined == nil) {
		t.Fatalf("examined: %v, unpacked: %v", examined, err)
	}
	for _, line := range strings.Split(strings.TrimSpace(disk.String()), "\n") {
		if line != "" && !strings.HasPrefix(line, "new/") {
			t.Fatalf("outside of the directory: %s", line)
		}
	}
	_, missing := disk.Stat(filepath.Join("new", manifestName))
	if err != nil {
		if !errors.Is(err, ErrBackup) {
			t.Fatal(err)
		}
		if missing == nil {
			t.Fatal("a hub would start on half a backup")
		}
		return
	}
	if fmt.Sprint(got) != fmt.Sprint(seen) || missing != nil {
		t.Fatalf("%+v, examined %+v, %v", got, seen, missing)
	}
	for _, x := range got.Files {
		info, err := disk.Stat(filepath.Join("new", filepath.FromSlash(x.Name)))
		if err != nil || info.Size() != x.Size {
			t.Fatal(x, err)
		}
	}
	var again bytes.Buffer
	if err := Pack(disk, "new", &again); err != nil {
		t.Fatal(err)
	}
	if back, err := Examine(&again); err != nil || fmt.Sprint(back) != fmt.Sprint(seen) {
		t.Fatalf("packed again: %+v, %v", back, err)
	}
}

// TestSparseBackup: a file with holes, of which a kilobyte can stand for any size, is refused before it is read.
func TestSparseBackup(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	h := tar.Header{Name: "streams/a/0/00000000000000000000.log", Typeflag: tar.TypeReg, Format: tar.FormatPAX, Size: 512,
		PAXRecords: map[string]string{"VND.sparse.major": "1", "VND.sparse.minor": "0", "VND.sparse.realsize": "1099511627776", "VND.sparse.name": "streams/a/0/00000000000000000000.log"}}
	if err := w.WriteHeader(&h); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(append([]byte("1\n1099511627776\n0\n"), make([]byte, 494)...)); err != nil {
		t.Fatal(err)
	}
	// The writer refuses to make such a file, so the records get their names afterwards, with room made for two more bytes.
	raw := bytes.ReplaceAll(b.Bytes(), []byte("VND.sparse."), []byte("GNU.sparse."))
	_, err := Examine(bytes.NewReader(raw))
	if !errors.Is(err, ErrBackup) || !strings.Contains(err.Error(), "does not belong") {
		t.Fatal(err)
	}
}
