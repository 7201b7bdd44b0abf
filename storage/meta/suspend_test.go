package meta

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// TestSuspend: nothing reaches the index, everything is kept and read, keys that come and go do not gather, and after
// Resume, or a restart instead of it, all is as it should be.
func TestSuspend(t *testing.T) {
	for _, resume := range []bool{true, false} {
		t.Run(fmt.Sprint(resume), func(t *testing.T) {
			o := testOptions(t.TempDir())
			s, _ := open_(t, o)
			s.Put([]byte("before"), []byte("1"))
			s.Put([]byte("gone"), []byte("1"))
			if err := s.Flush(); err != nil {
				t.Fatal(err)
			}
			s.Suspend()
			flushes := s.Stats().Flushes
			s.Put([]byte("before"), []byte("2"))
			s.Delete([]byte("gone"))
			for i := range 3000 {
				key := fmt.Appendf(nil, "passing/%d", i)
				s.Put(key, make([]byte, 10_000))
				s.Put([]byte("counter"), fmt.Append(nil, i))
				s.Delete(key)
				if err := s.Commit(); err != nil {
					t.Fatal(i, err)
				}
			}
			s.PutHint([]byte("hint"), []byte("h"))
			if err := s.Flush(); !errors.Is(err, ErrSuspended) {
				t.Fatal(err)
			}
			if st := s.Stats(); st.Flushes != flushes || st.OverlayBytes > 10_000 {
				t.Fatalf("%+v", st)
			}
			want := func(s *Store) {
				t.Helper()
				got := map[string]string{}
				if err := s.Scan(nil, func(k, v []byte) error { got[string(k)] = string(v); return nil }); err != nil {
					t.Fatal(err)
				}
				if fmt.Sprint(got) != "map[before:2 counter:2999]" {
					t.Fatal(got)
				}
			}
			want(s)
			if resume {
				s.Resume()
				if err := s.Flush(); err != nil {
					t.Fatal(err)
				}
				if s.Stats().OverlayBytes != 0 {
					t.Errorf("%+v", s.Stats())
				}
				want(s)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if !resume { // the index was not closed, and this process still has its lock
				o.DataDir = copyDir(t, o.DataDir)
			}
			again, rec := open_(t, o)
			if rec.Quarantined != "" {
				t.Error(rec.Quarantined, rec.Reason)
			}
			want(again)
		})
	}
}

// TestIndexIsAFile: what stands where the index should be is moved away, again and again.
func TestIndexIsAFile(t *testing.T) {
	o := testOptions(t.TempDir())
	for i := range quarantinedMax + 2 {
		s, rec := open_(t, o)
		if i > 0 && (rec.Quarantined == "" || !rec.Rebuilt) {
			t.Fatalf("%+v", rec)
		}
		s.Put([]byte("k"), fmt.Append(nil, i))
		if v, found, err := s.Get([]byte("k")); string(v) != fmt.Sprint(i) || !found || err != nil {
			t.Fatal(string(v), found, err)
		}
		check(t, s.Close())
		dir := filepath.Join(o.DataDir, indexDir)
		check(t, os.RemoveAll(dir))
		check(t, os.WriteFile(dir, []byte("x"), 0o600))
	}
}

// TestCloseWithoutRoom: when closing would write more than the disk has free, Badger writes nothing any more, the stop is
// a good one all the same, and the next start has everything from the log.
func TestCloseWithoutRoom(t *testing.T) {
	for _, c := range []struct {
		name  string
		free  func(need int64) (int64, error)
		tight bool
	}{
		{"no byte", func(int64) (int64, error) { return 0, nil }, true},
		{"one byte too few", func(need int64) (int64, error) { return need - 1, nil }, true},
		{"enough", func(need int64) (int64, error) { return need, nil }, false},
		{"nobody knows", func(int64) (int64, error) { return 0, errors.ErrUnsupported }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var looks atomic.Int64
			var lines bytes.Buffer
			o := testOptions(t.TempDir())
			o.Logger = slog.New(slog.NewTextHandler(&lines, nil))
			free := func() (int64, error) { return 1 << 40, nil }
			o.Free = func(dir string) (int64, error) {
				if dir != o.DataDir {
					t.Errorf("asked of %q", dir)
				}
				looks.Add(1)
				return free()
			}
			s, _ := open_(t, o)
			want := map[string]string{}
			fill(s, want, 500, 1)
			check(t, s.Flush())
			fill(s, want, 100, 2) // newer than the index
			check(t, s.Commit())
			before, asked := picture(t, filepath.Join(o.DataDir, indexDir)), looks.Load()
			need := s.index.closeNeed() + s.flushNeed()
			free = func() (int64, error) { return c.free(need) }
			check(t, s.Close())
			if looks.Load() == asked {
				t.Error("it did not look at the disk")
			}
			if n := strings.Count(lines.String(), "left as it is"); n > 1 || (n == 1) != c.tight {
				t.Errorf("said %d times: %s", n, lines.String())
			}
			if same := picture(t, filepath.Join(o.DataDir, indexDir)) == before; same != c.tight {
				t.Errorf("index untouched: %v", same)
			}
			o.Free, o.DataDir = nil, copyDir(t, o.DataDir)
			again, rec := open_(t, o)
			replayed := int64(0)
			if c.tight {
				replayed = 100
			}
			if rec.Rebuilt || rec.Quarantined != "" || rec.HintsLost || rec.Replayed != replayed {
				t.Errorf("%+v", rec)
			}
			got, _ := dump(t, again)
			same(t, "after the restart", got, want)
		})
	}
}

// TestFlushWithoutRoom: the index waits when the disk was filled unseen, while changes go on being committed.
func TestFlushWithoutRoom(t *testing.T) {
	o := testOptions(t.TempDir())
	var free atomic.Int64
	o.Free = func(string) (int64, error) { return free.Load(), nil }
	s, _ := open_(t, o)
	s.Put([]byte("k"), []byte("v"))
	if err := s.Flush(); !errors.Is(err, ErrSuspended) {
		t.Fatal(err)
	}
	if st := s.Stats(); st.Flushes != 0 || st.OverlayBytes == 0 || st.Records != 1 {
		t.Fatalf("%+v", st)
	}
	free.Store(1 << 40)
	check(t, s.Flush())
	if st := s.Stats(); st.Flushes != 1 || st.OverlayBytes != 0 {
		t.Fatalf("%+v", st)
	}
}
