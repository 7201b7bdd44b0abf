package load

import (
	"testing"
)

// sentFleet is a fleet of one publisher that has sent n messages, once each.
func sentFleet(qos byte, n int, st state) *Fleet {
	f := New(Options{Name: "t", Publishers: 1, QoS: func(int) byte { return qos }})
	for range n {
		f.pubs[0].states = append(f.pubs[0].states, st)
		f.pubs[0].sends = append(f.pubs[0].sends, 1)
	}
	return f
}

func TestCheckerVerdicts(t *testing.T) {
	for _, tt := range []struct {
		name   string
		qos    byte
		log    []uint64
		change func(*Fleet)
		want   func(Report) int64 // 1 when the verdict is there
		ok     bool
	}{
		{"exact", 1, []uint64{0, 1, 2}, nil, func(r Report) int64 { return r.Logged - 2 }, true},
		{"missing", 1, []uint64{0, 1}, nil, func(r Report) int64 { return r.Missing }, false},
		{"not acknowledged, not logged", 1, []uint64{0, 1}, func(f *Fleet) { f.pubs[0].states[2] = stateSent },
			func(r Report) int64 { return 3 - r.Checked }, true},
		{"honest resend", 1, []uint64{0, 1, 1, 2}, func(f *Fleet) { f.pubs[0].sends[1] = 2 },
			func(r Report) int64 { return r.Resent }, true},
		{"copy without a resend", 1, []uint64{0, 1, 1, 2}, nil, func(r Report) int64 { return r.Duplicated }, false},
		{"QoS 2 copy in spite of a resend", 2, []uint64{0, 1, 1, 2}, func(f *Fleet) { f.pubs[0].sends[1] = 2 },
			func(r Report) int64 { return r.Duplicated }, false},
		{"QoS 2 received and not logged", 2, []uint64{0, 1}, func(f *Fleet) { f.pubs[0].states[2] = stateReceived },
			func(r Report) int64 { return r.Missing }, false},
		{"swapped", 1, []uint64{0, 2, 1}, nil, func(r Report) int64 { return r.OutOfOrder - 1 }, false},
		{"never sent", 1, []uint64{0, 1, 2, 3}, nil, func(r Report) int64 { return r.NeverSent }, false},
		{"refused", 1, []uint64{0, 1, 2}, func(f *Fleet) { f.refused.Add(1) }, func(r Report) int64 { return r.Refused }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := sentFleet(tt.qos, 3, stateAcked)
			if tt.change != nil {
				tt.change(f)
			}
			c := NewChecker(f)
			for i, seq := range tt.log {
				c.Add("0-0", int64(i), "load/t/0", appendPayload(nil, "t", 0, seq, 30))
			}
			r := c.Report()
			if tt.want(r) != 1 || r.OK() != tt.ok {
				t.Errorf("ok %t, want %t: %v", r.OK(), tt.ok, r.String())
			}
		})
	}
}

func TestCheckerPlaces(t *testing.T) {
	c := NewChecker(sentFleet(1, 3, stateAcked))
	c.Add("0-0", 0, "load/t/0", appendPayload(nil, "t", 0, 0, 30))
	c.Add("1-0", 0, "load/t/0", appendPayload(nil, "t", 0, 1, 30))
	c.Add("0-0", 1, "load/t/x", appendPayload(nil, "t", 0, 2, 30))
	c.Add("0-0", 2, "load/t/x", []byte("something else"))
	if r := c.Report(); r.WrongPlace != 2 || r.OtherRecords != 1 || r.OK() {
		t.Error(r.String())
	}
}

func TestCheckerMark(t *testing.T) {
	f := sentFleet(1, 3, stateAcked)
	f.pubs[0].states[2] = stateSent
	c := NewChecker(f)
	c.Mark()
	f.pubs[0].states[2] = stateAcked // after the mark: not in the log that is read now
	for seq := range uint64(2) {
		c.Add("0-0", int64(seq), "load/t/0", appendPayload(nil, "t", 0, seq, 30))
	}
	if r := c.Report(); !r.OK() || r.Checked != 2 {
		t.Error(r.String())
	}
	c.Mark()
	if r := c.Report(); r.OK() || r.Missing != 1 {
		t.Error(r.String())
	}
}

func TestPayload(t *testing.T) {
	b := appendPayload(nil, "abc", 17, 123456, 50)
	name, pub, seq, ok := ParsePayload(b)
	if !ok || name != "abc" || pub != 17 || seq != 123456 || len(b) != 50 {
		t.Errorf("%q: %q %d %d %t", b, name, pub, seq, ok)
	}
	for _, bad := range []string{"", "abc", "a-1-", "a-x-2-", "a-1-x-", "a--1-2-", "a-1-2"} {
		if _, _, _, ok := ParsePayload([]byte(bad)); ok {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestPacketIDsComeBack(t *testing.T) {
	for _, base := range []uint64{0, 1, 65533, 65534, 65535, 65536, 131069, 131070, 1 << 40} {
		for _, delta := range []uint64{0, 1, 63, 1000, 65534} {
			id := packetID(base + delta)
			if got := base + (uint64(id)+65534-base%65535)%65535; id == 0 || got != base+delta {
				t.Errorf("base %d delta %d: id %d is number %d", base, delta, id, got)
			}
		}
	}
}
