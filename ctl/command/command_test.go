package command_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgehub/ctl/command"
	"edgehub/hub/admin"
	"edgehub/hub/admin/admintest"
	"edgehub/hub/admin/api"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// serve runs the admin server before a hub in memory and returns its socket and how
// to stop it early.
func serve(t *testing.T, hub *admintest.Hub) (socket string, stop func()) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "hubd.sock")
	s, err := admin.Listen(admin.Options{Socket: socket, PayloadBytesMax: 1000})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		served <- s.Serve(admin.Backend{Hub: hub, Uplinks: hub, Health: hub})
	}()
	done := false
	stop = func() {
		if done {
			return
		}
		done = true
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return socket, stop
}

type result struct {
	code        int
	out, errOut string
}

// hubctl runs one command line without any hub to be found by default.
func hubctl(stdin string, args ...string) result {
	return hubctlEnv(nil, []string{"/nonexistent/hubd.sock"}, stdin, args...)
}

func hubctlEnv(env map[string]string, sockets []string, stdin string, args ...string) result {
	var out, errOut bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	code := command.Run(ctx, command.Env{
		Args: args, Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &errOut, Version: "0.1.0", Sockets: sockets,
		Getenv: func(k string) string { return env[k] },
	})
	return result{code, out.String(), errOut.String()}
}

func sampleRecords() []api.Record {
	return []api.Record{
		{Stream: "telemetry", Offset: 0, Time: 1_700_000_000_000, Topic: "devices/1/telemetry", Payload: []byte("21.5"), QoS: 1,
			Properties: [][]string{{"content-type", "text/plain"}, {"user", "a", "b"}}},
		{Stream: "telemetry", Partition: 1, Offset: 1000, Time: 1_700_000_000_001, Topic: "devices/2/telemetry", Payload: []byte{0xff, 0x00, 0x10}, QoS: 2, Retain: true},
		{Stream: "telemetry", Offset: 1, Time: 1_700_000_000_002, Topic: "devices/3/\x1b[2Jtelemetry", Payload: []byte("a\nb\u202ec <ä>")},
		{Stream: "telemetry", Offset: 2, Time: 1_700_000_000_003, Topic: "devices/1/telemetry", Payload: []byte(strings.Repeat("é", 150))},
		{Stream: "telemetry", Offset: 3, Time: 1_700_000_000_004, Topic: "devices/1/telemetry"},
	}
}

