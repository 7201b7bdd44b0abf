package uplink

import (
	"context"
	"errors"
	"fmt"
	"time"

	"edgehub/hub/message"
)

// Partition is one ordered log as the uplink reads it.
type Partition interface {
	Name() string  // "telemetry/0-0": stream, partition, lane
	First() int64  // oldest offset still there
	Next() int64   // offset of the next append
	Synced() int64 // every record below it survives a power cut
	// Read appends whole record batches to dst: the first contains from or is
	// the first after it; nothing when from is at the end. Records that
	// retention has removed are seglog.ErrTrimmed.
	Read(from int64, max int, dst []byte) ([]byte, error)
	BytesFrom(offset int64) int64
}

// EpochStart is one row of the epoch table: the first offset of an epoch.
type EpochStart struct {
	Epoch uint32
	First int64
}

// Source is the log of the streams that an uplink forwards.
type Source interface {
	Partitions() []Partition
	// Notify sends on ch without blocking whenever some Synced has advanced.
	Notify(ch chan<- struct{}) (cancel func())
	EpochAt(partition string, offset int64) uint32
	EpochStarts(partition string) []EpochStart
}

// Cursors keeps an uplink's positions and its small state across restarts. Saves
// are cheap and may be buffered: a cursor that is behind only costs a look at
// the remote.
type Cursors interface {
	Load(uplink, partition string) (offset int64, ok bool, err error)
	Save(uplink, partition string, offset int64) error
	LoadState(uplink string) ([]byte, error) // nil: none
	SaveState(uplink string, state []byte) error
}

// Sink opens connections to one remote stream.
type Sink interface {
	// Connect opens a new connection and reads what the remote stream is. It
	// returns within its own timeouts, or when ctx ends, whichever is first.
	Connect(ctx context.Context) (Session, error)
}

// Session is one connection to the remote stream. It never reconnects: when it
// is lost it is closed and another one is opened. Its methods are called by one
// goroutine; only Close may come from others, at any time and more than once.
type Session interface {
	// Remote returns the remote stream as it was when the session was opened
	// or the stream created.
	Remote() Remote
	// Create creates the remote stream, or says in one line why not.
	Create(ctx context.Context) error
	// Stored returns what the remote holds at sequences from to to, in order,
	// one entry each.
	Stored(ctx context.Context, from, to uint64) ([]Stored, error)
	// Publish sends a record and returns its bytes on the wire. It copies what
	// it needs. With ErrTooLarge nothing of the record has left. It may block while the connection does, but not for longer
	// than the write timeout.
	Publish(o *Out) (int, error)
	// Acks appends the acknowledgements that have arrived. The error is the
	// connection's: nothing comes after it.
	Acks(dst []Ack) ([]Ack, error)
	// Ready receives a value when Acks has something to say.
	Ready() <-chan struct{}
	// Close releases the connection without waiting for the remote.
	Close()
}

// Remote describes the remote stream.
type Remote struct {
	Name     string
	Exists   bool
	Created  time.Time
	Messages uint64
	First    uint64 // sequence of the oldest record
	Last     uint64 // sequence of the newest record, also when it is gone
	// RecordMax is the largest record that it takes, headers included; 0: not known.
	RecordMax int64
	Expires   bool // the remote removes records by age
	// Replicated says that the remote compares sequences only, not ids.
	Replicated bool
	// Unsuitable says why this uplink cannot use the stream as it is configured.
	Unsuitable string
}

// Stored is a record at the remote, as far as the uplink needs it.
type Stored struct {
	Seq       uint64
	Found     bool
	ID        string
	Positions string
	Digest    Digest // zero: its time or topic cannot be told
	Size      int    // of headers and payload
}

// Out is a record on its way to the remote. It is reused; a sink copies.
type Out struct {
	Token     uint64
	ID        []byte
	Prev      []byte // id that the remote's newest record must have; nil: any
	LastSeq   uint64 // sequence that the remote's newest record must have
	Instance  string
	Stream    string
	Partition string // partition-lane
	Offset    int64
	Positions []byte // nil: not on this record
	Message   *message.Message
}

// Ack is the remote's word on one record.
type Ack struct {
	Token     uint64
	Seq       uint64
	Duplicate bool // the remote had it already
	Err       error
}

// ErrRefused is wrapped by a Sink's error when nothing listens where it connects
// to: finding that out was quick and cost next to nothing.
var ErrRefused = errors.New("connection refused")

// ErrTooLarge is wrapped by a Sink's error when the remote takes no record of
// that size, however often it is tried.
var ErrTooLarge = errors.New("larger than the remote takes")

// SizeError is an ErrTooLarge that names the limit and what mends it.
type SizeError struct {
	Reason string // "70000 bytes of headers, a record may have 65535"
	Cure   string // what to do about it, unless the record is left out
}

// Error returns the reason.
func (e *SizeError) Error() string { return e.Reason }

// Unwrap returns ErrTooLarge.
func (e *SizeError) Unwrap() error { return ErrTooLarge }

// Cause names why an uplink is blocked.
type Cause string

// The causes for which an uplink blocks.
const (
	CauseForeign    Cause = "foreign"    // somebody else wrote to the remote stream
	CauseAhead      Cause = "ahead"      // another history: the remote has records that this log never had
	CauseDiverged   Cause = "diverged"   // another history: the remote has other records under this log's offsets
	CauseRecreated  Cause = "recreated"  // the remote stream is not the one that was written before
	CausePurged     Cause = "purged"     // the remote stream was emptied
	CauseGap        Cause = "gap"        // records were deleted where the positions are read
	CauseUnsuitable Cause = "unsuitable" // the remote stream's configuration does not fit
	CauseTooLarge   Cause = "too-large"  // a record is larger than the remote takes
)

// history reports whether the remote has another history of the log than the
// log itself. That does not go away by itself, though it may become harder to see.
func (c Cause) history() bool { return c == CauseAhead || c == CauseDiverged }

// BlockedError says why going on would be a guess, and what to do about it.
type BlockedError struct {
	Cause  Cause
	Reason string
	Cure   string
}

// Error returns cause, reason and cure in one line.
func (e *BlockedError) Error() string { return fmt.Sprintf("%s: %s; %s", e.Cause, e.Reason, e.Cure) }
