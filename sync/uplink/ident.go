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

// position is a partition's next offset to send, with the epoch of the record
// before it (so that it can be checked against the epoch table).
type position struct {
	Partition string
	Epoch     uint32
	Next      int64
}

// appendPosition appends one entry of the Hub-Positions header:
//
//	stream/partition-lane=epoch:next,stream/partition-lane=epoch:next
func appendPosition(dst []byte, p position) []byte {
	if len(dst) > 0 {
		dst = append(dst, ',')
	}
	dst = append(dst, p.Partition...)
	dst = append(dst, '=')
	dst = strconv.AppendUint(dst, uint64(p.Epoch), 10)
	dst = append(dst, ':')
	return strconv.AppendInt(dst, p.Next, 10)
}

// parsePositions reads a Hub-Positions header.
func parsePositions(s string) ([]position, error) {
	if s == "" {
		return nil, nil
	}
	out := make([]position, 0, strings.Count(s, ",")+1)
	for entry := range strings.SplitSeq(s, ",") {
		name, v, ok := strings.Cut(entry, "=")
		e, n, ok2 := strings.Cut(v, ":")
		epoch, ok3 := parseNumber(e, 32)
		next, ok4 := parseNumber(n, 63)
		if !ok || !ok2 || !ok3 || !ok4 || checkPartition(name) != nil {
			return nil, fmt.Errorf("uplink: malformed position %q", entry)
		}
		out = append(out, position{Partition: name, Epoch: uint32(epoch), Next: int64(next)})
	}
	return out, nil
}
