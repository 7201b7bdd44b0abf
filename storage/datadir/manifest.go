package datadir

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"edgehub/internal/vfs"
)

const (
	manifestName = "hub.json"
	backupName   = "hub.json.bak"
	tempName     = "hub.json.tmp"

	// FormatVersion is the format that this program reads and writes.
	FormatVersion = 1

	// manifestBytesMax bounds what is read into memory for a manifest.
	manifestBytesMax = 64 << 20
	instanceBytes    = 16
)

// castagnoli is the polynomial of every checksum in the data directory.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// manifest is the content of hub.json.
type manifest struct {
	Format   int    `json:"format"`
	Instance string `json:"instance"`
	// Running is true from BeginRun to a clean Close.
	Running bool `json:"running"`
	// Epoch is the highest epoch ever begun.
	Epoch uint32 `json:"epoch"`
	// Partitions holds each partition's epoch starts, both numbers rising.
	Partitions map[string][]EpochStart `json:"partitions,omitempty"`
	Check      string                  `json:"check"`
}

// sum returns the checksum of m as it stands in the check field.
func (m manifest) sum() (string, error) {
	m.Check = ""
	plain, err := json.Marshal(m)
	return fmt.Sprintf("%08x", crc32.Checksum(plain, castagnoli)), err
}

// encode renders m with its checksum.
func (m manifest) encode() ([]byte, error) {
	var err error
	if m.Check, err = m.sum(); err != nil {
		return nil, err
	}
	b, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	return append(b, '\n'), nil
}

// decodeManifest parses and verifies a manifest. A newer format is recognised
// before anything else is believed, since its other fields are unknown.
func decodeManifest(b []byte) (manifest, error) {
	var m manifest
	var head struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return m, fmt.Errorf("%w: not JSON: %w", errManifest, err)
	}
	if head.Format > FormatVersion {
		return m, fmt.Errorf("%w: format %d, this program knows up to %d", ErrNewer, head.Format, FormatVersion)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m); err != nil {
		return m, fmt.Errorf("%w: %w", errManifest, err)
	}
	sum, err := m.sum()
	if err != nil {
		return m, fmt.Errorf("%w: %w", errManifest, err)
	}
	if sum != m.Check {
		return m, fmt.Errorf("%w: checksum %q does not fit its content", errManifest, m.Check)
	}
	return m, m.validate()
}

// validate checks what the checksum cannot: that the program wrote sense.
func (m manifest) validate() error {
	if m.Format < 1 {
		return fmt.Errorf("%w: format %d", errManifest, m.Format)
	}
	if raw, err := hex.DecodeString(m.Instance); err != nil || len(raw) != instanceBytes {
		return fmt.Errorf("%w: instance %q is not %d hex digits", errManifest, m.Instance, 2*instanceBytes)
	}
	if m.Epoch < 1 {
		return fmt.Errorf("%w: epoch %d", errManifest, m.Epoch)
	}
	for name, starts := range m.Partitions {
		last := EpochStart{First: -1}
		for _, s := range starts {
			if s.Epoch <= last.Epoch || s.First <= last.First || s.Epoch > m.Epoch {
				return fmt.Errorf("%w: epochs of partition %q do not rise", errManifest, name)
			}
			last = s
		}
	}
	return nil
}

// readManifest reads and decodes one manifest file.
func readManifest(fsys vfs.FS, path string) (manifest, error) {
	f, err := fsys.OpenFile(path, os.O_RDONLY)
	if err != nil {
		return manifest{}, err
	}
	defer func() { _ = f.Close() }() // opened for reading only
	size, err := f.Size()
	if err != nil {
		return manifest{}, err
	}
	if size > manifestBytesMax {
		return manifest{}, fmt.Errorf("%w: %d bytes", errManifest, size)
	}
	b := make([]byte, size)
	if _, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return manifest{}, err
	}
	return decodeManifest(b)
}

// writeManifest makes m durable: the backup first, so that it is never behind.
func writeManifest(fsys vfs.FS, dir string, m manifest) error {
	b, err := m.encode()
	if err != nil {
		return err
	}
	for _, name := range []string{backupName, manifestName} {
		if err := replaceFile(fsys, dir, name, b); err != nil {
			return fmt.Errorf("write %s: %w", filepath.Join(dir, name), err)
		}
	}
	return nil
}

// replaceFile gives name the content b atomically and durably.
func replaceFile(fsys vfs.FS, dir, name string, b []byte) (err error) {
	temp := filepath.Join(dir, tempName)
	f, err := fsys.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, 0)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if err := fsys.Rename(temp, filepath.Join(dir, name)); err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}

// exists tells whether path is there, whatever it is.
func exists(fsys vfs.FS, path string) (bool, error) {
	_, err := fsys.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
