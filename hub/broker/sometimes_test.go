package broker

import "testing"

func TestSometimes(t *testing.T) {
	var s sometimes
	for i, c := range []struct {
		atMs    int64
		skipped int64
		say     bool
	}{{1, 0, true}, {2, 0, false}, {10_000, 0, false}, {10_001, 2, true}, {10_002, 0, false}, {90_000, 1, true}} {
		if n, say := s.next(c.atMs); n != c.skipped || say != c.say {
			t.Errorf("step %d at %d ms: %d, %v, want %d, %v", i, c.atMs, n, say, c.skipped, c.say)
		}
	}
}
