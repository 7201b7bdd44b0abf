package config

import (
	"fmt"
	"net"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"edgehub/hub/topic"
)

// later ends every message about what the contract knows and this version does
// not do yet.
const later = "is not available in this version"

const (
	idBytesMax     = 128
	socketBytesMax = 107 // sun_path, with its NUL
	unixPrefix     = "unix:"
)

var (
	idRule   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)
	envRule  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
	nameRule = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)
)

// Validate checks a configuration that was put together by hand as Load checks
// a file. The error is a Problems.
func (c *Config) Validate() error {
	if p := c.problems(nil); len(p) > 0 {
		return p
	}
	return nil
}

// checker gathers what is wrong with a Config.
type checker struct {
	file  string
	lines lines
	found Problems
}

func (c *Config) problems(at lines) Problems {
	ch := &checker{file: c.File, lines: at}
	c.each(func(e entry) {
		if what, cure := e.key.problem(e.value); what != "" {
			ch.fail(e.path, e.label, what, cure)
		}
	})
	ch.listeners(c)
	ch.streams(c)
	ch.uplinks(c)
	return ch.found
}

func (ch *checker) fail(path, label, what, cure string) {
	ch.found = append(ch.found, Problem{File: ch.file, Line: ch.lines.of(path), Key: label, What: what, Cure: cure})
}

// entry is one key of one table with its effective value.
type entry struct {
	key   *key
	path  string // stream[0].lanes
	label string // stream.telemetry.lanes
	value reflect.Value
}

// each visits every key of every table, in the order of keys.go.
func (c *Config) each(visit func(entry)) {
	root := reflect.ValueOf(c).Elem()
	for i := range tables {
		t := &tables[i]
		v := field(root, t.name)
		if !t.array {
			t.each(t.name, t.name, v, visit)
			continue
		}
		for j := range v.Len() {
			name := ""
			if t.key("name") != nil {
				name = field(v.Index(j), "name").String()
			}
			t.each(element(t.name, j), label(t.name, name, j), v.Index(j), visit)
		}
	}
}

func (t *table) each(path, label string, v reflect.Value, visit func(entry)) {
	for i := range t.keys {
		k := &t.keys[i]
		visit(entry{k, path + "." + k.name, label + "." + k.name, field(v, k.name)})
	}
}

// problem checks one value against its key's declaration.
func (k *key) problem(v reflect.Value) (what, cure string) {
	if k.absent && !v.IsZero() {
		return later, "remove it"
	}
	switch k.kind {
	case kindInt, kindBytes, kindDuration:
		return k.numberProblem(v.Int())
	case kindChoice:
		return k.choiceProblem(v.String())
	case kindList:
		return k.listProblem(v)
	case kindText:
		return k.textProblem(v.String())
	default:
		return "", ""
	}
}

func (k *key) numberProblem(n int64) (what, cure string) {
	if n == 0 && k.zero != "" || n == 0 && k.kind == kindBytes && k.computed != "" {
		return "", ""
	}
	if n < k.min || n > k.max {
		return k.number(n) + " is out of bounds", "write " + k.allowed()
	}
	if k.maxNow > 0 && n > k.maxNow {
		return k.number(n) + " " + later, "write " + k.number(k.maxNow)
	}
	return "", ""
}

func (k *key) choiceProblem(s string) (what, cure string) {
	if slices.Contains(k.choices, s) {
		return "", ""
	}
	if slices.Contains(k.later, s) {
		return quote(s) + " " + later, "write " + quoteAll(k.choices)
	}
	return quote(s) + " is not one of its values", "write " + quoteAll(k.choices)
}

func (k *key) listProblem(v reflect.Value) (what, cure string) {
	list, _ := v.Interface().([]string)
	if len(list) == 0 && k.required {
		return "is missing or empty", "write " + k.allowed()
	}
	for i, s := range list {
		if slices.Contains(list[:i], s) {
			return quote(s) + " stands there twice", "remove one"
		}
		if what, cure := k.check(s); what != "" {
			return what, cure
		}
	}
	return "", ""
}

func (k *key) textProblem(s string) (what, cure string) {
	switch {
	case s == "" && k.required:
		return "is missing or empty", "write " + k.allowed()
	case s == "":
		return "", ""
	case strings.ContainsFunc(s, isControl):
		return quote(s) + " has control characters", "remove them"
	case k.check != nil:
		return k.check(s)
	case k.file:
		return fileProblem(s)
	}
	return "", ""
}

// Paths are the files that the configuration names, and its own: they may lie in the data directory.
func (c *Config) Paths() []string {
	var all []string
	if c.File != "" {
		all = append(all, c.File)
	}
	c.each(func(e entry) {
		if !e.key.path && !e.key.file {
			return
		}
		switch v := e.value.Interface().(type) {
		case string:
			if v = strings.TrimPrefix(v, unixPrefix); v != "" {
				all = append(all, v)
			}
		case []string:
			all = append(all, v...)
		}
	})
	return all
}

