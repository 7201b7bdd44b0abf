package command_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

const deniedSocketEnv = "HUBCTL_TEST_DENIED_SOCKET"

// asNobody runs the check in a child without rights: root may open everything.
func asNobody(t *testing.T, socket string) {
	t.Helper()
	// The test binary lies in a directory that only root may enter, so the child
	// gets it as an open file.
	exe, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Skip("no /proc: ", err)
	}
	defer func() { _ = exe.Close() }()
	for _, dir := range []string{filepath.Dir(socket), filepath.Dir(filepath.Dir(socket))} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("/proc/self/fd/3", "-test.run=^TestDeniedChild$", "-test.v")
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{exe}
	cmd.Env = []string{deniedSocketEnv + "=" + socket}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// TestDeniedChild is the child of asNobody.
func TestDeniedChild(t *testing.T) {
	socket := os.Getenv(deniedSocketEnv)
	if socket == "" {
		t.Skip("only as a child of TestPermissionDenied")
	}
	checkDenied(t, hubctl("", "status", "--socket", socket))
}
