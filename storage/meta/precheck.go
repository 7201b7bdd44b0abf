package meta

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"github.com/dgraph-io/badger/v4/pb"
	"github.com/dgraph-io/badger/v4/table"
	"github.com/dgraph-io/badger/v4/y"
	"github.com/dgraph-io/ristretto/v2/z"
	"google.golang.org/protobuf/proto"
)

// precheck looks at Badger's files before Badger does, because some damage
// makes Badger end the process (log.Fatal and panics in its own goroutines) or
// remove files. It changes nothing. A missing or empty directory passes.
func precheck(dir string) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errIndexDamaged, firstLine(p))
		}
	}()
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errIndexDamaged, err)
	}
	kinds := make(map[string]int)
	for _, e := range entries {
		name := e.Name()
		kinds[filepath.Ext(name)]++
		if err := precheckFile(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("%w: %s: %w", errIndexDamaged, name, err)
		}
	}
	return precheckTables(dir, kinds[".sst"]+kinds[".vlog"]+kinds[".mem"] > 0)
}

// precheckFile checks the files that are not tables.
func precheckFile(path string) error {
	switch name := filepath.Base(path); {
	case strings.HasSuffix(name, ".mem"), strings.HasSuffix(name, ".vlog"):
		return precheckWAL(path)
	case name == "KEYREGISTRY":
		return precheckKeys(path)
	case name == "DISCARD":
		return precheckDiscard(path)
	}
	return nil
}

// precheckTables verifies each table that the manifest names, block by block.
func precheckTables(dir string, data bool) error {
	f, err := os.Open(filepath.Join(dir, badger.ManifestFilename))
	if errors.Is(err, fs.ErrNotExist) {
		if data {
			return fmt.Errorf("%w: MANIFEST is missing", errIndexDamaged)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errIndexDamaged, err)
	}
	defer func() { _ = f.Close() }() // opened for reading only
	manifest, _, err := badger.ReplayManifestFile(f, 0, badgerOptions(dir, indexBytesMin, slog.New(slog.DiscardHandler)))
	if err != nil {
		return fmt.Errorf("%w: MANIFEST: %v", errIndexDamaged, firstLine(err))
	}
	for id := range manifest.Tables {
		if err := precheckTable(table.NewFilename(id, dir)); err != nil {
			return fmt.Errorf("%w: table %d: %v", errIndexDamaged, id, firstLine(err))
		}
	}
	return nil
}

var errFooter = errors.New("footer does not fit the file")

// precheckTable verifies one table. Its footer is read here, since Badger ends
// the process when the lengths in it do not fit:
//
//	blocks | index | index length 4 | checksum (protobuf) | checksum length 4
func precheckTable(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	take := func(n uint64) []byte {
		if n > uint64(len(b)) {
			return nil
		}
		part := b[uint64(len(b))-n:]
		b = b[:uint64(len(b))-n]
		return part
	}
	word := func() uint64 {
		if w := take(4); w != nil {
			return uint64(binary.BigEndian.Uint32(w))
		}
		return 1 << 40
	}
	sum := take(word())
	index := take(word())
	if len(sum) == 0 || len(index) < 8 {
		return errFooter
	}
	var want pb.Checksum
	if err := proto.Unmarshal(sum, &want); err != nil {
		return err
	}
	if err := y.VerifyChecksum(index, &want); err != nil {
		return err
	}
	mapped, err := z.OpenMmapFile(path, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	t, err := table.OpenTable(mapped, table.Options{ // verifies every block
		ReadOnly: true, BlockSize: blockBytes, Compression: options.Snappy, ChkMode: options.OnTableAndBlockRead,
	})
	if err != nil {
		return err
	}
	return t.Close(-1)
}

// walHeaderBytes is the key id and nonce in front of a memtable log or value log.
const walHeaderBytes = 20

// precheckWAL walks the entries of a memtable log or value log. A torn entry
// ends such a file and is Badger's to cut; one that claims to be longer than
// the file was never written, and would make Badger allocate what it claims.
func precheckWAL(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // opened for reading only
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() < walHeaderBytes {
		return fmt.Errorf("only %d bytes", info.Size())
	}
	var head [walHeaderBytes]byte
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return err
	}
	if binary.BigEndian.Uint64(head[:]) != 0 {
		return errors.New("header names a key although nothing is encrypted")
	}
	r := bufio.NewReaderSize(io.NewSectionReader(f, walHeaderBytes, info.Size()-walHeaderBytes), 64<<10)
	for left := uint64(info.Size() - walHeaderBytes); ; {
		n, err := walEntry(r, left)
		if n == 0 || err != nil {
			return err
		}
		left -= n
	}
}

// walEntry reads one entry: meta 1, user meta 1, key and value length, expiry
// (uvarints), key, value, CRC-32C. It returns 0 where the entries end.
func walEntry(r *bufio.Reader, left uint64) (uint64, error) {
	head, err := r.Peek(int(min(left, 2+3*binary.MaxVarintLen64)))
	if err != nil || len(head) < 5 {
		return 0, nil // the file ends, and with it the entries
	}
	at := 2
	var fields [3]uint64
	for i := range fields {
		v, n := binary.Uvarint(head[at:])
		if n <= 0 {
			return 0, errors.New("entry header garbled")
		}
		fields[i], at = v, at+n
	}
	keyLen, valueLen := fields[0], fields[1]
	if keyLen > 1<<16 || keyLen == 0 {
		return 0, nil
	}
	if valueLen > left || uint64(at)+keyLen+valueLen+4 > left {
		return 0, errors.New("entry is longer than the file")
	}
	sum := crc32.New(y.CastagnoliCrcTable)
	if _, err := io.CopyN(sum, r, int64(at)+int64(keyLen+valueLen)); err != nil {
		return 0, err
	}
	var crc [4]byte
	if _, err := io.ReadFull(r, crc[:]); err != nil {
		return 0, err
	}
	if binary.BigEndian.Uint32(crc[:]) != sum.Sum32() {
		return 0, nil
	}
	return uint64(at) + keyLen + valueLen + 4, nil
}

// precheckKeys checks the key registry: without encryption it is a nonce and
// a fixed text, and anything behind them would be taken for lengths.
func precheckKeys(path string) error {
	const text = "Hello Badger"
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if len(b) != 16+len(text) || string(b[16:]) != text {
		return fmt.Errorf("%d bytes that are no empty key registry", len(b))
	}
	return nil
}

// precheckDiscard checks the statistics of the value log: pairs of file number
// and bytes, the first zero ends them.
func precheckDiscard(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if len(b) == 0 || len(b)%16 != 0 {
		return fmt.Errorf("%d bytes", len(b))
	}
	for ; len(b) > 0; b = b[16:] {
		file, discard := binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
		if file == 0 {
			return nil
		}
		if file > 1<<31 || discard > 1<<40 {
			return errors.New("numbers out of range")
		}
	}
	return errors.New("no end")
}
