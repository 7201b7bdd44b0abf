package packet

import (
	"bytes"

	"edgehub/hub/message"
	"edgehub/hub/topic"
)

// filterCapKept bounds the memory that a reused Subscribe or Unsubscribe keeps after one packet with very many filters.
const filterCapKept = 256

// Decode decodes a SUBSCRIBE.
//
//	packet id      2 bytes
//	properties     variable byte integer length, properties; version 5 only
//	one or more:
//	  filter       2 bytes length, UTF-8
//	  options      1 byte: bits 0-1 QoS; version 5: bit 2 no local, bit 3 retain as published, bits 4-5 retain handling
func (s *Subscribe) Decode(version, first byte, body []byte) error {
	if err := checkFlags2(version, first); err != nil {
		return err
	}
	if s.Filters = s.Filters[:0]; cap(s.Filters) > filterCapKept {
		s.Filters = nil
	}
	r := reader{rest: body}
	s.ID, s.SubID, s.User = r.packetID(), 0, nil
	if version >= V5 {
		if err := s.properties(&r); err != nil {
			return err
		}
	}
	if r.err == nil && len(r.rest) == 0 {
		return ErrNoFilters
	}
	for len(r.rest) > 0 {
		f := SubFilter{Filter: r.filter()}
		if err := f.options(version, r.byte()); err != nil && r.err == nil {
			return err
		}
		s.Filters = append(s.Filters, f)
	}
	return r.err
}

func (s *Subscribe) properties(r *reader) error {
	props := r.properties(subscribeProps)
	var v property
	for props.next(&v) {
		if v.id == propUser {
			s.User = append(s.User, message.Pair{Name: v.name, Value: v.data})
			continue
		}
		if s.SubID != 0 { // only a delivery may carry several
			return ErrPropertyDup
		}
		s.SubID = v.num
	}
	return props.err
}

// options decodes the byte behind a filter.
func (f *SubFilter) options(version, b byte) error {
	f.QoS = b & 3
	if version < V5 {
		if b > 2 {
			return ErrSubOptions
		}
		return nil
	}
	f.NoLocal, f.RetainAsPublished, f.RetainHandling = b&4 != 0, b&8 != 0, b>>4&3
	switch {
	case b&0xC0 != 0:
		return ErrSubOptions
	case f.QoS == 3:
		return ErrSubQoS
	case f.RetainHandling == 3:
		return ErrRetainHandling
	case f.NoLocal && bytes.HasPrefix(f.Filter, []byte(topic.SharePrefix)):
		return ErrNoLocalShared
	}
	return nil
}

// filter reads a topic filter: a string of at least one character.
func (r *reader) filter() []byte {
	f := r.text()
	if r.err == nil && len(f) == 0 {
		r.fail(ErrFilterEmpty)
	}
	return f
}

// Decode decodes an UNSUBSCRIBE.
//
//	packet id      2 bytes
//	properties     variable byte integer length, properties; version 5 only
//	one or more:
//	  filter       2 bytes length, UTF-8
func (u *Unsubscribe) Decode(version, first byte, body []byte) error {
	if err := checkFlags2(version, first); err != nil {
		return err
	}
	if u.Filters = u.Filters[:0]; cap(u.Filters) > filterCapKept {
		u.Filters = nil
	}
	r := reader{rest: body}
	u.ID, u.User = r.packetID(), nil
	if version >= V5 {
		props := r.properties(unsubscribeProps)
		var v property
		for props.next(&v) {
			u.User = append(u.User, message.Pair{Name: v.name, Value: v.data})
		}
		if props.err != nil {
			return props.err
		}
	}
	if r.err == nil && len(r.rest) == 0 {
		return ErrNoFilters
	}
	for len(r.rest) > 0 {
		u.Filters = append(u.Filters, r.filter())
	}
	return r.err
}
