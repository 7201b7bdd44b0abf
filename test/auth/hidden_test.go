package auth

import (
	"os"
	"strings"
	"testing"

	"edgehub/test/harness/mqttc"
)

const unspecified = 0x80

// TestHiddenReasons: with auth.hide_reasons every refusal for who a client is or what it may not do sounds the same; it
// can be switched while the hub runs, and the counters tell the reasons as before.
func TestHiddenReasons(t *testing.T) {
	h := start(t, plantACL, "ban_after = 0\nhide_reasons = true\n")
	owner := h.dial("owned", "bert", 5)
	will := &mqttc.Will{Topic: "locked/w"}
	connects := []struct {
		name   string
		o      mqttc.Connect
		v5, v3 byte // what is said when nothing is hidden
	}{
		{"wrong password", mqttc.Connect{ClientID: "c", Username: "anna", Password: "bert"}, badCredentials, v3BadLogin},
		{"no such user", mqttc.Connect{ClientID: "c", Username: "carl", Password: "carl"}, badCredentials, v3BadLogin},
		{"anonymous", mqttc.Connect{ClientID: "c"}, notAuthorized, v3NotAllowed},
		{"another user's client id", mqttc.Connect{ClientID: "owned", Username: "anna", Password: "anna"}, clientIDNotValid, v3IDRejected},
		{"will", mqttc.Connect{ClientID: "c", Username: "bert", Password: "bert", Will: will}, notAuthorized, v3NotAllowed},
	}
	check := func(hidden bool) {
		t.Helper()
		for _, c := range connects {
			for _, version := range []byte{5, 4, 3} {
				c.o.Version, c.o.Clean = version, true
				want := c.v3
				switch {
				case version == 5 && hidden:
					want = unspecified
				case version == 5:
					want = c.v5
				case hidden:
					want = v3NotAllowed
				}
				if got := h.refused(c.o); got != want {
					t.Errorf("hidden %v, %s, version %d: code %#x, want %#x", hidden, c.name, version, got, want)
				}
			}
		}
		want := byte(notAuthorized)
		if hidden {
			want = unspecified
		}
		if ack, err := owner.Subscribe(mqttc.Filter{Name: "plant/secret"}, mqttc.Filter{Name: "cmd/anna/x"}, mqttc.Filter{Name: "plant/open"}); err != nil ||
			string(ack.Codes) != string([]byte{want, want, 0}) {
			t.Errorf("hidden %v: SUBACK %x, %v", hidden, ack.Codes, err)
		}
		for qos, answer := range map[byte]byte{1: mqttc.PUBACK, 2: mqttc.PUBREC} {
			for _, topic := range []string{"locked/x", "nobody/knows", "$SYS/x"} {
				p := mqttc.Packet{Kind: mqttc.PUBLISH, Topic: topic, QoS: qos, ID: owner.NextID()}
				if ack, err := owner.Request(p, answer); err != nil || ack.Code != want {
					t.Errorf("hidden %v: a publish to %s was answered by %v, %v", hidden, topic, ack, err)
				}
			}
		}
	}
	check(true)
	h.hide(false)
	check(false)
	h.hide(true)
	check(true)

	h.user("rm", "bert")
	h.mustCtl("config", "reload")
	if got, err := owner.AwaitClose(mqttc.Patience); err != nil || len(got) != 1 || got[0].Kind != mqttc.DISCONNECT || got[0].Code != unspecified {
		t.Errorf("a user that is gone was told %v, %v", got, err)
	}
	m := h.metrics()
	for _, want := range []string{"edgehub_auth_bad_credentials_total 18", "edgehub_auth_anonymous_refused_total 9", "edgehub_auth_foreign_client_id_total 9"} {
		if !strings.Contains(m, want+"\n") {
			t.Errorf("metrics lack %q", want)
		}
	}
}

// hide changes the key in the file and has the hub read it.
func (h *hub) hide(yes bool) {
	h.t.Helper()
	text, err := os.ReadFile(h.ConfigPath)
	if err != nil {
		h.t.Fatal(err)
	}
	is := map[bool]string{true: "hide_reasons = true", false: "hide_reasons = false"}
	h.write(h.ConfigPath, strings.Replace(string(text), is[!yes], is[yes], 1))
	if out := h.mustCtl("config", "reload"); !strings.Contains(out, "auth.hide_reasons") {
		h.t.Errorf("reload says %s", out)
	}
}
