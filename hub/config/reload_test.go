package config

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func mustParse(t *testing.T, text string) *Config {
	t.Helper()
	c, err := parse("hub.toml", text)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestChangesAndAdopt(t *testing.T) {
	c := mustParse(t, "[log]\nlevel = \"warn\"\n[limits]\nmemory = \"64MiB\"\n[[stream]]\nname = \"a\"\nfilters = [\"a/#\"]\n")
	next := mustParse(t, "[log]\nformat = \"json\"\n[auth]\nban_after = 3\n[limits]\nmemory = \"64MiB\"\nloops = 1\n[[stream]]\nname = \"b\"\nfilters = [\"b/#\"]\n")
	live, restart := "", map[string]string{}
	for _, x := range c.Changes(next) {
		if x.Live {
			live += fmt.Sprintf("%s %s %s; ", x.Key, x.Old, x.New)
		} else {
			restart[x.Key] = x.Old + " " + x.New
		}
	}
	if want := `log.level "warn" "info"; auth.ban_after 10 3; `; live != want {
		t.Errorf("live: %s\nwant: %s", live, want)
	}
	for key, want := range map[string]string{"log.format": `"text" "json"`, "limits.loops": "0 1", "stream.a.filters": `["a/#"] `, "stream.b.filters": ` ["b/#"]`} {
		if restart[key] != want {
			t.Errorf("%s: %q, want %q", key, restart[key], want)
		}
	}
	if _, ok := restart["limits.memory"]; ok {
		t.Error("limits.memory has not changed")
	}
	got := c.Adopt(next)
	if got.Log.Level != "info" || got.Auth.BanAfter != 3 || got.Log.Format != "text" || got.Limits.Loops != 0 || got.Stream("a") == nil {
		t.Errorf("%+v", got)
	}
	if c.Log.Level != "warn" {
		t.Error("the configuration that was there has changed")
	}
	for _, x := range got.Changes(next) {
		if x.Live {
			t.Errorf("%+v is still different", x)
		}
	}
	for _, s := range got.Show() {
		if s.Key == "log.level" && !s.Default || s.Key == "auth.ban_after" && s.Default {
			t.Errorf("%+v", s)
		}
	}
}

// Retention and uplinks change while the hub runs; what else a stream has does not.
func TestAdoptRetentionAndUplinks(t *testing.T) {
	const stream = "[[stream]]\nname = %q\nfilters = [%q]\npartitions = %d\nretention = { max_age = %q, max_bytes = %q }\nsegment_bytes = \"1MiB\"\n"
	const uplink = "[[uplink]]\nname = %q\nurl = \"nats://%s\"\nstreams = [\"main\"]\nremote_stream = %q\n"
	c := mustParse(t, fmt.Sprintf(stream+stream+uplink+uplink,
		"a", "a/#", 1, "1h", "64MiB", "b", "b/#", 2, "1h", "64MiB", "u", "h:1", "U", "v", "h:1", "V"))
	next := mustParse(t, fmt.Sprintf(stream+stream+uplink+uplink,
		"a", "x/#", 1, "2h", "8MiB", "b", "b/#", 1, "1h", "2MiB", "u", "h:2", "U", "w", "h:1", "W"))
	want := map[string]bool{
		"stream.a.filters": false, "stream.a.retention.max_age": true, "stream.a.retention.max_bytes": true,
		"stream.b.partitions": false, "stream.b.retention.max_bytes": false, // two partitions of two segments each need 4 MiB
		"uplink.u.url": true, "uplink.v.name": true, "uplink.w.name": true,
	}
	for _, x := range c.Changes(next) {
		live, listed := want[x.Key]
		if uplink := strings.HasPrefix(x.Key, "uplink."); !listed && !uplink || listed && live != x.Live || uplink && !x.Live {
			t.Errorf("%+v", x)
		}
		delete(want, x.Key)
	}
	if len(want) > 0 {
		t.Errorf("not listed: %v", want)
	}
	got := c.Adopt(next)
	if a := got.Stream("a"); a.Retention.MaxAge != 2*time.Hour || a.Retention.MaxBytes != 8<<20 || a.Filters[0] != "a/#" {
		t.Errorf("%+v", a)
	}
	if b := got.Stream("b"); b.Retention.MaxBytes != 64<<20 {
		t.Errorf("%+v", b)
	}
	if len(got.Uplinks) != 2 || got.Uplinks[0].URL != "nats://h:2" || got.Uplinks[1].Name != "w" {
		t.Errorf("%+v", got.Uplinks)
	}
	if a := c.Stream("a"); a.Retention.MaxBytes != 64<<20 || len(c.Uplinks) != 2 || c.Uplinks[1].Name != "v" {
		t.Error("the configuration that was there has changed")
	}
}
