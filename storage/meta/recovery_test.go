package meta

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
)

// populated makes a directory with many keys, flushed several times so that
// Badger has tables, and closes it.
func populated(t *testing.T, keys int) (o Options, durable, hints map[string]string) {
	t.Helper()
	o = testOptions(t.TempDir())
	s, _ := open_(t, o)
	durable, hints = map[string]string{}, map[string]string{}
	for round := range 3 {
		fill(s, durable, keys, round)
		for i := range keys / 10 {
			k, v := fmt.Sprintf("hint/%d", i), strings.Repeat(fmt.Sprint(round), 50)
			s.PutHint([]byte(k), []byte(v))
			hints[k] = v
		}
		s.PutHint([]byte("hint/long"), []byte(strings.Repeat(fmt.Sprint(round), 2*inlineBytes)))
		hints["hint/long"] = strings.Repeat(fmt.Sprint(round), 2*inlineBytes)
		check(t, s.Flush())
	}
	check(t, s.Close())
	return o, durable, hints
}

func TestKillLosesNothingCommitted(t *testing.T) {
	o := testOptions(t.TempDir())
	s, _ := open_(t, o)
	want := map[string]string{}
	fill(s, want, 500, 1)
	s.PutHint([]byte("h"), []byte("1"))
	check(t, s.Flush())
	fill(s, want, 300, 2)
	s.Delete([]byte("session/00400"))
	delete(want, "session/00400")
	check(t, s.Commit())
	s.Put([]byte("not committed"), []byte("x"))
	s.PutHint([]byte("h"), []byte("2"))

	o.DataDir = copyDir(t, o.DataDir)
	again, rec := open_(t, o)
	d, h := dump(t, again)
	same(t, "durable", d, want)
	same(t, "hints", h, map[string]string{"h": "1"})
	if rec.Replayed != 301 || rec.Rebuilt || rec.HintsLost || rec.Reason != "" {
		t.Fatalf("%+v", rec)
	}
}

// TestIndexLost removes, cuts and overwrites the index in every way that the
// names of its files allow; the store must open and have every durable key, and
// either all hints or none, with the old index in quarantine.
func TestIndexLost(t *testing.T) {
	o, durable, hints := populated(t, 2000)
	r := rand.New(rand.NewPCG(7, 7))
	random := func(n int64) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	damage := map[string]func(t *testing.T, path string, size int64){
		"removed":  func(t *testing.T, path string, _ int64) { check(t, os.Remove(path)) },
		"emptied":  func(t *testing.T, path string, _ int64) { check(t, os.Truncate(path, 0)) },
		"cut to 7": func(t *testing.T, path string, _ int64) { check(t, os.Truncate(path, 7)) },
		"halved":   func(t *testing.T, path string, size int64) { check(t, os.Truncate(path, size/2)) },
		"one off":  func(t *testing.T, path string, size int64) { check(t, os.Truncate(path, max(0, size-1))) },
		"random": func(t *testing.T, path string, size int64) {
			check(t, os.WriteFile(path, random(min(size, 1<<20)), 0o600))
		},
		"zeroed": func(t *testing.T, path string, size int64) { check(t, os.WriteFile(path, make([]byte, size), 0o600)) },
		"longer": func(t *testing.T, path string, _ int64) { appendTo(t, path, random(100)) },
		"overwritten head": func(t *testing.T, path string, _ int64) {
			writeAt(t, path, 0, random(40))
		},
		"overwritten end": func(t *testing.T, path string, size int64) {
			writeAt(t, path, max(0, size-40), random(40))
		},
		"overwritten middle": func(t *testing.T, path string, size int64) {
			writeAt(t, path, size/2, random(200))
		},
	}
	entries, err := os.ReadDir(filepath.Join(o.DataDir, indexDir))
	check(t, err)
	if len(entries) < 4 {
		t.Fatalf("the index has only %d files", len(entries))
	}
	rebuilt := 0
	for what, do := range damage {
		for _, e := range entries {
			t.Run(what+"/"+e.Name(), func(t *testing.T) {
				o := o
				o.DataDir = copyDir(t, o.DataDir)
				path := filepath.Join(o.DataDir, indexDir, e.Name())
				info, err := os.Stat(path)
				check(t, err)
				do(t, path, info.Size())
				if reopened(t, o, durable, hints) {
					rebuilt++
				}
			})
		}
	}
	t.Run("directory removed", func(t *testing.T) {
		o := o
		o.DataDir = copyDir(t, o.DataDir)
		check(t, os.RemoveAll(filepath.Join(o.DataDir, indexDir)))
		if !reopened(t, o, durable, hints) {
			t.Fatal("not rebuilt")
		}
	})
	if rebuilt < len(damage) {
		t.Fatalf("only %d cases damaged anything", rebuilt)
	}
}

