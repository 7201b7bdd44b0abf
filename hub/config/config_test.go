package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// fixtures calls fn with every file of testdata that ends so. Lines that begin
// with "#! " say what is expected of it.
func fixtures(t *testing.T, suffix string, fn func(t *testing.T, path string, want []string)) {
	t.Helper()
	paths, err := filepath.Glob("testdata/*" + suffix)
	if err != nil || len(paths) == 0 {
		t.Fatalf("no fixtures %s: %v", suffix, err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			for line := range strings.Lines(string(text)) {
				if w, ok := strings.CutPrefix(line, "#! "); ok {
					want = append(want, strings.TrimSuffix(w, "\n"))
				}
			}
			if len(want) == 0 {
				t.Fatal("the fixture says nothing")
			}
			fn(t, path, want)
		})
	}
}

// A bad file gives exactly the messages at its end, and each names file and line.
func TestBadFiles(t *testing.T) {
	fixtures(t, ".bad.toml", func(t *testing.T, path string, want []string) {
		c, err := Load(path)
		if err == nil {
			t.Fatalf("accepted: %v", c.Show())
		}
		if c != nil {
			t.Error("a configuration came with the error")
		}
		var got []string
		for _, line := range strings.Split(err.Error(), "\n") {
			got = append(got, strings.TrimPrefix(line, path+":"))
		}
		if !slices.Equal(got, want) {
			t.Errorf("got\n#! %s\nwant\n#! %s", strings.Join(got, "\n#! "), strings.Join(want, "\n#! "))
		}
	})
}

// A good file has exactly the settings at its end that differ from the built-in ones.
func TestGoodFiles(t *testing.T) {
	builtin := map[string]string{}
	for _, s := range Default().Show() {
		builtin[s.Key] = s.Value
	}
	fixtures(t, ".good.toml", func(t *testing.T, path string, want []string) {
		c, err := Load(path)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range c.Show() {
			if builtin[s.Key] != s.Value && s.Value != `""` {
				got = append(got, s.Key+" = "+s.Value)
			}
		}
		if len(got) == 0 {
			got = []string{"as built in"}
		}
		if !slices.Equal(got, want) {
			t.Errorf("got\n#! %s\nwant\n#! %s", strings.Join(got, "\n#! "), strings.Join(want, "\n#! "))
		}
		if err := c.Validate(); err != nil {
			t.Errorf("loaded, but Validate says %v", err)
		}
	})
}

