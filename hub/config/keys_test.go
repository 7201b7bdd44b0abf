package config

import (
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every field of Config is declared as a key, and every key has a field of its kind.
func TestKeysMatchFields(t *testing.T) {
	types := map[reflect.Type]kind{
		reflect.TypeFor[int]():      kindInt,
		reflect.TypeFor[bool]():     kindBool,
		reflect.TypeFor[Bytes]():    kindBytes,
		reflect.TypeFor[Duration](): kindDuration,
		reflect.TypeFor[[]string](): kindList,
	}
	want := map[string]kind{}
	var walk func(path string, of reflect.Type)
	walk = func(path string, of reflect.Type) {
		for i := range of.NumField() {
			f := of.Field(i)
			name, ft := f.Tag.Get("toml"), f.Type
			if !f.IsExported() || name == "-" {
				continue
			}
			if ft.Kind() == reflect.Slice && ft.Elem().Kind() == reflect.Struct {
				ft = ft.Elem()
			}
			if ft.Kind() == reflect.Struct {
				walk(path+name+".", ft)
				continue
			}
			want[path+name] = types[ft] // strings: kindText, the zero kind
		}
	}
	walk("", reflect.TypeFor[Config]())
	got := map[string]kind{}
	for _, tab := range tables {
		for _, k := range tab.keys {
			if k.kind == kindChoice {
				k.kind = kindText
			}
			got[tab.name+"."+k.name] = k.kind
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("keys   %v\nfields %v", got, want)
	}
}

func TestKeysAreDeclaredWhole(t *testing.T) {
	for _, tab := range tables {
		if tab.doc == "" {
			t.Errorf("[%s] has no documentation", tab.name)
		}
		for _, k := range tab.keys {
			name := tab.name + "." + k.name
			if k.doc == "" || !strings.HasSuffix(k.doc, ".") {
				t.Errorf("%s: documentation %q", name, k.doc)
			}
			if k.sample() == "" && !k.absent {
				t.Errorf("%s: neither default nor example", name)
			}
			if k.kind == kindChoice && !slices.Contains(k.choices, k.def) {
				t.Errorf("%s: the default %q is no choice", name, k.def)
			}
			if (k.kind == kindInt || k.kind == kindBytes || k.kind == kindDuration) && k.max <= k.min {
				t.Errorf("%s: no bounds", name)
			}
			if k.kind == kindList && k.check == nil {
				t.Errorf("%s: a list needs a check of its elements", name)
			}
		}
	}
}

// The generated files are those that the tables give now.
func TestGeneratedFilesAreFresh(t *testing.T) {
	for path, want := range map[string]string{
		"../../configs/hubd.toml": Example(),
		"../../docs/CONFIG.md":    Reference(),
	} {
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s is stale: run `make generate`", path)
		}
	}
}

// The example changes nothing as it is, and is valid with everything uncommented.
func TestExampleIsAConfiguration(t *testing.T) {
	c, err := parse("hubd.toml", Example())
	if err != nil {
		t.Fatal(err)
	}
	c.File, c.given = "", Default().given
	if !reflect.DeepEqual(c, Default()) {
		t.Errorf("got  %+v\nwant %+v", c, Default())
	}
	all := regexp.MustCompile(`(?m)^#([a-z\[])`).ReplaceAllString(Example(), "$1")
	all = regexp.MustCompile(`(?m)^\w*(\.\w+)?_?files? = .*\n|^\w+_env = .*\n|^user = .*\n`).ReplaceAllString(all, "") // such files are not here
	all = strings.Replace(all, `protocol = "mqtt"`, `protocol = "websocket"`, 1)                                       // some keys are for that only
	c, err = parse("hubd.toml", all)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Streams) != 2 || c.Streams[0].Name != "telemetry" || len(c.Uplinks) != 1 || c.Uplinks[0].Name != "cloud" {
		t.Errorf("%+v", c)
	}
}

func TestNearest(t *testing.T) {
	for _, c := range []struct{ table, name, want string }{
		{"hub", "datadir", "hub.data_dir"},
		{"hub", "socket", "admin.socket"},
		{"", "listeners", "[[listener]]"},
		{"", "hubs", "[hub]"},
		{"stream", "max_bytes", "stream.retention.max_bytes"},
		{"stream", "partition", "stream.partitions"},
		{"uplink", "remotestream", "uplink.remote_stream"},
		{"log", "loglevel", "log.level"},
	} {
		if got := nearest(c.table, c.name); got != c.want {
			t.Errorf("%s.%s: %s, want %s", c.table, c.name, got, c.want)
		}
	}
}
