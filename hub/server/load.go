package server

import (
	"math"
	"strconv"
	"time"
)

// loads are the averages over 1, 5 and 15 minutes of what is counted, each as a number per minute: exponential, like the
// load of a machine, so that what was counted that long ago still has a weight of 1/e.
type loads struct {
	last map[string]int64
	per  map[string]*[3]float64
	at   time.Time
}

// loadSpans are the spans with their names in $SYS.
var loadSpans = [3]struct {
	name string
	span time.Duration
}{{"1min", time.Minute}, {"5min", 5 * time.Minute}, {"15min", 15 * time.Minute}}

// update takes the counters as they are now.
func (l *loads) update(now time.Time, counters map[string]int64) {
	if l.last == nil {
		l.last, l.per, l.at = map[string]int64{}, map[string]*[3]float64{}, now
	}
	elapsed := now.Sub(l.at)
	l.at = now
	for name, n := range counters {
		a := l.per[name]
		if a == nil {
			a = &[3]float64{}
			l.per[name] = a
		}
		if elapsed > 0 {
			rate := float64(n-l.last[name]) / elapsed.Minutes()
			for i, s := range loadSpans {
				old := math.Exp(-float64(elapsed) / float64(s.span))
				a[i] = a[i]*old + rate*(1-old)
			}
		}
		l.last[name] = n
	}
}

// put adds the averages to values, as load/NAME/SPAN.
func (l *loads) put(values map[string]string) {
	for name, a := range l.per {
		for i, s := range loadSpans {
			values["load/"+name+"/"+s.name] = strconv.FormatFloat(a[i], 'f', 2, 64)
		}
	}
}
