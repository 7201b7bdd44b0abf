package broker

import (
	"encoding/binary"
	"fmt"
	"sync"

	"edgehub/hub/message"
	"edgehub/hub/stream"
	"edgehub/hub/topic"
	"edgehub/storage/seglog"
)

// RetainedStream is the internal stream that retained messages are copied to before their segment is deleted.
const RetainedStream = "$retained"

// retained says for each topic where in the log its retained message is. The message itself is never rewritten while
// its segment lives.
type retained struct {
	mu    sync.RWMutex
	names topic.Names[retRef]
	bytes int64 // of all topics and payloads
}

type retRef struct {
	part   *partition
	offset int64
	size   int64 // of the payload
}

// set stores a reference. Under r.mu, or during recovery.
func (r *retained) set(name string, ref retRef) {
	r.bytes += int64(len(name)) + ref.size
	if old, had := r.names.Set(name, ref); had {
		r.bytes -= int64(len(name)) + old.size
	}
}

// isFull reports whether a retained message of that size would be one too many.
func (r *retained) isFull(o *Limits, name string, size int) bool {
	if size == 0 { // clears
		return false
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	old, had := r.names.Get(name)
	if had {
		return o.RetainedBytes > 0 && int64(size) > old.size && r.bytes-old.size+int64(size) > o.RetainedBytes
	}
	return o.RetainedMessages > 0 && r.names.Len() >= o.RetainedMessages ||
		o.RetainedBytes > 0 && r.bytes+int64(len(name)+size) > o.RetainedBytes
}

func (r *retained) get(name string) (retRef, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.names.Get(name)
}

// match calls fn for every topic with a retained message that the filter matches. fn must not call back.
func (r *retained) match(filter string, fn func(name string)) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	r.names.Match(filter, func(name string, _ retRef) bool {
		fn(name)
		return true
	})
}

// update takes a committed retained publish: an empty payload clears [MQTT-3.3.1-6].
func (r *retained) update(b *Broker, p *partition, offset int64, name string, size int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if size == 0 {
		if old, had := r.names.Get(name); had {
			r.bytes -= int64(len(name)) + old.size
			r.names.Delete(name)
			b.o.Meta.Delete(retainedKey(name))
		}
		return
	}
	ref := retRef{p, offset, int64(size)}
	r.set(name, ref)
	b.o.Meta.Put(retainedKey(name), encodeRef(ref))
}

// encodeRef: offset, size of the payload, name of the partition.
func encodeRef(r retRef) []byte {
	v := binary.AppendUvarint(nil, uint64(r.offset))
	return append(binary.AppendUvarint(v, uint64(r.size)), r.part.Name...)
}

func decodeRef(v []byte) (part string, offset, size int64, ok bool) {
	d := &decoder{v: v}
	offset, size = int64(d.uvarint()), int64(d.uvarint())
	return string(d.v), offset, size, !d.bad
}

// Retained is the number of retained messages.
func (b *Broker) Retained() int {
	b.retained.mu.RLock()
	defer b.retained.mu.RUnlock()
	return b.retained.names.Len()
}

// KeepRetained copies the retained messages of a segment that is about to be deleted to the internal stream, and
// points their topics there. The segment may go only when it has returned nil.
func (b *Broker) KeepRetained(sp *stream.Partition, seg seglog.SegmentInfo) error {
	type found struct {
		name   string
		offset int64
	}
	p := b.parts[sp.ID]
	var refs []found
	b.retained.mu.RLock()
	b.retained.names.All(func(name string, r retRef) bool {
		if r.part == p && r.offset < seg.Next {
			refs = append(refs, found{name, r.offset})
		}
		return true
	})
	b.retained.mu.RUnlock()
	for _, f := range refs {
		if err := b.keepOne(p, f.name, f.offset); err != nil {
			return fmt.Errorf("broker: keep the retained message of %q: %w", f.name, err)
		}
	}
	if len(refs) == 0 {
		// A reference that was replaced or cleared must not come back with a kill, when its record is gone.
		return b.o.Meta.Commit()
	}
	// The deletion of the segment survives a power cut: what takes its place must, too. Copies before their references.
	kept, err := b.o.Streams.Stream(RetainedStream)
	if err != nil {
		return err
	}
	if _, err := kept.Partitions[0].Log.Sync(); err != nil {
		return fmt.Errorf("broker: keep retained messages: %w", err)
	}
	return b.o.Meta.Sync()
}

func (b *Broker) keepOne(p *partition, name string, offset int64) error {
	st, err := b.o.Streams.Stream(RetainedStream)
	if err != nil {
		return err
	}
	to := b.parts[st.Partitions[0].ID]
	buf, err := p.Log.Read(offset, 1, nil)
	if err != nil {
		return err
	}
	for rec := range seglog.Records(buf) {
		if rec.Offset != offset {
			continue
		}
		var m message.Message
		if err := m.Decode(rec); err != nil {
			return err
		}
		return b.copyRetained(p, to, name, offset, &m, rec.Headers)
	}
	return nil // the record is damaged: there is nothing to keep
}

func (b *Broker) copyRetained(from, to *partition, name string, offset int64, m *message.Message, headers seglog.Headers) error {
	result := make(chan byte, 1)
	var at int64
	e := &topicEntry{name: name, raw: []byte(name)}
	code := b.append(to, e, m, headers, pending{quiet: true, done: func(_ *stream.Partition, o int64, code byte) {
		at = o
		result <- code
	}})
	if code == CodeOK {
		b.commit(to, nil)
		code = <-result
	}
	if code != CodeOK {
		return fmt.Errorf("refused with code %#x", code)
	}
	b.retained.mu.Lock()
	defer b.retained.mu.Unlock()
	if r, ok := b.retained.names.Get(name); ok && r.part == from && r.offset == offset {
		r = retRef{to, at, r.size}
		b.retained.set(name, r)
		b.o.Meta.Put(retainedKey(name), encodeRef(r))
	}
	return nil
}
