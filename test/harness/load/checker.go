package load

import (
	"fmt"
	"slices"
	"strings"
)

// Checker holds records of a log, in log order, against what a fleet sent.
// Records may be added while the fleet works, as long as no record is added
// before it was sent.
type Checker struct {
	f      *Fleet
	copies [][]uint8 // by publisher and number
	next   []uint64  // by publisher: the number whose first copy must come next
	parts  []string  // by publisher: where its topic lives
	marked [][]state // by publisher and number; nil before Mark
	r      Report
}

// Report is the outcome of a check.
type Report struct {
	Counters
	Logged       int64 // records of the fleet
	Checked      int64 // acknowledged numbers looked up
	Missing      int64 // acknowledged, not in the log
	Resent       int64 // further copies that the publisher's own resends explain
	Duplicated   int64 // further copies that nothing explains
	OutOfOrder   int64 // first copies that come before an earlier number's
	WrongPlace   int64 // records on another topic, or on a second partition
	NeverSent    int64 // records with a number that was never given out
	OtherRecords int64 // records of somebody else
	Examples     []string
}

// NewChecker prepares a check of one fleet.
func NewChecker(f *Fleet) *Checker {
	n := len(f.pubs)
	return &Checker{f: f, copies: make([][]uint8, n), next: make([]uint64, n), parts: make([]string, n)}
}

func (c *Checker) example(format string, args ...any) {
	if len(c.r.Examples) < 10 {
		c.r.Examples = append(c.r.Examples, fmt.Sprintf(format, args...))
	}
}

// Add takes the next record of a partition.
func (c *Checker) Add(partition string, offset int64, topic string, payload []byte) {
	name, pub, seq, ok := ParsePayload(payload)
	if !ok || name != c.f.o.Name || pub >= len(c.f.pubs) {
		c.r.OtherRecords++
		return
	}
	c.r.Logged++
	p := c.f.pubs[pub]
	if c.parts[pub] == "" {
		c.parts[pub] = partition
	}
	if topic != p.topic || partition != c.parts[pub] {
		c.r.WrongPlace++
		c.example("publisher %d number %d: %s/%d on topic %q, want %s on %q", pub, seq, partition, offset, topic, c.parts[pub], p.topic)
	}
	p.mu.Lock()
	sent := uint64(len(p.states))
	p.mu.Unlock()
	if seq >= sent {
		c.r.NeverSent++
		c.example("publisher %d: %s/%d has number %d, only %d were sent", pub, partition, offset, seq, sent)
		return
	}
	for uint64(len(c.copies[pub])) <= seq {
		c.copies[pub] = append(c.copies[pub], 0)
	}
	c.copies[pub][seq]++
	if c.copies[pub][seq] > 1 {
		return
	}
	if seq != c.next[pub] {
		c.r.OutOfOrder++
		c.example("publisher %d: %s/%d is number %d, want %d", pub, partition, offset, seq, c.next[pub])
	}
	c.next[pub] = max(c.next[pub], seq+1)
}

// Mark remembers what is acknowledged now. Take it while the hub is down; a
// Report about the log that is read after the restart is then not confused by
// what goes on meanwhile.
func (c *Checker) Mark() {
	c.marked = make([][]state, len(c.f.pubs))
	for i, p := range c.f.pubs {
		p.mu.Lock()
		c.marked[i] = slices.Clone(p.states)
		p.mu.Unlock()
	}
}

// Report judges what has been added so far against what was acknowledged at
// the last Mark, without one against what is acknowledged now. Every record
// that was logged before must have been added.
func (c *Checker) Report() Report {
	r := c.r
	r.Examples = append([]string(nil), c.r.Examples...)
	for i, p := range c.f.pubs {
		c.publisher(&r, i, p)
	}
	r.Counters = c.f.Counters()
	return r
}

func (c *Checker) publisher(r *Report, index int, p *publisher) {
	p.mu.Lock()
	defer p.mu.Unlock()
	states := p.states
	if c.marked != nil {
		states = c.marked[index]
	}
	for seq, st := range states {
		copies := uint8(0)
		if seq < len(c.copies[index]) {
			copies = c.copies[index][seq]
		}
		// PUBREC is a promise too: QoS 2 is acknowledged in two steps.
		if st == stateAcked || st == stateReceived {
			r.Checked++
			if copies == 0 {
				r.Missing++
				if len(r.Examples) < 10 {
					r.Examples = append(r.Examples, fmt.Sprintf("publisher %d number %d is acknowledged and not in the log", index, seq))
				}
			}
		}
		allowed := uint8(1)
		if p.qos == 1 {
			allowed = p.sends[seq]
		}
		switch {
		case copies > allowed:
			r.Duplicated += int64(copies - allowed)
			if len(r.Examples) < 10 {
				r.Examples = append(r.Examples, fmt.Sprintf("publisher %d number %d, QoS %d, sent %d times: %d copies", index, seq, p.qos, p.sends[seq], copies))
			}
		case copies > 1:
			r.Resent += int64(copies - 1)
		}
	}
}

// OK reports whether the log keeps every promise to the fleet.
func (r *Report) OK() bool {
	return r.Missing+r.Duplicated+r.OutOfOrder+r.WrongPlace+r.NeverSent+r.Refused+r.Protocol+r.NoSession+r.BadConnack == 0
}

// String is a few lines: the counters, the verdicts, examples.
func (r *Report) String() string {
	s := fmt.Sprintf("%v\nlog: %d records, %d acknowledged ids checked, missing %d, resent %d, duplicated %d, out of order %d, wrong place %d, never sent %d, of others %d",
		r.Counters, r.Logged, r.Checked, r.Missing, r.Resent, r.Duplicated, r.OutOfOrder, r.WrongPlace, r.NeverSent, r.OtherRecords)
	return strings.Join(append([]string{s}, r.Examples...), "\n  ")
}