// reopened opens a directory whose index may be damaged and checks its keys.
// It tells whether the index was built again.
func reopened(t *testing.T, o Options, durable, hints map[string]string) bool {
	t.Helper()
	s, rec := open_(t, o)
	d, h := dump(t, s)
	same(t, "durable", d, durable)
	if rec.HintsLost {
		hints = nil
	}
	same(t, "hints", h, hints)
	if rec.Reason != "" {
		if strings.Contains(rec.Reason, "\n") {
			t.Errorf("reason has several lines: %q", rec.Reason)
		}
		why, err := os.ReadFile(rec.Quarantined + ".reason")
		if err != nil || strings.TrimSpace(string(why)) != rec.Reason {
			t.Errorf("reason file %q, %v", why, err)
		}
	}
	s.Put([]byte("after"), []byte("x")) // and it works
	check(t, s.Flush())
	check(t, s.Close())
	s, rec2 := open_(t, o)
	if rec2.Rebuilt || rec2.HintsLost {
		t.Fatalf("built again twice: %+v", rec2)
	}
	if v, ok, err := s.Get([]byte("after")); err != nil || !ok || string(v) != "x" {
		t.Fatalf("after: %q, %v, %v", v, ok, err)
	}
	return rec.Rebuilt
}

func appendTo(t *testing.T, path string, b []byte) {
	t.Helper()
	info, err := os.Stat(path)
	check(t, err)
	writeAt(t, path, info.Size(), b)
}

func writeAt(t *testing.T, path string, off int64, b []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	check(t, err)
	defer f.Close()
	_, err = f.WriteAt(b, off)
	check(t, err)
}

// TestIndexOfAnotherMoment covers an index that Badger finds in order, and that
// is older than the log, another one's, or not what the store wrote.
func TestIndexOfAnotherMoment(t *testing.T) {
	o, durable, hints := populated(t, 500)
	old := copyDir(t, o.DataDir)
	s, _ := open_(t, o)
	s.Put([]byte("newer"), []byte("1"))
	durable["newer"] = "1"
	delete(durable, "session/00001")
	s.Delete([]byte("session/00001"))
	check(t, s.Close())

	t.Run("stale index", func(t *testing.T) {
		o := o
		o.DataDir = copyDir(t, o.DataDir)
		check(t, os.RemoveAll(filepath.Join(o.DataDir, indexDir)))
		check(t, os.Rename(filepath.Join(old, indexDir), filepath.Join(o.DataDir, indexDir)))
		s, rec := open_(t, o)
		d, _ := dump(t, s)
		same(t, "durable", d, durable)
		if rec.Rebuilt || rec.Replayed != 2 {
			t.Fatalf("%+v", rec)
		}
	})
	t.Run("entry removed behind the digest", func(t *testing.T) {
		o := o
		o.DataDir = copyDir(t, o.DataDir)
		tamper(t, o.DataDir, func(txn *badger.Txn) error {
			return txn.Delete(indexKey(nil, spaceDurable, []byte("session/00007")))
		})
		if !reopened(t, o, durable, hints) {
			t.Fatal("not noticed")
		}
	})
	t.Run("entry changed behind the digest", func(t *testing.T) {
		o := o
		o.DataDir = copyDir(t, o.DataDir)
		tamper(t, o.DataDir, func(txn *badger.Txn) error {
			return txn.Set(indexKey(nil, spaceHint, []byte("hint/3")), []byte("forged"))
		})
		if !reopened(t, o, durable, hints) {
			t.Fatal("not noticed")
		}
	})
	t.Run("other directory's index", func(t *testing.T) {
		o := o
		o.DataDir = copyDir(t, o.DataDir)
		tamperState(t, o.DataDir, func(st *state) { st.salt++ })
		if !reopened(t, o, durable, hints) {
			t.Fatal("not noticed")
		}
	})
	t.Run("other log", func(t *testing.T) {
		o := o
		o.DataDir = copyDir(t, o.DataDir)
		tamperState(t, o.DataDir, func(st *state) { st.mark ^= 1 })
		if !reopened(t, o, durable, hints) {
			t.Fatal("not noticed")
		}
	})
	t.Run("flush cut in the middle", func(t *testing.T) {
		o := o
		o.DataDir = copyDir(t, o.DataDir)
		tamperState(t, o.DataDir, func(st *state) { st.partial = true })
		if reopened(t, o, durable, hints) {
			t.Fatal("rebuilt without need")
		}
	})
}

