package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// Binaries are the two programs under test.
type Binaries struct {
	Hubd   string
	Hubctl string
	dir    string // "" when they were not built here
}

// BinDirEnv names the variable that points to a directory with ready hubd and
// hubctl binaries; without it they are built.
const BinDirEnv = "HUB_BIN_DIR"

// RaceEnv names the variable that makes Build use the race detector.
const RaceEnv = "HUB_RACE"

// Build builds hubd and hubctl once per program and returns where they are.
var Build = sync.OnceValues(build)

func build() (Binaries, error) {
	if dir := os.Getenv(BinDirEnv); dir != "" {
		b := Binaries{Hubd: filepath.Join(dir, "hubd"), Hubctl: filepath.Join(dir, "hubctl")}
		_, err1 := os.Stat(b.Hubd)
		_, err2 := os.Stat(b.Hubctl)
		return b, errors.Join(err1, err2)
	}
	root, err := moduleRoot()
	if err != nil {
		return Binaries{}, err
	}
	dir, err := os.MkdirTemp("", "hubbin")
	if err != nil {
		return Binaries{}, err
	}
	args := []string{"build", "-o", dir}
	if os.Getenv(RaceEnv) != "" {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, "./hub/cmd/hubd", "./ctl/cmd/hubctl")...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		_ = os.RemoveAll(dir) // the build error is what matters
		return Binaries{}, fmt.Errorf("harness: build hubd and hubctl: %w\n%s", err, out)
	}
	return Binaries{Hubd: filepath.Join(dir, "hubd"), Hubctl: filepath.Join(dir, "hubctl"), dir: dir}, nil
}

// RemoveBuilt deletes what Build made; call it last, in TestMain.
func RemoveBuilt() {
	if b, err := Build(); err == nil && b.dir != "" {
		_ = os.RemoveAll(b.dir) // a leftover in the temp directory harms nobody
	}
}

// moduleRoot finds the directory of go.mod above the working directory.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("harness: no go.mod above the working directory; run inside the repository")
		}
		dir = up
	}
}
