package harness

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// Binaries are the two programs under test.
type Binaries struct {
	Hubd   string
	Hubctl string
	dir    string // "" when they were not built here
}

// BinDirEnv names the variable that points to a directory with ready hubd and
// hubctl binaries; without it they are built. With it, use -count=1: go test
// does not notice that such a binary has changed.
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
	if err := noteSources(root); err != nil {
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

// noteSources looks at every source file of the programs. go test caches a
// result until something changes that the test has looked at, and it does not
// see what a build started by the test looks at: without this, a suite that
// has passed once would pass for ever, whatever becomes of the hub.
func noteSources(root string) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // an editor at work
			return nil
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") || path == filepath.Join(root, "test")):
			return filepath.SkipDir
		case d.IsDir():
			return nil
		case strings.HasSuffix(path, ".go"), d.Name() == "go.mod", strings.HasPrefix(path, filepath.Join(root, "configs")):
			_, err := os.Stat(path)
			return err
		}
		return nil
	})
}

// moduleRoot finds the directory of the hub's module above the working directory, which may be in a module of its own.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "hub", "cmd", "hubd")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("harness: no hub/cmd/hubd above the working directory; run inside the repository")
		}
		dir = up
	}
}