// tamper changes the index behind the store's back.
func tamper(t *testing.T, dataDir string, fn func(*badger.Txn) error) {
	t.Helper()
	s := Options{Logger: nil}
	s.setDefaults()
	db, err := badger.Open(badgerOptions(filepath.Join(dataDir, indexDir), 20<<20, s.Logger))
	check(t, err)
	check(t, db.Update(fn))
	check(t, db.Close())
}

func tamperState(t *testing.T, dataDir string, fn func(*state)) {
	t.Helper()
	tamper(t, dataDir, func(txn *badger.Txn) error {
		item, err := txn.Get([]byte{spaceState})
		if err != nil {
			return err
		}
		b, err := item.ValueCopy(nil)
		if err != nil {
			return err
		}
		st, err := decodeState(b)
		if err != nil {
			return err
		}
		fn(&st)
		return txn.Set([]byte{spaceState}, st.encode())
	})
}

// TestLogLostItsEnd takes away what the index has seen: the keys must survive
// in the index, and then in the log again.
func TestLogLostItsEnd(t *testing.T) {
	o, durable, _ := populated(t, 500)
	cuts := map[string]func(t *testing.T, dir string){
		"whole log": func(t *testing.T, dir string) { check(t, os.RemoveAll(dir)) },
		"half of its last segment": func(t *testing.T, dir string) {
			names, err := filepath.Glob(filepath.Join(dir, "*.log"))
			check(t, err)
			last := names[len(names)-1]
			info, err := os.Stat(last)
			check(t, err)
			check(t, os.Truncate(last, info.Size()/2))
		},
	}
	for what, cut := range cuts {
		t.Run(what, func(t *testing.T) {
			o := o
			o.DataDir = copyDir(t, o.DataDir)
			cut(t, filepath.Join(o.DataDir, filepath.FromSlash(logDir)))
			s, rec := open_(t, o)
			if rec.Rewritten == 0 || rec.Rebuilt {
				t.Fatalf("%+v", rec)
			}
			d, _ := dump(t, s)
			same(t, "index", d, durable)
			s.Put([]byte("session/00003"), []byte("newest"))
			check(t, s.Commit())
			check(t, s.Close())
			check(t, os.RemoveAll(filepath.Join(o.DataDir, indexDir)))
			s, _ = open_(t, o)
			d, _ = dump(t, s)
			if d["session/00003"] != "newest" {
				t.Fatalf("the copy won over the newer value: %q", d["session/00003"])
			}
			d["session/00003"] = durable["session/00003"]
			same(t, "log", d, durable)
		})
	}
}

