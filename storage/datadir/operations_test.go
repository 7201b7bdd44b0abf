package datadir

import (
	"path/filepath"
	"strings"
	"testing"

	"edgehub/internal/vfs"
	"edgehub/internal/vfs/vfstest"
)

// TestOperations is the golden list of what the manifest does to the disk, in order: a missing fsync is a visible
// difference.
func TestOperations(t *testing.T) {
	f := vfstest.New(vfs.OS)
	path := filepath.Join(t.TempDir(), "data")
	var d *Dir
	step := func(name, want string, do func() error) {
		t.Helper()
		f.Record()
		if err := do(); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range f.Events() {
			if e.Op != vfstest.OpStat && e.Op != vfstest.OpRead && e.Op != vfstest.OpReadDir { // these change nothing
				got = append(got, string(e.Op)+" "+e.Name)
			}
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%s:\n got %s\nwant %s", name, strings.Join(got, ", "), want)
		}
	}
	open := func() (err error) { d, err = Open(f, path); return err }
	step("create", "mkdir data, create hub.json.tmp, write hub.json.tmp, close hub.json.tmp, remove hub.json.tmp, open hub.json, open hub.json.bak, create hub.json.tmp, write hub.json.tmp, sync hub.json.tmp, close hub.json.tmp, rename hub.json.bak, syncdir data, create hub.json.tmp, write hub.json.tmp, sync hub.json.tmp, close hub.json.tmp, rename hub.json, syncdir data", open)
	step("begin a run", "create hub.json.tmp, write hub.json.tmp, sync hub.json.tmp, close hub.json.tmp, rename hub.json.bak, syncdir data, create hub.json.tmp, write hub.json.tmp, sync hub.json.tmp, close hub.json.tmp, rename hub.json, syncdir data", func() error { return d.BeginRun(map[string]int64{"a/0-0": 3}) })
	step("clean stop", "create hub.json.tmp, write hub.json.tmp, sync hub.json.tmp, close hub.json.tmp, rename hub.json.bak, syncdir data, create hub.json.tmp, write hub.json.tmp, sync hub.json.tmp, close hub.json.tmp, rename hub.json, syncdir data", func() error { return d.Close(true) })
	step("open", "create hub.json.tmp, write hub.json.tmp, close hub.json.tmp, remove hub.json.tmp, open hub.json, close hub.json", open)
	step("begin another run", "create hub.json.tmp, write hub.json.tmp, sync hub.json.tmp, close hub.json.tmp, rename hub.json.bak, syncdir data, create hub.json.tmp, write hub.json.tmp, sync hub.json.tmp, close hub.json.tmp, rename hub.json, syncdir data", func() error { return d.BeginRun(map[string]int64{"a/0-0": 9}) })
	step("unclean stop", "", func() error { return d.Close(false) })
}
