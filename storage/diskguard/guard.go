// Package diskguard keeps a hub from meeting a full disk.
//
// It looks at the free space now and then, and counts what the hub writes in between, since a fast publisher fills in
// a second what a look would show in the next. Below the low mark the hub is to refuse what it would have to keep;
// what it has already promised still finds room: the mark's own space, and a ballast file that is given up when other
// programs take that. It leaves the low state by itself once there is room again.
//
// The guard never makes room by deleting anything of the hub's: limits on what is kept never come from free space.
package diskguard

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"edgehub/internal/vfs"
)

// ballastName is the ballast file in the data directory.
const ballastName = "ballast"

// Space is what a file system has.
type Space struct{ Free, Total int64 }

// Options of New. Dir is required.
type Options struct {
	FS  vfs.FS // the file system below; default vfs.OS
	Dir string // the data directory
	// LowBytes is the low mark; 0: a twentieth of the disk, from 16 MiB to 1 GiB, and at most a quarter.
	LowBytes int64
	// BallastBytes is the size of the ballast file; 0: a hundredth of the disk, from 4 to 32 MiB; negative: none.
	BallastBytes int64
	// OnChange is called, on the guard's goroutine, when the low state begins and ends.
	OnChange func(low bool)
	Logger   *slog.Logger
	// Look tells the space of the file system that holds a directory; default: the operating system's word.
	Look func(dir string) (Space, error)
}

// How often the guard looks.
const (
	lookEvery    = time.Second
	lookEveryLow = 200 * time.Millisecond
)

// Guard watches one disk. Its methods are safe for concurrent use.
type Guard struct {
	o Options

	low   atomic.Bool
	room  atomic.Int64 // bytes that may still be written until the mark; falls with every write, set by a look
	wear  Wear
	kick  chan struct{}
	done  chan struct{}
	wg    sync.WaitGroup
	looks atomic.Int64

	mu      sync.Mutex // guards what follows
	space   Space
	since   time.Time // of the low state
	ballast bool      // the ballast file is there
	told    bool      // OnChange was told of the low state
	blind   bool      // the last look failed
}

// Wear counts the bytes written through Guard.FS, by what they are.
type Wear struct{ Log, Meta, Other atomic.Int64 }

// Status is the guard's view.
type Status struct {
	Space
	Low          bool
	LowBytes     int64
	BallastBytes int64 // 0: it has been given up
	Since        time.Time
}

// New takes a first look and lays the ballast if there is room. The directory must be there. Where the space cannot be
// told the guard says so once and never calls it low.
func New(o Options) *Guard {
	if o.FS == nil {
		o.FS = vfs.OS
	}
	if o.Look == nil {
		o.Look = look
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.OnChange == nil {
		o.OnChange = func(bool) {}
	}
	g := &Guard{o: o, kick: make(chan struct{}, 1), done: make(chan struct{})}
	info, err := o.FS.Stat(g.ballastPath())
	g.ballast = err == nil && info.Size() > 0
	g.look()
	g.look() // what the ballast has taken
	return g
}

// Start begins to watch.
func (g *Guard) Start() {
	g.wg.Add(1)
	go g.run()
}

// Stop ends watching with a last look, so that what follows goes by what is free then, ballast included, and not by what
// was free up to a second before.
func (g *Guard) Stop() {
	close(g.done)
	g.wg.Wait()
	g.look()
}

// Free tells what is free now on the file system that holds a directory. The guard draws no conclusions from it.
func (g *Guard) Free(dir string) (int64, error) {
	s, err := g.o.Look(dir)
	return s.Free, err
}

// Low reports whether the disk is below the low mark.
func (g *Guard) Low() bool { return g.low.Load() }

// Wear returns the counters of bytes written.
func (g *Guard) Wear() *Wear { return &g.wear }

// Status returns what the last look saw.
func (g *Guard) Status() Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := Status{Space: g.space, Low: g.low.Load(), LowBytes: g.mark(), Since: g.since}
	if g.ballast {
		s.BallastBytes = g.ballastSize()
	}
	return s
}

// mark is the low mark in bytes; mu is held.
func (g *Guard) mark() int64 {
	if g.o.LowBytes > 0 {
		return g.o.LowBytes
	}
	return min(max(g.space.Total/20, 16<<20), 1<<30, g.space.Total/4)
}

// ballastSize is the size of the ballast; mu is held.
func (g *Guard) ballastSize() int64 {
	switch {
	case g.o.BallastBytes < 0:
		return 0
	case g.o.BallastBytes > 0:
		return g.o.BallastBytes
	}
	return min(max(g.space.Total/100, 4<<20), 32<<20)
}

func (g *Guard) run() {
	defer g.wg.Done()
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-g.done:
			return
		case <-g.kick:
		case <-t.C:
		}
		g.look()
		t.Reset(g.every())
	}
}

