// Package auth tries users, access list, bans and reload on a real hub with real clients: every refusal's code, and
// that a change counts at once.
package auth

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"edgehub/test/harness"
	"edgehub/test/harness/hubtest"
	"edgehub/test/harness/mqttc"
)

func TestMain(m *testing.M) { hubtest.Main(m) }

// Reason codes of MQTT 5, and the return codes before.
const (
	badCredentials = 0x86
	notAuthorized  = 0x87
	banned         = 0x8A
	administrative = 0x98

	clientIDNotValid = 0x85
	v3IDRejected     = 2
	v3BadLogin       = 4
	v3NotAllowed     = 5
)

// hub is a hub whose files can be changed.
type hub struct {
	*harness.Hub
	t          *testing.T
	users, acl string
}

// start makes a hub with the users anna (group ops) and bert, passwords as their names, on a listener that takes no
// anonymous clients.
func start(t *testing.T, acl, extra string) *hub {
	t.Helper()
	h := &hub{t: t}
	dir := t.TempDir()
	h.users, h.acl = filepath.Join(dir, "users"), filepath.Join(dir, "acl")
	h.write(h.users, "# users\n")
	h.write(h.acl, acl)
	h.Hub = hubtest.New(t, func(c *harness.Config) {
		c.Additional = "[auth]\nusers_file = \"" + h.users + "\"\nacl_file = \"" + h.acl + "\"\n" + extra
	})
	h.user("add", "anna", "--groups", "ops")
	h.user("add", "bert")
	// The listener of the harness is a loopback one, which would let anonymous clients in.
	text, err := os.ReadFile(h.ConfigPath)
	if err != nil {
		t.Fatal(err)
	}
	h.write(h.ConfigPath, strings.Replace(string(text), "[[listener]]\n", "[[listener]]\nallow_anonymous = false\n", 1))
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *hub) write(path, text string) {
	h.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// user runs `hubctl user` with the name as the password.
func (h *hub) user(verb, name string, args ...string) {
	h.t.Helper()
	cmd := h.CtlCommand(h.t.Context(), append([]string{"user", verb, name, "--file", h.users}, args...)...)
	cmd.Stdin = strings.NewReader(name + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		h.t.Fatalf("user %s %s: %v: %s", verb, name, err, out)
	}
}

// ctl runs hubctl and returns what it said on both outputs, with its exit code.
func (h *hub) ctl(args ...string) (string, int) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), mqttc.Patience)
	defer cancel()
	out, err := h.Ctl(ctx, args...)
	var failed *harness.CtlError
	if errors.As(err, &failed) {
		return string(out) + failed.Stderr, failed.Exit
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return string(out), 0
}

func (h *hub) mustCtl(args ...string) string {
	h.t.Helper()
	out, code := h.ctl(args...)
	if code != 0 {
		h.t.Fatalf("hubctl %v: exit %d: %s", args, code, out)
	}
	return out
}

func (h *hub) dial(id, user string, version byte) *hubtest.Client {
	h.t.Helper()
	return hubtest.Dial(h.t, h.Addr(), mqttc.Connect{Version: version, ClientID: id, Clean: true, Username: user, Password: user})
}

// refused connects and returns the code of the refusal.
func (h *hub) refused(c mqttc.Connect) byte {
	h.t.Helper()
	conn, ack, err := mqttc.Dial(h.Addr(), c)
	if err != nil {
		h.t.Fatalf("%+v: %v", c, err)
	}
	conn.Abort()
	return ack.Code
}

// metrics is what /metrics says.
func (h *hub) metrics() string {
	h.t.Helper()
	return get(h.t, "http://"+h.Config.AdminAddr+"/metrics")
}

