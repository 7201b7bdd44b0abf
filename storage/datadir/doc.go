// Package datadir owns the top of a data directory: the lock that keeps a
// second program out, the format version, the instance, and the epoch table.
//
// # Files
//
//	hub.json       the manifest: format, instance, running mark, epoch table
//	hub.json.bak   the same, written before it; used when hub.json is damaged
//	hub.json.tmp   a manifest being written; meaningless, replaced by the next
//	hub.lock       flocked while a program owns the directory; holds its pid
//
// The manifest is JSON on one line. Its "check" field is the CRC-32C, in hex,
// of that line with the field empty, so that a flipped digit is noticed and
// never served as an epoch.
//
// # Instance and epoch
//
// The instance is 128 random bits born with the directory. The epoch starts at
// 1 and rises after every unclean stop, because such a stop may take back
// offsets that were already used; (instance, partition, epoch, offset) names a
// record for ever.
//
// # Crash safety
//
// Every change writes hub.json.bak first and hub.json second, each as
// temporary file, fsync, rename, fsync of the directory. A crash at any point
// leaves a whole hub.json: the old or the new one. A backup is never older
// than hub.json, so an epoch read from it has not been left behind. The
// running mark is set before the first append of a run and taken away after
// the last, so a stop in between is seen as unclean. Assumption: rename is
// atomic and fsync means what it says.
package datadir