func TestGolden(t *testing.T) {
	hub := admintest.Sample()
	hub.Add("telemetry", sampleRecords()...)
	empty := admintest.New(api.Status{Hub: "edge-2", Version: "0.1.0"})
	socket, _ := serve(t, hub)
	emptySocket, _ := serve(t, empty)
	for _, c := range []struct {
		name, socket, args string
	}{
		{"status", socket, "status"},
		{"status-empty", emptySocket, "status"},
		{"status-empty-json", emptySocket, "status -o json"},
		{"status-json", socket, "status -o json"},
		{"stream-ls", socket, "stream ls"},
		{"stream-show", socket, "stream show telemetry"},
		{"stream-show-json", socket, "stream show telemetry -o json"},
		{"stream-show-unconfigured", socket, "stream show audit-2025"},
		{"client-ls", socket, "client ls"},
		{"client-ls-empty", emptySocket, "client ls"},
		{"client-ls-empty-json", emptySocket, "client ls -o json"},
		{"uplink-ls", socket, "uplink ls"},
		{"uplink-show", socket, "uplink show cloud"},
		{"uplink-show-backoff", socket, "uplink show lab"},
		{"uplink-show-json", socket, "uplink show lab -o json"},
		{"config-show", socket, "config show"},
		{"config-show-json", socket, "config show -o json"},
		{"tail", socket, "tail telemetry --no-follow"},
		{"tail-table", socket, "tail telemetry --no-follow -o table"},
		{"pub", socket, "pub a/b 21.5"},
		{"pub-json", socket, "pub a/b 21.5 -o json --qos 2 --retain"},
		{"uplink-pause", socket, "uplink pause cloud"},
		{"uplink-resume", socket, "uplink resume cloud"},
		{"uplink-acknowledge", socket, "uplink acknowledge lab"},
		{"uplink-skip", socket, "uplink skip lab telemetry/0"},
		{"uplink-rewind", socket, "uplink rewind cloud telemetry/1 --offset 12 --yes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := hubctl("", append(strings.Fields(c.args), "--socket", c.socket)...)
			if r.code != command.ExitDone || r.errOut != "" {
				t.Fatalf("exit %d, stderr %q", r.code, r.errOut)
			}
			golden(t, c.name, r.out)
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; got:\n%s\nwant:\n%s", path, got, want)
	}
}

// Every error is one line that names the cure, and has its exit code.
func TestErrors(t *testing.T) {
	hub := admintest.Sample()
	socket, _ := serve(t, hub)
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.toml")
	if err := os.WriteFile(bad, []byte("[hub]\nidd = \"x\"\nida = \"x\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string // separated by spaces; $S is the socket
		code int
		want []string
	}{
		{"status", 1, []string{"the hub is not running: nobody answers at /nonexistent/hubd.sock", "start it (systemctl start hubd, or hubd -config FILE)"}},
		{"status --socket " + dir + "/" + strings.Repeat("x", 120), 1, []string{"a socket's path may have 107"}},
		{"status --config " + dir + "/none.toml", 1, []string{"none.toml: no such file"}},
		{"status --config " + bad, 1, []string{"bad.toml:2: hub.idd: unknown key", "(and 1 more; see `hubctl config check " + bad + "`)"}},
		{"stream show telemtry --socket $S", 1, []string{`no stream "telemtry"; did you mean "telemetry"?`}},
		{"stream show ../config --socket $S", 1, []string{`no stream "../config"; there is telemetry, audit-2025, main`}},
		{"tail nothing --socket $S", 1, []string{`no stream "nothing"`}},
		{"tail telemetry --partition 7 --socket $S", 1, []string{`has no partition 7; its partitions are 0 to 1`}},
		{"tail telemetry --partition 0 --from 99 --socket $S", 1, []string{`beyond the end of partition 0`, `use --from latest`}},
		{"uplink show clud --socket $S", 1, []string{`no uplink "clud"; did you mean "cloud"?`}},
		{"uplink pause clud --socket $S", 1, []string{`did you mean "cloud"?`}},
		{"uplink skip clud --socket $S", 1, []string{`did you mean "cloud"?`}},
		{"uplink skip cloud telemetry/0 --offset -5 --socket $S", 2, []string{"--offset -5"}},
		{"uplink rewind cloud telemetry/0 --socket $S", 2, []string{"--offset is missing"}},
		{"pub a/b " + strings.Repeat("x", 1001) + " --socket $S", 1, []string{`the payload has 1001 bytes, limits.max_packet_bytes allows 1000`}},

		{"", 2, []string{"no verb given"}},
		{"stauts", 2, []string{`no verb "stauts"; did you mean "status"?`}},
		{"xyzzy", 2, []string{`no verb "xyzzy"; there is `, `bench, client, `}},
		{"stream", 2, []string{`stream: give a verb: delete, dump, ls, repair, show, verify`}},
		{"stream sho x", 2, []string{`did you mean "show"?`}},
		{"help stauts", 2, []string{`did you mean "status"?`}},
		{"completion tcsh", 2, []string{`completion: no verb "tcsh"`}},
		{"completion bash extra", 2, []string{`extra`}},
		{"stream show", 2, []string{"stream show: STREAM is missing; write `hubctl stream show STREAM"}},
		{"stream ls extra", 2, []string{`"extra" is one argument too many`}},
		{"status -o yaml", 2, []string{`-o "yaml" is neither table nor json`}},
		{"status --sokcet x", 2, []string{`did you mean --socket?`}},
		{"status -socket x", 2, []string{`did you mean --socket?`}},
		{"status --zzzzzz", 2, []string{"see `hubctl status --help`"}},
		{"status --socket", 2, []string{"flag needs an argument"}},
		{"tail", 2, []string{"STREAM is missing"}},
		{"tail main --from 5", 2, []string{"add --partition P"}},
		{"tail main --from yesterday", 2, []string{"an RFC 3339 time such as"}},
		{"tail main --partition -1", 2, []string{"partitions count from 0"}},
		{"tail main --partition one", 2, []string{"invalid argument"}},
		{"tail main -n 0", 2, []string{"give 1 or more"}},
		{"tail main --topic a/#/b", 2, []string{"whole last level"}},
		{"tail main --topic=", 2, []string{"empty"}},
		{"pub", 2, []string{"TOPIC is missing"}},
		{"pub a/+ x", 2, []string{"no wildcards"}},
		{"pub a x --qos 3", 2, []string{"it is 0, 1 or 2"}},
		{"pub a -21.5", 2, []string{"goes after --"}},
		{"pub a b c", 2, []string{"one argument too many"}},
		{"config check", 2, []string{"which file?"}},
	} {
		r := hubctl("", strings.Fields(strings.ReplaceAll(c.args, "$S", socket))...)
		line := r.errOut
		if c.args == "" { // the help comes before the line
			line = line[strings.LastIndex(strings.TrimSuffix(line, "\n"), "\n")+1:]
		}
		if r.code != c.code || r.out != "" || strings.Count(line, "\n") != 1 || !strings.HasPrefix(line, "hubctl: ") {
			t.Errorf("hubctl %s: exit %d (want %d), stdout %q, stderr %q", c.args, r.code, c.code, r.out, r.errOut)
		}
		for _, w := range c.want {
			if !strings.Contains(line, w) {
				t.Errorf("hubctl %s: stderr %q lacks %q", c.args, line, w)
			}
		}
	}
}

func TestHubFailuresAreOneCleanLine(t *testing.T) {
	hub := admintest.Sample()
	socket, _ := serve(t, hub)
	hub.Fail(errors.New("write /data/1.log:\nno space \x1b[31mleft on device"))
	for _, args := range [][]string{{"pub", "a/b", "x"}, {"tail", "main"}} {
		r := hubctl("", append(args, "--socket", socket)...)
		if want := `hubctl: write /data/1.log:; no space \x1b[31mleft on device` + "\n"; r.code != command.ExitFailed || r.errOut != want {
			t.Errorf("%v: exit %d, %q", args, r.code, r.errOut)
		}
	}
}

func TestPermissionDenied(t *testing.T) {
	socket, _ := serve(t, admintest.Sample())
	if os.Geteuid() == 0 {
		asNobody(t, socket)
		return
	}
	if err := os.Chmod(socket, 0); err != nil {
		t.Fatal(err)
	}
	checkDenied(t, hubctl("", "status", "--socket", socket))
}

func checkDenied(t *testing.T, r result) {
	t.Helper()
	if r.code != command.ExitFailed || !strings.Contains(r.errOut, "permission denied on ") || !strings.Contains(r.errOut, "join the group") || strings.Count(r.errOut, "\n") != 1 {
		t.Errorf("exit %d, %q", r.code, r.errOut)
	}
}

// Something that is not the hub, or a hub that dies, is told as such.
func TestForeignServers(t *testing.T) {
	for name, c := range map[string]struct{ answer, want string }{
		"closes":    {"", "went away while it was answering"},
		"cuts":      {"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", "went away while it was answering"},
		"other":     {"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "of the same version?"},
		"not json":  {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", "cannot be read"},
		"not http":  {"220 smtp ready\r\n", "malformed HTTP"},
		"json line": {"HTTP/1.1 503 x\r\nContent-Length: 57\r\n\r\n" + `{"error":{"code":"unavailable","message":"starting; wait"}}`[:57], "of the same version?"},
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "s")
			l, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					go func() {
						_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
						if line, _ := bufio.NewReader(conn).ReadString('\n'); line != "" {
							_, _ = io.WriteString(conn, c.answer)
						}
						_ = conn.Close()
					}()
				}
			}()
			r := hubctl("", "status", "--socket", socket)
			if r.code != command.ExitFailed || !strings.Contains(r.errOut, c.want) || strings.Count(r.errOut, "\n") != 1 {
				t.Errorf("exit %d, %q; want %q", r.code, r.errOut, c.want)
			}
		})
	}
}

