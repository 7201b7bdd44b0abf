package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
)

// fileBytesMax bounds what is read as a configuration: a wrong path given by
// mistake, such as a log file, must not fill the memory.
const fileBytesMax = 4 * mib

// Default returns the built-in configuration: one anonymous MQTT listener on
// the loopback address, the stream main, no uplink, data in ./data.
func Default() *Config {
	c, err := parse("", "")
	if err != nil {
		panic("BUG: config: built-in configuration: " + err.Error())
	}
	return c
}

// Load reads and checks a configuration file. The error is a Problems: one line
// for each thing that is wrong, naming the cure.
func Load(path string) (*Config, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, Problems{{File: path, What: err.Error(), Cure: "give the path of a TOML file with -config, or leave it out for the built-in configuration"}}
	}
	return parse(path, text)
}

func readFile(path string) (string, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", errors.New("no such file")
	case errors.Is(err, fs.ErrPermission):
		return "", errors.New("may not be read by this user")
	case err != nil:
		return "", err
	case info.IsDir():
		return "", errors.New("is a directory")
	case !info.Mode().IsRegular():
		return "", errors.New("is not a regular file")
	case info.Size() > fileBytesMax:
		return "", fmt.Errorf("is larger than %s", Bytes(fileBytesMax))
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrPermission) {
		return "", errors.New("may not be read by this user")
	}
	return string(text), err
}

func parse(file, text string) (*Config, error) {
	doc := map[string]any{}
	if _, err := toml.Decode(text, &doc); err != nil {
		return nil, Problems{syntaxProblem(file, err)}
	}
	c := &Config{File: file}
	r := &reader{file: file, lines: locate(text), given: map[string]bool{}, profile: profileOf(doc)}
	r.read(doc, c)
	c.given = r.given
	c.resolve()
	// What could be read is judged too, so that one look at the file mends it all; what could not has its default.
	bad := map[string]bool{}
	for _, p := range r.problems {
		bad[p.Key] = true
	}
	for _, p := range c.problems(r.lines) {
		if !bad[p.Key] {
			r.problems = append(r.problems, p)
		}
	}
	if len(r.problems) == 0 {
		c.moveMainLast()
		return c, nil
	}
	slices.SortStableFunc(r.problems, func(a, b Problem) int { return cmp.Compare(a.Line, b.Line) })
	return nil, r.problems
}

func syntaxProblem(file string, err error) Problem {
	p := Problem{File: file, What: err.Error(), Cure: "mend the TOML syntax there"}
	var at toml.ParseError
	if errors.As(err, &at) {
		p.Line, p.What = at.Position.Line, at.Message
	}
	p.What = "not TOML: " + strings.TrimSuffix(strings.Join(strings.Fields(p.What), " "), ".")
	return p
}

// NewStream returns a stream with every default.
func NewStream(name string, filters ...string) Stream {
	s := withDefaults(findTable("stream"), reflect.TypeFor[Stream](), nil).Interface().(Stream)
	s.Name, s.Filters = name, filters
	s.SegmentBytes = s.derivedSegmentBytes(segmentBytesMax)
	return s
}

// NewUplink returns an uplink with every default.
func NewUplink(name, url string, streams ...string) Uplink {
	u := withDefaults(findTable("uplink"), reflect.TypeFor[Uplink](), nil).Interface().(Uplink)
	u.Name, u.URL, u.Streams = name, url, streams
	return u
}

// resolve fills in the defaults that depend on other keys or on the machine.
func (c *Config) resolve() {
	if c.Hub.ID == "" {
		c.Hub.ID = hostID()
	}
	if c.Admin.Socket == "" {
		c.Admin.Socket = strings.TrimSuffix(c.Hub.DataDir, "/") + "/hubd.sock"
	}
	if len(c.Listeners) == 0 {
		l := withDefaults(findTable("listener"), reflect.TypeFor[Listener](), nil).Interface().(Listener)
		c.Listeners = []Listener{l}
	}
	for i := range c.Listeners {
		if !c.given[label("listener", "", i)+".allow_anonymous"] {
			c.Listeners[i].AllowAnonymous = isLoopback(c.Listeners[i].Address)
		}
	}
	most := segmentBytesOf(c.Hub.Profile)
	if c.Stream(MainStream) == nil {
		main := NewStream(MainStream)
		main.SegmentBytes = main.derivedSegmentBytes(most)
		c.Streams = append(c.Streams, main)
	}
	for i := range c.Streams {
		s := &c.Streams[i]
		if s.Name == MainStream && len(s.Filters) == 0 {
			s.Filters = []string{"#"}
		}
		if s.SegmentBytes == 0 {
			s.SegmentBytes = s.derivedSegmentBytes(most)
		}
	}
	for i := range c.Uplinks {
		if u := &c.Uplinks[i]; len(u.Streams) == 0 {
			for _, s := range c.Streams {
				u.Streams = append(u.Streams, s.Name)
			}
		}
	}
}

// moveMainLast puts the stream that takes everything behind the others,
// wherever its table stands in the file.
func (c *Config) moveMainLast() {
	i := slices.IndexFunc(c.Streams, func(s Stream) bool { return s.Name == MainStream })
	main := c.Streams[i]
	c.Streams = append(slices.Delete(c.Streams, i, i+1), main)
}

func (s *Stream) derivedSegmentBytes(most Bytes) Bytes {
	share := s.Retention.MaxBytes / Bytes(max(s.Partitions, 1))
	return min(max(share/4, segmentBytesMin), most)
}

