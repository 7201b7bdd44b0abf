package meta

import (
	"fmt"
	"testing"
)

// TestIndexWritten: what is flushed counts, with what it costs, and nothing does while the index is suspended.
func TestIndexWritten(t *testing.T) {
	s, _ := open_(t, testOptions(t.TempDir()))
	before := s.IndexWritten()
	put := func() {
		for i := range 1000 {
			s.Put(fmt.Appendf(nil, "key/%d", i), make([]byte, 100))
		}
	}
	put()
	check(t, s.Flush())
	if n := s.IndexWritten() - before; n < 2*1000*100 || n > 2_000_000 {
		t.Error(n)
	}
	before = s.IndexWritten()
	s.Suspend()
	put()
	check(t, s.Commit())
	if n := s.IndexWritten() - before; n != 0 {
		t.Error(n)
	}
}