func get(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

const openACL = "allow everyone all #\n"

func TestConnect(t *testing.T) {
	h := start(t, openACL, "ban_after = 0\n")
	for _, c := range []struct {
		name           string
		user, password string
		v5, v3         byte
	}{
		{"right", "anna", "anna", 0, 0},
		{"right again: remembered", "anna", "anna", 0, 0},
		{"wrong", "anna", "bert", badCredentials, v3BadLogin},
		{"no such user", "carl", "carl", badCredentials, v3BadLogin},
		{"no password", "anna", "", badCredentials, v3BadLogin},
		{"anonymous", "", "", notAuthorized, v3NotAllowed},
	} {
		t.Run(c.name, func(t *testing.T) {
			for version, want := range map[byte]byte{5: c.v5, 4: c.v3, 3: c.v3} {
				if got := h.refused(mqttc.Connect{Version: version, ClientID: "c", Clean: true, Username: c.user, Password: c.password}); got != want {
					t.Errorf("version %d: code %#x, want %#x", version, got, want)
				}
			}
		})
	}
	// What comes right behind CONNECT waits until the password has been hashed.
	conn, err := mqttc.Open(h.Addr(), 5)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Abort()
	con := mqttc.Connect{Version: 5, ClientID: "eager", Clean: true, Username: "bert", Password: "bert"}
	sub := mqttc.Packet{Kind: mqttc.SUBSCRIBE, ID: 1, Filters: []mqttc.Filter{{Name: "x", Options: 1}}}
	pub := mqttc.Packet{Kind: mqttc.PUBLISH, Topic: "x", Payload: []byte("early"), QoS: 1, ID: 2}
	if err := conn.SendRaw(pub.Append(sub.Append(con.Append(nil), 5), 5)); err != nil {
		t.Fatal(err)
	}
	if ack, err := conn.Await(mqttc.CONNACK); err != nil || ack.Code != 0 {
		t.Fatalf("%v, %v", ack, err)
	}
	if p, err := conn.Receive(mqttc.Patience); err != nil || string(p.Payload) != "early" {
		t.Fatalf("%v, %v", p, err)
	}
	m := h.metrics()
	for _, want := range []string{"edgehub_auth_logins_total 7", "edgehub_auth_bad_credentials_total 9", "edgehub_auth_anonymous_refused_total 3", "edgehub_auth_hashed_total 11"} {
		if !strings.Contains(m, want+"\n") {
			t.Errorf("metrics lack %q", want)
		}
	}
}

const plantACL = `deny  everyone   publish   locked/#
deny  everyone   subscribe plant/secret
allow group:ops  all       #
allow users      publish   d/%c/#
allow users      subscribe cmd/%u/#
allow users      subscribe plant/#
allow users      subscribe shift shift/+
allow users      subscribe shift/+/#
`

func TestPublish(t *testing.T) {
	h := start(t, plantACL, "")
	anna := h.dial("a", "anna", 5)
	anna.Sub("d/#", 1)
	bert := h.dial("b", "bert", 5)
	for _, c := range []struct {
		topic string
		qos   byte
		want  byte
	}{{"d/b/x", 1, 0}, {"d/a/x", 1, notAuthorized}, {"d/b/x", 2, 0}, {"d/a/x", 2, notAuthorized}, {"locked/x", 1, notAuthorized}, {"other", 1, notAuthorized}, {"d/b/x", 1, 0}} {
		kind := byte(mqttc.PUBACK)
		if c.qos == 2 {
			kind = mqttc.PUBREC
		}
		id := bert.NextID()
		p, err := bert.Request(mqttc.Packet{Kind: mqttc.PUBLISH, Topic: c.topic, Payload: []byte(c.topic), QoS: c.qos, ID: id}, kind)
		if err != nil || p.Code != c.want {
			t.Errorf("%s at QoS %d: %v, %v, want code %#x", c.topic, c.qos, p, err, c.want)
		}
		if kind == mqttc.PUBREC && p.Code == 0 {
			if _, err := bert.Request(mqttc.Packet{Kind: mqttc.PUBREL, ID: id}, mqttc.PUBCOMP); err != nil {
				t.Fatal(err)
			}
		}
	}
	// QoS 0 has no answer: it is not delivered, and what comes after it is.
	bert.Pub("d/a/0", "no", 0)
	bert.Pub("d/b/0", "yes", 1)
	for _, want := range []string{"d/b/x", "d/b/x", "d/b/x", "d/b/0"} {
		p, err := anna.Receive(mqttc.Patience)
		if err != nil || p.Topic != want {
			t.Fatalf("%v, %v, want %s", p, err, want)
		}
	}
	anna.WantNothing()
	if st, err := h.Status(); err != nil || st.Dropped["denied_publish"] != 5 {
		t.Errorf("%v, %v", st.Dropped, err)
	}
	// A will is judged with CONNECT.
	will := &mqttc.Will{Topic: "d/other", Payload: []byte("x")}
	for version, want := range map[byte]byte{5: notAuthorized, 4: v3NotAllowed} {
		if got := h.refused(mqttc.Connect{Version: version, ClientID: "w", Clean: true, Username: "bert", Password: "bert", Will: will}); got != want {
			t.Errorf("will, version %d: code %#x, want %#x", version, got, want)
		}
	}
}

func TestSubscribe(t *testing.T) {
	h := start(t, plantACL, "")
	bert := h.dial("b", "bert", 5)
	old := h.dial("b3", "bert", 4)
	for _, c := range []struct {
		filter string
		v5, v3 byte
	}{{"cmd/bert/x", 1, 1}, {"cmd/anna/x", notAuthorized, 0x80}, {"plant/secret", notAuthorized, 0x80}, {"plant/#", 1, 1}, {"other/#", notAuthorized, 0x80},
		{"#", 1, 1}, {"$share/g/cmd/bert/#", 1, 1}, {"$share/g/plant/#", notAuthorized, 0x80},
		{"$share/g/shift/#", 1, 1}} {
		for conn, want := range map[*hubtest.Client]byte{bert: c.v5, old: c.v3} {
			p, err := conn.Subscribe(mqttc.Filter{Name: c.filter, Options: 1})
			if err != nil || len(p.Codes) != 1 || p.Codes[0] != want {
				t.Errorf("%s, version %d: %v, % x, want %#x", c.filter, conn.Version, err, p.Codes, want)
			}
		}
	}
	// # is granted, and gives only what may be received: also of what is retained.
	anna := h.dial("a", "anna", 5)
	for _, topic := range []string{"plant/secret", "plant/open", "elsewhere"} {
		anna.PubPacket(mqttc.Packet{Topic: topic, Payload: []byte(topic), QoS: 1, Retain: true})
	}
	carl := h.dial("b4", "bert", 5)
	carl.Sub("#", 1)
	carl.Want("plant/open", "plant/open", 1)
	carl.WantNothing()
}

// A rule that is removed stops delivery at once: live, in the log of one that is behind, retained, and in flight.
func TestChangesCountAtOnce(t *testing.T) {
	const open, shut = "allow everyone all #\n", "allow group:ops all #\nallow users all other/#\n"
	h := start(t, open, "")
	anna := h.dial("a", "anna", 5)
	live := h.dial("live", "bert", 5)
	live.Sub("t/#", 1)
	live.Sub("other/#", 1)
	offline := hubtest.Dial(t, h.Addr(), mqttc.Connect{Version: 5, ClientID: "offline", SessionExpiry: 3600, Username: "bert", Password: "bert"})
	offline.Sub("#", 1)
	held := hubtest.Dial(t, h.Addr(), mqttc.Connect{Version: 5, ClientID: "held", SessionExpiry: 3600, Username: "bert", Password: "bert"})
	held.Sub("t/#", 1)
	anna.Pub("t/1", "before", 1)
	live.Want("t/1", "before", 1)
	offline.Want("t/1", "before", 1)
	if p := held.WantPacket(mqttc.PUBLISH); p.Topic != "t/1" { // and is not acknowledged
		t.Fatal(p)
	}
	offline.Bye()
	held.Abort()
	anna.Pub("t/2", "waits", 1)
	anna.Pub("other/2", "waits", 1)
	live.Want("t/2", "waits", 1)
	live.Want("other/2", "waits", 1)

	h.write(h.acl, shut)
	if out := h.mustCtl("config", "reload"); !strings.Contains(out, "2 rules") {
		t.Errorf("%s", out)
	}
	anna.Pub("t/3", "after", 1)
	anna.Pub("other/3", "after", 1)
	live.Want("other/3", "after", 1)
	live.WantNothing()
	back := hubtest.Dial(t, h.Addr(), mqttc.Connect{Version: 5, ClientID: "offline", SessionExpiry: 3600, Username: "bert", Password: "bert"})
	back.Want("other/2", "waits", 1)
	back.Want("other/3", "after", 1)
	back.WantNothing()
	again := hubtest.Dial(t, h.Addr(), mqttc.Connect{Version: 5, ClientID: "held", SessionExpiry: 3600, Username: "bert", Password: "bert"})
	again.WantNothing() // not sent again
	if p, err := live.Request(mqttc.Packet{Kind: mqttc.PUBLISH, Topic: "t/4", QoS: 1, ID: 77}, mqttc.PUBACK); err != nil || p.Code != notAuthorized {
		t.Errorf("publish after the reload: %v, %v", p, err)
	}

	h.write(h.acl, open)
	if err := h.Process().Signal(syscall.SIGHUP); err != nil { // the same by signal
		t.Fatal(err)
	}
	hubtest.Eventually(t, mqttc.Patience, "the rules are open again", func() bool {
		_, code := h.ctl("acl", "check", "bert", "t/5")
		return code == 0
	})
	anna.Pub("t/5", "open", 1)
	live.Want("t/5", "open", 1)
}

// A reload with a mistake says so and changes nothing.
func TestReloadThatFails(t *testing.T) {
	h := start(t, plantACL, "")
	h.write(h.acl, "allow everyone all #\nallow nobody all #\n")
	if out, code := h.ctl("config", "reload"); code != 1 || !strings.Contains(out, "nothing was changed") || !strings.Contains(out, "line 2 of") {
		t.Errorf("exit %d: %s", code, out)
	}
	if out, code := h.ctl("acl", "check", "bert", "other"); code != 1 {
		t.Errorf("the rules have changed: %s", out)
	}
	h.write(h.acl, plantACL)
	text, err := os.ReadFile(h.ConfigPath)
	if err != nil {
		t.Fatal(err)
	}
	h.write(h.ConfigPath, strings.Replace(string(text), `level = "info"`, `level = "warn"`, 1)+"ban_after = 7\n[limits]\nloops = 1\n")
	out := h.mustCtl("config", "reload")
	for _, want := range []string{`log.level`, `auth.ban_after`, "needs a restart"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q lacks %q", out, want)
		}
	}
	if out := h.mustCtl("config", "show"); !strings.Contains(out, "7") {
		t.Errorf("%s", out)
	}
}

