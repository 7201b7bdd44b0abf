package hublog

import (
	"encoding/binary"
	"fmt"
	"hash"
	"hash/fnv"
)

// Digest sums up a log that is too long to be held: per partition the number
// of records and a hash over all of them in order.
type Digest map[string]*digestPart

type digestPart struct {
	count int64
	hash  hash.Hash64
	buf   []byte
}

// Add is a callback for the readers.
func (d Digest) Add(r *Record) error {
	p := d[r.Partition]
	if p == nil {
		p = &digestPart{hash: fnv.New64a()}
		d[r.Partition] = p
	}
	p.count++
	b := binary.BigEndian.AppendUint64(p.buf[:0], uint64(r.Offset))
	b = binary.BigEndian.AppendUint64(b, uint64(r.TimeMs))
	b = append(b, r.QoS, bit(r.Retain))
	b = append(binary.BigEndian.AppendUint32(b, uint32(len(r.Topic))), r.Topic...)
	p.buf = append(b, r.Payload...)
	_, err := p.hash.Write(p.buf)
	return err
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// Diff returns "" when both digests are of the same records.
func (d Digest) Diff(o Digest) string {
	if len(d) != len(o) {
		return fmt.Sprintf("%d and %d partitions", len(d), len(o))
	}
	for name, p := range d {
		q := o[name]
		switch {
		case q == nil:
			return "partition " + name + " is missing"
		case p.count != q.count:
			return fmt.Sprintf("partition %s: %d and %d records", name, p.count, q.count)
		case p.hash.Sum64() != q.hash.Sum64():
			return fmt.Sprintf("partition %s: %d records that differ", name, p.count)
		}
	}
	return ""
}
