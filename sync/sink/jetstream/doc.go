// Package jetstream is the uplink's sink for NATS JetStream: one connection, one
// remote stream that only this hub writes, records published asynchronously with
// their id and their predecessor's id, acknowledgements on one inbox.
//
// The connection never reconnects by itself and buffers nothing across a loss;
// package uplink opens another and asks the remote where to go on. What a record
// looks like at the remote (subject, headers) is a contract, docs/UPLINK.md.
package jetstream
