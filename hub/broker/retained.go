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
}

type retRef struct {
	part   *partition
	offset int64
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
func (r *retained) update(b *Broker, p *partition, offset int64, name string, clears bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if clears {
		if r.names.Delete(name) {
			b.o.Meta.Delete(retainedKey(name))
		}
		return
	}
	r.names.Set(name, retRef{p, offset})
	b.o.Meta.Put(retainedKey(name), encodeRef(p.Name, offset))
}

func encodeRef(part string, offset int64) []byte {
	return append(binary.AppendUvarint(nil, uint64(offset)), part...)
}

func decodeRef(v []byte) (part string, offset int64, ok bool) {
	o, n := binary.Uvarint(v)
	if n <= 0 {
		return "", 0, false
	}
	return string(v[n:]), int64(o), true
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
	return b.o.Meta.Commit()
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
		b.retained.names.Set(name, retRef{to, at})
		b.o.Meta.Put(retainedKey(name), encodeRef(to.Name, at))
	}
	return nil
}