func TestUsersChange(t *testing.T) {
	h := start(t, openACL, "ban_after = 0\n")
	anna, bert := h.dial("a", "anna", 5), h.dial("b", "bert", 5)
	if out := h.mustCtl("user", "rm", "bert"); out != "" {
		t.Errorf("%q", out)
	}
	ps := bert.WantClose(mqttc.Patience)
	if len(ps) != 1 || ps[0].Kind != mqttc.DISCONNECT || ps[0].Code != notAuthorized {
		t.Errorf("%v", ps)
	}
	if got := h.refused(mqttc.Connect{Version: 5, ClientID: "b", Clean: true, Username: "bert", Password: "bert"}); got != badCredentials {
		t.Errorf("code %#x", got)
	}
	anna.WantNothing()
	if out := h.mustCtl("user", "ls"); !strings.Contains(out, "anna") || strings.Contains(out, "bert") || strings.Contains(out, "$2") {
		t.Errorf("%s", out)
	}
	if out, code := h.ctl("user", "rm", "bert"); code != 1 || !strings.Contains(out, `no user "bert"`) {
		t.Errorf("exit %d: %s", code, out)
	}
}

// One user's session is not another's.
func TestSessionsBelongToTheirUser(t *testing.T) {
	h := start(t, openACL, "")
	keep := mqttc.Connect{Version: 5, ClientID: "s", SessionExpiry: 3600, Username: "anna", Password: "anna"}
	c := hubtest.Dial(t, h.Addr(), keep)
	c.Sub("mail/#", 1)
	c.Bye()
	pub := h.dial("p", "bert", 5)
	pub.Pub("mail/1", "for anna", 1)
	hubtest.Restart(t, h.Hub)
	same := hubtest.Dial(t, h.Addr(), keep)
	if !same.Connack.SessionPresent {
		t.Error("the session of the same user is gone after a restart")
	}
	same.Want("mail/1", "for anna", 1)
	same.Bye()
	pub = h.dial("p", "bert", 5)
	pub.Pub("mail/2", "for anna", 1)
	bert := keep
	bert.Username, bert.Password = "bert", "bert"
	for version, want := range map[byte]byte{5: clientIDNotValid, 4: v3IDRejected} { // of an absent client
		bert.Version = version
		if got := h.refused(bert); got != want {
			t.Errorf("another user's client id, version %d: code %#x, want %#x", version, got, want)
		}
	}
	back := hubtest.Dial(t, h.Addr(), keep)
	back.Want("mail/2", "for anna", 1)
	bert.Version = 5
	if got := h.refused(bert); got != clientIDNotValid { // of a connected one, which notices nothing
		t.Errorf("a connected user's client id: code %#x", got)
	}
	back.WantNothing()
	back.Bye()
	h.mustCtl("session", "delete", "s")
	if other := hubtest.Dial(t, h.Addr(), bert); other.Connack.SessionPresent {
		t.Error("another user was given the session")
	}
}

