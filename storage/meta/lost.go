package meta

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"edgehub/storage/seglog"
)

// lostMax bounds the list of keys that may have been lost.
const lostMax = 1000

// suspects gathers, from the damaged stretches of the log at or above from, the keys that can still be read in them.
// The value is the end of the damage: a record of the key from there on is newer than what was lost.
func (s *Store) suspects(damage []seglog.Damage, from int64) (keys map[string]int64, err error) {
	keys = map[string]int64{}
	for _, d := range damage {
		if d.To <= max(from, d.From) {
			continue
		}
		err := s.log.Legible(d, func(r seglog.Record) bool {
			c, err := decodeRecord(r.Key, r.Value)
			if err != nil || len(c.key) == 0 || r.Headers.Count > 0 {
				return false
			}
			if _, known := keys[string(c.key)]; known || len(keys) < lostMax {
				keys[string(c.key)] = max(keys[string(c.key)], d.To)
			}
			return true
		})
		if err != nil {
			return nil, err
		}
	}
	return keys, nil
}

// lostKeys returns the keys of which the newest change may be in a damaged stretch at or above from, sorted: those that the
// stretch names and that no later record sets again.
func (s *Store) lostKeys(damage []seglog.Damage, from int64) ([]string, error) {
	keys, err := s.suspects(damage, from)
	if err != nil || len(keys) == 0 {
		return nil, err
	}
	at := slices.Min(slices.Collect(maps.Values(keys)))
	var chunk []byte
	for at < s.log.Next() && len(keys) > 0 {
		if chunk, err = s.log.Read(at, replayRead, chunk[:0]); err != nil {
			return nil, fmt.Errorf("meta: read log: %w", err)
		}
		next := at
		for r := range seglog.Records(chunk) {
			next = r.Offset + 1
			if since, ok := keys[string(r.Key)]; ok && r.Offset >= since {
				delete(keys, string(r.Key))
			}
		}
		if next <= at { // damage up to the end
			break
		}
		at = next
	}
	return slices.Sorted(maps.Keys(keys)), nil
}

// tellLost says which keys of the log cannot be told to be what they were.
func (s *Store) tellLost(damage []seglog.Damage, keys []string) {
	for _, d := range damage {
		s.o.Logger.Error("part of the metadata log is damaged", "segment", d.Segment, "from", d.From, "to", d.To, "err", d.Err)
	}
	for _, k := range keys {
		s.o.Logger.Error("the newest value of a metadata key may be lost", "key", string(clip([]byte(k))))
	}
}

// audit proves the whole log once, behind the start: the index has what the log has lost, but only until it is lost as
// well. So what is found is named, and the log is written again from the index, as a compaction does.
func (s *Store) audit() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stopped := make(chan struct{})
	defer close(stopped)
	go func() {
		select {
		case <-s.stop:
			cancel()
		case <-stopped:
		}
	}()
	var damage []seglog.Damage
	if _, err := s.log.Check(ctx, func(d seglog.Damage) {
		if d.To > max(d.From, s.log.First()) && !d.Unread() && len(damage) < lostMax {
			damage = append(damage, d)
		}
	}); err != nil {
		if errors.Is(err, context.Canceled) {
			return nil
		}
		return err
	}
	if len(damage) == 0 {
		return nil
	}
	keys, err := s.suspects(damage, 0)
	if err != nil {
		return err
	}
	for _, d := range damage {
		s.o.Logger.Warn("part of the metadata log is damaged; it is written again from its index", "segment", d.Segment, "from", d.From, "to", d.To,
			"keys", KeyList(slices.Sorted(maps.Keys(keys))), "err", d.Err)
	}
	return s.Compact()
}

// keyListMax is how many keys a line names.
const keyListMax = 20

// KeyList is a list of keys for a line of text.
func KeyList(keys []string) string {
	out := ""
	for i, k := range keys {
		if i == keyListMax {
			return out + fmt.Sprintf(" and %d more", len(keys)-i)
		}
		if i > 0 {
			out += ", "
		}
		out += fmt.Sprintf("%q", clip([]byte(k)))
	}
	return out
}

// DamagedKeys names the keys that a damaged stretch of a $meta log held, as far as they can be read.
func DamagedKeys(log *seglog.Log, d seglog.Damage) []string {
	keys, err := (&Store{log: log}).suspects([]seglog.Damage{d}, 0)
	if err != nil {
		return nil // the damage itself has been told
	}
	return slices.Sorted(maps.Keys(keys))
}