// every is when to look again: soon while the mark is near, since not everything that is written is counted.
func (g *Guard) every() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.low.Load() || g.room.Load() < g.mark() {
		return lookEveryLow
	}
	return lookEvery
}

// look asks for the space and draws the conclusions.
func (g *Guard) look() {
	before := g.room.Load()
	space, err := g.o.Look(g.o.Dir)
	g.mu.Lock()
	if err != nil {
		if !g.blind {
			g.o.Logger.Warn("the free space of the disk cannot be told; a full disk will come as a surprise", "dir", g.o.Dir, "err", err)
		}
		g.blind = true
		g.low.Store(false)
		g.room.Store(1 << 62)
		g.mu.Unlock()
		return
	}
	g.blind, g.space = false, space
	mark := g.mark()
	// What was written while the look was taken counts against it.
	g.room.Add(space.Free - mark - before)
	low := g.judge(space.Free, mark)
	changed := low != g.told
	g.told = low
	if changed {
		g.since = time.Now()
	}
	g.mu.Unlock()
	g.low.Store(low)
	g.looks.Add(1)
	if changed {
		g.tell(low, space, mark)
	}
	g.tend(space.Free, mark)
}

// judge tells whether that much free space is low. It takes a little more to leave the state than to stay out of it.
func (g *Guard) judge(free, mark int64) bool {
	if g.low.Load() {
		return free < mark+mark/16
	}
	return free < mark
}

func (g *Guard) tell(low bool, space Space, mark int64) {
	if low {
		g.o.Logger.Error("the disk is nearly full: messages that would have to be kept are refused; free some space", "dir", g.o.Dir, "free", space.Free, "low_mark", mark)
	} else {
		g.o.Logger.Info("the disk has room again", "dir", g.o.Dir, "free", space.Free, "low_mark", mark)
	}
	g.o.OnChange(low)
}

// tend gives the ballast up when others have taken half of the mark's space, and lays it again when there is room.
func (g *Guard) tend(free, mark int64) {
	g.mu.Lock()
	there, size := g.ballast, g.ballastSize()
	g.mu.Unlock()
	switch {
	case there && (free < mark/2 || size == 0):
		if err := g.o.FS.Remove(g.ballastPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			g.o.Logger.Error("the ballast file could not be given up", "err", err)
			return
		}
		g.setBallast(false)
		if size > 0 {
			g.o.Logger.Warn("the ballast file was given up, to have room for the metadata", "bytes", size)
		}
	case !there && size > 0 && free >= mark+mark/4+size && !g.ended():
		if err := g.lay(size); err != nil {
			g.o.Logger.Warn("the ballast file could not be laid", "err", err)
			_ = g.o.FS.Remove(g.ballastPath()) // what there is of it is better free
			return
		}
		g.setBallast(true)
	}
}

// ended tells whether Stop was called: a stop gives the ballast up but does not wait for a new one.
func (g *Guard) ended() bool {
	select {
	case <-g.done:
		return true
	default:
		return false
	}
}

func (g *Guard) setBallast(there bool) {
	g.mu.Lock()
	g.ballast = there
	g.mu.Unlock()
}

func (g *Guard) ballastPath() string { return filepath.Join(g.o.Dir, ballastName) }

// lay writes the ballast: noise, so that no file system stores it in less.
func (g *Guard) lay(size int64) (err error) {
	f, err := g.o.FS.OpenFile(g.ballastPath(), os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	noise := rand.NewChaCha8([32]byte{1})
	_, err = io.CopyN(io.NewOffsetWriter(f, 0), noise, size)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// MakeRoom gives the ballast of a directory up when the disk is so full that a hub could not start. It is called
// before anything is opened.
func MakeRoom(fsys vfs.FS, dir string) error {
	path := filepath.Join(dir, ballastName)
	if _, err := fsys.Stat(path); err != nil {
		return nil // none, or nothing to be done about it
	}
	if s, err := look(dir); err != nil || s.Free >= startBytes {
		return nil
	}
	if err := fsys.Remove(path); err != nil {
		return fmt.Errorf("diskguard: %w", err)
	}
	return nil
}

// startBytes is what a start may need: tables and journals of the metadata's index.
const startBytes = 16 << 20

// wrote counts bytes against the room that the last look left.
func (g *Guard) wrote(n int, c *atomic.Int64) {
	c.Add(int64(n))
	if left := g.room.Add(-int64(n)); left < 0 && left+int64(n) >= 0 {
		g.alarm()
	}
}

// failed notes that a write did not fit, whatever the look said.
func (g *Guard) failed(err error) {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		g.alarm()
	}
}

// alarm takes the disk for low until a look says otherwise.
func (g *Guard) alarm() {
	g.low.Store(true)
	select {
	case g.kick <- struct{}{}:
	default:
	}
}
