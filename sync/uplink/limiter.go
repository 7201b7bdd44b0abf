package uplink

import "time"

// bucket is a token bucket that may go into debt: a record is sent when nothing
// is owed and pays afterwards, so that one larger than the burst passes too. A
// rate of zero is no limit.
type bucket struct {
	rate  float64 // per second
	burst float64
	have  float64
	last  time.Time
}

// burstTime is how much of a second's rate may go at once.
const burstTime = 100 * time.Millisecond

func newBucket(perSecond int64) bucket {
	r := float64(perSecond)
	return bucket{rate: r, burst: max(1, r*burstTime.Seconds())}
}

// wait returns how long nothing may be sent.
func (b *bucket) wait(now time.Time) time.Duration {
	if b.rate <= 0 {
		return 0
	}
	if b.last.IsZero() {
		b.have = b.burst
	} else if d := now.Sub(b.last); d > 0 {
		b.have = min(b.burst, b.have+d.Seconds()*b.rate)
	}
	b.last = now
	if b.have > 0 {
		return 0
	}
	return time.Duration(-b.have/b.rate*float64(time.Second)) + time.Millisecond
}

// pay takes n off.
func (b *bucket) pay(n int) {
	if b.rate > 0 {
		b.have -= float64(n)
	}
}
