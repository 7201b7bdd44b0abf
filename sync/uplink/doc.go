// Package uplink replicates the partitions of the log to one remote stream, in
// order and effectively once, across outages of any length.
//
// The log is the only buffer. Records are read at a position per partition,
// only below the synced offset, merged into one pipeline, and published with a
// window in flight. Each carries an id (instance, partition, epoch, offset) and
// its predecessor's id, so that the remote refuses whatever is repeated or out
// of order. After any doubt the connection is thrown away, a new one is opened,
// and the remote is asked for the last record that it holds: the remote is the
// source of truth, the local cursor a hint.
//
// The parts, from the inside out:
//
//   - Machine: the states and the window, without I/O and without a clock.
//   - resolver: where to go on, from what the remote holds, or why not.
//   - merge: the partitions as one sequence of records.
//   - Replicator: the goroutine that drives them against a Sink.
//
// A Sink (package sync/sink/jetstream, and others) is the only part that knows
// a remote's protocol.
package uplink
