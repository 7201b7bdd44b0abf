package archtest

import (
	"fmt"
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	statement = regexp.MustCompile(`\[MQTT-([0-9.]+)-([0-9]+)\]`)
	testName  = regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9_]+)`")
)

// statements is how many normative statements each section of a standard has; where they do not begin with 1, first
// says with what.
type statements struct {
	count map[string]int
	first map[string]int
}

var mqtt311 = statements{count: map[string]int{
	"1.5.3": 3, "2.2.2": 2, "2.3.1": 7, "3.1.0": 2, "3.1.2": 24, "3.1.3": 11, "3.1.4": 5, "3.2.0": 1, "3.2.2": 6,
	"3.3.1": 12, "3.3.2": 3, "3.3.4": 1, "3.3.5": 2, "3.6.1": 1, "3.8.1": 1, "3.8.3": 4, "3.8.4": 6, "3.9.3": 2,
	"3.10.1": 1, "3.10.3": 2, "3.10.4": 6, "3.12.4": 1, "3.14.1": 1, "3.14.4": 3, "4.1.0": 2, "4.3.1": 1, "4.3.2": 2,
	"4.3.3": 2, "4.4.0": 1, "4.5.0": 2, "4.6.0": 6, "4.7.1": 3, "4.7.2": 1, "4.7.3": 4, "4.8.0": 2, "6.0.0": 4,
	"7.0.0": 2, "7.1.1": 1, "7.1.2": 1,
}}

var mqtt5 = statements{count: map[string]int{
	"1.5.4": 3, "1.5.5": 1, "1.5.7": 1, "2.1.3": 1, "2.2.1": 5, "2.2.2": 1, "3.1.0": 2, "3.1.2": 30, "3.1.3": 12,
	"3.1.4": 6, "3.2.0": 2, "3.2.2": 22, "3.3.1": 13, "3.3.2": 20, "3.3.4": 10, "3.4.2": 3, "3.5.2": 3, "3.6.1": 1,
	"3.6.2": 3, "3.7.2": 3, "3.8.1": 1, "3.8.3": 5, "3.8.4": 8, "3.9.2": 2, "3.9.3": 2, "3.10.1": 1, "3.10.3": 2,
	"3.10.4": 6, "3.11.2": 2, "3.11.3": 2, "3.12.4": 1, "3.14.0": 1, "3.14.1": 1, "3.14.2": 4, "3.14.4": 3, "3.15.1": 1,
	"3.15.2": 3, "4.1.0": 2, "4.2.0": 1, "4.3.1": 1, "4.3.2": 5, "4.3.3": 13, "4.4.0": 2, "4.5.0": 2, "4.6.0": 6,
	"4.7.0": 1, "4.7.1": 2, "4.7.2": 1, "4.7.3": 4, "4.8.2": 6, "4.9.0": 3, "4.12.0": 7, "4.12.1": 2, "4.13.1": 1,
	"4.13.2": 1, "6.0.0": 4,
}, first: map[string]int{"2.2.1": 2}}

// TestConformanceTable: docs/MQTT-CONFORMANCE.md has every statement of both standards once, each owned by tests that
// exist, or with the reason why it is not.
func TestConformanceTable(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "MQTT-CONFORMANCE.md"))
	if err != nil {
		t.Fatal(err)
	}
	tests := testsOf(t)
	_, rest, ok311 := strings.Cut(string(text), "\n## MQTT 3.1.1\n")
	part311, part5, ok5 := strings.Cut(rest, "\n## MQTT 5.0\n")
	if !ok311 || !ok5 {
		t.Fatal("a heading is missing")
	}
	checkTable(t, "3.1.1", part311, mqtt311, tests)
	checkTable(t, "5.0", part5, mqtt5, tests)
}

func checkTable(t *testing.T, version, part string, want statements, tests map[string]bool) {
	t.Helper()
	seen := map[string]int{}
	for _, line := range strings.Split(part, "\n") {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !strings.Contains(cells[1], "[MQTT-") {
			continue
		}
		for _, m := range statement.FindAllStringSubmatch(cells[1], -1) {
			seen[m[1]+"-"+m[2]]++
		}
		owner := strings.TrimSpace(cells[3])
		named := testName.FindAllStringSubmatch(owner, -1)
		for _, m := range named {
			if !tests[m[1]] {
				t.Errorf("MQTT %s,%s: there is no %s", version, cells[1], m[1])
			}
		}
		reason, excused := strings.CutPrefix(owner, "not supported, because ")
		if len(named) == 0 && (!excused || reason == "") && !strings.HasPrefix(owner, "binds clients") {
			t.Errorf("MQTT %s,%s: no test owns it", version, cells[1])
		}
	}
	var missing []string
	for section, n := range want.count {
		first := max(want.first[section], 1)
		for i := first; i < first+n; i++ {
			id := fmt.Sprintf("%s-%d", section, i)
			if seen[id] != 1 {
				missing = append(missing, fmt.Sprintf("%s (%d times)", id, seen[id]))
			}
			delete(seen, id)
		}
	}
	slices.Sort(missing)
	if len(missing) > 0 || len(seen) > 0 {
		t.Errorf("MQTT %s: not there once: %v; not in the standard: %v", version, missing, seen)
	}
}

// testsOf lists the names of all tests and fuzz targets of the sources.
func testsOf(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, s := range load(t) {
		if !s.test {
			continue
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
				names[f.Name.Name] = true
			}
		}
	}
	return names
}