func TestBans(t *testing.T) {
	h := start(t, openACL, "ban_after = 3\nban_time = \"1h\"\n")
	wrong := mqttc.Connect{Version: 5, ClientID: "c", Clean: true, Username: "anna", Password: "wrong"}
	for range 3 {
		if got := h.refused(wrong); got != badCredentials {
			t.Fatalf("code %#x", got)
		}
	}
	for version, want := range map[byte]byte{5: banned, 4: v3NotAllowed} {
		if got := h.refused(mqttc.Connect{Version: version, ClientID: "c", Clean: true, Username: "anna", Password: "anna"}); got != want {
			t.Errorf("version %d: code %#x, want %#x", version, got, want)
		}
	}
	if out := h.mustCtl("ban", "ls"); !strings.Contains(out, "anna at 127.0.0.1") || !strings.Contains(out, "failed logins") {
		t.Errorf("%s", out)
	}
	h.mustCtl("ban", "rm", "login", "anna at 127.0.0.1")
	anna := h.dial("a", "anna", 5)
	h.mustCtl("ban", "add", "user", "anna", "--why", "left")
	ps := anna.WantClose(mqttc.Patience)
	if len(ps) != 1 || ps[0].Code != administrative {
		t.Errorf("%v", ps)
	}
	hubtest.Restart(t, h.Hub) // it outlives the hub
	if got := h.refused(mqttc.Connect{Version: 5, ClientID: "c", Clean: true, Username: "anna", Password: "anna"}); got != banned {
		t.Errorf("code %#x", got)
	}
	h.mustCtl("ban", "rm", "user", "anna")
	h.dial("a", "anna", 5)
}

