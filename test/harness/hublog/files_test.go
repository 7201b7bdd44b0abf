package hublog

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// batch encodes records by hand, from the format's description.
func batch(base int64, records ...Record) []byte {
	var body []byte
	for i, r := range records {
		var rec []byte
		rec = append(rec, 0)
		rec = binary.AppendVarint(rec, r.TimeMs-records[0].TimeMs)
		rec = binary.AppendVarint(rec, int64(i))
		rec = append(binary.AppendVarint(rec, int64(len(r.Topic))), r.Topic...)
		rec = append(binary.AppendVarint(rec, int64(len(r.Payload))), r.Payload...)
		if r.QoS == 1 && !r.Retain {
			rec = binary.AppendVarint(rec, 0)
		} else {
			flags := r.QoS
			if r.Retain {
				flags |= 4
			}
			rec = binary.AppendVarint(rec, 1)
			rec = append(binary.AppendVarint(rec, 2), "\x00f"...)
			rec = append(binary.AppendVarint(rec, 1), flags)
		}
		body = append(binary.AppendVarint(body, int64(len(rec))), rec...)
	}
	b := make([]byte, batchHeader)
	binary.BigEndian.PutUint64(b, uint64(base))
	binary.BigEndian.PutUint32(b[8:], uint32(batchHeader-12+len(body)))
	b[batchMagic] = 2
	binary.BigEndian.PutUint32(b[batchLast:], uint32(len(records)-1))
	binary.BigEndian.PutUint64(b[batchFirstMs:], uint64(records[0].TimeMs))
	binary.BigEndian.PutUint32(b[batchCount:], uint32(len(records)))
	b = append(b, body...)
	binary.BigEndian.PutUint32(b[batchCRC:], crc32.Checksum(b[batchAttrs:], castagnoli))
	return b
}

var sample = []Record{
	{Partition: "1-0", Offset: 0, TimeMs: 1000, Topic: "a/b", Payload: []byte("x"), QoS: 1},
	{Partition: "1-0", Offset: 1, TimeMs: 1001, Topic: "a/c", Payload: []byte{}, QoS: 2, Retain: true},
	{Partition: "1-0", Offset: 2, TimeMs: 1001, Topic: "a", Payload: []byte("yy"), QoS: 0},
}

// write lays out one partition of stream s with the given files.
func write(t *testing.T, files map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	part := filepath.Join(dir, "streams", "s", "1-0")
	if err := os.MkdirAll(part, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(part, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func read(t *testing.T, dir string, from map[string]int64) ([]Record, error) {
	t.Helper()
	got := Collect{}
	err := ReadFiles(dir, "s", from, got.Add)
	return got["1-0"], err
}

func TestReadFiles(t *testing.T) {
	first, second := batch(0, sample[:2]...), batch(2, sample[2])
	whole := map[string][]byte{"00000000000000000000.log": first, "00000000000000000002.log": second}
	torn := map[string][]byte{"00000000000000000000.log": slices.Concat(first, second[:40])}
	for _, tt := range []struct {
		name  string
		files map[string][]byte
		from  map[string]int64
		want  []Record
	}{
		{"two segments", whole, nil, sample},
		{"from an offset", whole, map[string]int64{"1-0": 1}, sample[1:]},
		{"from the second segment", whole, map[string]int64{"1-0": 2}, sample[2:]},
		{"torn tail", torn, nil, sample[:2]},
		{"other files", map[string][]byte{"00000000000000000000.log": first, "x.idx": {1}}, nil, sample[:2]},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := read(t, write(t, tt.files), tt.from)
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != len(tt.want) {
				t.Fatalf("%d records, want %d", len(got), len(tt.want))
			}
			for i := range got {
				if diff := got[i].Same(&tt.want[i]); diff != "" {
					t.Errorf("record %d: %s", i, diff)
				}
			}
		})
	}
}

func TestReadFilesNotices(t *testing.T) {
	first := batch(0, sample[:2]...)
	flipped := slices.Clone(first)
	flipped[len(flipped)-1] ^= 1
	for name, tt := range map[string]struct {
		files map[string][]byte
		want  string
	}{
		"damage":             {map[string][]byte{"00000000000000000000.log": flipped}, "CRC"},
		"gap":                {map[string][]byte{"00000000000000000000.log": slices.Concat(first, batch(3, sample[2]))}, "want 2"},
		"repeated offsets":   {map[string][]byte{"00000000000000000000.log": slices.Concat(first, first)}, "want 2"},
		"torn inner segment": {map[string][]byte{"00000000000000000000.log": first[:50], "00000000000000000002.log": batch(2, sample[2])}, "not complete"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := read(t, write(t, tt.files), nil)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}

func TestReadFilesStops(t *testing.T) {
	stop := errors.New("enough")
	dir := write(t, map[string][]byte{"00000000000000000000.log": batch(0, sample...)})
	if err := ReadFiles(dir, "s", nil, func(*Record) error { return stop }); !errors.Is(err, stop) {
		t.Fatalf("error %v", err)
	}
}

func TestParseTail(t *testing.T) {
	const lines = `{"stream":"s","partition":1,"lane":0,"offset":0,"time":"1970-01-01T00:00:01.000Z","topic":"a/b","payload":"x","qos":1,"retain":false}
{"stream":"s","partition":1,"lane":0,"offset":1,"time":"1970-01-01T00:00:01.001Z","topic":"a/c","payload":"","qos":2,"retain":true,"properties":[["user","a","b"]]}
{"stream":"s","partition":1,"lane":0,"offset":2,"time":"1970-01-01T00:00:01.001Z","topic":"a","payload_base64":"eXk=","qos":0,"retain":false}
`
	got := Collect{}
	if err := parseTail(strings.NewReader(lines), "s", got.Add); err != nil {
		t.Fatal(err)
	}
	if got.Len() != len(sample) {
		t.Fatalf("%d records, want %d", got.Len(), len(sample))
	}
	for i := range sample {
		if diff := got["1-0"][i].Same(&sample[i]); diff != "" {
			t.Errorf("record %d: %s", i, diff)
		}
	}
	if err := parseTail(strings.NewReader(lines), "other", got.Add); err == nil {
		t.Error("a record of another stream was accepted")
	}
}

func TestDigest(t *testing.T) {
	sum := func(rs ...Record) Digest {
		d := Digest{}
		for i := range rs {
			if err := d.Add(&rs[i]); err != nil {
				t.Fatal(err)
			}
		}
		return d
	}
	all := sum(sample...)
	if diff := all.Diff(sum(sample...)); diff != "" {
		t.Error(diff)
	}
	swapped := []Record{sample[1], sample[0], sample[2]}
	other := slices.Clone(sample)
	other[1].Retain = false
	moved := slices.Clone(sample)
	moved[2].Partition = "2-0"
	for name, rs := range map[string][]Record{"fewer": sample[:2], "order": swapped, "flag": other, "partition": moved} {
		if all.Diff(sum(rs...)) == "" {
			t.Errorf("%s: not noticed", name)
		}
	}
}