func fileProblem(path string) (what, cure string) {
	if _, err := readFile(path); err != nil {
		return quote(path) + ": " + err.Error(), "give the path of a file that this user may read"
	}
	return "", ""
}

func checkHubID(s string) (what, cure string) {
	if !idRule.MatchString(s) {
		return quote(s) + " is not a hub id", "write 1 to 128 letters, digits, '-', '_' and '.', a letter or digit first"
	}
	return "", ""
}

func checkName(s string) (what, cure string) {
	if !nameRule.MatchString(s) {
		return quote(s) + " is not a name", "write 1 to 64 letters, digits, '-' and '_', a letter or digit first"
	}
	return "", ""
}

func checkFilter(s string) (what, cure string) {
	if _, _, shared, _ := topic.ParseShared(s); shared {
		return quote(s) + " is a shared subscription, a stream takes plain filters", "leave out $share/GROUP/"
	}
	if err := topic.ValidateFilter(s); err != nil {
		return quote(s) + " is not a topic filter: " + err.Error(), `write a filter such as "devices/+/telemetry"`
	}
	return "", ""
}

func checkSocket(s string) (what, cure string) {
	if len(s) > socketBytesMax {
		return fmt.Sprintf("the path is %d bytes long, a Unix socket's may have %d", len(s), socketBytesMax), "give admin.socket a shorter path"
	}
	return "", ""
}

// checkListen checks a listener's address.
func checkListen(s string) (what, cure string) {
	path, ok := strings.CutPrefix(s, unixPrefix)
	switch {
	case !ok:
		return checkAddress(s)
	case path == "":
		return quote(s) + " has no path", `write an address such as "unix:/run/hubd/mqtt.sock"`
	case len(path) > socketBytesMax:
		return fmt.Sprintf("the path is %d bytes long, a Unix socket's may have %d", len(path), socketBytesMax), "give it a shorter path"
	}
	return "", ""
}

func checkPath(s string) (what, cure string) {
	if s == "" || strings.ContainsFunc(s, isControl) {
		return quote(s) + " is not a path", "write the path of a file"
	}
	return "", ""
}

func checkWebPath(s string) (what, cure string) {
	if !strings.HasPrefix(s, "/") || strings.ContainsAny(s, "?# ") || strings.ContainsFunc(s, isControl) {
		return quote(s) + " is not the path of a URL", `write a path such as "/mqtt"`
	}
	return "", ""
}

func checkOrigin(s string) (what, cure string) {
	u, err := url.Parse(s)
	if s != "*" && (err != nil || u.Scheme == "" || u.Host == "" || u.Path != "" || u.User != nil || u.RawQuery != "" || u.Fragment != "") {
		return quote(s) + " is not an origin", `write "https://HOST" or "https://HOST:PORT", or "*" for all`
	}
	return "", ""
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

func checkAddress(s string) (what, cure string) {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return quote(s) + " is not HOST:PORT", `write an address such as "127.0.0.1:1883"`
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n > 65535 {
		return quote(port) + " is not a port", "write a number from 0 to 65535, 0 for any free one"
	}
	return "", ""
}

func checkAdminAddress(s string) (what, cure string) {
	if what, _ := checkAddress(s); what != "" {
		return what, `write an address such as "127.0.0.1:8090", or "" for none`
	}
	return "", ""
}

func checkPartitionBy(s string) (what, cure string) {
	if s == PartitionByTopic || s == PartitionByClient || (&Stream{PartitionBy: s}).PartitionLevel() > 0 {
		return "", ""
	}
	return quote(s) + " is not one of its values", fmt.Sprintf(`write "topic", "client" or "level:N" with N from 1 to %d`, topicLevelsMax)
}

func checkURL(s string) (what, cure string) {
	const example = `write "nats://HOST:PORT", several separated by commas`
	urls := (&Uplink{URL: s}).URLs()
	if len(urls) == 0 {
		return quote(s) + " names no server", example
	}
	for _, one := range urls {
		u, err := url.Parse(one)
		if err != nil || u.Host == "" {
			return "a part of it is not a URL", example // not shown: it may hold a password
		}
		if u.Scheme != "nats" && u.Scheme != "tls" {
			return quote(u.Scheme+"://") + " is not a scheme of JetStream servers", `write "nats://" or "tls://"`
		}
		if u.User != nil {
			return "has a user or password in it, where it would be shown and logged", "use user with password_file or password_env, or credentials_file"
		}
		if port := u.Port(); port != "" {
			if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
				return quote(port) + " is not a port", "write a number from 1 to 65535, or leave it out for 4222"
			}
		}
	}
	return "", ""
}

