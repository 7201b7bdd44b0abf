package config

import (
	"fmt"
	"testing"
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
