package uplink

import (
	"fmt"
	"strconv"
	"strings"
)

// ident is a record's identity at the remote, written
//
//	instance/stream/partition-lane/epoch/offset
//
// The instance keeps two gateways of one name apart, the epoch two histories of
// one log.
type ident struct {
	Instance  string
	Partition string // stream/partition-lane
	Epoch     uint32
	Offset    int64
}

// appendIdent appends the written form of an identity.
func appendIdent(dst []byte, instance, partition string, epoch uint32, offset int64) []byte {
	dst = append(dst, instance...)
	dst = append(dst, '/')
	dst = append(dst, partition...)
	dst = append(dst, '/')
	dst = strconv.AppendUint(dst, uint64(epoch), 10)
	dst = append(dst, '/')
	return strconv.AppendInt(dst, offset, 10)
}

// parseIdent reads an identity. ok is false for anything that appendIdent would
// not have written.
func parseIdent(s string) (id ident, ok bool) {
	instance, rest, found := strings.Cut(s, "/")
	if !found || instance == "" {
		return id, false
	}
	o := strings.LastIndexByte(rest, '/')
	if o <= 0 {
		return id, false
	}
	e := strings.LastIndexByte(rest[:o], '/')
	if e <= 0 {
		return id, false
	}
	epoch, ok1 := parseNumber(rest[e+1:o], 32)
	offset, ok2 := parseNumber(rest[o+1:], 63)
	id = ident{Instance: instance, Partition: rest[:e], Epoch: uint32(epoch), Offset: int64(offset)}
	return id, ok1 && ok2 && checkPartition(id.Partition) == nil
}

// parseNumber reads an unsigned decimal without sign or leading zeros.
func parseNumber(s string, bits int) (uint64, bool) {
	if s == "" || s[0] < '0' || s[0] > '9' || (s[0] == '0' && len(s) > 1) {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, bits)
	return n, err == nil
}

// checkPartition refuses names that the written forms could not carry.
func checkPartition(name string) error {
	stream, part, ok := strings.Cut(name, "/")
	if !ok || stream == "" || part == "" {
		return fmt.Errorf("uplink: partition name %q is not stream/partition-lane", name)
	}
	for i := 0; i < len(name); i++ {
		if c := name[i]; c <= ' ' || c >= 0x7f || c == ',' || c == '=' {
			return fmt.Errorf("uplink: partition name %q has a character that cannot be sent", name)
		}
	}
	return nil
}

// position is a partition's next offset to send, with the epoch and the digest of
// the record before it (so that it can be checked against the epoch table and
// the log).
type position struct {
	Partition string
	Epoch     uint32
	Next      int64
	Digest    Digest
}

// positions are the next offsets of all partitions as of a sequence of the remote
// stream: what it holds up to Seq is, of each partition, exactly the records
// below Next. That stays true whoever's copy of the record that says so was
// stored, and whatever was stored between Seq and that record.
type positions struct {
	Seq  uint64
	List []position
}

// append appends the form of the Hub-Positions header:
//
//	SEQ;stream/partition-lane=epoch:next:digest,stream/partition-lane=epoch:next:digest
//
// A digest is eight hex digits; it is left out where it is not known, and - where
// the record at next-1 is one of another history, see branch.
func (p *positions) append(dst []byte) []byte {
	dst = append(strconv.AppendUint(dst, p.Seq, 10), ';')
	for i, e := range p.List {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(append(dst, e.Partition...), '=')
		dst = append(strconv.AppendUint(dst, uint64(e.Epoch), 10), ':')
		dst = strconv.AppendInt(dst, e.Next, 10)
		switch {
		case e.Digest == digestOther:
			dst = append(dst, ":-"...)
		case e.Digest != 0:
			dst = append(dst, ':')
			for shift := 28; shift >= 0; shift -= 4 {
				dst = append(dst, "0123456789abcdef"[e.Digest>>shift&15])
			}
		}
	}
	return dst
}

// parseDigest reads eight lower-case hex digits, or a dash.
func parseDigest(s string) (Digest, bool) {
	if s == "-" {
		return digestOther, true
	}
	if len(s) != 8 {
		return 0, false
	}
	d := Digest(0)
	for i := range len(s) {
		n := strings.IndexByte("0123456789abcdef", s[i])
		if n < 0 {
			return 0, false
		}
		d = d<<4 | Digest(n)
	}
	return digestKnown | d, true
}

// parsePositions reads a Hub-Positions header.
func parsePositions(s string) (positions, error) {
	seq, list, found := strings.Cut(s, ";")
	n, ok := parseNumber(seq, 64)
	if !found || !ok {
		return positions{}, fmt.Errorf("uplink: malformed positions %q", s)
	}
	p := positions{Seq: n}
	if list == "" {
		return p, nil
	}
	p.List = make([]position, 0, strings.Count(list, ",")+1)
	for entry := range strings.SplitSeq(list, ",") {
		name, v, ok := strings.Cut(entry, "=")
		e, n, ok2 := strings.Cut(v, ":")
		n, sum, summed := strings.Cut(n, ":")
		epoch, ok3 := parseNumber(e, 32)
		next, ok4 := parseNumber(n, 63)
		if !ok || !ok2 || !ok3 || !ok4 || checkPartition(name) != nil {
			return positions{}, fmt.Errorf("uplink: malformed position %q", entry)
		}
		at := position{Partition: name, Epoch: uint32(epoch), Next: int64(next)}
		if summed {
			if at.Digest, ok = parseDigest(sum); !ok {
				return positions{}, fmt.Errorf("uplink: malformed position %q", entry)
			}
		}
		p.List = append(p.List, at)
	}
	return p, nil
}
