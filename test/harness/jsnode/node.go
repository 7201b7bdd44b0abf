package jsnode

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"edgehub/test/harness"
)

// Node is a JetStream server in a child process: this very binary, executed
// again (see ServeIfChild). Address and files survive its restarts.
type Node struct {
	Addr string
	Dir  string
	proc *harness.Process
}

// NewNode starts a server with empty files.
func NewNode() (*Node, error) {
	addr, err := harness.FreeAddr()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "hubjs")
	if err != nil {
		return nil, err
	}
	n := &Node{Addr: addr, Dir: dir}
	if err := n.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return n, nil
}

// URL is what an uplink is configured with.
func (n *Node) URL() string { return "nats://" + n.Addr }

// Start starts the server on its files and waits until it serves.
func (n *Node) Start() error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+n.Addr+"|"+n.Dir)
	cmd.Stderr = os.Stderr
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	cmd.Stdout = w
	n.proc, err = harness.Launch(cmd)
	_ = w.Close() // the child has its own copy
	if err != nil {
		return err
	}
	if err := r.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil || line != "ready\n" {
		n.proc.Kill()
		return fmt.Errorf("jsnode: the server says %q: %w", line, errors.Join(err, errors.New("not ready")))
	}
	return nil
}

// Kill sends SIGKILL and waits for the end.
func (n *Node) Kill() { n.proc.Kill() }

// Freeze stops the process without ending it; its sockets stay open. When it
// returns, the process has stopped: a signal alone only asks for it.
func (n *Node) Freeze() error {
	if err := n.proc.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		err := unix.Waitid(unix.P_PID, n.proc.PID(), nil, unix.WSTOPPED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Thaw lets a frozen process go on.
func (n *Node) Thaw() error { return n.proc.Signal(syscall.SIGCONT) }

// Remove kills the server and deletes its files.
func (n *Node) Remove() error {
	n.Kill()
	return os.RemoveAll(n.Dir)
}
