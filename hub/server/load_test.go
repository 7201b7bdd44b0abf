package server

import (
	"math"
	"strconv"
	"testing"
	"time"
)

// A steady rate becomes the average of every span, the shorter ones sooner; when it ends they fall as they rose.
func TestLoads(t *testing.T) {
	var l loads
	now := time.Unix(1000, 0)
	n := int64(0)
	at := func(span string) float64 {
		values := map[string]string{}
		l.put(values)
		v, err := strconv.ParseFloat(values["load/messages/received/"+span], 64)
		if err != nil {
			t.Fatalf("%v: %v", values, err)
		}
		return v
	}
	steps := func(count int, each int64, every time.Duration) {
		for range count {
			now = now.Add(every)
			n += each
			l.update(now, map[string]int64{"messages/received": n})
		}
	}
	l.update(now, map[string]int64{"messages/received": 0})
	steps(6, 100, 10*time.Second) // 600 a minute, for a minute
	for span, minutes := range map[string]float64{"1min": 1, "5min": 5, "15min": 15} {
		if got, want := at(span), 600*(1-math.Exp(-1/minutes)); math.Abs(got-want) > 1 {
			t.Errorf("after a minute %s says %.2f, want %.2f", span, got, want)
		}
	}
	steps(720, 100, 10*time.Second) // two hours more, and uneven ticks
	steps(60, 10, time.Second)
	for _, span := range []string{"1min", "5min", "15min"} {
		if got := at(span); math.Abs(got-600) > 1 {
			t.Errorf("after hours %s says %.2f", span, got)
		}
	}
	steps(1, 0, time.Minute)
	if got, want := at("1min"), 600/math.E; math.Abs(got-want) > 1 {
		t.Errorf("a minute later 1min says %.2f, want %.2f", got, want)
	}
}
