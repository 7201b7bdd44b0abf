// Package bench puts a message broker under load and says what it did and what it cost: messages per second, delay at
// P50, P99 and P99.9, messages lost, duplicated or out of order, and the broker's CPU time and memory.
//
// # What is measured
//
// Every message carries when it was meant to be sent, its flow (one topic of one publisher) and its number in the flow.
// Publishers and subscribers are in one process, so one monotonic clock judges both ends.
//
// With a rate, messages have times of their own: the delay counts from there, however late the broker let the load
// send. A broker that stands still for a second thus shows a second in every message that was due meanwhile, not in one
// only (coordinated omission). Without a rate, each publisher keeps a window of unacknowledged messages full, and the
// delay counts from the send.
//
// CPU time is what the kernel booked for the broker's process between the end of the warm-up and the last message. It
// comes in hundredths of a second, so a run must be long enough to mean something; the load on the same machine slows
// the broker down but is not counted.
//
// # How
//
// One goroutine reads a connection, many packets at a time, and answers with one write. A Codec hides the protocol:
// MQTT 3.1.1 and 5 here. Idle connections are bare sockets without goroutine or buffer.
package bench