// TestCompactionInterrupted copies the directory at each step of a compaction,
// while other keys change, and opens the copies with and without their index.
func TestCompactionInterrupted(t *testing.T) {
	o := testOptions(t.TempDir())
	o.SegmentBytes = 32 << 10
	s, _ := open_(t, o)
	want := map[string]string{}
	for round := range 8 {
		fill(s, want, 700, round)
		check(t, s.Commit())
	}
	for i := range 200 {
		k := fmt.Sprintf("session/%05d", 3*i)
		s.Delete([]byte(k))
		delete(want, k)
	}
	check(t, s.Flush())

	type copied struct {
		step, dir string
		want      map[string]string
	}
	var copies []copied
	seen := map[string]int{}
	change := 0
	s.onStep = func(step string) {
		// Changes of the kinds that a copy could undo, at every step.
		for range 5 {
			change++
			put, del := fmt.Sprintf("session/%05d", (change*37)%700), fmt.Sprintf("session/%05d", (change*53)%700)
			s.Put([]byte(put), []byte(fmt.Sprint("during ", change)))
			want[put] = fmt.Sprint("during ", change)
			s.Delete([]byte(del))
			delete(want, del)
		}
		check(t, s.Commit())
		if change%2 == 0 {
			check(t, s.Flush())
		}
		seen[step]++
		if seen[step] > 3 {
			return
		}
		now := make(map[string]string, len(want))
		for k, v := range want {
			now[k] = v
		}
		copies = append(copies, copied{step, copyDir(t, o.DataDir), now})
	}
	before := s.log.Bytes()
	check(t, s.Compact())
	s.onStep = nil
	after := s.log.Bytes()
	if after > before/2 {
		t.Fatalf("%d bytes before, %d after", before, after)
	}
	for _, step := range []string{"rolled", "flushed", "copying", "copied", "synced", "dropped"} {
		if seen[step] == 0 {
			t.Fatalf("step %s was not seen: %v", step, seen)
		}
	}
	copies = append(copies, copied{"finished", copyDir(t, o.DataDir), want})
	for _, c := range copies {
		afterInterruption(t, o, c.step, c.dir, c.want)
	}
	t.Logf("%d states, %d bytes before, %d after", len(copies), before, after)
}

// afterInterruption opens a directory left by a compaction, with and without
// its index, and compacts again.
func afterInterruption(t *testing.T, o Options, step, dir string, want map[string]string) {
	t.Helper()
	o.DataDir = copyDir(t, dir)
	s, rec := open_(t, o)
	d, _ := dump(t, s)
	same(t, step+" with index", d, want)
	if rec.Rebuilt {
		t.Fatalf("%s: rebuilt: %+v", step, rec)
	}
	check(t, s.Close())

	o.DataDir = dir
	check(t, os.RemoveAll(filepath.Join(o.DataDir, indexDir)))
	s, _ = open_(t, o)
	d, _ = dump(t, s)
	same(t, step+" without index", d, want)
	check(t, s.Compact())
	d, _ = dump(t, s)
	same(t, step+" compacted again", d, want)
}

func TestCompactionStartsByItself(t *testing.T) {
	o := testOptions(t.TempDir())
	o.FlushEvery, o.SegmentBytes, o.CompactBytes = time.Millisecond, 16<<10, 64<<10
	s, _ := open_(t, o)
	dropped := make(chan struct{}, 1)
	s.onStep = func(step string) { // the flusher sees this: the first Put wakes it
		if step == "dropped" {
			notify(dropped)
		}
	}
	value := make([]byte, 1000)
	for range 5 {
		for i := range 400 {
			s.Put([]byte(fmt.Sprint("cursor/", i%4)), value)
			check(t, s.Commit())
		}
		s.Put([]byte("last"), nil)
		select {
		case <-dropped:
		case <-time.After(20 * time.Second):
			t.Fatalf("nothing was dropped: %+v", s.Stats())
		}
	}
}

// TestStartsThatEndedInside covers an index that ends the process when opened.
func TestStartsThatEndedInside(t *testing.T) {
	o, durable, hints := populated(t, 50)
	for content, rebuild := range map[string]bool{
		"opening 0\n": true, "opening 3\n": true, "open 10\n": true, "open 11\n": true,
		"open 9\n": false, "rubbish": false, "": false, "open -4\n": false,
	} {
		o := o
		o.DataDir = copyDir(t, o.DataDir)
		check(t, os.WriteFile(filepath.Join(o.DataDir, startsName), []byte(content), 0o600))
		if got := reopened(t, o, durable, hints); got != rebuild {
			t.Errorf("%q: rebuilt %v, want %v", content, got, rebuild)
		}
	}
	t.Run("counting", func(t *testing.T) {
		o := o
		o.DataDir = copyDir(t, o.DataDir)
		for i := range startsMax + 1 {
			s, rec := open_(t, o)
			if rec.Rebuilt != (i == startsMax) {
				t.Fatalf("start %d: %+v", i, rec)
			}
			check(t, s.Flush())
			o.DataDir = copyDir(t, o.DataDir) // killed
			check(t, s.Close())
		}
	})
}