// hostID makes a hub id of the host name.
func hostID() string {
	name, err := os.Hostname()
	if err != nil {
		return "hub"
	}
	id := strings.Map(func(r rune) rune {
		if r < 0x80 && (isBare(byte(r)) || r == '.') {
			return r
		}
		return '-'
	}, name)
	id = strings.TrimLeft(id[:min(len(id), idBytesMax)], "-_.")
	if id == "" {
		return "hub"
	}
	return id
}

// isLoopback says whether only this machine can reach an address.
func isLoopback(address string) bool {
	if strings.HasPrefix(address, unixPrefix) {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// reader puts a parsed document into a Config by the tables of keys.go.
type reader struct {
	file     string
	lines    lines
	given    map[string]bool // labels of the keys that the file has
	profile  *profile        // nil: none
	problems Problems
}

func (r *reader) fail(path, label, what, cure string) {
	r.problems = append(r.problems, Problem{File: r.file, Line: r.lines.of(path), Key: label, What: what, Cure: cure})
}

// of returns the line of a path, or of the nearest table around it.
func (l lines) of(path string) int {
	for path != "" {
		if n, ok := l[path]; ok {
			return n
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return 0
}

func (r *reader) read(doc map[string]any, c *Config) {
	root := reflect.ValueOf(c).Elem()
	for i := range tables {
		t := &tables[i]
		dst := field(root, t.name)
		value, given := doc[t.name]
		if !t.array {
			dst.Set(withDefaults(t, dst.Type(), r.profile))
			if m, ok := value.(map[string]any); ok {
				r.table(t, "", t.name, t.name, m, dst)
			} else if given {
				r.fail(t.name, t.name, "is not a table", "write ["+t.name+"] and its keys below it")
			}
			continue
		}
		elements, ok := tablesOf(value)
		if given && !ok {
			r.fail(t.name, t.name, "is not a list of tables", "write [["+t.name+"]], with two brackets, and its keys below it")
		}
		dst.Set(reflect.MakeSlice(dst.Type(), len(elements), len(elements)))
		for i, m := range elements {
			e := dst.Index(i)
			e.Set(withDefaults(t, e.Type(), r.profile))
			name, _ := m["name"].(string)
			r.table(t, "", element(t.name, i), label(t.name, name, i), m, e)
		}
	}
	for _, name := range sortedKeys(doc) {
		if findTable(name) == nil {
			r.fail(name, name, "unknown key", "the nearest valid key is "+nearest("", name))
		}
	}
}

// label names a table in messages: by its own name where it has one.
func label(table, name string, i int) string {
	if name == "" || !nameRule.MatchString(name) {
		name = strconv.Itoa(i + 1)
	}
	return table + "." + name
}

// table reads the keys of one table, or of the inline table that `inside` names.
func (r *reader) table(t *table, inside, path, label string, m map[string]any, dst reflect.Value) {
	for _, name := range sortedKeys(m) {
		full, value := inside+name, m[name]
		keyPath, keyLabel := path+"."+name, label+"."+name
		if k := t.key(full); k != nil {
			r.given[keyLabel] = true
			if what, cure := k.set(field(dst, full), value); what != "" {
				r.fail(keyPath, keyLabel, what, cure)
			}
			continue
		}
		if !t.hasInline(full) {
			r.fail(keyPath, keyLabel, "unknown key", "the nearest valid key is "+nearest(t.name, full))
			continue
		}
		sub, ok := value.(map[string]any)
		if !ok {
			r.fail(keyPath, keyLabel, describe(value)+" is not a table", "write "+name+" = { "+t.firstOf(full)+" = ... }")
			continue
		}
		r.table(t, full+".", keyPath, keyLabel, sub, dst)
	}
}

// tablesOf returns the elements of an array of tables in either notation.
func tablesOf(value any) ([]map[string]any, bool) {
	switch v := value.(type) {
	case []map[string]any:
		return v, true
	case []any:
		var all []map[string]any
		for _, e := range v {
			m, ok := e.(map[string]any)
			if !ok {
				return nil, false
			}
			all = append(all, m)
		}
		return all, true
	}
	return nil, false
}

func sortedKeys(m map[string]any) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func findTable(name string) *table {
	for i := range tables {
		if tables[i].name == name {
			return &tables[i]
		}
	}
	return nil
}

func (t *table) key(name string) *key {
	for i := range t.keys {
		if t.keys[i].name == name {
			return &t.keys[i]
		}
	}
	return nil
}

func (t *table) hasInline(name string) bool { return t.firstOf(name) != "" }

// firstOf returns the first key of an inline table, empty when there is none.
func (t *table) firstOf(inline string) string {
	for i := range t.keys {
		if rest, ok := strings.CutPrefix(t.keys[i].name, inline+"."); ok {
			return rest
		}
	}
	return ""
}

// field finds the field that a key's name stands for, through inline tables.
func field(v reflect.Value, name string) reflect.Value {
	for _, part := range strings.Split(name, ".") {
		i := 0
		for i < v.NumField() && v.Type().Field(i).Tag.Get("toml") != part {
			i++
		}
		if i == v.NumField() {
			panic("BUG: config: no field for key " + name + " in " + v.Type().String())
		}
		v = v.Field(i)
	}
	return v
}

// withDefaults returns a value of a table's struct with every declared default, or that of a profile.
func withDefaults(t *table, of reflect.Type, p *profile) reflect.Value {
	v := reflect.New(of).Elem()
	for i := range t.keys {
		k := &t.keys[i]
		def := p.def(t.name+"."+k.name, k.def)
		if def == "" || k.computed != "" {
			continue
		}
		if what := k.setText(field(v, k.name), def); what != "" {
			panic("BUG: config: default of " + t.name + "." + k.name + ": " + what)
		}
	}
	return v
}
