package uplink

import (
	"encoding/json"
	"fmt"
	"time"
)

// savedState is what an uplink keeps besides its cursors.
type savedState struct {
	Paused  bool      `json:"paused,omitempty"`
	Remote  string    `json:"remote,omitempty"`
	Created time.Time `json:"created,omitzero"`
	Seq     uint64    `json:"seq,omitempty"`
	// Floors holds, for partitions whose floor is not their cursor, the offset
	// from which acknowledged records are still kept.
	Floors map[string]int64 `json:"floors,omitempty"`
}

func decodeState(b []byte) (savedState, error) {
	var s savedState
	if len(b) == 0 {
		return s, nil
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("uplink: state is not readable: %w", err)
	}
	return s, nil
}

func (s savedState) encode() ([]byte, error) { return json.Marshal(s) }

func (s savedState) checkpoint() checkpoint {
	return checkpoint{Remote: s.Remote, Created: s.Created, Seq: s.Seq}
}