func checkSubject(s string) (what, cure string) {
	const example = `write a subject such as "edge.{hub}.{topic}"`
	before, ok := strings.CutSuffix(s, "{topic}")
	if !ok || before != "" && !strings.HasSuffix(before, ".") {
		return quote(s) + " does not end with {topic}", example
	}
	if before == "" {
		return "", ""
	}
	for i, token := range strings.Split(strings.TrimSuffix(before, "."), ".") {
		bare := strings.ReplaceAll(token, "{hub}", "x")
		if token == "{stream}" {
			bare = "x"
		}
		if bare == "" || strings.ContainsAny(bare, " \t*>{}") {
			return "part " + quote(token) + " of it is not a subject token, {hub} or {stream}", example
		}
		if i == 0 && (strings.HasPrefix(bare, "$") || strings.HasPrefix(bare, "_INBOX")) {
			return "subjects that begin with " + quote(token) + " are the server's own", example
		}
	}
	return "", ""
}

func checkRemoteStream(s string) (what, cure string) {
	rest := strings.ReplaceAll(s, "{hub}", "x")
	if strings.ContainsAny(rest, " \t.*>/\\{}") || len(rest) > 255 {
		return quote(s) + " is not a stream name", `write a name such as "EDGE-{hub}", without space, '.', '*', '>', '/' or '\'`
	}
	return "", ""
}

func (ch *checker) streams(c *Config) {
	for i, s := range c.Streams {
		path, name := element("stream", i), label("stream", s.Name, i)
		if slices.ContainsFunc(c.Streams[:i], func(o Stream) bool { return o.Name == s.Name }) {
			ch.fail(path+".name", name+".name", quote(s.Name)+" is another stream's name", "give each its own")
		}
		if s.Name == MainStream && !slices.Contains(s.Filters, "#") {
			ch.fail(path+".filters", name+".filters", "main takes what no other stream takes", `write filters = ["#"], or name this stream otherwise`)
		}
		if need := s.needs(); s.Partitions > 0 && s.Retention.MaxBytes < need {
			ch.fail(path+".retention.max_bytes", name+".retention.max_bytes",
				fmt.Sprintf("%s is too small for %d partitions with two segments of %s each", s.Retention.MaxBytes, s.Partitions, s.SegmentBytes),
				fmt.Sprintf("write at least %q, or fewer partitions", need))
		}
	}
}

func (ch *checker) uplinks(c *Config) {
	for i, u := range c.Uplinks {
		path, name := element("uplink", i), label("uplink", u.Name, i)
		fail := func(key, what, cure string) { ch.fail(path+"."+key, name+"."+key, what, cure) }
		for _, other := range c.Uplinks[:i] {
			if other.Name == u.Name {
				fail("name", quote(u.Name)+" is another uplink's name", "give each its own")
			} else if other.RemoteStream == u.RemoteStream && sameServer(&u, &other) {
				fail("remote_stream", fmt.Sprintf("uplink %s writes %s there already", other.Name, quote(u.RemoteStream)), "give each its own remote stream")
			}
		}
		for _, s := range u.Streams {
			if c.Stream(s) == nil {
				fail("streams", "there is no stream "+quote(s), "name streams of this file, or main")
			}
		}
		u.secretProblems(fail)
		if (u.TLS.CertFile == "") != (u.TLS.KeyFile == "") {
			fail("tls", "tls.cert_file and tls.key_file belong together", "write both or none")
		}
	}
}

// secretProblems checks how an uplink shows who it is. The values are secrets, and never part of a message.
func (u *Uplink) secretProblems(fail func(key, what, cure string)) {
	switch password := u.PasswordFile != "" || u.PasswordEnv != ""; {
	case u.PasswordFile != "" && u.PasswordEnv != "":
		fail("password_env", "password_file and password_env exclude each other", "keep one")
	case (u.User == "") == password:
		fail("user", "user belongs together with password_file or password_env", "write both or none")
	}
	credentials := u.CredentialsFile != "" || u.CredentialsEnv != ""
	if u.CredentialsFile != "" && u.CredentialsEnv != "" {
		fail("credentials_env", "credentials_file and credentials_env exclude each other", "keep one")
	}
	if u.User != "" && credentials {
		fail("user", "user and credentials exclude each other", "keep one")
	}
}

func checkEnv(s string) (what, cure string) {
	if !envRule.MatchString(s) {
		// Not shown: somebody may have written the secret itself.
		return "is not the name of an environment variable", "write its name, such as \"CLOUD_PASSWORD\", and set the variable for hubd"
	}
	return "", ""
}

func sameServer(a, b *Uplink) bool {
	return slices.ContainsFunc(a.URLs(), func(s string) bool { return slices.Contains(b.URLs(), s) })
}