func TestQuarantineIsBounded(t *testing.T) {
	o, durable, _ := populated(t, 10)
	for range quarantinedMax + 3 {
		check(t, os.WriteFile(filepath.Join(o.DataDir, indexDir, "MANIFEST"), []byte("no"), 0o600))
		s, rec := open_(t, o)
		if _, err := os.Stat(rec.Quarantined); err != nil {
			t.Fatal(err)
		}
		d, _ := dump(t, s)
		same(t, "durable", d, durable)
		check(t, s.Close())
	}
	entries, err := os.ReadDir(filepath.Join(o.DataDir, quarantineDir))
	check(t, err)
	if len(entries) != 2*quarantinedMax {
		t.Fatalf("%d files in quarantine, want %d", len(entries), 2*quarantinedMax)
	}
}

// TestKilledProcess kills a process that puts numbered keys and says which
// commits returned. The process is this test binary, started again.
func TestKilledProcess(t *testing.T) {
	if dir := os.Getenv("META_TEST_CHILD"); dir != "" {
		child(dir)
		return
	}
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(uint64(os.Getpid()), 0))
	total, checked := 0, 0
	for round := range 12 {
		acked := runChild(t, dir, total, 20+r.IntN(400))
		o := testOptions(copyDir(t, dir))
		if round%3 == 2 {
			check(t, os.RemoveAll(filepath.Join(o.DataDir, indexDir)))
		}
		s, rec := open_(t, o)
		if rec.Reason != "" {
			t.Logf("round %d: %s", round, rec.Reason)
		}
		d, _ := dump(t, s)
		for k := range acked {
			if d[childKey(k)] == "" {
				t.Fatalf("round %d: key %d was committed and is lost (%d acknowledged)", round, k, acked)
			}
		}
		if v, _ := strconv.Atoi(d["cursor"]); v < acked-1 {
			t.Fatalf("round %d: cursor %d, %d acknowledged", round, v, acked)
		}
		total, checked = acked, checked+acked
		check(t, s.Close())
	}
	if total < 500 {
		t.Fatalf("only %d keys were acknowledged", total)
	}
	t.Logf("%d keys checked after 12 kills", checked)
}

func childKey(i int) string { return fmt.Sprintf("key/%06d", i) }

// runChild starts the child at key from, kills it after some acknowledgements
// and returns how many keys are acknowledged in all.
func runChild(t *testing.T, dir string, from, lines int) int {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledProcess$")
	cmd.Env = append(os.Environ(), "META_TEST_CHILD="+dir, fmt.Sprint("META_TEST_FROM=", from))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	acked := from
	sc := bufio.NewScanner(out)
	for n := 0; sc.Scan(); n++ {
		if k, err := strconv.Atoi(sc.Text()); err == nil {
			acked = k + 1
		}
		if n == lines {
			check(t, cmd.Process.Kill())
		}
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != -1 {
		t.Fatalf("the child ended by itself: %v", err)
	}
	return acked
}

func child(dir string) {
	from, _ := strconv.Atoi(os.Getenv("META_TEST_FROM"))
	o := testOptions(dir)
	o.FlushEvery, o.SegmentBytes, o.CompactBytes = 2*time.Millisecond, 16<<10, 64<<10
	s, _, err := Open(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	w := bufio.NewWriter(os.Stdout)
	for i := from; ; i++ {
		s.Put([]byte(childKey(i)), []byte(strings.Repeat("x", i%200)+"."))
		s.Put([]byte("cursor"), []byte(fmt.Sprint(i)))
		s.PutHint([]byte(childKey(i)), []byte("h"))
		if err := s.Commit(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		fmt.Fprintln(w, i)
		w.Flush()
	}
}
