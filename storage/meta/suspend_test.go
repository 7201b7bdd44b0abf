package meta

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
			again, _ := open_(t, o)
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
