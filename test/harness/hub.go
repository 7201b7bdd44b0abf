package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// StartTimeout is how long a start may take before the harness gives up. It
// is far above what the hub promises, so that a slow start is measured and
// not hidden behind a harness error.
const StartTimeout = 30 * time.Second

// Hub is one hub directory and the process that serves it, if any. Its
// addresses stay the same over restarts.
type Hub struct {
	Config     Config
	Dir        string // holds config file, socket, output and data
	ConfigPath string
	bin        Binaries

	mu   sync.Mutex
	proc *Process      // guarded by mu; nil before the first start
	took time.Duration // guarded by mu
}

// NewHub builds the binaries if need be, chooses ports, and writes the
// configuration that change has completed (nil: as it is). It does not start.
func NewHub(change func(*Config)) (*Hub, error) {
	bin, err := Build()
	if err != nil {
		return nil, err
	}
	// Not a test's own temp directory: a Unix socket's path may have 107 bytes.
	dir, err := os.MkdirTemp("", "hub")
	if err != nil {
		return nil, err
	}
	h := &Hub{Dir: dir, bin: bin, ConfigPath: filepath.Join(dir, "hubd.toml")}
	h.Config = Config{DataDir: filepath.Join(dir, "data"), Socket: filepath.Join(dir, "hubd.sock")}
	if h.Config.MQTTAddr, err = FreeAddr(); err != nil {
		return nil, err
	}
	if h.Config.AdminAddr, err = FreeAddr(); err != nil {
		return nil, err
	}
	if change != nil {
		change(&h.Config)
	}
	return h, h.WriteConfig()
}

// WriteConfig writes the configuration file again after a change of Config.
func (h *Hub) WriteConfig() error {
	return os.WriteFile(h.ConfigPath, []byte(h.Config.Render()), 0o600)
}

// Addr is where MQTT clients connect.
func (h *Hub) Addr() string { return h.Config.MQTTAddr }

// OutputPath is the file that collects standard output and error of all runs.
func (h *Hub) OutputPath() string { return filepath.Join(h.Dir, "hubd.out") }

// Start starts hubd and returns once /readyz answers 200.
func (h *Hub) Start() error {
	begin := time.Now()
	if err := h.Spawn(); err != nil {
		return err
	}
	if err := h.waitReady(StartTimeout); err != nil {
		h.Kill()
		return fmt.Errorf("%w\n%s", err, h.Output(40))
	}
	h.mu.Lock()
	h.took = time.Since(begin)
	h.mu.Unlock()
	return nil
}

// Spawn starts hubd without waiting for anything.
func (h *Hub) Spawn() error {
	out, err := os.OpenFile(h.OutputPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close() // the child has its own copy
	cmd := exec.Command(h.bin.Hubd, "-config", h.ConfigPath)
	if n := h.Config.OpenFiles; n > 0 {
		// The hard limit too, or the hub would raise its own.
		cmd = exec.Command("/bin/sh", "-c", `ulimit -n "$1" && shift && exec "$@"`, "sh", strconv.Itoa(n), h.bin.Hubd, "-config", h.ConfigPath)
	}
	cmd.Env = append(os.Environ(), h.Config.Env...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = h.Dir, out, out
	p, err := Launch(cmd)
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.proc = p
	h.mu.Unlock()
	return nil
}

func (h *Hub) waitReady(timeout time.Duration) error {
	p := h.Process()
	deadline := time.After(timeout)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if h.Ready() {
			return nil
		}
		select {
		case <-p.Done():
			code, _ := p.Wait(0)
			return fmt.Errorf("harness: hubd ended with exit code %d before it was ready", code)
		case <-deadline:
			return fmt.Errorf("harness: hubd is not ready after %v", timeout)
		case <-tick.C:
		}
	}
}

// readyClient gives up early: a probe that hangs must not hide the next one.
var readyClient = &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// Ready reports whether /readyz answers 200.
func (h *Hub) Ready() bool {
	resp, err := readyClient.Get("http://" + h.Config.AdminAddr + "/readyz")
	if err != nil {
		return false
	}
	_ = resp.Body.Close() // only the status matters
	return resp.StatusCode == http.StatusOK
}

// Process is the newest process, nil before the first start.
func (h *Hub) Process() *Process {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.proc
}

// StartTook is the time from the last exec to the first 200 of /readyz.
func (h *Hub) StartTook() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.took
}

// Kill sends SIGKILL to hubd and waits for its end.
func (h *Hub) Kill() {
	if p := h.Process(); p != nil {
		p.Kill()
	}
}

// Stop sends SIGTERM and returns the exit code.
func (h *Hub) Stop(timeout time.Duration) (int, error) {
	p := h.Process()
	if p == nil {
		return 0, errors.New("harness: the hub was never started")
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return 0, err
	}
	return p.Wait(timeout)
}

// Remove kills the hub and deletes its directory.
func (h *Hub) Remove() error {
	h.Kill()
	return os.RemoveAll(h.Dir)
}

// RSS returns the resident memory of hubd in bytes.
func (h *Hub) RSS() (int64, error) { return h.memory("VmRSS:") }

// PeakRSS returns the most resident memory that this run of hubd has had.
func (h *Hub) PeakRSS() (int64, error) { return h.memory("VmHWM:") }

func (h *Hub) memory(line string) (int64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(h.Process().PID()) + "/status")
	if err != nil {
		return 0, err
	}
	for l := range strings.Lines(string(b)) {
		if f := strings.Fields(l); len(f) == 3 && f[0] == line {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("harness: /proc has no line %s", line)
}

// Output returns the last lines that the hub printed.
func (h *Hub) Output(lines int) string {
	b, err := os.ReadFile(h.OutputPath())
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Fault returns what the hub printed from the first panic, runtime error or
// data race on, "" when there was none.
func (h *Hub) Fault() string {
	b, err := os.ReadFile(h.OutputPath())
	if err != nil {
		return "" // it was never started
	}
	for _, mark := range []string{"WARNING: DATA RACE", "panic: ", "fatal error: "} {
		if i := bytes.Index(b, []byte(mark)); i >= 0 {
			return string(b[i:min(len(b), i+4000)])
		}
	}
	return ""
}

// CtlError is a hubctl run that did not exit with 0.
type CtlError struct {
	Args   []string
	Exit   int
	Stderr string
}

// Error shows the command and what it said.
func (e *CtlError) Error() string {
	return fmt.Sprintf("hubctl %s: exit %d: %s", strings.Join(e.Args, " "), e.Exit, strings.TrimSpace(e.Stderr))
}

// Ctl runs hubctl against this hub and returns its standard output.
func (h *Hub) Ctl(ctx context.Context, args ...string) ([]byte, error) {
	cmd := h.CtlCommand(ctx, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return stdout.Bytes(), &CtlError{Args: args, Exit: exit.ExitCode(), Stderr: stderr.String()}
	}
	return stdout.Bytes(), err
}

// CtlCommand prepares a hubctl run whose streams the caller connects.
func (h *Hub) CtlCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, h.bin.Hubctl, append([]string{"--socket", h.Config.Socket}, args...)...)
	cmd.Dir = h.Dir
	return cmd
}
