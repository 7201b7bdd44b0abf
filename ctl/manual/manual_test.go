package manual_test

import (
	"strings"
	"testing"

	"edgehub/ctl/command"
	"edgehub/ctl/manual"
)

// The page has every verb and flag, and no line that roff would take for a request by mistake.
func TestPage(t *testing.T) {
	root := command.Tree("1.2.3")
	page := manual.Page(root)
	for _, want := range []string{".TH HUBCTL 1", "hubctl 1.2.3", ".SS status", `.SS stream show STREAM`, ".SS uplink pause UPLINK",
		`\-\-socket`, `\-\-topic`, "0\ndone", ".BR hubd (8)"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(page, ".SS help") {
		t.Error("the page explains help")
	}
	known := map[string]bool{".TH": true, ".SH": true, ".SS": true, ".TP": true, ".PP": true, ".B": true, ".BR": true, ".nf": true, ".fi": true}
	for i, l := range strings.Split(page, "\n") {
		if word, _, _ := strings.Cut(l, " "); strings.HasPrefix(l, ".") && !known[word] || strings.HasPrefix(l, "'") {
			t.Errorf("line %d is not a request that was meant: %q", i+1, l)
		}
	}
}
