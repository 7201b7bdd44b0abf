package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"edgehub/ctl/bench"
)

// tables collects results and writes medians.
type tables struct {
	p       *plan
	machine string
	results map[string]map[string][]*bench.Result // by load and broker
	errs    map[string]map[string]error
}

func newTables(p *plan, machine string) *tables {
	return &tables{p: p, machine: machine, results: map[string]map[string][]*bench.Result{}, errs: map[string]map[string]error{}}
}

func (t *tables) add(r row, broker string, res *bench.Result, err error) {
	if t.results[r.name] == nil {
		t.results[r.name], t.errs[r.name] = map[string][]*bench.Result{}, map[string]error{}
	}
	if err != nil {
		t.errs[r.name][broker] = err
		return
	}
	t.results[r.name][broker] = append(t.results[r.name][broker], res)
}

// metric is a table: a figure of each result, and which direction is better.
type metric struct {
	title  string
	of     func(*bench.Result) (float64, bool)
	digits int
	more   bool // better
	conns  bool
	lossy  bool // figures of runs that lost messages are shown, and marked
}

var metrics = []metric{
	{"CPU of the broker, µs per message (per delivery in fan-out)", func(r *bench.Result) (float64, bool) { return cpuOf(r), r.Target != nil }, 2, false, false, true},
	{"Messages received per second", func(r *bench.Result) (float64, bool) { return r.ReceivedPerS, true }, 0, true, false, true},
	{"Delay from publisher to subscriber at P99, ms", func(r *bench.Result) (float64, bool) {
		if r.Delivery == nil {
			return 0, false
		}
		return r.Delivery.P99Ms, true
	}, 2, false, false, true},
	{"Resident memory of the broker at its peak, MiB", func(r *bench.Result) (float64, bool) {
		if r.Target == nil {
			return 0, false
		}
		return float64(r.Target.RSSPeakBytes) / (1 << 20), true
	}, 0, false, false, true},
}

// connMetrics are rows of the one table about connections.
var connMetrics = []metric{
	{"resident memory per connection, bytes", func(r *bench.Result) (float64, bool) { return r.Connections.RSSPerOne, true }, 0, false, true, false},
	{"CPU per connect, µs", func(r *bench.Result) (float64, bool) { return r.Connections.CPUUsPerOne, true }, 1, false, true, false},
	{"CPU while idle, % of a core", func(r *bench.Result) (float64, bool) { return r.Connections.IdleCPUPercent, true }, 2, false, true, false},
	{"connected per second", func(r *bench.Result) (float64, bool) { return r.Connections.ConnectedPerS, true }, 0, true, true, false},
}

// figure is the median of some rounds, with its range.
type figure struct {
	median, least, most float64
	ok                  bool
	lost, disordered    bool
}

// figureOf sums up one cell.
func (t *tables) figureOf(m *metric, load, broker string) figure {
	var all []float64
	var f figure
	for _, r := range t.results[load][broker] {
		if v, ok := m.of(r); ok {
			all = append(all, v)
		}
		f.lost = f.lost || r.Lost > 0
		f.disordered = f.disordered || r.Disordered > 0
	}
	if len(all) == 0 {
		return f
	}
	slices.Sort(all)
	f.median, f.least, f.most, f.ok = median(all), all[0], all[len(all)-1], true
	return f
}

// median of sorted values.
func median(sorted []float64) float64 {
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// ratio of the hub to the best of the others; a broker that lost or misordered what it had promised is none of them.
func (t *tables) ratio(m *metric, r row) (float64, bool) {
	hub := t.figureOf(m, r.name, "hub")
	best, found := 0.0, false
	for _, b := range t.p.brokers {
		f := t.figureOf(m, r.name, b)
		if b == "hub" || !f.ok || f.lost && !r.lossOK || f.disordered {
			continue
		}
		if !found || m.more && f.median > best || !m.more && f.median < best {
			best, found = f.median, true
		}
	}
	if !hub.ok || !found || best == 0 {
		return 0, false
	}
	return hub.median / best, true
}

func (t *tables) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", t.machine)
	fmt.Fprintf(&b, "Medians of %s, lowest and highest in parentheses. %s each, a new broker each time.\n", plural(t.p.rounds, "round"), t.p.length())
	for i := range metrics {
		t.table(&b, &metrics[i])
	}
	t.connections(&b)
	t.remarks(&b)
	return b.String()
}

func (p *plan) length() string {
	if p.quick {
		return fmt.Sprintf("Quick: %v s of load", p.seconds)
	}
	return fmt.Sprintf("%v s of load after a warm-up", p.seconds)
}

func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

func (t *tables) head(b *strings.Builder, first string) {
	fmt.Fprintf(b, "| %s | %s | hub ÷ best other |\n|%s\n", first, strings.Join(t.p.brokers, " | "), strings.Repeat(" --- |", len(t.p.brokers)+2))
}

func (t *tables) table(b *strings.Builder, m *metric) {
	fmt.Fprintf(b, "\n**%s**\n\n", m.title)
	t.head(b, "load")
	for _, r := range t.p.rows {
		if !r.conns && t.results[r.name] != nil {
			t.row(b, m, r, r.name)
		}
	}
}

