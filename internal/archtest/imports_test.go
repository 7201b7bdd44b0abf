package archtest

import (
	"path"
	"strconv"
	"strings"
	"testing"
)

// rule says what the packages in a directory may import of this module. The
// first rule that matches holds.
type rule struct {
	dir  string
	may  []string // directories of the module; what lies below the package always
	not  []string // exceptions from may
	test []string // what its tests may import besides
}

// table is the import table: bytes below, messages in the middle, protocols and
// uplink beside each other on top; only hub/server sees everything.
var table = []rule{
	{dir: "internal", may: []string{"internal"}},
	{dir: "storage", may: []string{"storage", "internal"}},
	{dir: "hub/cmd", may: []string{"hub/daemon"}},
	{dir: "hub/daemon", may: []string{"hub"}, not: []string{"hub/cmd"}},
	{dir: "hub/server", may: []string{"hub", "adapters", "storage", "sync", "internal"}, test: []string{"test"}},
	{dir: "hub/admin/api", may: []string{"hub/topic", "internal"}},
	{dir: "hub", may: []string{"hub", "storage", "internal"}, not: []string{"hub/server", "hub/daemon", "hub/cmd"}},
	{dir: "adapters/eventloop", may: []string{"internal"}},
	{dir: "adapters/mqtt/packet", may: []string{"hub/message", "hub/topic", "internal"}, test: []string{"storage/seglog"}},
	{dir: "adapters/mqtt", may: []string{"adapters/mqtt", "adapters/eventloop", "hub", "internal"}, not: []string{"hub/server", "hub/daemon", "hub/cmd", "hub/admin"}, test: []string{"storage"}},
	{dir: "adapters", may: []string{"adapters/eventloop", "hub", "internal"}, not: []string{"hub/server", "hub/daemon", "hub/cmd", "hub/admin"}},
	{dir: "sync", may: []string{"sync", "hub/message", "hub/topic", "storage/seglog", "internal"}, test: []string{"test/harness"}},
	{dir: "ctl", may: []string{"ctl", "hub/admin/api", "hub/auth", "hub/config", "hub/topic", "storage/inspect", "internal"}, test: []string{"hub/admin"}},
	{dir: "test", may: []string{"test", "hub", "adapters", "storage", "sync", "ctl", "internal"}},
}

// library says which directories may import a third-party library.
type library struct {
	prefix string
	dirs   []string
	tests  bool // every test may
}

// libraries are all that the module may import: one package each, so that one
// can be exchanged without touching the others.
var libraries = []library{
	{prefix: "github.com/panjf2000/gnet/v2", dirs: []string{"adapters/eventloop"}},
	{prefix: "github.com/dgraph-io/badger/v4", dirs: []string{"storage/meta"}},
	{prefix: "github.com/dgraph-io/ristretto/v2/z", dirs: []string{"storage/meta"}}, // Badger's own
	{prefix: "google.golang.org/protobuf/proto", dirs: []string{"storage/meta"}},    // Badger's manifest
	{prefix: "github.com/cespare/xxhash/v2", dirs: []string{"storage/meta"}},
	{prefix: "github.com/mochi-mqtt/server/v2/packets", dirs: []string{"adapters/mqtt/packet"}, tests: true},
	{prefix: "github.com/mochi-mqtt/server/v2", dirs: []string{"test/bench"}}, // a broker to compare with
	{prefix: "github.com/nats-io/nats-server/v2", dirs: []string{"test"}, tests: true},
	{prefix: "github.com/nats-io/nats.go", dirs: []string{"sync/sink/jetstream", "test"}, tests: true},
	{prefix: "github.com/nats-io/jwt/v2", tests: true},
	{prefix: "github.com/nats-io/nkeys", dirs: []string{"sync/sink/jetstream"}, tests: true}, // which nats.go rests on
	{prefix: "github.com/BurntSushi/toml", dirs: []string{"hub/config"}},
	{prefix: "github.com/spf13/cobra", dirs: []string{"ctl"}},
	{prefix: "github.com/spf13/pflag", dirs: []string{"ctl"}}, // cobra's own
	{prefix: "github.com/HdrHistogram/hdrhistogram-go", dirs: []string{"ctl/bench"}},
	{prefix: "github.com/prometheus/", dirs: []string{"hub/admin", "hub/server"}},
	{prefix: "github.com/coreos/go-systemd/v22", dirs: []string{"hub/server"}},
	{prefix: "github.com/klauspost/compress", dirs: []string{"storage/seglog"}},
	{prefix: "github.com/eclipse/paho", dirs: []string{"test"}, tests: true},
	{prefix: "github.com/gobwas/ws", dirs: []string{"adapters/websocket"}, tests: true},
	{prefix: "golang.org/x/crypto", dirs: []string{"hub/auth"}},
	{prefix: "golang.org/x/sys", dirs: []string{"internal", "storage", "adapters/eventloop", "hub/server", "ctl/command", "test"}, tests: true},
}

func TestImportTable(t *testing.T) {
	for _, s := range load(t) {
		for _, spec := range s.file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if why := forbidden(&s, imported); why != "" {
				t.Errorf("%s:%d imports %s: %s", s.path, s.lineOf(spec.Pos()), imported, why)
			}
		}
	}
}

