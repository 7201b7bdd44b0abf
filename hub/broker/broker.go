// Package broker is the middle of the hub: it takes publishes into the log, fans committed records out to the
// sessions that want them, and only then acknowledges. It knows no protocol and no socket.
//
// # Loops and rounds
//
// Each event loop has one Loop here, and whatever belongs to a connection is touched on its loop only. While a loop
// handles its ready sockets, publishes are appended to the open batches of their partitions. Then comes the round: one
// write per touched partition, fan-out, acknowledgements, one write per connection. Loops talk to each other through
// mailboxes.
//
// # Order
//
// A partition has one committer at a time. It takes the open batch, writes it, and hands its records out in offset
// order before it takes the next one; mail for a loop is posted in that order too, and a mailbox is a FIFO. So every
// loop sees the records of a partition in offset order.
//
// # Bounded memory
//
// Nothing is queued per session. A session that cannot take a record now (offline, window full, connection slow)
// keeps its position and reads the log later; see catchup.go.
package broker

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"edgehub/hub/message"
	"edgehub/hub/session"
	"edgehub/hub/stream"
	"edgehub/hub/topic"
	"edgehub/internal/hubtime"
	"edgehub/storage/seglog"
)

// Reason codes of MQTT 5 that the broker itself gives; protocols without them translate.
const (
	CodeOK               byte = 0x00
	CodeUnspecified      byte = 0x80
	CodeTakenOver        byte = 0x8E
	CodeQuotaExceeded    byte = 0x97
	CodeFilterInvalid    byte = 0x8F
	CodeNotAuthorized    byte = 0x87
	CodeServerBusy       byte = 0x89
	CodeClientIDNotValid byte = 0x85
	CodeNoSubscription   byte = 0x11
	CodeSharedForbidden  byte = 0x9E
)

// Meta is the durable metadata that the broker keeps: storage/meta in the hub.
type Meta interface {
	Put(key, value []byte)
	// PutNew is Put for a key that is not there: deleted again soon, it costs the index nothing.
	PutNew(key, value []byte)
	Delete(key []byte)
	Commit() error
	Sync() error
	Scan(prefix []byte, fn func(key, value []byte) error) error
	// Backlog is how many bytes were put and are not committed, about; 0 means that all is.
	Backlog() int
}

// Conn is a connection as the broker uses it, always on its loop. None of the methods writes to the socket except
// Flush.
type Conn interface {
	// Attached answers Connect: the session is the connection's now; present tells whether it was there before.
	Attached(c *Client, present bool)
	// Room reports whether n more bytes may be queued towards the client.
	Room(n int) bool
	// Send queues a PUBLISH; d is valid during the call. False: it is larger than the client takes and was dropped
	// [MQTT-3.1.2-25].
	Send(d *Delivery) bool
	// SendRelease queues a PUBREL.
	SendRelease(id uint16)
	// Ack tells that the publish with that number is committed (CodeOK) or refused.
	Ack(seq uint32, code byte)
	// Close ends the connection with a reason code, without what is queued. With CodeTakenOver the session belongs to
	// another connection from now on.
	Close(code byte)
	// Flush writes what is queued. While Loop.Rests says of the client that it may not, it calls Loop.Wait instead, and is
	// called again.
	Flush()
}

// Delivery is one message on its way to one client.
type Delivery struct {
	Msg    *message.Message
	QoS    byte
	Dup    bool
	Retain bool
	ID     uint16
	SubIDs []uint32
	// Shared caches the encoded forms of Msg while it goes to many clients of one loop; nil for a single one.
	Shared *Shared
}

// Shared holds encoded forms of one message, so that each variant is encoded once per loop. The connection decides
// what a variant is.
type Shared struct {
	Variants [24]Variant
}

// Variant is one encoded form; IDAt is where the packet id goes, 0 when it has none.
type Variant struct {
	Valid bool
	Bytes []byte
	IDAt  int
}

func (s *Shared) reset() {
	for i := range s.Variants {
		s.Variants[i].Valid = false
	}
}

// Limits bound what clients can make the broker hold.
type Limits struct {
	ReceiveMaximum   int    // messages in flight to a client
	SessionExpiryMax uint32 // seconds
	SubsPerClient    int
	TopicLevels      int
	RetainedMessages int
	RetainedBytes    int64
	// TakeoversPerMinute bounds how often connections may take a client id from each other.
	TakeoversPerMinute int
	AckHoldMs          int64 // for which an acknowledgement is held at most while subscribers are behind; 0: none is
	LagBytes           int64 // that a connected subscriber may be behind without publishers waiting for it
	QoS0LagMs          int64 // a QoS 0 message older than this is not sent to a client that was slow
	CatchupBytes       int64 // bytes of log read ahead for all sessions together
	InboundBytes       int64 // bytes appended and not yet committed, per partition
	QoS0WhenLow        bool  // QoS 0 is written although the disk is nearly full
	// What a session may have of copies made when segments went, and what all of them may take on disk; 0: no limit.
	QueuedMessages            int
	QueuedBytes, OfflineBytes int64
}

// Options of a Broker.
type Options struct {
	Streams *stream.Set
	Meta    Meta
	Clock   *hubtime.Clock
	Logger  *slog.Logger
	Limits  Limits
	Rights  rightsFunc // nil: everybody may do everything
	// WriteWait is how long a loop waits for a write before it goes on without it; 0: for as long as it takes.
	WriteWait time.Duration
	// DiskLow reports whether the disk is nearly full; nil: it never is.
	DiskLow func() bool
}