func TestSessionsByHand(t *testing.T) {
	h := start(t, openACL, "")
	online := hubtest.Dial(t, h.Addr(), mqttc.Connect{Version: 5, ClientID: "on", SessionExpiry: 3600, Username: "anna", Password: "anna"})
	online.Sub("a/#", 1)
	off := hubtest.Dial(t, h.Addr(), mqttc.Connect{Version: 5, ClientID: "off/1", SessionExpiry: 3600, Username: "bert", Password: "bert"})
	off.Sub("b/#", 2)
	off.Bye()
	online.PubPacket(mqttc.Packet{Topic: "r/1", Payload: []byte("kept"), QoS: 1, Retain: true})

	if out := h.mustCtl("session", "ls"); !strings.Contains(out, "off/1") || !strings.Contains(out, "bert") {
		t.Errorf("%s", out)
	}
	if out := h.mustCtl("session", "show", "off/1"); !strings.Contains(out, "b/#") {
		t.Errorf("%s", out)
	}
	if out := h.mustCtl("session", "show", "on"); !strings.Contains(out, "a/#") {
		t.Errorf("%s", out)
	}
	if out, code := h.ctl("session", "show", "off/2"); code != 1 || !strings.Contains(out, `did you mean "off/1"`) {
		t.Errorf("exit %d: %s", code, out)
	}
	h.mustCtl("client", "kick", "on")
	if ps := online.WantClose(mqttc.Patience); len(ps) != 1 || ps[0].Code != administrative {
		t.Errorf("%v", ps)
	}
	h.mustCtl("session", "delete", "off/1")
	h.mustCtl("session", "delete", "on")
	if out := h.mustCtl("session", "ls", "-o", "json"); strings.Contains(out, "client_id") {
		t.Errorf("%s", out)
	}
	for id, user := range map[string]string{"on": "anna", "off/1": "bert"} {
		c := hubtest.Dial(t, h.Addr(), mqttc.Connect{Version: 5, ClientID: id, SessionExpiry: 3600, Username: user, Password: user})
		if c.Connack.SessionPresent {
			t.Errorf("the session of %s is there", id)
		}
	}
	if out := h.mustCtl("retained", "ls", "r/+"); !strings.Contains(out, "r/1") {
		t.Errorf("%s", out)
	}
	if out := h.mustCtl("retained", "get", "r/1"); !strings.Contains(out, "kept") {
		t.Errorf("%s", out)
	}
	h.mustCtl("retained", "delete", "r/1")
	if out, code := h.ctl("retained", "get", "r/1"); code != 1 || !strings.Contains(out, "no retained message") {
		t.Errorf("exit %d: %s", code, out)
	}
}

func TestDoctor(t *testing.T) {
	h := start(t, openACL, "")
	out := h.mustCtl("doctor")
	for _, want := range []string{"configuration", "hub ", "descriptors", "clock", "disk", "free space", "memory", "permissions", "ports"} {
		if !strings.Contains(out, want) {
			t.Errorf("doctor does not look at %q:\n%s", want, out)
		}
	}
	if err := os.Chmod(h.users, 0o644); err != nil {
		t.Fatal(err)
	}
	if out := h.mustCtl("doctor"); !strings.Contains(out, "others may read it") {
		t.Errorf("%s", out)
	}
	_, _ = h.Stop(30 * time.Second)
	if out, code := h.ctl("doctor", "--config", h.ConfigPath); code != 0 || !strings.Contains(out, "is free") {
		t.Errorf("without a hub: exit %d: %s", code, out)
	}
}