// forbidden says why a file may not import a package, or nothing.
func forbidden(s *source, imported string) string {
	own, isOwn := strings.CutPrefix(imported, module+"/")
	if isOwn {
		return forbiddenOwn(s, own)
	}
	if first, _, _ := strings.Cut(imported, "/"); !strings.Contains(first, ".") {
		return "" // the standard library
	}
	for _, lib := range libraries {
		if !strings.HasPrefix(imported, lib.prefix) {
			continue
		}
		if within(s.dir, lib.dirs...) || s.test && lib.tests {
			return ""
		}
		if len(lib.dirs) == 0 {
			return lib.prefix + " is for tests only"
		}
		return lib.prefix + " stays behind " + strings.Join(lib.dirs, ", ")
	}
	return "no library of the table; a new one is a decision, added to the table with its one package"
}

func forbiddenOwn(s *source, own string) string {
	for _, r := range table {
		if !within(s.dir, r.dir) {
			continue
		}
		if within(own, s.dir) || within(own, r.may...) && !within(own, r.not...) || s.test && within(own, r.test...) {
			return ""
		}
		if within(own, r.not...) {
			return r.dir + " may not import " + strings.Join(r.not, ", ")
		}
		return r.dir + " may import " + strings.Join(r.may, ", ")
	}
	return "its directory is not in the import table"
}

// The table itself must refuse what it is there for.
func TestImportTableRefuses(t *testing.T) {
	for _, c := range []struct {
		dir, imports string
		test, ok     bool
	}{
		{"storage/seglog", "edgehub/internal/vfs", false, true},
		{"storage/seglog", "edgehub/hub/topic", false, false},
		{"storage/seglog", "edgehub/hub/topic", true, false},
		{"storage/seglog", "github.com/dgraph-io/badger/v4", false, false},
		{"storage/meta", "github.com/dgraph-io/badger/v4", false, true},
		{"storage/meta", "edgehub/storage/seglog", false, true},
		{"hub/broker", "edgehub/storage/seglog", false, true},
		{"hub/broker", "edgehub/hub/session", false, true},
		{"hub/broker", "edgehub/hub/server", false, false},
		{"hub/broker", "edgehub/adapters/mqtt", false, false},
		{"hub/server", "edgehub/adapters/mqtt", false, true},
		{"hub/server", "edgehub/ctl/command", false, false},
		{"hub/cmd/hubd", "edgehub/hub/daemon", false, true},
		{"hub/cmd/hubd", "edgehub/hub/server", false, false},
		{"hub/daemon", "edgehub/hub/server", false, true},
		{"hub/daemon", "edgehub/storage/meta", false, false},
		{"hub/broker", "edgehub/hub/daemon", false, false},
		{"hub/cmd/hubd", "edgehub/adapters/mqtt", false, false},
		{"adapters/mqtt", "edgehub/adapters/eventloop", false, true},
		{"adapters/mqtt", "edgehub/adapters/mqtt/packet", false, true},
		{"adapters/mqtt/packet", "edgehub/adapters/mqtt", false, false},
		{"adapters/mqtt", "edgehub/adapters/native", false, false},
		{"adapters/native/client", "edgehub/adapters/mqtt", false, false},
		{"adapters/mqtt", "edgehub/hub/broker", false, true},
		{"adapters/mqtt", "edgehub/hub/server", false, false},
		{"adapters/mqtt", "github.com/panjf2000/gnet/v2", false, false},
		{"sync/uplink", "edgehub/hub/broker", false, false},
		{"sync/uplink", "edgehub/adapters/mqtt", true, false},
		{"sync/uplink", "github.com/nats-io/nats.go", false, false},
		{"sync/sink/jetstream", "edgehub/sync/uplink", false, true},
		{"sync/sink/jetstream", "github.com/nats-io/jwt/v2", true, true},
		{"sync/sink/jetstream", "github.com/nats-io/jwt/v2", false, false},
		{"sync/uplink", "github.com/nats-io/nkeys", false, false},
		{"ctl/command", "edgehub/hub/admin", false, false},
		{"ctl/command", "edgehub/hub/admin/api", false, true},
		{"ctl/command", "edgehub/hub/server", true, false},
		{"internal/vfs", "edgehub/storage/seglog", true, false},
		{"hub/config", "github.com/some/library", false, false},
		{"hub/config", "os", false, true},
		{"elsewhere", "edgehub/hub/config", false, false},
	} {
		s := &source{dir: c.dir, test: c.test}
		if why := forbidden(s, c.imports); (why == "") != c.ok {
			t.Errorf("%s importing %s (test %v): %q, want allowed %v", c.dir, c.imports, c.test, why, c.ok)
		}
	}
}

// A Go file directly in one of these would make a package named like the
// directory: hub, or sync, which shadows the standard library's.
func TestNoFileInLayerDirectories(t *testing.T) {
	for _, s := range load(t) {
		switch s.dir {
		case ".", "hub", "adapters", "storage", "sync", "ctl", "internal":
			t.Errorf("%s: no Go file stands directly in %s", s.path, path.Base(s.dir))
		}
	}
}

// Programs are short: what they do lives in packages that tests can reach.
func TestMainPackagesAreShort(t *testing.T) {
	const most = 60
	lines := map[string]int{}
	for _, s := range load(t) {
		if s.file.Name.Name == "main" && !s.test && !within(s.dir, "test") {
			lines[s.dir] += s.lines
		}
	}
	for dir, n := range lines {
		if n > most {
			t.Errorf("%s has %d lines, a main package has at most %d", dir, n, most)
		}
	}
}

// A file of a package outside test/ that imports testing would put it into the binary.
func TestNoTestingInBinaries(t *testing.T) {
	for _, s := range load(t) {
		if s.test || within(s.dir, "test") || strings.HasSuffix(s.dir, "test") {
			continue
		}
		for _, spec := range s.file.Imports {
			if spec.Path.Value == `"testing"` {
				t.Errorf("%s:%d imports testing", s.path, s.lineOf(spec.Pos()))
			}
		}
	}
}
