package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"edgehub/ctl/bench"
	"edgehub/test/harness"
	"edgehub/test/harness/hubtest"
)

func TestMain(m *testing.M) {
	serveIfChild() // a broker of a row is this very binary
	hubtest.Main(m)
}

// Every load that ends by itself, against the hub: complete, once, in order.
func TestLoadsAgainstTheHub(t *testing.T) {
	h := hubtest.Start(t, nil)
	loads(t, h.Addr(), h.Process().PID(), bench.MQTT311, bench.MQTT5)
}

// The same against a broker that is not ours, so that load and hub cannot be wrong the same way.
func TestLoadsAgainstMosquitto(t *testing.T) {
	m, err := harness.StartMosquitto("")
	if errors.Is(err, harness.ErrNoMosquitto) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Remove() })
	loads(t, m.Addr, m.PID(), bench.MQTT311, bench.MQTT5)
}

func loads(t *testing.T, addr string, pid int, versions ...byte) {
	for _, version := range versions {
		for _, l := range []bench.Load{
			{Mode: bench.FanIn, Publishers: 5, Messages: 2000},
			{Mode: bench.FanIn, Publishers: 5, Messages: 2000, QoS: 1},
			{Mode: bench.FanIn, Publishers: 5, Messages: 1000, QoS: 2, Window: 8},
			{Mode: bench.FanIn, Publishers: 5, Messages: 500, QoS: 2, RatePerS: 2000},
			{Mode: bench.FanOut, Subscribers: 20, Messages: 100, QoS: 2, Topics: 3},
			{Mode: bench.Pairs, Publishers: 10, Messages: 500, QoS: 1},
			{Mode: bench.Mixed, Publishers: 6, Subscribers: 6, Messages: 600},
			{Mode: bench.Offline, Publishers: 3, Subscribers: 2, Messages: 1000, QoS: 1},
			{Mode: bench.Offline, Publishers: 3, Subscribers: 1, Messages: 500, QoS: 2},
			{Mode: bench.Storm, Connections: 50},
			{Mode: bench.Idle, Connections: 50, Hold: 100 * time.Millisecond, KeepAlive: time.Second},
		} {
			l.Address, l.PID, l.Version, l.SubQoS = addr, pid, version, -1
			l.Complete()
			if err := l.Check(); err != nil {
				t.Fatal(err)
			}
			r, err := bench.Run(t.Context(), &l, nil)
			if err != nil {
				t.Errorf("%s, QoS %d, version %d: %v", l.Mode, l.QoS, version, err)
				continue
			}
			if c := r.Connections; c != nil {
				if c.Connected != 50 || c.Failed != 0 || l.Mode == bench.Idle && c.AliveAfterHold != 50 {
					t.Errorf("%s, version %d: %+v", l.Mode, version, c)
				}
				continue
			}
			if r.Published != l.Messages || r.Received != r.Expected || r.Lost+r.Duplicated+r.Disordered+r.Foreign+r.Refused != 0 || r.Stalled {
				t.Errorf("%s, QoS %d, version %d: %+v", l.Mode, l.QoS, version, r)
			}
		}
	}
}

// One broker that is a child of this program's own kind needs the program itself; here it is the test binary, which is
// not one. So that path is left to bench-peers -quick; what follows is the arithmetic.
func sample(rounds int) (*plan, *tables) {
	p := &plan{rounds: rounds, seconds: 5, brokers: brokerNames, rows: rows[:2]}
	return p, newTables(p, "a machine\n")
}

func result(cpu, perS float64, lost int64) *bench.Result {
	return &bench.Result{ReceivedPerS: perS, Lost: lost, Expected: 1000, Target: &bench.Target{CPUUsPerMessage: cpu}}
}