func TestLoadWithoutFile(t *testing.T) {
	dir := t.TempDir()
	large := filepath.Join(dir, "large.toml")
	if err := os.WriteFile(large, make([]byte, fileBytesMax+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "none.toml"): "no such file",
		dir:                             "is a directory",
		os.DevNull:                      "is not a regular file",
		large:                           "is larger than 4MiB",
	} {
		_, err := Load(path)
		want = path + ": " + want + "; give the path of a TOML file with -config, or leave it out for the built-in configuration"
		if err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func TestDefault(t *testing.T) {
	c := Default()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	l := c.Listeners
	if len(l) != 1 || l[0].Protocol != ProtocolMQTT || l[0].Address != "127.0.0.1:1883" || !l[0].AllowAnonymous {
		t.Errorf("listeners: %+v", l)
	}
	s := c.Stream(MainStream)
	if len(c.Streams) != 1 || s == nil || s.Partitions != 4 || s.Durability != DurabilityWritten ||
		s.Retention != (Retention{MaxAge: 168 * time.Hour, MaxBytes: 1 << 30, Full: FullDropOldest}) {
		t.Errorf("streams: %+v", c.Streams)
	}
	if len(c.Uplinks) != 0 || c.Hub.DataDir != "./data" || c.Admin.Socket != "./data/hubd.sock" {
		t.Errorf("%+v", c)
	}
	for _, s := range c.Show() {
		if !s.Default {
			t.Errorf("%s is shown as set in a file", s.Key)
		}
	}
}

// A configuration that was put together by hand is checked like a file.
func TestValidate(t *testing.T) {
	for want, change := range map[string]func(c *Config){
		`limits.receive_maximum: 0 is out of bounds; write an integer from 1 to 65535`: func(c *Config) {
			c.Limits.ReceiveMaximum = 0
		},
		`uplink.u.streams: there is no stream "none"; name streams of this file, or main`: func(c *Config) {
			c.Uplinks = append(c.Uplinks, NewUplink("u", "nats://h:4222", "none"))
		},
		`stream.t.retention.max_bytes: 1MiB is too small for 4 partitions with two segments of 64MiB each; write at least "512MiB", or fewer partitions`: func(c *Config) {
			s := NewStream("t", "t/#")
			s.Retention.MaxBytes = 1 << 20
			c.Streams = append(c.Streams, s)
		},
		`log.level: "loud" is not one of its values; write "debug", "info", "warn" or "error"`: func(c *Config) {
			c.Log.Level = "loud"
		},
	} {
		c := Default()
		change(c)
		if err := c.Validate(); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

func TestShowTellsWhatTheFileSet(t *testing.T) {
	c, err := Load("testdata/contract.good.toml")
	if err != nil {
		t.Fatal(err)
	}
	set := map[string]bool{}
	for _, s := range c.Show() {
		set[s.Key] = !s.Default
	}
	for key, want := range map[string]bool{
		"hub.id": true, "listener.1.tls.cert_file": true, "limits.loops": false,
		"stream.telemetry.retention.max_age": true, "stream.main.partitions": false, "uplink.cloud.rate.bytes_per_s": true,
	} {
		if got, ok := set[key]; !ok || got != want {
			t.Errorf("%s: set in the file %v, shown %v; want %v", key, got, ok, want)
		}
	}
}

// No secret may reach what is shown, logged or printed as an error.
func TestSecretsAreNotShown(t *testing.T) {
	const secret = "hunter2hunter2"
	dir := t.TempDir()
	password := filepath.Join(dir, "password")
	if err := os.WriteFile(password, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	c := Default()
	u := NewUplink("u", "nats://h:4222", MainStream)
	u.User, u.PasswordFile = "edge", password
	c.Uplinks = []Uplink{u}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, s := range c.Show() {
		if strings.Contains(s.Value, secret) {
			t.Errorf("%s shows it", s.Key)
		}
	}
	for _, url := range []string{"nats://edge:" + secret + "@h:4222", "nats://edge:" + secret + "@", "nats://%zz" + secret + "@h"} {
		c.Uplinks[0].URL = url
		if err := c.Validate(); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestBytes(t *testing.T) {
	for text, want := range map[string]Bytes{
		"0": 0, "4096": 4096, "1KiB": 1 << 10, "64 KiB": 64 << 10, "1MiB": 1 << 20, "3GiB": 3 << 30, "2TiB": 2 << 40,
		"5kB": 5000, "5KB": 5000, "500MB": 500e6, "1GB": 1e9, "1TB": 1e12, "7B": 7, " 1MiB ": 1 << 20, "8388607TiB": 8388607 << 40,
	} {
		if got, ok := ParseBytes(text); !ok || got != want {
			t.Errorf("%q: %d, %v", text, got, ok)
		}
		if again, ok := ParseBytes(want.String()); !ok || again != want {
			t.Errorf("%q is written as %q, read as %d", text, want.String(), again)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "+1", "1.5MiB", "1mib", "1M", "9000000TiB", "99999999999999999999", "1 2"} {
		if got, ok := ParseBytes(text); ok {
			t.Errorf("%q: accepted as %d", text, got)
		}
	}
}

func TestDuration(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]Duration{
		"0s": 0, "10m": 10 * time.Minute, "168h": 7 * day, "7d": 7 * day, "1d12h": 36 * time.Hour, "1h30m": 90 * time.Minute,
		"1.5h": 90 * time.Minute, "100ms": 100 * time.Millisecond, "3650d": 3650 * day, "20s": 20 * time.Second, "10h": 10 * time.Hour, "0": 0,
	} {
		if got, ok := ParseDuration(text); !ok || got != want {
			t.Errorf("%q: %v, %v", text, got, ok)
		}
		if again, ok := ParseDuration(FormatDuration(want)); !ok || again != want {
			t.Errorf("%q is written as %q, read as %v", text, FormatDuration(want), again)
		}
	}
	for _, text := range []string{"", "10", "-1s", "d", "-1d", "1d-2h", "1y", "200000d", "106751d24h", "1dd"} {
		if got, ok := ParseDuration(text); ok {
			t.Errorf("%q: accepted as %v", text, got)
		}
	}
}

func TestPartitionLevel(t *testing.T) {
	for by, want := range map[string]int{"topic": 0, "client": 0, "level:1": 1, "level:1024": 1024, "level:": 0, "level:0": 0, "level:1025": 0, "level:-1": 0, "level:x": 0} {
		if got := (&Stream{PartitionBy: by}).PartitionLevel(); got != want {
			t.Errorf("%s: %d, want %d", by, got, want)
		}
	}
}

func TestHostNamesBecomeIDs(t *testing.T) {
	if id := hostID(); !idRule.MatchString(id) {
		t.Errorf("%q", id)
	}
}
