package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ticksPerS is the unit of CPU times in /proc: fixed by the kernel for what it shows to programs.
const ticksPerS = 100

// usage is what a process has used so far, and its resident memory now.
type usage struct {
	cpu time.Duration
	rss int64
}

// processUsage reads /proc/PID/stat.
func processUsage(pid int) (usage, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return usage{}, fmt.Errorf("process %d cannot be looked at; give the broker's id with --pid, or leave it out: %w", pid, err)
	}
	return parseStat(string(b), os.Getpagesize())
}

// parseStat: the name is in parentheses and may hold anything; utime and stime are the 12th and 13th field after it,
// the resident pages the 22nd.
func parseStat(s string, page int) (usage, error) {
	f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(f) < 22 {
		return usage{}, fmt.Errorf("the stat file of the process has %d fields", len(f))
	}
	var n [3]int64
	for i, at := range []int{11, 12, 21} {
		v, err := strconv.ParseInt(f[at], 10, 64)
		if err != nil {
			return usage{}, fmt.Errorf("the stat file of the process: %w", err)
		}
		n[i] = v
	}
	return usage{cpu: time.Duration(n[0]+n[1]) * time.Second / ticksPerS, rss: n[2] * int64(page)}, nil
}

// target watches the broker's process; without a pid it knows nothing.
type target struct {
	pid int

	mu   sync.Mutex
	peak int64 // largest resident memory seen; guarded by mu
	last usage // guarded by mu
}

// now is the usage at the moment, the last known when the process has ended.
func (t *target) now() usage {
	if t.pid == 0 {
		return usage{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if u, err := processUsage(t.pid); err == nil {
		t.last, t.peak = u, max(t.peak, u.rss)
	}
	return t.last
}

func (t *target) peakRSS() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.peak
}

// Target is what the broker's process used during the measured part.
type Target struct {
	PID             int     `json:"pid"`
	CPUSeconds      float64 `json:"cpu_s"`
	CPUPercent      float64 `json:"cpu_percent"`        // of one core
	CPUUsPerMessage float64 `json:"cpu_us_per_message"` // of the larger of published and received; of connects
	RSSBeforeBytes  int64   `json:"rss_before_bytes"`   // before the first connection
	RSSAfterBytes   int64   `json:"rss_after_bytes"`
	RSSPeakBytes    int64   `json:"rss_peak_bytes"` // of samples
}

// cost relates two looks at the process to what was done between them.
func cost(pid int, before int64, from, to usage, took time.Duration, done int64) *Target {
	if pid == 0 {
		return nil
	}
	t := &Target{PID: pid, RSSBeforeBytes: before, RSSAfterBytes: to.rss}
	cpu := to.cpu - from.cpu
	t.CPUSeconds = round(cpu.Seconds(), 2)
	if took > 0 {
		t.CPUPercent = round(100*cpu.Seconds()/took.Seconds(), 2)
	}
	if done > 0 {
		t.CPUUsPerMessage = round(float64(cpu.Nanoseconds())/1e3/float64(done), 3)
	}
	return t
}

// cpuTicksEnough: with fewer the last digit of a cost is noise of more than two percent.
const cpuTicksEnough = 50

func (t *Target) note() string {
	if t == nil || t.CPUSeconds*ticksPerS >= cpuTicksEnough {
		return ""
	}
	return fmt.Sprintf("the broker's CPU is known to %.2f s of %.2f: take more messages for a figure that means something", 1.0/ticksPerS, t.CPUSeconds)
}