// Broker routes messages. Its methods are safe for concurrent use; those of a Loop belong to that loop.
type Broker struct {
	o     Options
	log   *slog.Logger
	parts []*partition // by stream.Partition.ID

	loops   atomic.Pointer[[]*Loop]
	loopsMu sync.Mutex

	// subs are the subscriptions of connected sessions. version rises after each change, so that cached matches
	// are noticed to be stale.
	subs struct {
		sync.RWMutex
		tree topic.Tree[*attachment, target]
	}
	version atomic.Uint64
	willSeq atomic.Uint64
	// subTotal counts the subscriptions of all sessions, connected or not.
	subTotal atomic.Int64

	reg      registry
	retained retained
	catchup  catchup
	timers   timers
	shares   shares
	offline  offline
	sys      atomic.Pointer[map[string]string] // values of the hub's own topics
	vector   vector
	Stats    Stats
	said     struct{ refused, unroutable, slow, slowOver, lost sometimes }
	writers  writers

	released   atomic.Bool   // no acknowledgement is held any more
	inboundTop atomic.Uint64 // see startInbound

	stop chan struct{}
	wg   sync.WaitGroup
}

// Stats are counters of the whole hub, read by status and metrics.
type Stats struct {
	In, Out                                                      atomic.Int64
	InBytes, OutBytes                                            atomic.Int64
	DroppedQoS0, DroppedExpired, DroppedTrimmed, DroppedTooLarge atomic.Int64
	RefusedFull, RefusedWrite, RefusedBusy, Unroutable           atomic.Int64
	RefusedRetained, Flapping                                    atomic.Int64
	RefusedDisk, DroppedDisk, WriteBehindFailed, LostBehind      atomic.Int64
	DeniedPublish, DeniedSubscribe, DeniedDelivery, Kicked       atomic.Int64
	Foreign                                                      atomic.Int64
	MailGaps, Resent, Takeovers, Commits, CommitBytes            atomic.Int64
	CatchupJobs, CatchupRecords, CatchupScanned, CatchupSkipped  atomic.Int64
	SessionsExpired, WillsFired                                  atomic.Int64
	AcksHeld, AckHoldsOver, PaceGivenUp                          atomic.Int64
	// Messages withheld from their publisher, and replays of retained messages that another one stands for.
	NoLocal, ReplaysJoined atomic.Int64
	// Of messages that sessions still had to receive when their segment went: copies made, and messages lost to a
	// session's limit, to that of all copies, and because copies could not be made in time; one for each session.
	OfflineCopied, OfflineSessionFull, OfflineHubFull, OfflineLate atomic.Int64
}

// partition is the write side of one partition.
type partition struct {
	*stream.Partition

	// mu guards what follows. It is held for an append or a swap, never during I/O.
	mu         sync.Mutex
	open       *batch
	spare      *batch
	committing bool
	bytes      int64    // in open, writing and awaiting
	writing    *batch   // taken from open, not yet committed or refused
	awaiting   []*batch // written, not yet synced: Synced streams only
	stuck      *batch   // taken and not written, since the write failed or is late: Memory streams only
	stuckBusy  bool     // stuck is being written
	due, armed bool     // of streams that linger: write now; a timer is under way

	// posted is the offset below which mail has been posted to every loop that wants it. It is stored after the mail.
	posted atomic.Int64

	// Of pacing, see pace.go.
	far         atomic.Int32 // clients waited for
	noHoldMs    atomic.Int64 // hub time before which nothing is held
	recordBytes atomic.Int64 // size of a record, about: of the last batches
}

// batch is records that are committed together, and who waits for them.
type batch struct {
	b      seglog.Builder
	pend   []pending
	bytes  int64    // of pend, about
	acked  int      // records handed out before the write: Memory streams only
	urgent bool     // has a retained message: Memory streams write it before they hand it out
	after  []func() // called when the batch has been acknowledged or refused
}

// pending is what the commit of one record needs to know.
type pending struct {
	entry  *topicEntry
	from   *Client // publisher, nil for the hub itself
	conn   Conn    // who gets the acknowledgement; nil: nobody
	loop   *Loop   // conn's loop
	done   func(part *stream.Partition, offset int64, code byte)
	loc    seglog.Loc
	timeMs int64
	seq    uint32
	qos2   uint64 // number of a QoS 2 publish, 0: none
	retain bool
	quiet  bool // a copy of a record that was handed out before: not fanned out again
}

// New returns a broker on the given streams. Recover must be called before it serves.
func New(o Options) *Broker {
	b := &Broker{o: o, log: o.Logger, stop: make(chan struct{})}
	b.loops.Store(&[]*Loop{})
	b.writers.init(b, o.WriteWait)
	b.reg.init()
	b.catchup.init(b)
	for _, p := range o.Streams.Partitions {
		next := p.Log.Next()
		bp := &partition{Partition: p, open: &batch{}, spare: &batch{}}
		bp.open.b.Reset(next)
		bp.open.b.Floor(p.Log.LastTime()) // timestamps of a partition never decrease
		bp.posted.Store(next)
		b.parts = append(b.parts, bp)
	}
	b.offline.init(b)
	return b
}

// Start runs the background work.
func (b *Broker) Start() {
	b.catchup.start()
	b.writers.start()
	b.wg.Add(1)
	go b.tick()
}

// Stop ends the background work. Loops must have stopped before.
func (b *Broker) Stop() {
	close(b.stop)
	b.wg.Wait()
	b.catchup.stop()
	b.writers.stop()
	b.flushBehind()
}

// Counts returns the number of attached clients, of all sessions, and of their subscriptions.
func (b *Broker) Counts() (connections, sessions, subscriptions int) {
	connections, sessions = b.reg.counts()
	return connections, sessions, int(b.subTotal.Load())
}

// target is one subscription of a connected session.
type target struct {
	to  *attachment
	sub *session.Sub
}
