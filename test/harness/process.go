package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// ErrStillRunning is returned when a process outlives the time it was given.
var ErrStillRunning = errors.New("harness: process is still running")

// Process is a child in a process group of its own. Signals go to that group,
// so nothing that this program did not start is ever hit.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed once the child is reaped
}

// spawner runs every start on one thread that lives as long as the program:
// the kernel sends the parent-death signal when the *thread* that started the
// child ends, and Go ends threads as it likes.
var spawner = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// Launch starts cmd in a new process group; the kernel kills it when this
// program dies first. An output that is not set goes nowhere.
func Launch(cmd *exec.Cmd) (*Process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	errc := make(chan error)
	spawner() <- func() { errc <- cmd.Start() }
	if err := <-errc; err != nil {
		return nil, fmt.Errorf("harness: start %s: %w", cmd.Path, err)
	}
	p := &Process{cmd: cmd, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // the exit state is read from ProcessState
		close(p.done)
	}()
	return p, nil
}

// PID is the process id, which is also the id of its group.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Alive reports whether the process has not been reaped.
func (p *Process) Alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Signal sends sig to the group. A process that has ended is left alone: its
// id may belong to somebody else by now.
func (p *Process) Signal(sig syscall.Signal) error {
	if !p.Alive() {
		return os.ErrProcessDone
	}
	return syscall.Kill(-p.PID(), sig)
}

// Kill sends SIGKILL and waits until the kernel has taken everything back.
func (p *Process) Kill() {
	_ = p.Signal(syscall.SIGKILL) // already ended is as good
	<-p.done
}

// Wait waits for the end and returns the exit code, -1 for death by a signal.
func (p *Process) Wait(timeout time.Duration) (int, error) {
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-time.After(timeout):
		return 0, ErrStillRunning
	}
}