func TestMediansAndRatios(t *testing.T) {
	_, x := sample(3)
	r := rows[1] // QoS 1
	for i, v := range []float64{1.0, 0.5, 0.7} {
		x.add(r, "hub", result(v, 100*float64(i+1), 0), nil)
		x.add(r, "mosquitto", result(2*v, 50, 0), nil)
		x.add(r, "mochi", result(0.1, 1e6, 7), nil) // cheap, but it loses
	}
	x.add(r, "nats-server", nil, errors.New("did not start"))
	cpu, rate := &metrics[0], &metrics[1]
	if got := x.cell(cpu, r, "hub"); got != "0.70 (0.50–1.00)" {
		t.Errorf("cell %q", got)
	}
	if got := x.cell(cpu, r, "mochi"); got != "0.10 (0.10–0.10) ¹" {
		t.Errorf("cell of a broker that loses: %q", got)
	}
	if got := x.cell(cpu, r, "nats-server"); got != "failed" {
		t.Errorf("cell of a broker that failed: %q", got)
	}
	if v, ok := x.ratio(cpu, r); !ok || v != 0.5 {
		t.Errorf("CPU ratio %v, %v", v, ok)
	}
	if v, ok := x.ratio(rate, r); !ok || v != 4 {
		t.Errorf("rate ratio %v, %v", v, ok)
	}
	if _, ok := x.ratio(cpu, rows[0]); ok {
		t.Error("a ratio of nothing")
	}
	text := x.markdown()
	for _, want := range []string{"| hub | mosquitto | nats-server | mochi | hub ÷ best other |", "| 0.50 |", "- mochi, fan-in 50→1, QoS 1: lost 0.7 %", "did not start"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
	// A broker may lose QoS 0 and still be the best.
	x.add(rows[0], "hub", result(1, 1, 0), nil)
	x.add(rows[0], "mochi", result(0.5, 1, 7), nil)
	if v, ok := x.ratio(cpu, rows[0]); !ok || v != 2 {
		t.Errorf("QoS 0 ratio %v, %v", v, ok)
	}
}

func TestNumber(t *testing.T) {
	for _, c := range []struct {
		v      float64
		digits int
		want   string
	}{{0, 0, "0"}, {999, 0, "999"}, {1000, 0, "1,000"}, {1234567.891, 2, "1,234,567.89"}, {-1234, 0, "-1,234"}, {-123, 0, "-123"}} {
		if got := number(c.v, c.digits); got != c.want {
			t.Errorf("number(%v, %d) = %q, want %q", c.v, c.digits, got, c.want)
		}
	}
}

func TestOnlyWhatIsBetweenMarkersIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "doc.md")
	before, after := "# Mine\n\n", "\n\nMine too.\n"
	if err := os.WriteFile(path, []byte(before+markBegin+"\nold\n"+markEnd+after), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"first\n", "second\n"} {
		if err := replaceBetweenMarkers(path, text); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if want := before + markBegin + "\n\n" + text + "\n" + markEnd + after; err != nil || string(b) != want {
			t.Errorf("%q, %v; want %q", b, err, want)
		}
	}
	if err := os.WriteFile(path, []byte("no markers"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := replaceBetweenMarkers(path, "x"); err == nil {
		t.Error("a file without markers was overwritten")
	}
}

func TestMarkersAreInTheDocument(t *testing.T) {
	b, err := os.ReadFile("../../docs/BENCHMARKS.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(b), markBegin) || !strings.Contains(string(b), markEnd) {
		t.Error("docs/BENCHMARKS.md has no place for the tables")
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		args string
		ok   bool
	}{{"", true}, {"-quick", true}, {"-brokers hub,mochi -loads fan-out,idle", true}, {"-brokers rabbit", false}, {"-loads nothing", false}, {"-rounds -1", false}, {"-seconds 5000", false}, {"more", false}} {
		p, err := parse(strings.Fields(c.args))
		if (err == nil) != c.ok {
			t.Errorf("%q: %v", c.args, err)
		}
		if err == nil && (len(p.rows) == 0 || len(p.brokers) == 0 || p.rounds == 0) {
			t.Errorf("%q: %+v", c.args, p)
		}
	}
}

// The arguments of every row are those of a load that hubctl takes.
func TestMeasureOneRow(t *testing.T) {
	bin, err := harness.Build()
	if err != nil {
		t.Fatal(err)
	}
	p := &plan{rounds: 1, seconds: 0.2, quick: true}
	for _, r := range rows {
		if r.conns {
			r.quick = "50"
		} else if r.quick != "" {
			r.quick = "20"
		}
		res, err := p.measure(context.Background(), bin.Hubctl, "hub", r)
		if err != nil {
			t.Errorf("%s: %v", r.name, err)
			continue
		}
		if r.conns != (res.Connections != nil) || !r.conns && res.Received == 0 || oneLine(res, nil) == "" {
			t.Errorf("%s: %+v", r.name, res)
		}
		if !r.lossOK && res.Lost > 0 || res.Disordered > 0 {
			t.Errorf("%s: lost %d, out of order %d", r.name, res.Lost, res.Disordered)
		}
	}
}