func (t *tables) row(b *strings.Builder, m *metric, r row, name string) {
	fmt.Fprintf(b, "| %s |", name)
	for _, broker := range t.p.brokers {
		fmt.Fprintf(b, " %s |", t.cell(m, r, broker))
	}
	if v, ok := t.ratio(m, r); ok {
		fmt.Fprintf(b, " %.2f |\n", v)
	} else {
		b.WriteString(" – |\n")
	}
}

func (t *tables) cell(m *metric, r row, broker string) string {
	f := t.figureOf(m, r.name, broker)
	if !f.ok {
		if t.errs[r.name][broker] != nil {
			return "failed"
		}
		return "–"
	}
	text := number(f.median, m.digits)
	if t.p.rounds > 1 {
		text += fmt.Sprintf(" (%s–%s)", number(f.least, m.digits), number(f.most, m.digits))
	}
	if f.lost {
		text += " ¹"
	}
	if f.disordered {
		text += " ²"
	}
	return text
}

// number writes with thousands separated.
func number(v float64, digits int) string {
	s := fmt.Sprintf("%.*f", digits, v)
	whole, rest, _ := strings.Cut(s, ".")
	for at := len(whole) - 3; at > 0 && whole[at-1] != '-'; at -= 3 {
		whole = whole[:at] + "," + whole[at:]
	}
	if rest != "" {
		return whole + "." + rest
	}
	return whole
}

func (t *tables) connections(b *strings.Builder) {
	for _, r := range t.p.rows {
		if !r.conns || t.results[r.name] == nil {
			continue
		}
		n := r.counted
		if t.p.quick {
			n = r.quick
		}
		fmt.Fprintf(b, "\n**%s connections, idle**\n\n", n)
		t.head(b, "per process")
		for i := range connMetrics {
			t.row(b, &connMetrics[i], r, connMetrics[i].title)
		}
	}
}

func (t *tables) remarks(b *strings.Builder) {
	b.WriteString("\n¹ lost messages ² delivered out of order\n\n")
	for _, r := range t.p.rows {
		for _, broker := range t.p.brokers {
			var lost, disordered, twice []string
			for _, x := range t.results[r.name][broker] {
				if x.Lost > 0 {
					lost = append(lost, fmt.Sprintf("%.3g %%", 100*float64(x.Lost)/float64(max(x.Expected, 1))))
				}
				if x.Disordered > 0 {
					disordered = append(disordered, number(float64(x.Disordered), 0))
				}
				if x.Duplicated > 0 {
					twice = append(twice, number(float64(x.Duplicated), 0))
				}
			}
			for i, list := range [][]string{lost, disordered, twice} {
				if len(list) > 0 {
					what := []string{"lost", "out of order", "delivered twice"}[i]
					fmt.Fprintf(b, "- %s, %s: %s %s\n", broker, r.name, what, strings.Join(list, ", "))
				}
			}
			if err := t.errs[r.name][broker]; err != nil {
				fmt.Fprintf(b, "- %s, %s: %s\n", broker, r.name, strings.ReplaceAll(err.Error(), "\n", "; "))
			}
		}
	}
}

// aboutMachine is what a table must say of where it was made.
func aboutMachine(ctx context.Context) string {
	text := fmt.Sprintf("%s, %d cores, %s", time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), runtime.Version())
	for _, c := range [][]string{{"uname", "-sr"}, {"git", "describe", "--always", "--dirty"}} {
		if out, err := exec.CommandContext(ctx, c[0], c[1:]...).Output(); err == nil {
			text += ", " + strings.TrimSpace(string(out))
		}
	}
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		text += ", load average before " + strings.Join(strings.Fields(string(b))[:2], " ")
	}
	if out, err := exec.CommandContext(ctx, "sh", "-c", "PATH=$PATH:/usr/sbin; mosquitto -h 2>/dev/null | head -1").Output(); err == nil {
		text += "; " + strings.TrimSpace(string(out))
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			if name, ok := peerModules[d.Path]; ok {
				text += ", " + name + " " + d.Version
			}
		}
	}
	return text + ".\n"
}

var peerModules = map[string]string{"github.com/nats-io/nats-server/v2": "nats-server", "github.com/mochi-mqtt/server/v2": "mochi"}

// Markers of the generated part of a document. What stands outside is nobody's here.
const (
	markBegin = "<!-- make bench-peers begins -->"
	markEnd   = "<!-- make bench-peers ends -->"
)

// replaceBetweenMarkers puts text between the markers of a file.
func replaceBetweenMarkers(path, text string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok1 := bytes.Cut(old, []byte(markBegin))
	_, after, ok2 := bytes.Cut(rest, []byte(markEnd))
	if !ok1 || !ok2 {
		return errors.New(path + " has no lines " + markBegin + " and " + markEnd)
	}
	out := slices.Concat(before, []byte(markBegin+"\n\n"+text+"\n"+markEnd), after)
	return os.WriteFile(path, out, 0o644)
}
