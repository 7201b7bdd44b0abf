package diskguard

import (
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"edgehub/internal/vfs/vfstest"
)

const mib = 1 << 20

// disk is a file system of 100 MiB in memory, of which others take some.
type disk struct {
	*vfstest.Mem
	others atomic.Int64
	fail   atomic.Bool // the look
}

func (d *disk) look(string) (Space, error) {
	if d.fail.Load() {
		return Space{}, errors.New("no look")
	}
	used := d.others.Load()
	for _, name := range []string{"d/ballast", "d/streams/a/0/1.log"} {
		if info, err := d.Stat(name); err == nil {
			used += info.Size()
		}
	}
	return Space{Free: 100*mib - used, Total: 100 * mib}, nil
}

func newDisk(t *testing.T) *disk {
	d := &disk{Mem: vfstest.NewMem()}
	if err := d.MkdirAll("d/streams/a/0"); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk(t)
		var changes []bool
		g := New(Options{FS: d, Dir: "d", LowBytes: 20 * mib, BallastBytes: 5 * mib, Look: d.look, OnChange: func(low bool) { changes = append(changes, low) }})
		g.Start()
		defer g.Stop()
		synctest.Wait()
		if s := g.Status(); g.Low() || s.BallastBytes != 5*mib || s.Free != 95*mib {
			t.Fatalf("%+v", s)
		}
		f, err := g.FS().OpenFile("d/streams/a/0/1.log", os.O_RDWR|os.O_CREATE)
		if err != nil {
			t.Fatal(err)
		}
		// Between two looks, the hub's own writes count: 95 MiB are free, 20 are the mark's.
		looks := g.looks.Load()
		for i := range int64(75) {
			if g.Low() {
				t.Fatalf("low after %d MiB", i)
			}
			if _, err := f.WriteAt(make([]byte, mib), i*mib); err != nil {
				t.Fatal(err)
			}
		}
		if g.looks.Load() != looks {
			t.Fatal("it looked meanwhile")
		}
		if _, err := f.WriteAt(make([]byte, mib), 75*mib); err != nil || !g.Low() {
			t.Fatal("not low at the mark", err)
		}
		synctest.Wait()
		if len(changes) != 1 || !changes[0] || !g.Low() || g.Wear().Log.Load() != 76*mib {
			t.Fatal(changes, g.Low(), g.Wear().Log.Load())
		}
		// Others go on: half of the mark is gone, so the ballast goes.
		d.others.Store(10 * mib)
		time.Sleep(lookEveryLow)
		synctest.Wait()
		if s := g.Status(); s.BallastBytes != 0 || !s.Low {
			t.Fatalf("%+v", s)
		}
		// A little room does not end it, enough does, at once; the ballast is laid again.
		d.others.Store(3 * mib)
		time.Sleep(2 * lookEveryLow)
		if !g.Low() {
			t.Error("it flutters")
		}
		d.others.Store(-20 * mib)
		time.Sleep(lookEveryLow)
		synctest.Wait()
		if s := g.Status(); s.Low || s.BallastBytes != 5*mib || len(changes) != 2 || changes[1] {
			t.Errorf("%+v %v", s, changes)
		}
	})
}

// TestAlarm: a write that did not fit is believed before any look; a look that shows room ends it.
func TestAlarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk(t)
		faults := vfstest.New(d.Mem)
		g := New(Options{FS: faults, Dir: "d", LowBytes: 20 * mib, BallastBytes: -1, Look: d.look})
		if _, err := g.FS().OpenFile("d/streams/$meta/0/1.log", os.O_RDWR|os.O_CREATE); err == nil {
			t.Fatal("a directory that is not there")
		}
		f, err := g.FS().OpenFile("d/streams/a/0/1.log", os.O_RDWR|os.O_CREATE)
		if err != nil {
			t.Fatal(err)
		}
		faults.Add(vfstest.Fault{Op: vfstest.OpWrite, Count: 1, Err: syscall.ENOSPC})
		if _, err := f.WriteAt([]byte("x"), 0); !errors.Is(err, syscall.ENOSPC) || !g.Low() {
			t.Fatal(err, g.Low())
		}
		g.Start()
		defer g.Stop()
		synctest.Wait()
		if g.Low() {
			t.Error("still low with room")
		}
		d.fail.Store(true) // blind: it does not stop the hub
		time.Sleep(lookEvery)
		synctest.Wait()
		if g.Low() {
			t.Error("low without a look")
		}
	})
}

func TestDefaults(t *testing.T) {
	for _, c := range []struct{ total, low, ballast int64 }{
		{64 * mib, 16 * mib, 4 * mib},
		{32 * mib, 8 * mib, 4 * mib},
		{8 << 30, 8 << 30 / 20, 32 * mib},
		{1 << 40, 1 << 30, 32 * mib},
	} {
		g := &Guard{space: Space{Total: c.total}}
		if g.mark() != c.low || g.ballastSize() != c.ballast {
			t.Errorf("%d: %d %d", c.total, g.mark(), g.ballastSize())
		}
	}
}

func TestClass(t *testing.T) {
	var w Wear
	for name, want := range map[string]*atomic.Int64{
		"/x/streams/$meta/0/00.log": &w.Meta, "/x/streams/a/0/00.log": &w.Log, "/x/streams/$retained/0/1.log": &w.Log, "/x/hub.json": &w.Other,
	} {
		if w.class(filepath.FromSlash(name)) != want {
			t.Error(name)
		}
	}
}

func TestMakeRoom(t *testing.T) {
	dir := t.TempDir()
	d := newDisk(t)
	if err := MakeRoom(d.Mem, dir); err != nil { // none
		t.Error(err)
	}
	if s, err := look(dir); err != nil || s.Free <= 0 || s.Total < s.Free {
		t.Skipf("no space to be told here: %+v %v", s, err)
	}
}

// TestLastLook: Stop sees what happened since the last look and gives the ballast up, but lays none.
func TestLastLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk(t)
		var changes []bool
		watch := func() *Guard {
			g := New(Options{FS: d, Dir: "d", LowBytes: 20 * mib, BallastBytes: 5 * mib, Look: d.look, OnChange: func(low bool) { changes = append(changes, low) }})
			g.Start()
			synctest.Wait()
			return g
		}
		g := watch()
		d.others.Store(95 * mib)
		if free, err := g.Free("d"); free != 0 || err != nil || g.Low() {
			t.Fatal(free, err, g.Low())
		}
		g.Stop()
		if s := g.Status(); !s.Low || s.BallastBytes != 0 || len(changes) != 1 || !changes[0] {
			t.Fatalf("%+v %v", s, changes)
		}
		g = watch()
		d.others.Store(0)
		g.Stop()
		if s := g.Status(); s.Low || s.BallastBytes != 0 || len(changes) != 3 || changes[2] {
			t.Errorf("%+v %v", s, changes)
		}
	})
}
