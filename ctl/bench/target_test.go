package bench

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	tail := " S 1 2 3 4 5 6 7 8 9 10 250 130 0 0 20 0 7 0 12345 99999 300 184467"
	for _, name := range []string{"(hubd)", "(a (strange) name)", "()"} {
		u, err := parseStat("77 "+name+tail, 4096)
		if err != nil || u.cpu != 3800*time.Millisecond || u.rss != 300*4096 {
			t.Errorf("%s: %+v, %v", name, u, err)
		}
	}
	for _, bad := range []string{"", "77 (hubd) S 1 2", "77 (hubd)" + strings.Replace(tail, "250", "x", 1)} {
		if _, err := parseStat(bad, 4096); err == nil {
			t.Errorf("%q was understood", bad)
		}
	}
}

func TestCost(t *testing.T) {
	if cost(0, 0, usage{}, usage{}, time.Second, 1) != nil {
		t.Error("the cost of nobody")
	}
	from, to := usage{cpu: time.Second, rss: 10}, usage{cpu: 3 * time.Second, rss: 30}
	c := cost(7, 5, from, to, 4*time.Second, 1_000_000)
	if c.CPUSeconds != 2 || c.CPUPercent != 50 || c.CPUUsPerMessage != 2 || c.RSSBeforeBytes != 5 || c.RSSAfterBytes != 30 {
		t.Errorf("%+v", c)
	}
	if c.note() != "" {
		t.Errorf("two seconds of CPU are enough: %s", c.note())
	}
	if c := cost(7, 0, from, from, 0, 0); c.CPUUsPerMessage != 0 || c.note() == "" {
		t.Errorf("nothing measured: %+v, %q", c, c.note())
	}
}

func TestProcessUsage(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("no /proc here")
	}
	u, err := processUsage(os.Getpid())
	if err != nil || u.rss <= 0 {
		t.Errorf("%+v, %v", u, err)
	}
	if _, err := processUsage(1 << 30); err == nil || !strings.Contains(err.Error(), "--pid") {
		t.Errorf("a process that is not there: %v", err)
	}
}

func TestDescriptors(t *testing.T) {
	if err := checkDescriptors(1, 0); err != nil {
		t.Error(err)
	}
	if err := checkDescriptors(1<<30, 0); err == nil || !strings.Contains(err.Error(), "ulimit") {
		t.Errorf("more than any system has: %v", err)
	}
}
