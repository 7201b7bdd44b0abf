package uplink

import (
	"hash/crc32"

	"edgehub/storage/seglog"
)

// Digest tells a record's content from another's. Zero: not known.
type Digest uint64

const (
	digestKnown Digest = 1 << 32
	// digestOther is in Hub-Positions of a partition whose newest record there is
	// another history's. No record has it.
	digestOther Digest = 1 << 33
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// DigestOf returns the digest of a record: CRC-32C of its topic and payload, begun
// with its time. So two records of one content and different times never have
// the same digest.
func DigestOf(ms int64, topic, payload []byte) Digest {
	c := crc32.Update(uint32(ms)^uint32(ms>>32), castagnoli, topic) // #nosec G115 -- folded on purpose
	return digestKnown | Digest(crc32.Update(c, castagnoli, payload))
}

// differs reports whether two digests are known to be of different records.
func (d Digest) differs(e Digest) bool { return d != 0 && e != 0 && d != e }

// digester reads digests of local records, a batch at a time.
type digester struct {
	buf  []byte
	seen map[string]digested
}

// digested are the digests of a run of records.
type digested struct {
	from int64
	sums []Digest
}

// digestedMax bounds a run whose offsets have holes.
const digestedMax = 1 << 16

// reset forgets what was read.
func (d *digester) reset() { d.seen = map[string]digested{} }

// at returns the digest of a partition's record; zero when the log does not have
// it any more: removed by retention, compacted, damaged, or not yet written.
func (d *digester) at(p Partition, offset int64) Digest {
	if offset < p.First() || offset >= p.Next() {
		return 0
	}
	c, ok := d.seen[p.Name()]
	if i := offset - c.from; !ok || i < 0 || i >= int64(len(c.sums)) {
		c = d.read(p, offset)
		d.seen[p.Name()] = c
	}
	if i := offset - c.from; i < int64(len(c.sums)) {
		return c.sums[i]
	}
	return 0
}

// read digests the batches that a read at an offset returns, from there on.
func (d *digester) read(p Partition, offset int64) digested {
	c := digested{from: offset}
	if cap(d.buf) > readKept {
		d.buf = nil
	}
	buf, err := p.Read(offset, 1, d.buf[:0])
	d.buf = buf[:0]
	if err != nil {
		return c
	}
	var sc seglog.Scanner
	sc.Reset(buf)
	for sc.SkipTo(offset); sc.Next(); {
		rec := sc.Record()
		i := rec.Offset - offset
		if i < 0 || i >= digestedMax {
			break
		}
		for int64(len(c.sums)) < i {
			c.sums = append(c.sums, 0)
		}
		c.sums = append(c.sums, DigestOf(rec.TimeMs, rec.Key, rec.Value))
	}
	return c
}
