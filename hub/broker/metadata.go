package broker

// Metadata without stalling the event loops.
//
// Durable metadata are committed before anything is flushed that rests on them: packet ids of QoS 2, subscriptions,
// sessions. The commit is a write as any other, see writer.go, and when it is late the loop goes on without it. Then
// only the connections wait whose packets rest on what is not committed; for all others the round ends as it always
// does. What is put meanwhile is the next commit's: one is under way at a time, and the next one takes the changes of all
// rounds since.
//
// Commits of a loop are numbered. What a client's packets rest on has the number of the commit that will cover it, and
// the connection asks for that when it is flushed (Rests). A connection that has to wait says so (Wait) and is flushed
// again when the commit is over.

// metadata is a loop's account of its commits. Owned by the loop.
type metadata struct {
	begun   uint64 // number of the latest commit
	done    uint64 // what was put before this commit began is durable
	busy    bool   // begun is late; a writer has it
	waiting []Conn // each once
}

// metaBacklogMax is how many bytes of metadata may wait for a late commit until what would add to them is refused.
const metaBacklogMax = 8 << 20

// rest notes that what is sent to the client from now on rests on what has been put for it.
func (l *Loop) rest(c *Client) { c.rests = l.meta.begun + 1 }

// Rests reports whether packets for the client rest on metadata that are not durable.
func (l *Loop) Rests(c *Client) bool { return c.rests > l.meta.done }

// Covered reports whether the commit that is under way makes all of that durable.
func (l *Loop) Covered(c *Client) bool { return c.rests <= l.meta.begun }

// Wait has a connection that may not write now flushed again after the commit that is under way.
func (l *Loop) Wait(conn Conn) { l.meta.waiting = append(l.meta.waiting, conn) }

// Begun is the number of the latest commit: what was queued before it began rests on no later one.
func (l *Loop) Begun() uint64 { return l.meta.begun }

// Done is the number of the latest commit that is over. What rests on a later one may not leave.
func (l *Loop) Done() uint64 { return l.meta.done }

// MetaBusy reports that a commit is late: to take on more that rests on it would only fill memory.
func (l *Loop) MetaBusy() bool { return l.meta.busy }

// metaFull reports that so much waits for a late commit that no more is taken on.
func (l *Loop) metaFull() bool {
	return l.meta.busy && l.b.o.Meta.Backlog() > metaBacklogMax
}

// commitMeta makes the round's changes durable, or leaves that to a writer.
func (l *Loop) commitMeta() {
	if l.meta.busy {
		if !l.handoffRests {
			l.postHandoffs()
		}
		return
	}
	err, over := l.tryCommit()
	if over {
		l.metaDone(l.meta.begun, err)
	}
}

// tryCommit begins a commit and reports whether it is over.
func (l *Loop) tryCommit() (err error, over bool) {
	l.save()
	l.meta.begun++
	l.handoffNew = false
	if l.b.o.Meta.Backlog() == 0 {
		return nil, true
	}
	t := l.newTask()
	t.p, t.bt, t.number = nil, nil, l.meta.begun
	if !l.do(t) {
		l.meta.busy = true
		return nil, false
	}
	return t.err, true
}

// metaDone goes on after a commit, in the round or by mail.
func (l *Loop) metaDone(number uint64, err error) {
	late := l.meta.busy
	l.meta.busy = false
	if err != nil {
		l.metaFailed(err)
		return
	}
	l.meta.done = number
	if !l.handoffNew { // else it rests on the next commit
		l.postHandoffs()
	}
	for i, conn := range l.meta.waiting {
		l.dirty = append(l.dirty, conn)
		l.meta.waiting[i] = nil
	}
	l.meta.waiting = l.meta.waiting[:0]
	if late {
		l.Schedule()
	}
}

// metaFailed: without the metadata nothing that rests on it may leave. There is no way to take back what is queued
// per connection, so the connections that wait are closed, and the flush that follows finds nothing but the reason;
// their clients come back and repeat.
func (l *Loop) metaFailed(err error) {
	l.flush() // what rests on nothing leaves; the others come to wait
	l.b.log.Error("metadata could not be written; closing the connections that wait for it", "err", err, "connections", len(l.meta.waiting))
	waiting := l.meta.waiting
	l.meta.waiting = nil
	for _, conn := range waiting {
		conn.Close(CodeUnspecified)
	}
}

// CommitMeta makes the metadata durable now that a client's packets rest on, for a connection that has to write before
// the end of the round. It reports whether they are.
func (l *Loop) CommitMeta(c *Client) bool {
	if !l.Rests(c) {
		return true
	}
	if l.meta.busy {
		return false
	}
	err, over := l.tryCommit()
	if over && err == nil {
		l.meta.done = l.meta.begun
	}
	return over && err == nil
}
