package uplink

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestMachineTraces runs the scripts of testdata/machine: one verb a line, and
// after -> what it has to lead to.
func TestMachineTraces(t *testing.T) {
	files, err := filepath.Glob("testdata/machine/*.txt")
	if err != nil || len(files) < 7 {
		t.Fatalf("scripts: %v, %v", files, err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) { runTrace(t, f) })
	}
}

type trace struct {
	m     *Machine
	start time.Time
	now   time.Time
}

func runTrace(t *testing.T, file string) {
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	start := time.Unix(1000, 0)
	tr := &trace{start: start, now: start}
	line := 0
	for sc := bufio.NewScanner(f); sc.Scan(); {
		line++
		text := strings.TrimSpace(sc.Text())
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		do, want, check := strings.Cut(text, "->")
		got, err := tr.step(strings.Fields(do))
		if err != nil {
			t.Fatalf("%s:%d: %v", file, line, err)
		}
		if want = strings.TrimSpace(want); check && got != want {
			t.Fatalf("%s:%d: %s\n got  %s\n want %s", file, line, strings.TrimSpace(do), got, want)
		}
	}
}

func numbers(s string) []int64 {
	var out []int64
	for f := range strings.SplitSeq(s, ",") {
		n, _ := strconv.ParseInt(f, 10, 64)
		out = append(out, n)
	}
	return out
}

func (tr *trace) step(f []string) (string, error) {
	opt := map[string]string{}
	var args []int64
	for _, a := range f[1:] {
		if k, v, ok := strings.Cut(a, "="); ok {
			opt[k] = v
		} else if n, err := strconv.ParseInt(a, 10, 64); err == nil {
			args = append(args, n)
		}
	}
	seq, _ := strconv.ParseUint(opt["seq"], 10, 64)
	switch f[0] {
	case "new":
		w := Window{Messages: int(numbers(opt["window"])[0]), Bytes: 1 << 20}
		if b, ok := opt["bytes"]; ok {
			w.Bytes = numbers(b)[0]
		}
		tr.m = NewMachine(Timing{BackoffMin: time.Second, BackoffMax: 2 * time.Minute, RefusedMax: 15 * time.Second, AckTimeout: 10 * time.Second}, w, numbers(opt["lanes"]), 0, nil)
	case "tick":
		d, err := time.ParseDuration(f[1])
		if err != nil {
			return "", err
		}
		tr.now = tr.now.Add(d)
	case "stream":
		tr.m.BecomeStream(tr.now, numbers(f[1]), nil, seq)
	case "backoff":
		tr.m.BecomeBackoff(tr.now, len(f) > 1 && f[1] == "refused")
	case "block":
		tr.m.BecomeBlocked(tr.now)
	case "look":
		tr.m.Look(tr.now)
	case "pause":
		tr.m.Pause(tr.now)
	case "resume":
		tr.m.Resume(tr.now)
	case "skip":
		tr.m.Skip(int(args[0]), args[1])
	case "send":
		if !tr.m.CanSend(args[2]) {
			return "full", nil
		}
		return fmt.Sprintf("token %d", tr.m.Send(tr.now, int(args[0]), args[1], args[2], 0)), nil
	case "ack":
		n, err := tr.m.Ack(tr.now, uint64(args[0]), seq)
		if err != nil {
			return err.Error(), nil
		}
		return fmt.Sprintf("settled %d", n), nil
	case "check":
		if err := tr.m.Check(tr.now); err != nil {
			return err.Error(), nil
		}
		return "ok", nil
	case "state":
	default:
		return "", fmt.Errorf("unknown verb %q", f[0])
	}
	return tr.state(), nil
}

func (tr *trace) state() string {
	due := ""
	if tr.m.ProbeDue(tr.now) {
		due = " due"
	}
	n, _ := tr.m.InFlight()
	var acked, next []string
	for i := range tr.m.lanes {
		acked = append(acked, strconv.FormatInt(tr.m.Acked(i), 10))
		next = append(next, strconv.FormatInt(tr.m.Next(i), 10))
	}
	s := fmt.Sprintf("%s%s inflight=%d acked=%s next=%s", tr.m.State(), due, n, strings.Join(acked, ","), strings.Join(next, ","))
	if d := tr.m.Deadline(); !d.IsZero() {
		s += " deadline=" + d.Sub(tr.start).String()
	}
	if tr.m.Seq() != 0 {
		s += fmt.Sprintf(" seq=%d", tr.m.Seq())
	}
	return s
}
