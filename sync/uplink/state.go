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
	// Anchor is what the remote was known to hold up to Seq, see ownAnchor.
	Anchor *ownAnchor `json:"anchor,omitempty"`
	// Floors holds, for partitions whose floor is not their cursor, the offset
	// from which acknowledged records are still kept.
	Floors map[string]int64 `json:"floors,omitempty"`
	// Branches are the operator's decisions about other histories at the remote.
	Branches branches `json:"branches,omitempty"`
	// Held is the other history that was found at the remote and not decided about.
	Held *held `json:"held,omitempty"`
	// Losses are, by partition, the records that the remote will never get.
	Losses map[string]*loss `json:"losses,omitempty"`
	// Moves are the operator's orders, by partition, that are not carried out yet.
	Moves map[string]move `json:"moves,omitempty"`
}

// held is a block that stays until the operator decides, over restarts and
// whatever is appended to the log.
type held struct {
	Cause    Cause     `json:"cause"`
	Reason   string    `json:"reason"`
	Cure     string    `json:"cure"`
	At       time.Time `json:"at"`
	Remote   string    `json:"remote"`
	Created  time.Time `json:"created"`
	Accepted bool      `json:"accepted,omitempty"` // the operator resumed; it is not carried out yet
}

// still returns the block as long as the remote is the stream that it is about.
func (h *held) still(r Remote) error {
	if h == nil || h.Accepted || !r.Exists || r.Messages == 0 || r.Name != h.Remote || !r.Created.Equal(h.Created) {
		return nil
	}
	return h.blocked()
}

func (h *held) blocked() *BlockedError { return &BlockedError{h.Cause, h.Reason, h.Cure} }

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
	return checkpoint{Remote: s.Remote, Created: s.Created, Seq: s.Seq, Anchor: s.Anchor}
}
