// Package badinput proves that wrong input of every kind is answered as
// promised: a wrong configuration or environment by one line that names the
// cure and exit code 2, with nothing touched; wrong MQTT by the right reason
// code or a close, and never by trouble for anybody else.
package badinput

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"edgehub/test/harness"
	"edgehub/test/harness/hubtest"
)

func TestMain(m *testing.M) { hubtest.Main(m) }

// result is how a hubd that should not run has ended.
type result struct {
	exit   int
	output string // both streams
}

// hubd runs the program to its end, which must come soon.
func hubd(t *testing.T, dir string, args ...string) result {
	t.Helper()
	bin, err := harness.Build()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := exec.Command(bin.Hubd, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	p, err := harness.Launch(cmd)
	if err != nil {
		t.Fatal(err)
	}
	code, err := p.Wait(20 * time.Second)
	if err != nil {
		p.Kill()
		t.Fatalf("hubd %v runs:\n%s", args, out.Bytes())
	}
	return result{code, strings.TrimRight(out.String(), "\n")}
}

// refused checks the promise about a start that cannot be.
func (r result) refused(t *testing.T, names ...string) {
	t.Helper()
	if r.exit != 2 {
		t.Errorf("exit code %d, want 2", r.exit)
	}
	if r.output == "" || strings.Contains(r.output, "\n") {
		t.Errorf("want exactly one line, got:\n%s", r.output)
	}
	for _, n := range names {
		if !strings.Contains(r.output, n) {
			t.Errorf("the line does not name %q: %s", n, r.output)
		}
	}
	if !t.Failed() {
		t.Log(r.output)
	}
}

// tree is a fingerprint of everything below dir.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %v", path, d.Type())
		if d.Type().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %x", sha256.Sum256(data))
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// change of the rendered configuration: old text, new text.
type change struct{ old, replacement string }

func TestConfigurationErrors(t *testing.T) {
	stream := "\n[[stream]]\nname = \"s\"\nfilters = [\"s/#\"]\n"
	uplink := "\n[[uplink]]\nname = \"cloud\"\nkind = \"jetstream\"\nurl = \"nats://127.0.0.1:4222\"\nstreams = [\"main\"]\n"
	for _, tt := range []struct {
		name   string
		add    string
		change change
		names  []string
	}{
		{"unknown key", "", change{"data_dir", "data_dri"}, []string{"data_dri", "data_dir"}},
		{"unknown table", "\n[limit]\nmax_connections = 1\n", change{}, []string{"limit", "limits"}},
		{"unknown key in a stream", stream + "partition = 4\n", change{}, []string{"partition", "partitions"}},
		{"unknown key in an inline table", stream + "retention = { max_agee = \"1h\" }\n", change{}, []string{"max_agee", "max_age"}},
		{"wrong type", stream + "partitions = \"four\"\n", change{}, []string{"partitions"}},
		{"number out of range", stream + "partitions = -1\n", change{}, []string{"partitions"}},
		{"wrong word", stream + "durability = \"sometimes\"\n", change{}, []string{"durability", "sometimes", "written", "synced"}},
		{"not available", stream + "durability = \"uplinked\"\n", change{}, []string{"durability", "uplinked"}},
		{"wrong level", "", change{"level = \"info\"", "level = \"loud\""}, []string{"level", "loud", "info", "debug"}},
		{"wrong size", "\n[limits]\nmax_packet_bytes = \"1 elephant\"\n", change{}, []string{"max_packet_bytes", "elephant"}},
		{"wrong duration", "\n[limits]\nsession_expiry_max = \"soon\"\n", change{}, []string{"session_expiry_max", "soon"}},
		{"wrong filter", "\n[[stream]]\nname = \"s\"\nfilters = [\"a/#/b\"]\n", change{}, []string{"filters", "a/#/b"}},
		{"no filters", "\n[[stream]]\nname = \"s\"\n", change{}, []string{"filters"}},
		{"wrong stream name", "\n[[stream]]\nname = \"../s\"\nfilters = [\"s/#\"]\n", change{}, []string{"name", "../s"}},
		{"stream twice", stream + stream, change{}, []string{"\"s\""}},
		{"uplink twice", uplink + uplink, change{}, []string{"cloud"}},
		{"uplink of no stream", strings.Replace(uplink, "\"main\"", "\"nowhere\"", 1), change{}, []string{"nowhere", "main"}},
		{"unknown kind", strings.Replace(uplink, "jetstream", "pigeon", 1), change{}, []string{"kind", "pigeon", "jetstream"}},
		{"wrong url", strings.Replace(uplink, "nats://127.0.0.1:4222", "http://127.0.0.1", 1), change{}, []string{"url"}},
		{"missing password file", uplink + "user = \"u\"\npassword_file = \"/nowhere/password\"\n", change{}, []string{"/nowhere/password"}},
		{"wrong protocol", "", change{"protocol = \"mqtt\"", "protocol = \"gopher\""}, []string{"protocol", "gopher", "mqtt"}},
		{"no syntax", "\n[[stream\n", change{}, nil},
		{"duplicate key", "", change{"id = ", "id = \"x\"\nid = "}, []string{"id"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := hubtest.New(t, func(c *harness.Config) { c.Additional = tt.add })
			text := h.Config.Render()
			if tt.change.old != "" {
				text = strings.Replace(text, tt.change.old, tt.change.replacement, 1)
			}
			if err := os.WriteFile(h.ConfigPath, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			before := tree(t, h.Dir)
			hubd(t, h.Dir, "-config", h.ConfigPath).refused(t, append(tt.names, h.ConfigPath)...)
			hubd(t, h.Dir, "-check", "-config", h.ConfigPath).refused(t, tt.names...)
			if after := tree(t, h.Dir); after != before {
				t.Errorf("something was touched:\n%s\n%s", before, after)
			}
		})
	}
}

func TestMissingFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "nowhere.toml")
	hubd(t, dir, "-config", path).refused(t, path)
	hubd(t, dir, "-config", dir).refused(t, dir) // a directory
	if left := tree(t, dir); strings.Count(left, "\n") != 1 {
		t.Errorf("something was made:\n%s", left)
	}
}

