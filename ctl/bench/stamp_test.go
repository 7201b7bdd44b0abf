package bench

import "testing"

func TestStampRoundTrip(t *testing.T) {
	b := make([]byte, stampBytes)
	for _, s := range []stamp{{}, {1, 2, 3, 4}, {1<<48 - 1, 1<<16 - 1, 1<<32 - 1, 1<<32 - 1}} {
		s.put(b)
		if got, ok := readStamp(b); !ok || got != s {
			t.Errorf("%v came back as %v, %v", s, got, ok)
		}
	}
	if _, ok := readStamp(b[:stampBytes-1]); ok {
		t.Error("a payload too short for a stamp was taken")
	}
}