func TestSocketSearch(t *testing.T) {
	hub := admintest.Sample()
	live, _ := serve(t, hub)
	dir := t.TempDir()
	dead := filepath.Join(dir, "dead.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	conf := filepath.Join(dir, "hub.toml")
	if err := os.WriteFile(conf, []byte("[admin]\nsocket = \""+live+"\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"HUBCTL_SOCKET": live}
	envDead := map[string]string{"HUBCTL_SOCKET": dead}
	missing := filepath.Join(dir, "missing.sock")
	for name, c := range map[string]struct {
		env     map[string]string
		sockets []string
		args    []string
		code    int
	}{
		"flag":                     {nil, nil, []string{"--socket", live}, 0},
		"flag before environment":  {env, []string{live}, []string{"--socket", dead, "--config", conf}, 1},
		"environment":              {env, []string{dead}, nil, 0},
		"environment before file":  {envDead, []string{live}, []string{"--config", conf}, 1},
		"file":                     {nil, []string{dead}, []string{"--config", conf}, 0},
		"first default":            {nil, []string{live, dead}, nil, 0},
		"second default":           {nil, []string{missing, live}, nil, 0},
		"second after a stale one": {nil, []string{dead, live}, nil, 0},
		"none":                     {nil, []string{missing, dead}, nil, 1},
	} {
		r := hubctlEnv(c.env, c.sockets, "", append([]string{"stream", "ls"}, c.args...)...)
		if r.code != c.code {
			t.Errorf("%s: exit %d, %s", name, r.code, r.errOut)
		}
	}
}

func TestPubPayloads(t *testing.T) {
	hub := admintest.Sample()
	socket, _ := serve(t, hub)
	for _, c := range []struct {
		stdin string
		args  []string
		want  string // the payload fields of the record
	}{
		{"from stdin\n", []string{"a/b"}, `"payload":"from stdin\n"`},
		{"\xff\x00", []string{"a/b"}, `"payload_base64":"/wA="`},
		{"ignored", []string{"a/b", "<argument>"}, `"payload":"<argument>"`},
		{"ignored", []string{"a/b", "", "--retain"}, `"payload":"","qos":1,"retain":true`},
		{"", []string{"a/b", "--qos", "0"}, `"payload":"","qos":0`},
		{"", []string{"a/b", "--", "-21.5"}, `"payload":"-21.5"`},
	} {
		if r := hubctl(c.stdin, append([]string{"pub", "--socket", socket}, c.args...)...); r.code != 0 {
			t.Fatalf("%v: %+v", c.args, r)
		}
	}
	r := hubctl("", "tail", "main", "--from", "earliest", "--no-follow", "--socket", socket, "-o", "json")
	lines := strings.Split(strings.TrimSpace(r.out), "\n")
	for i, want := range []string{`"payload":"from stdin\n"`, `"payload_base64":"/wA="`, `"payload":"<argument>"`, `"payload":"","qos":1,"retain":true`, `"payload":"","qos":0`, `"payload":"-21.5"`} {
		if i >= len(lines) || !strings.Contains(lines[i], want) {
			t.Errorf("record %d lacks %s in\n%s", i, want, r.out)
		}
	}
}

func TestTailSelects(t *testing.T) {
	hub := admintest.Sample()
	hub.Add("telemetry", sampleRecords()...)
	socket, _ := serve(t, hub)
	for args, want := range map[string]int{
		"--no-follow":                                 5,
		"--from earliest -n 2":                        2,
		"--from latest --no-follow":                   0,
		"--partition 1 --no-follow":                   1,
		"--partition 0 --from 2 -n 2":                 2,
		"--topic devices/2/# --no-follow":             1,
		"--topic nothing --no-follow":                 0,
		"--from 2023-11-14T22:13:20.003Z --no-follow": 2,
	} {
		r := hubctl("", append([]string{"tail", "telemetry", "--socket", socket}, strings.Fields(args)...)...)
		if got := strings.Count(r.out, "\n"); r.code != 0 || got != want {
			t.Errorf("tail %s: exit %d, %d records (want %d) %s", args, r.code, got, want, r.errOut)
		}
		for sc := bufio.NewScanner(strings.NewReader(r.out)); sc.Scan(); {
			if !json.Valid(sc.Bytes()) {
				t.Errorf("tail %s: %q is not JSON", args, sc.Text())
			}
		}
	}
}

// following starts a tail and returns its lines, the way to interrupt it, and its
// result.
func following(t *testing.T, socket string, args ...string) (lines *bufio.Scanner, interrupt func(), ended <-chan result) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	r, w := io.Pipe()
	done := make(chan result, 1)
	go func() {
		var errOut bytes.Buffer
		code := command.Run(ctx, command.Env{
			Args: append([]string{"tail", "main", "--socket", socket}, args...), Stdin: strings.NewReader(""), Stdout: w, Stderr: &errOut,
			Getenv: func(string) string { return "" },
		})
		_ = w.Close()
		done <- result{code: code, errOut: errOut.String()}
	}()
	return bufio.NewScanner(r), cancel, done
}

func TestTailFollows(t *testing.T) {
	hub := admintest.Sample()
	socket, _ := serve(t, hub)
	hub.Add("main", api.Record{Stream: "main", Topic: "old", Time: 1})
	lines, interrupt, ended := following(t, socket, "--from", "earliest")
	for _, topic := range []string{"old", "new/1", "new/2"} {
		if topic != "old" {
			if r := hubctl("", "pub", topic, "x", "--socket", socket); r.code != 0 {
				t.Fatalf("%+v", r)
			}
		}
		if !lines.Scan() || !strings.Contains(lines.Text(), `"topic":"`+topic+`"`) {
			t.Fatalf("want %s, got %q %v", topic, lines.Text(), lines.Err())
		}
	}
	interrupt()
	if r := <-ended; r.code != command.ExitDone || r.errOut != "" {
		t.Errorf("an interrupted tail: exit %d, %q", r.code, r.errOut)
	}
}

func TestTailTellsThatTheHubDied(t *testing.T) {
	hub := admintest.Sample()
	socket, stop := serve(t, hub)
	hub.Add("main", api.Record{Stream: "main", Topic: "old", Time: 1})
	lines, _, ended := following(t, socket, "--from", "earliest")
	if !lines.Scan() {
		t.Fatal(lines.Err())
	}
	go func() {
		for lines.Scan() { // whatever comes, the pipe must not fill
		}
	}()
	stop()
	if r := <-ended; r.code != command.ExitFailed || strings.Count(r.errOut, "\n") != 1 || !strings.Contains(r.errOut, "the hub") {
		t.Errorf("exit %d, %q", r.code, r.errOut)
	}
}

func TestInterruptedVerbFails(t *testing.T) {
	hub := admintest.Sample()
	hub.Block(true)
	socket, _ := serve(t, hub)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var errOut bytes.Buffer
	code := command.Run(ctx, command.Env{
		Args: []string{"pub", "a", "b", "--socket", socket}, Stdout: io.Discard, Stderr: &errOut, Getenv: func(string) string { return "" },
	})
	if code != command.ExitFailed || errOut.String() != "hubctl: interrupted\n" {
		t.Errorf("exit %d, %q", code, errOut.String())
	}
}

func TestUnwritableOutput(t *testing.T) {
	socket, _ := serve(t, admintest.Sample())
	var errOut bytes.Buffer
	code := command.Run(context.Background(), command.Env{
		Args: []string{"status", "--socket", socket}, Stdout: brokenWriter{}, Stderr: &errOut, Getenv: func(string) string { return "" },
	})
	if code != command.ExitFailed || errOut.String() != "hubctl: the output cannot be written: no space left on device\n" {
		t.Errorf("exit %d, %q", code, errOut.String())
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestConfigVerbs(t *testing.T) {
	socket, _ := serve(t, admintest.Sample())
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good.toml"), filepath.Join(dir, "bad.toml")
	for path, text := range map[string]string{
		good: "[hub]\nid = \"edge-9\"\n[admin]\nsocket = \"" + filepath.Join(dir, "nobody.sock") + "\"\n",
		bad:  "[hub]\nidd = \"x\"\n[log]\nlevle = \"info\"\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args                string
		code                int
		out, errOut, absent string
		errLines            int
	}{
		{args: "config check " + good, out: "good.toml: good (1 listener, 1 stream, 0 uplinks)\n"},
		{args: "config check --config " + good, out: "good.toml: good"},
		{args: "config check -o json " + good, out: `"ok": true`},
		{args: "config check " + bad, code: 1, errOut: "bad.toml:2: hub.idd: unknown key", errLines: 2},
		{args: "config check " + bad, code: 1, errOut: "bad.toml:4: log.levle", errLines: 2},
		{args: "config check -o json " + bad, code: 1, out: `"line": 2`, errOut: "hub.idd", errLines: 2},
		{args: "config check " + dir + "/none.toml", code: 1, errOut: "no such file", errLines: 1},
		{args: "config show " + good, out: "edge-9"},
		{args: "config show -o json " + good, out: `"key": "limits.max_packet_bytes"`},
		{args: "config show " + bad, code: 1, errOut: "hub.idd", errLines: 2},
		{args: "config show --config " + good, out: "edge-9", errOut: "no hub runs there", errLines: 1},
		{args: "config show --config " + good + " --socket " + socket, out: "edge-1", absent: "edge-9"},
		{args: "config show", code: 1, errOut: "the hub is not running", errLines: 1},
		{args: "version", out: "hubd    no hub answers\n"},
		{args: "version --socket " + socket, out: "hubd    0.1.0 (hub edge-1)\n"},
		{args: "version -o json --socket " + socket, out: `"hubd": "0.1.0"`},
		{args: "--version", out: "0.1.0"},
		{args: "status --help", out: "Usage:"},
		{args: "help stream show", out: "hubctl stream show STREAM"},
		{args: "completion bash", out: "hubctl"},
	} {
		r := hubctl("", strings.Fields(c.args)...)
		if r.code != c.code || !strings.Contains(r.out, c.out) || !strings.Contains(r.errOut, c.errOut) || strings.Count(r.errOut, "\n") != c.errLines || c.absent != "" && strings.Contains(r.out, c.absent) {
			t.Errorf("hubctl %s: exit %d, stdout %.300q, stderr %q", c.args, r.code, r.out, r.errOut)
		}
	}
}
