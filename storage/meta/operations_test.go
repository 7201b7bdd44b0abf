package meta

import (
	"strings"
	"testing"

	"edgehub/internal/vfs"
	"edgehub/internal/vfs/vfstest"
)

// TestOperations is the golden list of what the metadata do to the disk, in order, but for Badger, which opens its files
// by itself: a missing fsync is a visible difference. A checkpoint is a commit; it is durable with the next sync.
func TestOperations(t *testing.T) {
	f := vfstest.New(vfs.OS)
	o := testOptions(t.TempDir())
	o.FS = f
	var s *Store
	step := func(name, want string, do func()) {
		t.Helper()
		f.Record()
		do()
		var got []string
		for _, e := range f.Events() {
			if e.Op == vfstest.OpStat || e.Op == vfstest.OpRead || e.Op == vfstest.OpReadDir {
				continue // changes nothing
			}
			got = append(got, string(e.Op)+" "+strings.TrimLeft(e.Name, "0"))
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%s:\n got %s\nwant %s", name, strings.Join(got, ", "), want)
		}
	}
	put := func(key string) { s.Put([]byte(key), []byte("value")) }
	step("open", "mkdir , syncdir , mkdir meta, open meta.starts, create meta.starts, write meta.starts, close meta.starts, open meta.starts, close meta.starts, create meta.starts, write meta.starts, close meta.starts", func() { s, _ = open_(t, o); <-s.audited })
	step("checkpoint, the first", "create .log, write .log", func() { put("a"); check(t, s.Commit()) })
	step("checkpoint", "write .log", func() { put("b"); put("c"); check(t, s.Commit()) })
	step("idle checkpoint", "", func() { check(t, s.Commit()) })
	step("sync", "sync .log, syncdir ", func() { check(t, s.Sync()) })
	step("checkpoint and sync", "write .log, sync .log", func() { put("d"); check(t, s.Sync()) })
	step("flush to the index", "write .log", func() { put("e"); check(t, s.Flush()) })
	step("compaction", "create 5.log, write 5.log, sync .log, sync 5.log, syncdir , remove .log, close .log, syncdir ", func() { check(t, s.Compact()) })
	step("close", "write 5.log, sync 5.log, close 5.log, remove meta.starts", func() { put("f"); check(t, s.Close()) })
	step("open again", "mkdir , open 5.log, sync 5.log, syncdir , mkdir meta, open meta.starts, create meta.starts, write meta.starts, close meta.starts, open meta.starts, close meta.starts, create meta.starts, write meta.starts, close meta.starts", func() { s, _ = open_(t, o); <-s.audited })
}
