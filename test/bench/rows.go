package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"edgehub/ctl/bench"
)

// row is one load.
type row struct {
	name    string
	args    string // of hubctl bench
	counted string // -n, when it ends by count
	quick   string // the same with -quick
	only    string // the one broker it is for
	synced  bool   // the hub's durability
	conns   bool   // about connections, not messages
	lossOK  bool   // QoS 0 promises nothing
	beside  string // what drains a backlog meanwhile: a session or an uplink
}

// rows are the loads of the tables. What is published is counted where the end matters, and goes on for a time
// elsewhere.
var rows = []row{
	{name: "fan-in 50→1, QoS 0", args: "fan-in --qos 0", lossOK: true},
	{name: "fan-in 50→1, QoS 1", args: "fan-in --qos 1"},
	{name: "fan-in 50→1, QoS 2", args: "fan-in --qos 2 --window 16"},
	{name: "fan-in 20→1 at 10,000/s, QoS 1", args: "fan-in --qos 1 -p 20 --rate 10000"},
	{name: "fan-in 8→1, 4 KiB, QoS 1", args: "fan-in --qos 1 -p 8 --size 4096"},
	{name: "fan-out 1→500, QoS 0", args: "fan-out --qos 0", counted: "1000", quick: "200", lossOK: true},
	{name: "fan-out 1→500, QoS 1", args: "fan-out --qos 1"},
	{name: "200 pairs, QoS 1", args: "pairs --qos 1"},
	{name: "offline, QoS 1", args: "offline --qos 1", counted: "200000", quick: "30000"},
	{name: "synced, 10,000/s, QoS 1", args: "fan-in --qos 1 -p 20 --rate 10000", only: "hub", synced: true},
	{name: "4 KiB at 50,000/s, QoS 1", args: "fan-in --qos 1 -p 8 --size 4096 --rate 50000", only: "hub"},
	{name: "10,000/s beside a session that drains 1 GiB", args: "fan-in --qos 1 -p 20 --rate 10000", only: "hub", beside: besideSession},
	{name: "10,000/s beside an uplink that drains 1 GiB", args: "fan-in --qos 1 -p 20 --rate 10000", only: "hub", beside: besideUplink},
	{name: "idle connections", args: "idle", counted: "15000", quick: "2000", conns: true},
}

// measureLimit bounds one measurement, whatever a broker does.
const measureLimit = 90 * time.Second

// arguments completes those of hubctl for one broker.
func (p *plan) arguments(r row, b *broker) []string {
	args := append([]string{"bench"}, strings.Fields(r.args)...)
	args = append(args, "-b", b.addr, "--pid", strconv.Itoa(b.pid), "--label", b.name, "-o", "json", "-q", "--limit", "60s")
	if !r.conns {
		args = append(args, "--topic", "devices/%d/telemetry", "--settle", "3s")
	}
	n := r.counted
	if p.quick {
		n = r.quick
	}
	switch {
	case r.conns:
		hold := max(2*p.seconds, 2)
		args = append(args, "-c", n, "--hold", seconds(hold))
	case n != "":
		args = append(args, "-n", n)
	default:
		args = append(args, "-d", seconds(p.seconds), "-w", seconds(min(1, p.seconds/3)))
	}
	return args
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond).String()
}

// measure starts a broker, puts the load on it and stops it.
func (p *plan) measure(ctx context.Context, hubctl, name string, r row) (res *bench.Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, measureLimit)
	defer cancel()
	b, err := starters[name](r)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	if b.beside != nil {
		end, err := b.beside(p.quick)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, end()) }()
	}
	cmd := exec.CommandContext(ctx, hubctl, p.arguments(r, b)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	res = new(bench.Result)
	return res, json.Unmarshal(stdout.Bytes(), res)
}

// oneLine says what a measurement gave.
func oneLine(r *bench.Result, err error) string {
	switch {
	case err != nil:
		return strings.ReplaceAll(err.Error(), "\n", "; ")
	case r.Connections != nil:
		c := r.Connections
		return fmt.Sprintf("%d connected, %.0f B and %.0f µs each, idle %.2f %%", c.Connected, c.RSSPerOne, c.CPUUsPerOne, c.IdleCPUPercent)
	}
	text := fmt.Sprintf("%.2f µs, %.0f/s", cpuOf(r), r.ReceivedPerS)
	if r.Delivery != nil {
		text += fmt.Sprintf(", P99 %.2f ms", r.Delivery.P99Ms)
	}
	if r.Lost+r.Duplicated+r.Disordered > 0 {
		text += fmt.Sprintf(", lost %d, twice %d, out of order %d", r.Lost, r.Duplicated, r.Disordered)
	}
	return text
}

func cpuOf(r *bench.Result) float64 {
	if r.Target == nil {
		return 0
	}
	return r.Target.CPUUsPerMessage
}

// writeRaw keeps one result as it was.
func writeRaw(w io.Writer, broker string, round int, r row, res *bench.Result) error {
	return json.NewEncoder(w).Encode(map[string]any{"broker": broker, "round": round + 1, "load": r.name, "result": res})
}
