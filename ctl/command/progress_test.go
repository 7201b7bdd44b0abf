package command

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"
)

func TestProgressLine(t *testing.T) {
	for _, c := range []struct {
		total, moved int64
		took         time.Duration
		want         string
	}{
		{0, 0, 3 * time.Second, "backup: 3s"},
		{2 << 20, 0, 65 * time.Second, "backup, 2.0 MiB: 1m 5s"},
		{0, 3 << 20, time.Second, "backup: 3.0 MiB, 3.0 MiB/s"},
		{4 << 20, 1 << 20, time.Second, "backup [######..................] 25% of 4.0 MiB, 1.0 MiB/s, 3s left"},
		{4 << 20, 5 << 20, time.Second, "backup [########################] 100% of 4.0 MiB, 5.0 MiB/s, 0s left"},
	} {
		m := &meter{what: "backup", total: c.total}
		m.moved.Store(c.moved)
		if got := m.line(c.took); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// Without a terminal nothing is shown; what passes is counted and not changed.
func TestProgressWithoutTerminal(t *testing.T) {
	var errs, out bytes.Buffer
	a := &app{Env: Env{Stderr: &errs}}
	m := a.progress("x", 10)
	if _, err := io.Copy(m.writer(&out), m.reader(strings.NewReader("hello"))); err != nil {
		t.Fatal(err)
	}
	m.end()
	if errs.Len() > 0 || out.String() != "hello" || m.moved.Load() != 10 { // once read, once written
		t.Errorf("%q %q %d", errs.String(), out.String(), m.moved.Load())
	}
}
