package meta

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// quarantinedMax is how many old indexes are kept. They are copies of what the
// log has, and a machine that damages one each day must not fill its disk.
const quarantinedMax = 4

// quarantine moves the index away, beside a file that says why.
func (s *Store) quarantine(reason string) (string, error) {
	dir := filepath.Join(s.o.DataDir, quarantineDir)
	if err := s.o.FS.MkdirAll(dir); err != nil {
		return "", fmt.Errorf("meta: quarantine: %w", err)
	}
	numbers, err := s.quarantined(dir)
	if err != nil {
		return "", err
	}
	next := 1
	if len(numbers) > 0 {
		next = numbers[len(numbers)-1] + 1
	}
	name := filepath.Join(dir, fmt.Sprintf("%s-%d", indexDir, next))
	if err := s.writeFile(name+".reason", reason+"\n"); err != nil {
		return "", fmt.Errorf("meta: quarantine: %w", err)
	}
	if err := s.o.FS.Rename(filepath.Join(s.o.DataDir, indexDir), name); err != nil {
		return "", fmt.Errorf("meta: quarantine: %w", err)
	}
	if err := errors.Join(s.o.FS.SyncDir(dir), s.o.FS.SyncDir(s.o.DataDir), s.clearStarts()); err != nil {
		return "", fmt.Errorf("meta: quarantine: %w", err)
	}
	for len(numbers) >= quarantinedMax {
		old := filepath.Join(dir, fmt.Sprintf("%s-%d", indexDir, numbers[0]))
		if err := errors.Join(s.removeTree(old), s.removeFile(old+".reason")); err != nil {
			return "", fmt.Errorf("meta: quarantine: %w", err)
		}
		numbers = numbers[1:]
	}
	return name, nil
}

// quarantined returns the numbers of the old indexes, rising.
func (s *Store) quarantined(dir string) ([]int, error) {
	entries, err := s.o.FS.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("meta: quarantine: %w", err)
	}
	var out []int
	for _, e := range entries {
		digits, ok := strings.CutPrefix(e.Name(), indexDir+"-")
		n, err := strconv.Atoi(digits)
		if !ok || err != nil || n < 0 {
			continue
		}
		at := len(out)
		for at > 0 && out[at-1] > n {
			at--
		}
		out = append(out[:at], append([]int{n}, out[at:]...)...)
	}
	return out, nil
}

// removeTree removes the files of an index directory and then itself.
func (s *Store) removeTree(dir string) error {
	if info, err := s.o.FS.Stat(dir); err == nil && !info.IsDir() {
		return s.removeFile(dir)
	}
	entries, err := s.o.FS.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := s.removeFile(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return s.removeFile(dir)
}

func (s *Store) removeFile(path string) error {
	if err := s.o.FS.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// writeFile writes a small file. It is not synced: none of them is needed
// after a power cut.
func (s *Store) writeFile(path, content string) error {
	f, err := s.o.FS.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(content), 0)
	return errors.Join(err, f.Close())
}

// The starts file guards against an index that ends the process in a way that
// precheck does not foresee. It holds a number of runs that did not last, and
// the word opening while Badger is being opened:
//
//	opening 3
//	open 3
//
// A start that finds opening, or too many runs, does not trust the index.
const (
	startsName = "meta.starts"
	startsMax  = 10
	opening    = "opening"
	open       = "open"
)

// beginStart notes that Badger is about to be opened, and refuses an index
// that has ended too many runs.
func (s *Store) beginStart() error {
	word, runs := s.readStarts()
	if err := s.writeFile(filepath.Join(s.o.DataDir, startsName), fmt.Sprintf("%s %d\n", opening, runs)); err != nil {
		return fmt.Errorf("meta: %w", err)
	}
	switch {
	case word == opening:
		return fmt.Errorf("%w: the process ended while it was being opened", errIndexDamaged)
	case runs >= startsMax:
		return fmt.Errorf("%w: %d runs in a row ended within %s", errIndexDamaged, runs, settled)
	}
	return nil
}

// opened notes that Badger did open; the run counts until it has settled.
func (s *Store) opened() error {
	_, runs := s.readStarts()
	if err := s.writeFile(filepath.Join(s.o.DataDir, startsName), fmt.Sprintf("%s %d\n", open, runs+1)); err != nil {
		return fmt.Errorf("meta: %w", err)
	}
	return nil
}

// clearStarts forgets the runs so far.
func (s *Store) clearStarts() error { return s.removeFile(filepath.Join(s.o.DataDir, startsName)) }

// readStarts reads the starts file; what it cannot read counts as nothing.
func (s *Store) readStarts() (word string, runs int) {
	f, err := s.o.FS.OpenFile(filepath.Join(s.o.DataDir, startsName), os.O_RDONLY)
	if err != nil {
		return "", 0
	}
	defer func() { _ = f.Close() }() // opened for reading only
	var b [64]byte
	n, err := f.ReadAt(b[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", 0
	}
	word, digits, _ := strings.Cut(strings.TrimSpace(string(b[:n])), " ")
	runs, err = strconv.Atoi(digits)
	if err != nil || runs < 0 || (word != opening && word != open) {
		return "", 0
	}
	return word, runs
}