func TestCommandLine(t *testing.T) {
	dir := t.TempDir()
	if r := hubd(t, dir, "-nonsense"); r.exit != 2 || !strings.Contains(r.output, "nonsense") {
		t.Errorf("%+v", r)
	}
	if r := hubd(t, dir, "-config", "a.toml", "stray"); r.exit != 2 || !strings.Contains(r.output, "stray") {
		t.Errorf("%+v", r)
	}
	if r := hubd(t, dir, "-version"); r.exit != 0 || r.output == "" {
		t.Errorf("%+v", r)
	}
	if left := tree(t, dir); strings.Count(left, "\n") != 1 {
		t.Errorf("something was made:\n%s", left)
	}
}

func TestCheckOfGoodFile(t *testing.T) {
	h := hubtest.New(t, nil)
	before := tree(t, h.Dir)
	if r := hubd(t, h.Dir, "-check", "-config", h.ConfigPath); r.exit != 0 {
		t.Errorf("%+v", r)
	}
	if after := tree(t, h.Dir); after != before {
		t.Errorf("a check touched something:\n%s\n%s", before, after)
	}
}

// TestAddressInUse uses a directory with data in it, which must stay as it is.
func TestAddressInUse(t *testing.T) {
	h := hubtest.Start(t, nil)
	c := hubtest.Dial(t, h.Addr(), connect("keep", 5))
	c.Pub("a", "x", 1)
	if code, err := h.Stop(20 * time.Second); code != 0 || err != nil {
		t.Fatal(code, err)
	}
	for _, addr := range []string{h.Config.MQTTAddr, h.Config.AdminAddr} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		before := tree(t, h.Config.DataDir)
		hubd(t, h.Dir, "-config", h.ConfigPath).refused(t, addr)
		if after := tree(t, h.Config.DataDir); after != before {
			t.Errorf("something was touched:\n%s\n%s", before, after)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Start(); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// TestSocketThatCannotBe: what is wrong with the admin socket is found before a data directory is made.
func TestSocketThatCannotBe(t *testing.T) {
	other := hubtest.Start(t, nil)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, socket := range map[string]string{"in a directory that is not there": filepath.Join(t.TempDir(), "no", "s"), "of another hub": other.Config.Socket, "a file": file} {
		t.Run(name, func(t *testing.T) {
			h := hubtest.New(t, func(c *harness.Config) { c.Socket = socket })
			hubd(t, h.Dir, "-config", h.ConfigPath).refused(t, socket)
			if _, err := os.Stat(h.Config.DataDir); !os.IsNotExist(err) {
				t.Errorf("there is a data directory now: %v", err)
			}
		})
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "mine" {
		t.Errorf("the file has %q, %v", b, err)
	}
	if !other.Ready() {
		t.Error("the other hub is not ready any more")
	}
}

func TestUnwritableDataDir(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	dirs := map[string]string{"below a file": filepath.Join(file, "data"), "a file": file, "in a file system of the kernel": "/proc/hub-data"}
	if os.Getuid() != 0 {
		closed := filepath.Join(t.TempDir(), "closed")
		if err := os.Mkdir(closed, 0o500); err != nil {
			t.Fatal(err)
		}
		dirs["without permission"] = filepath.Join(closed, "data")
	}
	for name, dir := range dirs {
		t.Run(name, func(t *testing.T) {
			h := hubtest.New(t, func(c *harness.Config) { c.DataDir = dir })
			hubd(t, h.Dir, "-config", h.ConfigPath).refused(t, dir)
			if b, err := os.ReadFile(file); err != nil || string(b) != "mine" {
				t.Errorf("the file has %q, %v", b, err)
			}
		})
	}
}

func TestSecondHubOnOneDirectory(t *testing.T) {
	h := hubtest.Start(t, nil)
	c := hubtest.Dial(t, h.Addr(), connect("busy", 5))
	c.Pub("a", "before", 1)
	second := hubtest.New(t, func(c *harness.Config) { c.DataDir = h.Config.DataDir })
	hubd(t, second.Dir, "-config", second.ConfigPath).refused(t, h.Config.DataDir, strconv.Itoa(h.Process().PID()))
	c.Pub("a", "after", 1)
	if !h.Ready() {
		t.Error("the first hub is not ready any more")
	}
	hubtest.Restart(t, h)
	st, err := h.Status()
	if err != nil {
		t.Fatal(err)
	}
	if _, n := st.Next("main"); n != 2 {
		t.Errorf("%d records, want 2", n)
	}
	h.Kill() // a lock does not outlive its holder, however it ended
	if err := second.Start(); err != nil {
		t.Error(err)
	}
}

func TestChangedPartitions(t *testing.T) {
	h := hubtest.Start(t, func(c *harness.Config) {
		c.Streams = []harness.Stream{{Name: "s", Filters: []string{"s/#"}, Partitions: 2}}
	})
	hubtest.Dial(t, h.Addr(), connect("one", 4)).Pub("s/1", "x", 1)
	if code, err := h.Stop(20 * time.Second); code != 0 || err != nil {
		t.Fatal(code, err)
	}
	h.Config.Streams[0].Partitions = 3
	if err := h.WriteConfig(); err != nil {
		t.Fatal(err)
	}
	before := tree(t, filepath.Join(h.Config.DataDir, "streams"))
	hubd(t, h.Dir, "-config", h.ConfigPath).refused(t, "partitions", "\"s\"", "2", "3")
	if after := tree(t, filepath.Join(h.Config.DataDir, "streams")); after != before {
		t.Errorf("the streams were touched:\n%s\n%s", before, after)
	}
	h.Config.Streams[0].Partitions = 2
	if err := errors.Join(h.WriteConfig(), h.Start()); err != nil {
		t.Error(err)
	}
}
