// Command bench runs the hub beside mosquitto, nats-server and mochi, in turn and under the same loads, and writes the
// medians and ratios as tables. The load is `hubctl bench` in a process of its own; every figure comes from a broker
// that was started for it, on an empty directory, and is stopped by its process id.
//
//	go run ./test/bench -quick
//	go run ./test/bench -rounds 5 -out docs/BENCHMARKS.md
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"edgehub/test/harness"
)

// plan is what the command line asks for.
type plan struct {
	rounds  int
	seconds float64 // of the measured part of loads that end by time
	quick   bool
	brokers []string
	rows    []row
	out     string
	raw     string
}

func main() {
	serveIfChild()
	p, err := parse(os.Args[1:])
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		err = p.run(ctx)
		stop()
	}
	harness.RemoveBuilt()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parse(args []string) (*plan, error) {
	p := &plan{}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	rounds := flags.Int("rounds", 0, "how often each load is run on each broker; 0: 3, or 1 with -quick")
	seconds := flags.Float64("seconds", 0, "measured part of each load; 0: 5, or 1 with -quick")
	flags.BoolVar(&p.quick, "quick", false, "small and short: whether everything runs, not how fast")
	names := flags.String("brokers", strings.Join(brokerNames, ","), "which, in which order")
	loads := flags.String("loads", "", "only loads whose name contains one of these, separated by commas")
	flags.StringVar(&p.out, "out", "", "file that gets the tables between its markers; standard output without")
	flags.StringVar(&p.raw, "raw", "", "file that gets every single result, a line of JSON each")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	p.rounds, p.seconds = *rounds, *seconds
	if p.rounds == 0 {
		p.rounds = map[bool]int{true: 1, false: 3}[p.quick]
	}
	if p.seconds == 0 {
		p.seconds = map[bool]float64{true: 1, false: 5}[p.quick]
	}
	if p.rounds < 1 || p.rounds > 100 || p.seconds < 0.1 || p.seconds > 600 || flags.NArg() > 0 {
		return nil, errors.New("rounds are 1 to 100, seconds 0.1 to 600, and there are no other arguments")
	}
	for _, name := range strings.Split(*names, ",") {
		if starters[name] == nil {
			return nil, fmt.Errorf("there is no broker %q, but %s", name, strings.Join(brokerNames, ", "))
		}
		p.brokers = append(p.brokers, name)
	}
	for _, r := range rows {
		if *loads == "" || containsOne(r.name, strings.Split(*loads, ",")) {
			p.rows = append(p.rows, r)
		}
	}
	if len(p.rows) == 0 {
		return nil, fmt.Errorf("no load is called like %q", *loads)
	}
	return p, nil
}

func containsOne(s string, parts []string) bool {
	for _, p := range parts {
		if strings.Contains(s, p) {
			return true
		}
	}
	return false
}

// run measures round by round, so that what changes on the machine meanwhile meets all brokers.
func (p *plan) run(ctx context.Context) error {
	bin, err := harness.Build()
	if err != nil {
		return err
	}
	var raw *os.File
	if p.raw != "" {
		if raw, err = os.Create(p.raw); err != nil {
			return err
		}
		defer raw.Close()
	}
	t := newTables(p, aboutMachine(ctx))
	start := time.Now()
	for round := range p.rounds {
		for _, r := range p.rows {
			for _, name := range p.brokers {
				if r.only != "" && r.only != name {
					continue
				}
				res, err := p.measure(ctx, bin.Hubctl, name, r)
				if ctx.Err() != nil {
					return ctx.Err()
				}
				fmt.Fprintf(os.Stderr, "%6.0fs  round %d  %-28s %-12s %s\n", time.Since(start).Seconds(), round+1, r.name, name, oneLine(res, err))
				t.add(r, name, res, err)
				if raw != nil && err == nil {
					if err := writeRaw(raw, name, round, r, res); err != nil {
						return err
					}
				}
			}
		}
	}
	if p.out == "" {
		_, err = os.Stdout.WriteString(t.markdown())
		return err
	}
	return replaceBetweenMarkers(p.out, t.markdown())
}
