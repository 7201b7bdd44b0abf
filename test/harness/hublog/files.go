package hublog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// Positions in a record batch v2:
//
//	0        8      12      16    17    21     23     27       35       43
//	base(8)  len(4) epoch(4) magic crc(4) attr(2) last(4) first ms(8) max ms(8)
//	43            51        53         57       61
//	producer id(8) epoch(2) base seq(4) count(4) records
const (
	batchLength  = 8
	batchMagic   = 16
	batchCRC     = 17
	batchAttrs   = 21
	batchLast    = 23
	batchFirstMs = 27
	batchCount   = 57
	batchHeader  = 61
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errShort means that the bytes end inside a batch: the writer is at work, or
// died at work.
var errShort = errors.New("hublog: batch is not complete")

// ReadFiles calls fn with every record of a stream at or after the offset that
// from has for its partition (nil: all), partition by partition, in the order
// of the files. It may run beside a working hub and then sees a prefix. The
// record is valid during the call only.
func ReadFiles(dataDir, stream string, from map[string]int64, fn func(*Record) error) error {
	root := filepath.Join(dataDir, "streams", stream)
	parts, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the stream has not been written yet
	}
	if err != nil {
		return err
	}
	for _, p := range parts {
		if !p.IsDir() {
			continue
		}
		name := partitionName(p.Name())
		if err := readPartition(filepath.Join(root, p.Name()), name, from[name], fn); err != nil {
			return err
		}
	}
	return nil
}

// partitionName completes the directory name "3" to "3-0".
func partitionName(dir string) string {
	if strings.Contains(dir, "-") {
		return dir
	}
	return dir + "-0"
}

func readPartition(dir, name string, from int64, fn func(*Record) error) error {
	files, err := segments(dir)
	if err != nil {
		return err
	}
	next := int64(-1) // the offset that must come next
	for i, f := range files {
		if i+1 < len(files) && files[i+1].base <= from {
			continue
		}
		b, err := os.ReadFile(f.path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // retention took it meanwhile
		}
		if err != nil {
			return err
		}
		for len(b) > 0 {
			n, err := readBatch(b, name, from, &next, fn)
			if errors.Is(err, errShort) && i == len(files)-1 {
				break
			}
			if err != nil {
				return fmt.Errorf("%s: %w", f.path, err)
			}
			b = b[n:]
		}
	}
	return nil
}

type segment struct {
	path string
	base int64
}

// segments lists the files `<20 digits>….log` by name, which is by offset.
func segments(dir string) ([]segment, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []segment
	for _, e := range entries {
		var base int64
		if !strings.HasSuffix(e.Name(), ".log") || len(e.Name()) < 24 {
			continue
		}
		if _, err := fmt.Sscanf(e.Name()[:20], "%d", &base); err != nil {
			continue
		}
		out = append(out, segment{filepath.Join(dir, e.Name()), base})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].path < out[j].path })
	return out, nil
}

// readBatch decodes the batch at the front of b and returns its size.
func readBatch(b []byte, name string, from int64, next *int64, fn func(*Record) error) (int, error) {
	if len(b) < batchHeader {
		return 0, errShort
	}
	base := int64(binary.BigEndian.Uint64(b))
	size := batchLength + 4 + int(binary.BigEndian.Uint32(b[batchLength:]))
	if b[batchMagic] != 2 {
		return 0, fmt.Errorf("hublog: magic %d at offset %d", b[batchMagic], *next)
	}
	if size < batchHeader {
		return 0, fmt.Errorf("hublog: batch at offset %d has %d bytes", base, size)
	}
	if size > len(b) {
		return 0, errShort
	}
	b = b[:size]
	if crc32.Checksum(b[batchAttrs:], castagnoli) != binary.BigEndian.Uint32(b[batchCRC:]) {
		return 0, fmt.Errorf("hublog: CRC of the batch at offset %d is wrong", base)
	}
	if attrs := binary.BigEndian.Uint16(b[batchAttrs:]); attrs&7 != 0 {
		return 0, fmt.Errorf("hublog: batch at offset %d is compressed", base)
	}
	count := int(binary.BigEndian.Uint32(b[batchCount:]))
	last := base + int64(int32(binary.BigEndian.Uint32(b[batchLast:])))
	if *next >= 0 && base != *next {
		return 0, fmt.Errorf("hublog: batch has base offset %d, want %d", base, *next)
	}
	if last-base+1 != int64(count) {
		return 0, fmt.Errorf("hublog: batch at offset %d has %d records up to offset %d", base, count, last)
	}
	*next = last + 1
	if last < from {
		return size, nil
	}
	d := decoder{b: b[batchHeader:]}
	firstMs := int64(binary.BigEndian.Uint64(b[batchFirstMs:]))
	for range count {
		r := d.record(base, firstMs)
		if d.bad {
			return 0, fmt.Errorf("hublog: a record of the batch at offset %d is malformed", base)
		}
		r.Partition = name
		if r.Offset < from {
			continue
		}
		if err := fn(&r); err != nil {
			return 0, err
		}
	}
	if len(d.b) > 0 {
		return 0, fmt.Errorf("hublog: %d bytes left in the batch at offset %d", len(d.b), base)
	}
	return size, nil
}

// decoder takes fields off the front of b; bad latches the first error.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) bytes(n int64) []byte {
	if n < 0 { // null
		return nil
	}
	if n > int64(len(d.b)) {
		d.bad, d.b = true, nil
		return nil
	}
	out := d.b[:n]
	d.b = d.b[n:]
	return out
}

// record decodes one record: length, attributes, time and offset deltas, key,
// value, headers.
func (d *decoder) record(base, firstMs int64) Record {
	body := decoder{b: d.bytes(d.varint())}
	body.bytes(1)
	r := Record{QoS: 1}
	r.TimeMs = firstMs + body.varint()
	r.Offset = base + body.varint()
	r.Topic = string(body.bytes(body.varint()))
	r.Payload = body.bytes(body.varint())
	for range body.varint() {
		key := body.bytes(body.varint())
		value := body.bytes(body.varint())
		if string(key) == "\x00f" && len(value) == 1 {
			r.QoS, r.Retain = value[0]&3, value[0]&4 != 0
		}
		if body.bad {
			break
		}
	}
	d.bad = d.bad || body.bad || len(body.b) > 0
	return r
}
